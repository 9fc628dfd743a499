//! One transaction in the making: fences, then the controller's decisions, then the jobs'.

use std::collections::BTreeSet;

use felix_cluster::decision::{Decision, Write};
use felix_cluster::keys::Key;
use felix_protocol::ids::BrokerId;

/// One transaction in the making.
#[derive(Default)]
pub(super) struct Round {
    pub(super) decisions: Vec<Decision>,
    /// The first are fences of these nodes.
    pub(super) fences: Vec<BrokerId>,
    /// The first so many are fences and the controller's; the others belong to `jobs`, in order.
    pub(super) controllers: usize,
    pub(super) jobs: Vec<usize>,
    pub(super) written: BTreeSet<Key>,
    pub(super) slots: usize,
    pub(super) room: usize,
    pub(super) bytes: usize,
    /// A job would be refused, by a view that may be behind.
    pub(super) is_doubted: bool,
}

impl Round {
    pub(super) fn fits(&self, decision: &Decision) -> bool {
        let free = decision.writes().iter().all(|write| !self.written.contains(write.key()));
        let room = self.slots > 0 && decision.operations() <= self.room && weight(decision) <= self.bytes;
        free && (room || self.decisions.is_empty())
    }

    pub(super) fn take(&mut self, decision: Decision) {
        self.slots = self.slots.saturating_sub(1);
        self.room = self.room.saturating_sub(decision.operations());
        self.bytes = self.bytes.saturating_sub(weight(&decision));
        self.written.extend(decision.writes().iter().map(|write| write.key().clone()));
        self.decisions.push(decision);
    }
}

fn weight(decision: &Decision) -> usize {
    let bytes = |write: &Write| match write {
        Write::Put(_, value) => value.len() + 64,
        Write::Delete(_) => 64,
    };
    decision.writes().iter().map(bytes).sum()
}
