//! The lanes' way to the control store: reports and reads go out here, answers come back as messages.

use std::collections::BTreeSet;

use felix_cluster::eligible as lawful;
use felix_cluster::state as stored;
use felix_cluster::view::{Learned, View};
use felix_control::agent::{Agent, ReportError};
use felix_protocol::ids::{Generation, PartitionId};
use felix_replication::eligible::{KeyState, Last, Pair, Report, Resigned, Revision};
use felix_replication::event::ReportAnswer;

/// Called once with what came back; must not wait.
pub(crate) type Then<T> = Box<dyn FnOnce(T) + Send>;

/// What lanes ask of the control store. Neither call waits.
pub(crate) trait ControlStore: Send + Sync {
    /// A compare-and-set on the partition's key.
    fn report(
        &self,
        partition: PartitionId,
        generation: Generation,
        report: Report,
        then: Then<ReportAnswer>,
    );

    /// Reads the partition's key; `None` when it cannot be read, or is gone.
    fn read_key(&self, partition: PartitionId, then: Then<Option<KeyState>>);
}

/// What the key of a partition says, as the machine reads it.
pub(super) fn key_state(view: &View, partition: &PartitionId) -> Option<KeyState> {
    let state = &view.partition(partition)?.state;
    let learned = view.learned(partition)?;
    let last = match state.last {
        stored::Last::Never => Last::Never,
        stored::Last::Nobody => Last::Declined,
        stored::Last::Opened { pair, generation } => Last::Opened { pair: pair_of(pair), generation },
    };
    Some(KeyState {
        revision: Revision(learned.partition.0),
        topic: Revision(learned.topic.0),
        eligible: state.eligible.iter().copied().map(pair_of).collect(),
        last,
    })
}

fn pair_of(pair: stored::Pair) -> Pair {
    Pair { broker: pair.broker, log: pair.log }
}

impl ControlStore for Agent {
    fn report(
        &self,
        partition: PartitionId,
        generation: Generation,
        report: Report,
        then: Then<ReportAnswer>,
    ) {
        let learned = Learned {
            partition: stored::Revision(report.revision.0),
            topic: stored::Revision(report.topic.0),
        };
        let agent = self.clone();
        let lawful = in_their_words(&report, generation);
        self.report_then(partition, generation, lawful, learned, move |answer| {
            then(match answer {
                Ok(learned) => ReportAnswer::Landed(Revision(learned.partition.0)),
                // The view that refused it is published.
                Err(ReportError::Moved) => match key_state(&agent.view(), &partition) {
                    Some(key) => ReportAnswer::Refused(key),
                    None => ReportAnswer::Unknown,
                },
                // The tenure ends by what the view says of it; until then nothing is known.
                Err(ReportError::Gone | ReportError::Unlawful(_) | ReportError::Control(_)) => {
                    ReportAnswer::Unknown
                }
            });
        });
    }

    fn read_key(&self, partition: PartitionId, then: Then<Option<KeyState>>) {
        then(key_state(&self.view(), &partition));
    }
}

/// A report that names its own tenure as the newest to have opened is the opening one; the store's side works
/// out the same set from the same revision (C10).
fn in_their_words(report: &Report, generation: Generation) -> lawful::Report {
    let theirs = |pairs: &BTreeSet<Pair>| -> BTreeSet<stored::Pair> {
        pairs.iter().map(|pair| stored::Pair { broker: pair.broker, log: pair.log }).collect()
    };
    if let Some(Resigned { end, pairs }) = &report.resigned {
        return lawful::Report::Resigned(stored::Resigned { end: *end, pairs: theirs(pairs) });
    }
    match report.last {
        Last::Opened { pair, generation: opened } if opened == generation => lawful::Report::Opened(pair.log),
        Last::Opened { .. } | Last::Never | Last::Declined => {
            lawful::Report::Eligible { pairs: theirs(&report.eligible), dead: BTreeSet::new(), need: 1 }
        }
    }
}
