//! Memory for answers: from before their records are read until their bytes have left for the socket.
//!
//! A client decides when it takes its answers, and some never do. What all answers hold together is counted in one
//! place and bounded: nobody waits for this memory, everybody gets less of it the less is left. One answer may take a
//! quarter of what is free, so many clients that do not read share what there is and a newcomer still finds some of
//! it. However little is left, an answer may hold [`FLOOR_BYTES`], or one batch: whoever reads makes progress. So all
//! answers together stay below the limit, plus that floor for each connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// What an answer may hold even when all memory is taken.
pub const FLOOR_BYTES: usize = 64 * 1024;
/// What one answer may take is this part of what is free.
const PART: usize = 4;

/// The memory that all answers share.
#[derive(Clone, Debug)]
pub struct Answers {
    purse: Arc<Purse>,
}

#[derive(Debug)]
struct Purse {
    limit: usize,
    held: AtomicUsize,
    /// Told whenever memory is short no more.
    enough: Notify,
}

/// What one connection holds of it.
#[derive(Debug)]
pub struct Account {
    purse: Arc<Purse>,
    held: AtomicUsize,
}

/// Some bytes of a connection's account, given back when dropped.
#[derive(Debug)]
pub struct Held {
    account: Arc<Account>,
    bytes: usize,
}

impl Purse {
    /// Whether `held` is so much that there is little left.
    fn is_short(&self, held: usize) -> bool {
        held > self.limit / 4 * 3
    }

    fn give_back(&self, bytes: usize) {
        let before = self.held.fetch_sub(bytes, Ordering::Relaxed);
        if self.is_short(before) && !self.is_short(before - bytes) {
            self.enough.notify_waiters();
        }
    }

    /// What one more answer may take.
    fn part(&self) -> usize {
        self.limit.saturating_sub(self.held.load(Ordering::Relaxed)) / PART
    }
}

impl Answers {
    /// At most `limit` bytes.
    pub fn new(limit: usize) -> Answers {
        Answers { purse: Arc::new(Purse { limit, held: AtomicUsize::new(0), enough: Notify::new() }) }
    }

    /// The limit.
    pub fn limit(&self) -> usize {
        self.purse.limit
    }

    /// Bytes held now.
    pub fn held(&self) -> usize {
        self.purse.held.load(Ordering::Relaxed)
    }

    /// Whether more than three quarters are held: then memory is not left for long to those who do not read.
    pub fn is_short(&self) -> bool {
        self.purse.is_short(self.held())
    }

    /// Waits until memory is not short.
    pub async fn enough(&self) {
        loop {
            // Before the look, so that no word is missed in between.
            let told = self.purse.enough.notified();
            if !self.is_short() {
                return;
            }
            told.await;
        }
    }

    /// An account for one connection.
    pub fn account(&self) -> Arc<Account> {
        let purse = Arc::clone(&self.purse);
        Arc::new(Account { purse, held: AtomicUsize::new(0) })
    }
}

impl Account {
    /// Bytes that the connection holds.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Whether the connection may take on more: it holds less than `most`, and less than its part of what is free
    /// or the floor.
    pub fn has_room(&self, most: usize) -> bool {
        self.held() < self.purse.part().max(FLOOR_BYTES).min(most)
    }

    /// Takes `bytes`, or as much less as one connection may have now.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Held {
        let own = self.held();
        let mut taken = 0;
        let taking = |held: usize| {
            let part = self.purse.limit.saturating_sub(held) / PART;
            taken = bytes.min(part.saturating_sub(own).max(FLOOR_BYTES));
            Some(held + taken)
        };
        // It always says how much, so it always succeeds.
        let _ = self.purse.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taking);
        self.held.fetch_add(taken, Ordering::Relaxed);
        Held { account: Arc::clone(self), bytes: taken }
    }

    /// Counts `bytes` that are there already.
    pub fn count(self: &Arc<Self>, bytes: usize) -> Held {
        let mut held = Held { account: Arc::clone(self), bytes: 0 };
        held.resize(bytes);
        held
    }
}

impl Held {
    /// How many bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sets how many bytes are really held.
    pub fn resize(&mut self, bytes: usize) {
        let (all, own) = (&self.account.purse.held, &self.account.held);
        if bytes >= self.bytes {
            all.fetch_add(bytes - self.bytes, Ordering::Relaxed);
            own.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        } else {
            self.account.purse.give_back(self.bytes - bytes);
            own.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }

    /// Takes `bytes` more, if so much is free: for an answer that cannot be shortened and grows while it is made.
    pub fn grow(&mut self, bytes: usize) -> bool {
        let purse = &self.account.purse;
        let growing = |held: usize| held.checked_add(bytes).filter(|held| *held <= purse.limit);
        if purse.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, growing).is_err() {
            return false;
        }
        self.account.held.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        true
    }

    /// Gives `bytes` of them back.
    pub fn give_back(&mut self, bytes: usize) {
        self.resize(self.bytes.saturating_sub(bytes));
    }

    /// Takes over what another holds of the same account.
    pub fn absorb(&mut self, mut other: Held) {
        debug_assert!(Arc::ptr_eq(&self.account, &other.account), "of one connection");
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1 << 10;
    const MIB: usize = 1 << 20;

    #[test]
    fn the_less_is_left_the_less_is_given_and_never_less_than_the_floor() {
        let answers = Answers::new(256 * MIB);
        let mut deaf = Vec::new();
        for number in 0..500 {
            let account = answers.account();
            let held = account.take(50 * MIB);
            assert!(held.bytes() >= FLOOR_BYTES);
            if number < 4 {
                assert!(held.bytes() >= 20 * MIB, "{number}: {}", held.bytes());
            }
            deaf.push(held);
        }
        assert!(answers.held() <= 256 * MIB + 500 * FLOOR_BYTES);
        assert!(answers.is_short());
        // A small wish is fulfilled, and whoever holds nothing may always ask.
        let late = answers.account();
        assert!(late.has_room(MIB));
        let few = late.count(60 * KIB);
        assert!(late.has_room(MIB));
        drop(few);
        assert_eq!(late.take(1000).bytes(), 1000);
        drop(deaf);
        assert_eq!(answers.held(), 0);
        assert_eq!(late.take(50 * MIB).bytes(), 50 * MIB);
    }

    #[test]
    fn one_connection_has_one_part_however_often_it_asks() {
        let answers = Answers::new(256 * MIB);
        let account = answers.account();
        let held: Vec<_> = (0..64).map(|_| account.take(50 * MIB)).collect();
        assert!(answers.held() <= 64 * MIB + 64 * FLOOR_BYTES, "{}", answers.held() / MIB);
        assert!(!account.has_room(usize::MAX));
        assert!(answers.account().has_room(4 * MIB));
        drop(held);
        assert_eq!((account.held(), answers.held()), (0, 0));
    }

    #[test]
    fn what_is_held_follows_what_is_there() {
        let answers = Answers::new(MIB);
        let account = answers.account();
        let mut held = account.take(MIB);
        assert_eq!(held.bytes(), MIB / 4);
        // The first batch was larger than what was given.
        held.resize(2 * MIB);
        assert_eq!(answers.held(), 2 * MIB);
        let mut out = account.count(100);
        out.absorb(held);
        assert_eq!((out.bytes(), account.held()), (2 * MIB + 100, 2 * MIB + 100));
        assert!(!out.grow(1), "more is held than there is");
        out.give_back(2 * MIB);
        assert!(out.grow(MIB - 100) && !out.grow(1));
        assert_eq!(answers.held(), MIB);
        out.give_back(usize::MAX);
        assert_eq!((account.held(), answers.held()), (0, 0));
    }
}
