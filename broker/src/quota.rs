//! Client quotas on this broker: who is over a limit, and for how long.
//!
//! Limits are looked up in the cluster's view and measured here, per broker as in Kafka. Whoever goes over is not refused: the
//! answer goes out at once and says how long to rest, and the connection is not read from for that time (KIP-219). Only changes
//! of topics are refused, to clients that understand it (KIP-599), and connections that would wait too long.
//!
//! - `rate`, `tokens`: the two measures, pure. `table`: who is measured, bounded.
//! - While nobody is limited in a kind, that kind costs one atomic load a request.
//!
//! Until clients log in, every user is [`USER`]. Deliberately absent: sleeping and closing, which `net` does.

mod rate;
mod table;
mod tokens;

#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use felix_cluster::config::BrokerConfig;
use felix_cluster::config::broker::WindowsConfig;
use felix_cluster::quotas;
use felix_cluster::view::View;
use felix_control::agent::Agent;
use felix_protocol::time::MonoTime;
use parking_lot::Mutex;

use self::rate::{Rate, Windows};
use self::table::{Measure, Measured, Table};
use self::tokens::Tokens;
use crate::tasks;

/// Who a client is that has not logged in, in Kafka's words.
pub const USER: &str = "ANONYMOUS";
/// The longest that a connection waits for its turn; what would wait longer is turned away.
pub const LONGEST_CONNECT: Duration = Duration::from_secs(10);

/// What may be limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// Bytes of Produce requests.
    Produce,
    /// Bytes of Fetch answers.
    Fetch,
    /// Time of the broker's threads, in hundredths of one thread's.
    Request,
    /// Partitions made and removed.
    Mutation,
    /// Connections from one address.
    Connection,
}

impl Kind {
    /// All.
    pub const ALL: [Kind; 5] = [Kind::Produce, Kind::Fetch, Kind::Request, Kind::Mutation, Kind::Connection];

    /// Kafka's name of the limit.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Produce => "producer_byte_rate",
            Kind::Fetch => "consumer_byte_rate",
            Kind::Request => "request_percentage",
            Kind::Mutation => "controller_mutation_rate",
            Kind::Connection => "connection_creation_rate",
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// How much a consumer may be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// As much as it likes.
    Free,
    /// At most so many bytes at once: more would be over the limit whatever was before.
    AtMost(usize),
    /// Nothing now.
    Resting,
}

/// The quotas of one broker.
pub struct Quotas {
    /// The kinds in which anybody is limited.
    limited: AtomicU8,
    clients: Windows,
    controller: Windows,
    table: Mutex<Table>,
}

impl Quotas {
    /// Nobody is measured yet.
    pub fn new(config: &BrokerConfig) -> Quotas {
        let windows = |config: &WindowsConfig| Windows {
            count: config.count.max(1),
            size: Duration::from_secs(u64::from(config.seconds.max(1))),
        };
        Quotas {
            limited: AtomicU8::new(0),
            clients: windows(&config.quotas.clients),
            controller: windows(&config.quotas.controller),
            table: Mutex::default(),
        }
    }

    /// Follows what is limited, until the control side ends.
    pub fn follow(self: &Arc<Self>, agent: Agent) {
        let quotas = Arc::clone(self);
        tasks::spawn("quotas", async move {
            let mut changed = agent.changed();
            let mut seen = agent.view();
            quotas.learn(&seen);
            loop {
                let view = agent.view();
                if !view.shares_quotas(&seen) {
                    quotas.learn(&view);
                    seen = view;
                }
                if changed.changed().await.is_err() {
                    return;
                }
            }
        });
    }

    /// Notes which kinds are limited.
    pub fn learn(&self, view: &View) {
        let mut limited = 0;
        for kind in Kind::ALL {
            let named = view.quotas().any(|(_, quotas)| quotas.limits.contains_key(kind.name()));
            limited |= if named { kind.bit() } else { 0 };
        }
        self.limited.store(limited, Ordering::Release);
    }

    /// Whether anybody is limited in anything.
    pub fn any(&self) -> bool {
        self.limited.load(Ordering::Acquire) != 0
    }

    /// Whether anybody is limited in this.
    pub fn limits(&self, kind: Kind) -> bool {
        self.limited.load(Ordering::Acquire) & kind.bit() != 0
    }

    /// How many are measured.
    pub fn measured(&self) -> usize {
        self.table.lock().len()
    }

    /// Counts what a client used (not changes of topics, see [`Quotas::change`]); how long it must rest.
    pub fn count(
        &self,
        view: &View,
        kind: Kind,
        (user, client): (&str, &str),
        amount: f64,
        now: MonoTime,
    ) -> Duration {
        let Some((who, bound)) = self.bound(view, kind, user, client) else { return Duration::ZERO };
        let windows = self.clients;
        let mut table = self.table.lock();
        let measure = table.entry(kind, who, now, || Measure::Rate(Rate::default(), windows));
        let Measure::Rate(rate, windows) = measure else { return Duration::ZERO };
        rate.add(amount, *windows, now);
        let owed = rate.owed(bound, *windows, now);
        // One who used up much at once may go on soon all the same: time is not lost like bytes.
        if kind == Kind::Request { owed.min(windows.size) } else { owed }
    }

    /// How much a consumer may be given now.
    pub fn reading(&self, view: &View, (user, client): (&str, &str), now: MonoTime) -> Reading {
        let Some((who, bound)) = self.bound(view, Kind::Fetch, user, client) else { return Reading::Free };
        if let Some(Measure::Rate(rate, windows)) = self.table.lock().find(Kind::Fetch, &who)
            && !rate.owed(bound, *windows, now).is_zero()
        {
            return Reading::Resting;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a float's cast saturates"
        )]
        let most = (bound * self.clients.past().as_secs_f64()) as usize;
        Reading::AtMost(most)
    }

    /// Whether a client may change so many partitions, and if so, counts them. `strict`: it understands a refusal; others are
    /// always let through, and rest afterwards.
    pub fn change(
        &self,
        view: &View,
        (user, client): (&str, &str),
        partitions: usize,
        strict: bool,
        now: MonoTime,
    ) -> bool {
        let Some((who, rate)) = self.bound(view, Kind::Mutation, user, client) else { return true };
        let burst = rate * self.controller.whole().as_secs_f64();
        let mut table = self.table.lock();
        let full = || Measure::Tokens(Tokens::full(burst, now), rate, burst);
        let measure = table.entry(Kind::Mutation, who, now, full);
        let Measure::Tokens(tokens, at_rate, at_burst) = measure else { return true };
        (*at_rate, *at_burst) = (rate, burst);
        if strict && !tokens.owed(rate, burst, now).is_zero() {
            return false;
        }
        #[expect(clippy::cast_precision_loss, reason = "partitions are few")]
        tokens.take(partitions as f64, rate, burst, now);
        true
    }

    /// How long a client must rest that changed topics.
    pub fn changed(&self, view: &View, (user, client): (&str, &str), now: MonoTime) -> Duration {
        let Some((who, rate)) = self.bound(view, Kind::Mutation, user, client) else { return Duration::ZERO };
        let burst = rate * self.controller.whole().as_secs_f64();
        match self.table.lock().find(Kind::Mutation, &who) {
            Some(Measure::Tokens(tokens, _, _)) => tokens.owed(rate, burst, now),
            Some(Measure::Rate(..)) | None => Duration::ZERO,
        }
    }

    /// Counts a connection; how long it waits before it is served.
    pub fn connect(&self, view: &View, address: IpAddr, now: MonoTime) -> Duration {
        let kind = Kind::Connection;
        let binding =
            self.limits(kind).then(|| quotas::binding_address(view, address, kind.name())).flatten();
        let Some((_, bound)) = binding else { return Duration::ZERO };
        let windows = self.clients;
        let mut table = self.table.lock();
        let who = Measured::Address(address.to_canonical());
        let measure = table.entry(kind, who, now, || Measure::Rate(Rate::default(), windows));
        let Measure::Rate(rate, windows) = measure else { return Duration::ZERO };
        rate.add(1.0, *windows, now);
        let owed = rate.owed(bound, *windows, now);
        if owed > LONGEST_CONNECT {
            // It is turned away, and those who come later do not wait for it.
            rate.add(-1.0, *windows, now);
        }
        owed
    }

    /// The limit of a client and with whom it shares it.
    fn bound(&self, view: &View, kind: Kind, user: &str, client: &str) -> Option<(Measured, f64)> {
        if !self.limits(kind) {
            return None;
        }
        let (entity, bound) = quotas::binding(view, user, client, kind.name())?;
        Some((Measured::of(&entity, user, client), bound))
    }
}
