//! Who is being measured: a bounded table. An entry that says nothing any more may be dropped at any time, and when the table is
//! full of others, all who come next are measured together.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use felix_cluster::quotas::Entity;
use felix_protocol::time::MonoTime;

use super::Kind;
use super::rate::{Rate, Windows};
use super::tokens::Tokens;

/// The most entries.
const MOST_ENTRIES: usize = 10_000;
/// What a name is cut to as a key; longer ones are of no named entity.
const MOST_NAME_BYTES: usize = felix_cluster::quotas::MOST_NAME_BYTES;
/// How often the table is looked through while it grows.
const SWEEP_EVERY: Duration = Duration::from_secs(10);

/// Who shares one measure: those that one entity binds if they are named in it, otherwise each alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Measured {
    User(Box<str>),
    Client(Box<str>),
    UserClient(Box<str>, Box<str>),
    Address(IpAddr),
    /// Everyone for whom there was no room.
    Rest,
}

impl Measured {
    /// Of a user's client that is bound by `entity`.
    pub(super) fn of(entity: &Entity, user: &str, client: &str) -> Measured {
        match entity {
            Entity::User(_) => Measured::User(cut(user)),
            Entity::Client(_) => Measured::Client(cut(client)),
            Entity::UserClient(..) | Entity::Ip(_) => Measured::UserClient(cut(user), cut(client)),
        }
    }
}

fn cut(name: &str) -> Box<str> {
    let mut end = name.len().min(MOST_NAME_BYTES + 1);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name[..end].into()
}

/// A measure.
#[derive(Debug)]
pub(super) enum Measure {
    Rate(Rate, Windows),
    /// With the limit that it was last held to.
    Tokens(Tokens, f64, f64),
}

impl Measure {
    fn is_idle(&mut self, now: MonoTime) -> bool {
        match self {
            Measure::Rate(rate, windows) => rate.is_idle(*windows, now),
            Measure::Tokens(tokens, rate, burst) => tokens.is_idle(*rate, *burst, now),
        }
    }
}

/// The table.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: BTreeMap<(Kind, Measured), Measure>,
    swept_at: Option<MonoTime>,
}

impl Table {
    /// How many entries there are.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The measure of somebody, if they have one.
    pub(super) fn find(&mut self, kind: Kind, who: &Measured) -> Option<&mut Measure> {
        // Whoever was measured with the rest is looked for there.
        let own = (kind, who.clone());
        let key = if self.entries.contains_key(&own) { own } else { (kind, Measured::Rest) };
        self.entries.get_mut(&key)
    }

    /// The measure of somebody, which is made if need be.
    pub(super) fn entry(
        &mut self,
        kind: Kind,
        who: Measured,
        now: MonoTime,
        make: impl FnOnce() -> Measure,
    ) -> &mut Measure {
        let mut key = (kind, who);
        if !self.entries.contains_key(&key) {
            let due = self.swept_at.is_none_or(|at| now.since(at) >= SWEEP_EVERY);
            if due {
                self.swept_at = Some(now);
                self.entries.retain(|_, measure| !measure.is_idle(now));
            }
            if self.entries.len() >= MOST_ENTRIES {
                key.1 = Measured::Rest;
            }
        }
        self.entries.entry(key).or_insert_with(make)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOWS: Windows = Windows { count: 2, size: Duration::from_secs(1) };

    fn client(number: usize) -> Measured {
        Measured::Client(format!("c{number}").into())
    }

    fn add(table: &mut Table, who: Measured, now: MonoTime) -> Duration {
        let measure = table.entry(Kind::Produce, who, now, || Measure::Rate(Rate::default(), WINDOWS));
        let Measure::Rate(rate, windows) = measure else { panic!("no rate") };
        rate.add(1.0, *windows, now);
        rate.owed(1.0, *windows, now)
    }

    #[test]
    fn a_full_table_measures_the_rest_together_until_there_is_room() {
        let mut table = Table::default();
        let now = MonoTime(1_000_000_000_000);
        for number in 0..MOST_ENTRIES {
            assert_eq!(add(&mut table, client(number), now), Duration::ZERO);
        }
        assert_eq!(add(&mut table, client(MOST_ENTRIES), now), Duration::ZERO);
        assert_eq!(add(&mut table, client(MOST_ENTRIES + 1), now), Duration::from_secs(1));
        assert_eq!(add(&mut table, client(5), now), Duration::from_secs(1), "known ones go on by themselves");
        assert_eq!(table.len(), MOST_ENTRIES + 1);
        assert!(table.find(Kind::Produce, &client(MOST_ENTRIES + 7)).is_some());
        assert!(table.find(Kind::Fetch, &client(5)).is_none(), "kinds are apart");
        let later = now.after(SWEEP_EVERY);
        assert_eq!(add(&mut table, client(MOST_ENTRIES + 2), later), Duration::ZERO);
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn long_names_are_cut_between_letters() {
        let long = "\u{e9}".repeat(2_000);
        let entity = Entity::Client(felix_cluster::quotas::Who::Default);
        let Measured::Client(name) = Measured::of(&entity, "u", &long) else { panic!("no client") };
        assert_eq!(name.len(), MOST_NAME_BYTES);
    }
}
