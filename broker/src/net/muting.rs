//! Rest: a client that went over a quota is answered at once and then not read from for a while.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use felix_protocol::frame::throttle;
use felix_protocol::messages::ApiKey;
use felix_protocol::time::{Clock, MonoTime};
use tokio::time::{Sleep, sleep};

use crate::handlers::{Checked, Reply};
use crate::node::Node;
use crate::quota::{Kind, USER};

/// What makes and removes partitions.
const CHANGES: [ApiKey; 3] = [ApiKey::CreateTopics, ApiKey::DeleteTopics, ApiKey::CreatePartitions];

/// What one request will be held to. There is none while nobody is limited.
pub struct Charge {
    api: ApiKey,
    version: i16,
    /// A copy: it must not keep the frame.
    client: Box<str>,
    /// Time that threads took for it.
    spent: Duration,
    timed: bool,
    /// What is owed already, since it was read.
    owed: Duration,
}

impl Charge {
    /// Of a request that is about to be started. What a producer sends counts from here on: the next request may be here
    /// before this one is answered.
    pub fn of(node: &Node, request: &Checked) -> Option<Box<Charge>> {
        if !node.quotas.any() {
            return None;
        }
        let mut charge = Box::new(Charge {
            api: request.api(),
            version: request.version(),
            client: request.client_id().into(),
            spent: Duration::ZERO,
            timed: node.quotas.limits(Kind::Request),
            owed: Duration::ZERO,
        });
        if charge.api == ApiKey::Produce {
            charge.owed = charge.count(node, Kind::Produce, amount(request.bytes()), node.clock.now());
        }
        Some(charge)
    }

    /// What is owed so far.
    pub fn owed(&self) -> Duration {
        self.owed
    }

    /// When a thread begins to work for it, if that counts.
    pub fn begin(&self, node: &Node) -> Option<MonoTime> {
        self.timed.then(|| node.clock.now())
    }

    /// The thread has done for now.
    pub fn pause(&mut self, node: &Node, began: Option<MonoTime>) {
        if let Some(began) = began {
            self.spent += node.clock.now().since(began);
        }
    }

    /// The answer is on its way out: what is owed for all of it, and the answer that says so.
    pub fn settle(mut self, node: &Node, reply: Reply, now: MonoTime) -> (Duration, Reply) {
        let bytes = match &reply {
            Reply::Frame(frame) => frame.len(),
            Reply::Pieces(pieces, _) => pieces.iter().map(Bytes::len).sum(),
            Reply::None | Reply::Close(_) => return (self.owed, reply),
        };
        let mut more = Duration::ZERO;
        if self.api == ApiKey::Fetch {
            more = self.count(node, Kind::Fetch, amount(bytes), now);
        } else if CHANGES.contains(&self.api) {
            more = node.quotas.changed(&node.view(), (USER, &self.client), now);
            self.note(node, Kind::Mutation, more);
        }
        if self.timed {
            let percent = self.spent.as_secs_f64() * 100.0;
            more = more.max(self.count(node, Kind::Request, percent, now));
        }
        self.owed = self.owed.max(more);
        if self.owed.is_zero() {
            return (self.owed, reply);
        }
        let told = i32::try_from(self.owed.as_millis().max(1)).unwrap_or(i32::MAX);
        let put = |pieces| throttle::put(self.api, self.version, pieces, told);
        let reply = match reply {
            Reply::Frame(frame) => {
                let mut pieces = put(vec![frame]);
                match pieces.len() {
                    1 => Reply::Frame(pieces.remove(0)),
                    _ => Reply::Frame(pieces.concat().into()),
                }
            }
            Reply::Pieces(pieces, held) => Reply::Pieces(put(pieces), held),
            Reply::None | Reply::Close(_) => reply,
        };
        (self.owed, reply)
    }

    fn count(&self, node: &Node, kind: Kind, amount: f64, now: MonoTime) -> Duration {
        if !node.quotas.limits(kind) {
            return Duration::ZERO;
        }
        let owed = node.quotas.count(&node.view(), kind, (USER, &self.client), amount, now);
        self.note(node, kind, owed);
        owed
    }

    fn note(&self, node: &Node, kind: Kind, owed: Duration) {
        if !owed.is_zero() {
            node.metrics.throttled.with_label_values(&[kind.name()]).inc();
            tracing::debug!(client = %self.client, quota = kind.name(), ?owed, "a client is over its quota");
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a frame is far smaller than that")]
fn amount(bytes: usize) -> f64 {
    bytes as f64
}

/// The rest of one connection.
#[derive(Default)]
pub struct Muting(Option<Box<Muted>>);

struct Muted {
    until: MonoTime,
    sleep: Pin<Box<Sleep>>,
}

impl Muting {
    /// Whether the peer is not to be read from.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Rests so long from now on, or longer if that is so already.
    pub fn extend(&mut self, owed: Duration, now: MonoTime) {
        let until = now.after(owed);
        if !owed.is_zero() && self.0.as_ref().is_none_or(|muted| muted.until < until) {
            self.0 = Some(Box::new(Muted { until, sleep: Box::pin(sleep(owed)) }));
        }
    }

    /// Whether the rest has just come to its end; otherwise the task is woken then.
    pub fn poll_over(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let is_over = self.0.as_mut().is_some_and(|muted| muted.sleep.as_mut().poll(context).is_ready());
        if !is_over {
            return Poll::Pending;
        }
        self.0 = None;
        Poll::Ready(())
    }
}
