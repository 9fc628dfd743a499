//! The lanes' way to the control store: reports and reads go out here, answers come back as messages.

use felix_protocol::ids::{Generation, PartitionId};
use felix_replication::eligible::{KeyState, Report};
use felix_replication::event::ReportAnswer;
use tokio::sync::mpsc;

use crate::partitions::lane::{LaneSender, Message};

/// What is asked of the control store.
pub(crate) enum Asked {
    /// A compare-and-set on the partition's key.
    Report(Report),
    /// A linearizable read of it.
    Read,
}

/// One question, with whom to answer.
pub(crate) struct Question {
    pub(crate) partition: PartitionId,
    pub(crate) generation: Generation,
    pub(crate) asked: Asked,
    lane: LaneSender,
}

impl Question {
    /// Answers a report.
    pub(crate) fn answer_report(&self, number: u64, answer: ReportAnswer) {
        let (partition, generation) = (self.partition, self.generation);
        self.lane.send(Message::ReportAnswered { partition, generation, number, answer });
    }

    /// Answers a read.
    pub(crate) fn answer_read(&self, key: Option<KeyState>) {
        let (partition, generation) = (self.partition, self.generation);
        self.lane.send(Message::KeyRead { partition, generation, key });
    }
}

/// Where lanes put their questions. Bounded by what causes them: a tenure has one report under way.
#[derive(Clone)]
pub(crate) struct Reporter {
    questions: mpsc::UnboundedSender<Question>,
}

/// The questions of all lanes.
pub(crate) type Questions = mpsc::UnboundedReceiver<Question>;

impl Reporter {
    pub(crate) fn new() -> (Reporter, Questions) {
        let (questions, receiver) = mpsc::unbounded_channel();
        (Reporter { questions }, receiver)
    }

    pub(crate) fn ask(
        &self,
        lane: &LaneSender,
        partition: PartitionId,
        generation: Generation,
        asked: Asked,
    ) {
        // If nobody listens any more, the broker stops; an unopened tenure is replaced by compare alone.
        let _ = self.questions.send(Question { partition, generation, asked, lane: lane.clone() });
    }
}
