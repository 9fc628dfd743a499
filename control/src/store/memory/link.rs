//! One node's way to the store in memory, and what is to go wrong on it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::store::StoreError;

/// What becomes of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is carried out and answered.
    Answered,
    /// It is refused; nothing happens.
    Refused,
    /// It is carried out, and its answer is lost.
    AnswerLost,
    /// It never arrives, which nobody is told.
    RequestLost,
    /// As [`Fate::RequestLost`], but it arrives after all: when so many other requests, of any node, have
    /// overtaken it, or at [`super::Server::deliver`].
    Late(usize),
}

/// How far requests of a node come. From less to more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// Nowhere: all are refused, and watches fall silent.
    Nothing,
    /// Reads are answered, transactions refused.
    ReadOnly,
    /// All are carried out.
    #[default]
    Everything,
}

/// What a node has asked so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads, listings and new watches.
    pub reads: usize,
    /// Transactions.
    pub transactions: usize,
}

/// See the module. Clones are the same way.
#[derive(Clone)]
pub struct Link {
    state: Arc<Mutex<State>>,
    woken: watch::Sender<u64>,
}

struct State {
    reach: Reach,
    held: bool,
    fates: VecDeque<Fate>,
    request: Duration,
    answer: Duration,
    page: usize,
    epoch: u64,
    counts: Counts,
}

impl Link {
    pub(super) fn new(woken: watch::Sender<u64>) -> Link {
        let state = State {
            reach: Reach::default(),
            held: false,
            fates: VecDeque::new(),
            request: Duration::ZERO,
            answer: Duration::ZERO,
            page: usize::MAX,
            epoch: 0,
            counts: Counts::default(),
        };
        Link { state: Arc::new(Mutex::new(state)), woken }
    }

    /// How far requests come from now on. One whose answer is on its way while the node is cut off never gets it.
    pub fn set_reach(&self, reach: Reach) {
        self.change(|state| state.reach = reach);
    }

    /// Whether watches are told nothing for the time being. What they are not told is not lost.
    pub fn hold_watches(&self, held: bool) {
        self.change(|state| state.held = held);
    }

    /// Ends all watches of this node that are running now.
    pub fn break_watches(&self) {
        self.change(|state| state.epoch += 1);
    }

    /// What becomes of the next transactions, in order; those after them are answered.
    pub fn script(&self, fates: impl IntoIterator<Item = Fate>) {
        self.change(|state| state.fates = fates.into_iter().collect());
    }

    /// How long requests and answers are on their way, by the runtime's clock.
    pub fn set_delays(&self, request: Duration, answer: Duration) {
        self.change(|state| (state.request, state.answer) = (request, answer));
    }

    /// At most so many keys come in one page, whatever was asked for.
    pub fn set_page(&self, keys: usize) {
        self.change(|state| state.page = keys);
    }

    /// What was asked so far.
    pub fn counts(&self) -> Counts {
        self.state.lock().counts
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.woken.send_modify(|count| *count += 1);
    }

    pub(super) fn count_read(&self) {
        self.state.lock().counts.reads += 1;
    }

    pub(super) fn next_fate(&self) -> Fate {
        let mut state = self.state.lock();
        state.counts.transactions += 1;
        state.fates.pop_front().unwrap_or(Fate::Answered)
    }

    pub(super) async fn travel(&self) {
        let delay = self.state.lock().request;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }

    pub(super) async fn return_trip(&self) {
        let delay = self.state.lock().answer;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }

    pub(super) fn reaches(&self, wanted: Reach) -> Result<(), StoreError> {
        let reach = self.state.lock().reach;
        if reach >= wanted {
            return Ok(());
        }
        Err(StoreError::Unavailable(format!("scripted: the store is within reach of {reach:?}")))
    }

    /// Whether watches hear anything.
    pub(super) fn tells(&self) -> bool {
        let state = self.state.lock();
        !state.held && state.reach > Reach::Nothing
    }

    pub(super) fn page(&self) -> usize {
        self.state.lock().page
    }

    pub(super) fn epoch(&self) -> u64 {
        self.state.lock().epoch
    }
}
