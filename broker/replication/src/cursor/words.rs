//! What a cursor is told, and what it wants done.

use felix_protocol::generation_map::GenerationMap;
use felix_protocol::ids::{Generation, LogId, Offset};
use felix_protocol::peer::ship::Said;

use crate::eligible::Pair;
use crate::follower::Reply;
use crate::halted::HaltReason;

/// What may be on its way to one follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Frames without an answer.
    pub frames: usize,
    /// Their record bytes.
    pub bytes: usize,
    /// Record bytes of one frame.
    pub frame_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { frames: 16, bytes: 4 << 20, frame_bytes: 1 << 20 }
    }
}

/// Names one frame of this cursor. Rises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub u64);

/// The leader's log, as far as a cursor needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogFacts {
    /// The first offset that can be shipped.
    pub base: Offset,
    /// One past the last record written, flushed or not: the leader's disk and its followers' work at the same time.
    pub end: Offset,
    /// The mark.
    pub mark: Offset,
}

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// There is a connection to the follower's present session; another than before, if there was one.
    Connected,
    /// There is none any more. What was on its way may arrive or not.
    Disconnected,
    /// The leader's log or mark moved.
    Log(LogFacts),
    /// The frame was read and handed over to the connection: its range ends at `next`.
    Sent {
        /// Which.
        frame: FrameId,
        /// One past its range.
        next: Offset,
        /// Its record bytes.
        bytes: usize,
    },
    /// The range could not be read: the log begins later by now, or the read failed.
    Unreadable(FrameId),
    /// What is on its way has no answer on this connection: it took too long, or the peer does not know what was asked.
    Unanswered,
    /// The follower answered.
    Answer {
        /// To which frame.
        frame: FrameId,
        /// With what; no log id: there is no copy.
        log: Option<LogId>,
        /// The generation that it accepts.
        generation: Generation,
        /// Its durable end.
        end: Offset,
        /// What it says.
        said: Said,
    },
    /// The restart that was asked for may go ahead, with so many bytes a second (0: unlimited).
    Granted {
        /// The rate.
        bytes_per_sec: u64,
    },
    /// Time has passed.
    Tick,
}

impl Event {
    /// A follower's answer, as its machine gave it.
    pub fn answer(frame: FrameId, reply: Reply) -> Event {
        let Reply { generation, log, end, said } = reply;
        Event::Answer { frame, log: Some(log), generation, end, said }
    }
}

/// How much of the generation map a header carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderMap {
    /// The newest 64 entries.
    Newest,
    /// All since this generation (T5).
    Since(Generation),
}

/// Entries of the map in a first header.
pub const HEADER_ENTRIES: usize = 64;

impl HeaderMap {
    /// The entries that the header carries of `map`, and the generation from which on they are all that there are. `newest`: how
    /// many a first header has ([`HEADER_ENTRIES`]).
    pub fn of(self, map: &GenerationMap, newest: usize) -> (Vec<(Generation, Offset)>, Generation) {
        let entries = match self {
            HeaderMap::Newest => map.newest(newest),
            HeaderMap::Since(oldest) => map.since(oldest),
        };
        if entries.len() == map.entries().len() {
            return (entries.to_vec(), Generation::ZERO);
        }
        // Asked for all since a generation that this log never had, the answer is complete from there, not from the next one.
        let complete_from = match self {
            HeaderMap::Newest => entries.first().map_or(Generation::ZERO, |(oldest, _)| *oldest),
            HeaderMap::Since(oldest) => oldest,
        };
        (entries.to_vec(), complete_from)
    }
}

/// One thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a tenure header and nothing else; [`Event::Sent`] is not waited for.
    Header {
        /// Under this id.
        frame: FrameId,
        /// With so much of the map.
        map: HeaderMap,
    },
    /// Read what the log has from `from` on, at most so many bytes but at least a batch, and send it; [`Event::Sent`] or
    /// [`Event::Unreadable`] follows.
    Ship {
        /// Under this id.
        frame: FrameId,
        /// To that copy.
        log: LogId,
        /// Where the range begins.
        from: Offset,
        /// The most bytes.
        most: usize,
    },
    /// Send a frame without records: the mark moved, or to be heard of.
    Idle {
        /// Under this id.
        frame: FrameId,
        /// To that copy.
        log: LogId,
    },
    /// The copy is to begin anew. Whoever runs the machine asks the leader whether that may be (C12), for a rebuild also for a
    /// slot, and says [`Event::Granted`].
    AskRestart {
        /// Which copy.
        pair: Pair,
        /// Whether records are discarded by it.
        rebuild: bool,
    },
    /// Send a bootstrap or rebuild.
    Restart {
        /// Under this id.
        frame: FrameId,
        /// Which copy is meant.
        log: LogId,
        /// Which of the two.
        rebuild: bool,
    },
    /// The slot is free again: the copy is level, or could not be rebuilt.
    ReleaseSlot {
        /// Whether the rebuild has come to its end.
        completed: bool,
    },
    /// The follower answered something: the leader is not cut off from it.
    Heard,
    /// The connection ended.
    Lost,
    /// Tell the leader: this pair holds everything below (C4).
    Confirmed {
        /// The pair.
        pair: Pair,
        /// One past its last durable record.
        position: Offset,
    },
    /// Tell the leader: this pair is known dead, its broker holds another copy by now, or less than it had confirmed.
    Dead(Pair),
    /// Tell the leader, and the listing: the copy has stopped.
    Halted {
        /// The pair.
        pair: Pair,
        /// Where its log ends.
        position: Offset,
        /// Why.
        reason: HaltReason,
    },
    /// It is shipped to again.
    Resumed,
    /// Somebody leads at this newer generation.
    Superseded(Generation),
}

/// How far a cursor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing is known in this tenure.
    Unknown,
    /// A header is on its way.
    Reconciling,
    /// The follower is part of the tenure.
    Shipping,
    /// It was told to begin anew.
    Restarting,
    /// It has stopped.
    Halted(HaltReason),
}
