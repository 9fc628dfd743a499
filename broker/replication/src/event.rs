//! What a leader is told.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use felix_protocol::ids::{BrokerId, Offset, SessionId};
use felix_protocol::time::MonoTime;

use crate::eligible::{KeyState, Pair, Revision};
use crate::waiters::{Ticket, Word};

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The log was written up to `end`, through both checks of admission.
    Appended {
        /// One past the last record.
        end: Offset,
    },
    /// The log is durable up to `end`, as its flush policy counts.
    Stored {
        /// One past the last durable record.
        end: Offset,
    },
    /// A writer waits for a word about everything below `end`.
    Wait {
        /// Names the writer.
        ticket: Ticket,
        /// Whose word.
        word: Word,
        /// One past the writer's last record.
        end: Offset,
        /// When it stops waiting.
        deadline: MonoTime,
    },
    /// The control store answered a report.
    ReportAnswered {
        /// Which report.
        number: u64,
        /// What came back.
        answer: ReportAnswer,
    },
    /// A linearizable read of the partition's key.
    KeyRead {
        /// What it showed; `None` when it could not be read.
        key: Option<KeyState>,
    },
    /// A follower's pair holds everything below `position`: answered at this generation, under this log id,
    /// durable and reconciled (C4).
    Confirmed {
        /// The pair.
        pair: Pair,
        /// One past its last durable record.
        position: Offset,
    },
    /// A follower answered something.
    Heard(BrokerId),
    /// The connection to a follower's broker ended: another process may speak for it next.
    Lost(BrokerId),
    /// This pair is known dead: its broker holds another copy by now, or it confirmed less than before.
    Dead(Pair),
    /// This pair has stopped, and confirms nothing any more (I7).
    Halted(Pair),
    /// What the control store says of the nodes.
    Nodes(Nodes),
    /// The partition now needs this many members for an acknowledgement.
    Need(usize),
    /// The control store asks this session to give the partition up: nothing is admitted from here on, what is in the log
    /// is made durable, and the leader resigns.
    Leave {
        /// Until when all eligible followers may catch up; after that one that has is enough.
        until: MonoTime,
        /// Whether to resign then even if none has: this broker is going away.
        anyway: bool,
    },
    /// The lease is over. Somebody else may lead soon, or the lease may be renewed and the tenure go on; whoever waits is told
    /// now, so that it tries again in the order in which it wrote.
    LeaseOver,
    /// The tenure is over: the session was given up, another generation leads, or the topic is gone.
    Ended,
    /// Time has passed.
    Tick,
}

/// What came back for a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportAnswer {
    /// It landed; the key is at this revision now.
    Landed(Revision),
    /// The compare was lost; this is the key as the same transaction read it.
    Refused(KeyState),
    /// Nobody knows: a timeout, a broken connection. It may land yet (C3).
    Unknown,
}

/// What the control store says of the nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nodes {
    /// Each one's newest session: another one is another process.
    pub sessions: BTreeMap<BrokerId, SessionId>,
    /// Their sessions are over.
    pub fenced: BTreeSet<BrokerId>,
    /// They are about to stop.
    pub draining: BTreeSet<BrokerId>,
    /// They are alive by their beats.
    pub beating: BTreeSet<BrokerId>,
    /// One that dies may count as alive by its beats for so long: leases of a minute are kept up by a beat every ten seconds.
    pub beating_after_death: Duration,
}
