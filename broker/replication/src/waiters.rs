//! Writers that wait for a word: released by offset, expired by time, bounded in number.
//!
//! Offsets rise from append to append, so a queue is nearly sorted by itself: a release takes from the front.
//! Only the retry of an older batch (a duplicate) waits for an offset below the newest, and is put in its
//! place from the back. Deadlines have no order; one lower bound says when looking through them can be worth
//! it, so nothing is kept sorted by time and an idle partition needs no timer.

use std::collections::VecDeque;

use felix_protocol::ids::Offset;
use felix_protocol::time::MonoTime;

/// Names one waiting writer. Whoever runs the machine knows what it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u32);

/// Whose word a writer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// The leader's durable commit point has passed the offset.
    Stored,
    /// The mark has passed the offset.
    Mark,
}

/// Writers that one partition keeps waiting at most.
pub const MAX_WAITERS: usize = 65_536;

#[derive(Clone, Copy, Debug)]
struct Waiter {
    /// Released once the position is at or past this.
    end: Offset,
    ticket: Ticket,
    deadline: MonoTime,
}

/// The waiting writers of one partition.
#[derive(Clone, Debug)]
pub struct Waiters {
    /// Invariant: both are sorted by `end`; equal ends in the order they came.
    stored: VecDeque<Waiter>,
    marked: VecDeque<Waiter>,
    /// No waiter's deadline is earlier.
    earliest: MonoTime,
}

impl Default for Waiters {
    fn default() -> Self {
        Waiters { stored: VecDeque::new(), marked: VecDeque::new(), earliest: MonoTime::NEVER }
    }
}

impl Waiters {
    /// Gives memory back while nobody waits.
    pub fn give_back(&mut self) {
        if self.is_empty() {
            *self = Waiters::default();
        }
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.stored.len() + self.marked.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.stored.is_empty() && self.marked.is_empty()
    }

    /// Whether anybody waits for this word.
    pub fn awaits(&self, word: Word) -> bool {
        match word {
            Word::Stored => !self.stored.is_empty(),
            Word::Mark => !self.marked.is_empty(),
        }
    }

    /// Whether one more may wait. Asked before the append: a batch in the log cannot be refused any more.
    pub fn has_room(&self) -> bool {
        self.len() < MAX_WAITERS
    }

    /// A time before which [`Waiters::expire`] finds nobody; never, when nobody waits.
    pub fn earliest_deadline(&self) -> MonoTime {
        self.earliest
    }

    /// One more waits until its position reaches `end`.
    pub fn wait(&mut self, word: Word, end: Offset, ticket: Ticket, deadline: MonoTime) {
        let queue = match word {
            Word::Stored => &mut self.stored,
            Word::Mark => &mut self.marked,
        };
        let waiter = Waiter { end, ticket, deadline };
        if queue.back().is_none_or(|last| last.end <= end) {
            queue.push_back(waiter);
        } else {
            let at = queue.partition_point(|other| other.end <= end);
            queue.insert(at, waiter);
        }
        self.earliest = self.earliest.min(deadline);
    }

    /// Takes out everyone whose word is given by the position, in the order of their offsets.
    pub fn release(&mut self, word: Word, position: Offset) -> Vec<Ticket> {
        let queue = match word {
            Word::Stored => &mut self.stored,
            Word::Mark => &mut self.marked,
        };
        let released = queue.partition_point(|waiter| waiter.end <= position);
        let tickets = queue.drain(..released).map(|waiter| waiter.ticket).collect();
        self.forget_deadlines_when_empty();
        tickets
    }

    /// Takes out everyone whose time is up.
    pub fn expire(&mut self, now: MonoTime) -> Vec<Ticket> {
        if now < self.earliest {
            return Vec::new();
        }
        let mut expired = Vec::new();
        let mut earliest = MonoTime::NEVER;
        for queue in [&mut self.stored, &mut self.marked] {
            queue.retain(|waiter| {
                let over = waiter.deadline <= now;
                if over {
                    expired.push(waiter.ticket);
                } else {
                    earliest = earliest.min(waiter.deadline);
                }
                !over
            });
        }
        self.earliest = earliest;
        expired
    }

    /// Takes out everyone: no word will come.
    pub fn drain(&mut self) -> Vec<Ticket> {
        self.earliest = MonoTime::NEVER;
        self.stored.drain(..).chain(self.marked.drain(..)).map(|waiter| waiter.ticket).collect()
    }

    fn forget_deadlines_when_empty(&mut self) {
        if self.is_empty() {
            self.earliest = MonoTime::NEVER;
            // A burst's memory is not kept by a partition that falls idle.
            for queue in [&mut self.stored, &mut self.marked] {
                if queue.capacity() > 64 {
                    *queue = VecDeque::new();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(time: u64) -> MonoTime {
        MonoTime(time)
    }

    fn tickets(numbers: &[u32]) -> Vec<Ticket> {
        numbers.iter().map(|number| Ticket(*number)).collect()
    }

    #[test]
    fn released_in_order_once_the_position_reaches_them() {
        let mut waiters = Waiters::default();
        waiters.wait(Word::Mark, 10, Ticket(1), at(100));
        waiters.wait(Word::Mark, 20, Ticket(2), at(100));
        waiters.wait(Word::Stored, 15, Ticket(3), at(100));
        assert_eq!(waiters.release(Word::Mark, 9), []);
        assert_eq!(waiters.release(Word::Mark, 10), tickets(&[1]));
        assert_eq!(waiters.release(Word::Stored, 99), tickets(&[3]), "each waits for its own word");
        assert_eq!(waiters.release(Word::Mark, 99), tickets(&[2]));
        assert_eq!(waiters.earliest_deadline(), MonoTime::NEVER);
    }

    #[test]
    fn a_duplicate_waits_at_its_old_place() {
        let mut waiters = Waiters::default();
        for (ticket, end) in [(1, 10), (2, 20), (3, 30), (4, 10), (5, 20)] {
            waiters.wait(Word::Mark, end, Ticket(ticket), at(100));
        }
        assert_eq!(waiters.release(Word::Mark, 20), tickets(&[1, 4, 2, 5]));
        assert_eq!(waiters.release(Word::Mark, 30), tickets(&[3]));
    }

    #[test]
    fn expired_by_time_whatever_the_order() {
        let mut waiters = Waiters::default();
        waiters.wait(Word::Mark, 10, Ticket(1), at(300));
        waiters.wait(Word::Stored, 20, Ticket(2), at(100));
        waiters.wait(Word::Mark, 30, Ticket(3), at(200));
        assert_eq!(waiters.earliest_deadline(), at(100));
        assert_eq!(waiters.expire(at(99)), []);
        assert_eq!(waiters.expire(at(200)), tickets(&[2, 3]));
        assert_eq!(waiters.earliest_deadline(), at(300));
        assert_eq!(waiters.drain(), tickets(&[1]));
        assert!(waiters.is_empty());
        assert_eq!(waiters.earliest_deadline(), MonoTime::NEVER);
    }

    #[test]
    fn room_ends_at_the_limit() {
        let mut waiters = Waiters::default();
        for number in 0..u32::try_from(MAX_WAITERS).unwrap() {
            assert!(waiters.has_room());
            waiters.wait(Word::Mark, Offset::from(number), Ticket(number), at(1));
        }
        assert!(!waiters.has_room());
        waiters.release(Word::Mark, 0);
        assert!(waiters.has_room());
    }
}
