//! What a leader wants done. Carried out in one place, the partition's `actions`.

use felix_protocol::ids::Offset;

use crate::eligible::Report;
use crate::waiters::Ticket;

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this compare-and-set to the control store and feed the answer back.
    Report(Report),
    /// Read the partition's key, linearizably, and feed it back.
    ReadKey,
    /// The opening landed: acknowledgements may go from here on.
    Opened,
    /// No eligible peer answers although their beats move: the tenure is given up, and what was acknowledged on the leader's
    /// word alone may be lost. A loss event; nothing is admitted from here on.
    CutOff {
        /// Records that only this copy may hold.
        exposed: i64,
    },
    /// The mark stands here now: publish it and wake who waits to read.
    Advance {
        /// One past the last record that consumers see.
        mark: Offset,
    },
    /// Tell these writers that their word is given.
    Release {
        /// The writers.
        tickets: Vec<Ticket>,
        /// What the answer rests on.
        vouch: Vouch,
    },
    /// Tell these writers that their time is up: the write cannot be vouched for (I6).
    Expire {
        /// The writers.
        tickets: Vec<Ticket>,
    },
    /// Tell these writers that this broker does not lead any more.
    Refuse {
        /// The writers.
        tickets: Vec<Ticket>,
    },
}

/// What a release rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vouch {
    /// Every later leader holds the record, whatever became of this one.
    Mark,
    /// The leader's own disk: true only while its lease holds, which is checked at the time of the answer.
    Lease,
}
