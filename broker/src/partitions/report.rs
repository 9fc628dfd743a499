//! The lanes' way to the control store: reports and reads go out here, answers come back as messages.

use std::collections::BTreeSet;

use felix_cluster::eligible as lawful;
use felix_cluster::state as stored;
use felix_cluster::view::{Learned, View};
use felix_control::agent::{Agent, ReportError};
use felix_protocol::ids::{Generation, PartitionId};
use felix_replication::eligible::{Claim, KeyState, Last, Pair, Report, Resigned, Revision};
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
        replicas: state.replicas.iter().copied().collect(),
        generation: state.generation,
        led: state.leader.is_some(),
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
        let lawful = in_their_words(&report);
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

/// The store's side works out the set of an opening report from the same revision (C10).
fn in_their_words(report: &Report) -> lawful::Report {
    let theirs = |pairs: &BTreeSet<Pair>| -> BTreeSet<stored::Pair> {
        pairs.iter().map(|pair| stored::Pair { broker: pair.broker, log: pair.log }).collect()
    };
    match &report.claim {
        Claim::Opening(log) => lawful::Report::Opened(*log),
        Claim::Eligible { dead, need } => {
            lawful::Report::Eligible { pairs: theirs(&report.eligible), dead: theirs(dead), need: *need }
        }
        Claim::Resigned(Resigned { end, pairs }) => {
            lawful::Report::Resigned(stored::Resigned { end: *end, pairs: theirs(pairs) })
        }
    }
}
