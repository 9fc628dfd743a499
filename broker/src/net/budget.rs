//! Memory for requests, shared by all connections.
//!
//! Two purses, so that nobody who holds one waits for the same one: a large frame pays for its bytes before
//! they are received, and a whole request pays for what decoding it takes before it is started. A request
//! never needs more of either while it holds some, so the wait always ends.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Frames up to this many bytes are received without asking: less than what an open socket costs the system.
pub const SMALL_FRAME_BYTES: usize = 64 * 1024;

/// The purses.
#[derive(Clone)]
pub struct Budget {
    receiving: Purse,
    working: Purse,
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
    /// A budget of `bytes` for receiving, and as much for working.
    pub fn new(bytes: usize) -> Budget {
        Budget { receiving: Purse::new(bytes), working: Purse::new(bytes) }
    }

    /// For frames that are being received.
    pub fn receiving(&self) -> &Purse {
        &self.receiving
    }

    /// For requests that are being decoded and answered.
    pub fn working(&self) -> &Purse {
        &self.working
    }
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
        let purse = Budget::new(1000).working;
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
}
