//! Memory for requests and answers, shared by all connections.
//!
//! Requests have two purses, so that nobody who holds one waits for the same one: a large frame pays for its
//! bytes as they are received, and a whole request pays for what decoding it takes before it is started. A request
//! never needs more of the second while it holds some, so the wait always ends; for the first see [`Receiving`].
//! Answers have a third, for which no consumer waits: see [`answers`]. Requests that take long, or whose answers may be
//! many times their size, take [`turns`].
//!
//! What other brokers send is paid from a purse of its own: a client's write may hold memory here until another broker
//! has taken it, so that two brokers would wait for each other if both purses were one.

pub mod answers;
pub mod turns;

use std::sync::Arc;

use answers::Answers;
use felix_cluster::config::broker::NetConfig;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use turns::Turns;

/// Frames up to this many bytes are received without asking: less than what an open socket costs the system.
pub const SMALL_FRAME_BYTES: usize = 64 * 1024;

/// The purses.
#[derive(Clone)]
pub struct Budget {
    receiving: Receiving,
    working: Purse,
    answers: Answers,
    turns: Turns,
    peers: Receiving,
}

/// Some memory, given back when dropped.
pub type Share = OwnedSemaphorePermit;

/// One amount of memory that many share, first come first served.
#[derive(Clone)]
pub struct Purse {
    free: Arc<Semaphore>,
    /// A single request that is larger than all there is takes all there is, and goes alone.
    most: u32,
}

impl Budget {
    /// As configured, or else a part of the memory that there is. It is a bound on what clients can take, not
    /// something that is set aside.
    pub fn of(config: &NetConfig) -> Budget {
        let memory = memory();
        let bytes =
            |given: Option<u64>, own: u64| usize::try_from(given.unwrap_or(own)).unwrap_or(usize::MAX);
        let requests = (memory / 8).clamp(128 << 20, 2 << 30);
        Budget::new(
            bytes(config.queued_bytes, requests),
            bytes(None, requests),
            bytes(config.answer_bytes, (memory / 16).clamp(64 << 20, 512 << 20)),
        )
    }

    /// So many bytes for receiving, for working and for answers.
    pub fn new(receiving: usize, working: usize, answers: usize) -> Budget {
        let answers = Answers::new(answers);
        Budget {
            receiving: Receiving::new(receiving as u64),
            working: Purse::new(working),
            turns: Turns::new(answers.clone()),
            answers,
            peers: Receiving::new((memory() / 16).clamp(64 << 20, 512 << 20)),
        }
    }

    /// For frames that are being received.
    pub fn receiving(&self) -> &Receiving {
        &self.receiving
    }

    /// For frames of other brokers.
    pub fn peers(&self) -> &Receiving {
        &self.peers
    }

    /// For requests that are being decoded and answered.
    pub fn working(&self) -> &Purse {
        &self.working
    }

    /// For answers.
    pub fn answers(&self) -> &Answers {
        &self.answers
    }

    /// For requests that others must not feel.
    pub fn turns(&self) -> &Turns {
        &self.turns
    }
}

/// Memory for large frames. A frame pays for what has arrived of it and as much again, never for what its length
/// claims: whoever announces much and sends little keeps nothing from others.
///
/// So a frame may need more while it holds some, and all of them together might wait for each other. Therefore one
/// frame at a time is let through without paying: all others wait for it at most as long as it may take.
#[derive(Clone)]
pub struct Receiving {
    purse: Purse,
    last: Purse,
}

/// What a frame has paid.
#[derive(Default)]
pub struct Paid {
    bytes: usize,
    share: Option<Share>,
    /// It is the one that goes through without paying any more.
    last: Option<Share>,
}

/// A step of a payment, later.
pub type PaidLater = std::pin::Pin<Box<dyn Future<Output = Paid> + Send>>;

impl Receiving {
    /// So many bytes.
    pub fn new(bytes: u64) -> Receiving {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        Receiving { purse: Purse::new(bytes), last: Purse::new(1) }
    }

    /// Whether `paid` covers `bytes`; pays what is missing, if it is free.
    pub fn pay(&self, paid: &mut Paid, bytes: usize) -> bool {
        if paid.bytes >= bytes || paid.last.is_some() {
            return true;
        }
        let more = bytes - paid.bytes;
        let share = self.purse.take(more);
        let enough = share.is_some();
        paid.add(Paid { bytes: more, share, last: None });
        enough
    }

    /// Waits until `bytes` more are free, or until it is this frame's turn to go without paying.
    pub fn wait(&self, bytes: usize) -> PaidLater {
        let (share, last) = (self.purse.wait(bytes), self.last.wait(1));
        Box::pin(async move {
            tokio::select! {
                biased;
                share = share => Paid { bytes, share, last: None },
                last = last => Paid { bytes: 0, share: None, last },
            }
        })
    }

    /// Whether more than three quarters are taken.
    pub fn is_short(&self) -> bool {
        self.purse.free.available_permits() < self.purse.most as usize / 4
    }
}

impl Paid {
    /// Whether memory is set aside for the frame.
    pub fn holds(&self) -> bool {
        self.share.is_some() || self.last.is_some()
    }

    /// Whether it goes through without paying.
    pub fn is_last(&self) -> bool {
        self.last.is_some()
    }

    /// How much it has paid.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds another payment.
    pub fn add(&mut self, other: Paid) {
        if let Some(more) = other.share {
            self.bytes += other.bytes;
            match &mut self.share {
                Some(share) => share.merge(more),
                None => self.share = Some(more),
            }
        }
        self.last = self.last.take().or(other.last);
    }
}

/// The machine's memory, or what this container may have of it.
fn memory() -> u64 {
    let kilobytes = |text: String| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?.to_owned();
        line.trim().trim_end_matches(" kB").parse::<u64>().ok()
    };
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(kilobytes).map(|kb| kb * 1024);
    // "max" where a container has no limit of its own.
    let own = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let own = own.and_then(|text| text.trim().parse::<u64>().ok());
    machine.into_iter().chain(own).min().unwrap_or(1 << 30)
}

/// A share, now or later.
pub type Wait = std::pin::Pin<Box<dyn Future<Output = Option<Share>> + Send>>;

impl Purse {
    fn new(bytes: usize) -> Purse {
        let most = u32::try_from(bytes.min(Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
        Purse { free: Arc::new(Semaphore::new(most as usize)), most }
    }

    fn amount(&self, bytes: usize) -> u32 {
        u32::try_from(bytes).unwrap_or(u32::MAX).min(self.most)
    }

    /// Takes `bytes` if they are free and nobody waits.
    pub fn take(&self, bytes: usize) -> Option<Share> {
        Arc::clone(&self.free).try_acquire_many_owned(self.amount(bytes)).ok()
    }

    /// Waits for `bytes`.
    pub fn wait(&self, bytes: usize) -> Wait {
        let (free, amount) = (Arc::clone(&self.free), self.amount(bytes));
        // The semaphore is never closed.
        Box::pin(async move { free.acquire_many_owned(amount).await.ok() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_giant_goes_alone_and_others_wait_their_turn() {
        let purse = Purse::new(1000);
        let small = purse.take(400).unwrap();
        assert!(purse.take(700).is_none());
        let mut giant = purse.wait(1_000_000_000_000);
        assert!(futures_now(&mut giant).is_none());
        assert!(purse.take(1).is_none(), "nobody overtakes the giant");
        drop(small);
        let held = giant.await.unwrap();
        assert!(purse.take(1).is_none());
        drop(held);
        assert!(purse.take(1000).is_some());
    }

    fn futures_now(wait: &mut Wait) -> Option<Share> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match wait.as_mut().poll(&mut context) {
            std::task::Poll::Ready(share) => share,
            std::task::Poll::Pending => None,
        }
    }

    #[tokio::test]
    async fn frames_that_wait_for_each_other_are_let_through_one_at_a_time() {
        let receiving = Budget::new(1000, 0, 0).receiving;
        let (mut one, mut two) = (Paid::default(), Paid::default());
        assert!(receiving.pay(&mut one, 500) && receiving.pay(&mut two, 500));
        assert!(!receiving.pay(&mut one, 800) && !receiving.pay(&mut two, 900));
        assert!(receiving.is_short());
        let (first, mut second) = (receiving.wait(300), receiving.wait(400));
        one.add(first.await);
        assert!(one.is_last() && receiving.pay(&mut one, 10_000));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(second.as_mut().poll(&mut context).is_pending(), "one at a time");
        drop(one);
        two.add(second.await);
        assert!(receiving.pay(&mut two, 900) && !two.is_last(), "what the other has given back");
        drop(two);
        assert_eq!(receiving.purse.free.available_permits(), 1000);
        assert!(!receiving.is_short());
    }
}
