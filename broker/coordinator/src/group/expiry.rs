//! Offsets that nobody has used for long go (KIP-211), and with the last of them an empty group.

use std::sync::Arc;

use crate::machine::{Notice, Turn};

use super::Group;
use super::records::StoredOffset;
use super::state::State;
use super::subscription::CONSUMER;

/// Since when an offset counts as unused.
#[derive(Clone, Copy)]
enum Basis {
    /// Since the group became empty; if an old record does not say when, since the commit.
    Emptied(Option<i64>),
    /// Since it was committed.
    Committed,
}

impl Group {
    /// Removes what has expired.
    pub(crate) fn expire(&mut self, turn: &mut Turn<'_>) {
        let expired = self.expired(turn);
        for (topic, partition) in &expired {
            self.remove_offset(topic, *partition, turn);
        }
        let all = self.durable.offsets().is_empty();
        let had_any = !expired.is_empty();
        let removes_group = all && self.state == State::Empty && self.pending.is_empty();
        if removes_group && self.durable.metadata().is_some() {
            self.write_tombstone(turn);
        }
        if had_any {
            let notice = Notice::Expired { group: self.id.clone(), offsets: expired.len() };
            turn.out.notices.push(notice);
        }
    }

    fn expired(&self, turn: &Turn<'_>) -> Vec<(Arc<str>, i32)> {
        let Some(basis) = self.basis() else { return Vec::new() };
        let now = turn.now.wall.0;
        let retention = i64::try_from(turn.settings.offsets_retention.as_millis()).unwrap_or(i64::MAX);
        let is_expired = |value: &StoredOffset| match (value.expires_at, basis) {
            (Some(expires_at), _) => now >= expires_at,
            (None, Basis::Emptied(Some(since))) => now.saturating_sub(since) >= retention,
            (None, Basis::Emptied(None) | Basis::Committed) => {
                now.saturating_sub(value.committed_at) >= retention
            }
        };
        self.durable
            .offsets()
            .iter()
            .filter(|(topic, _)| !self.is_subscribed(topic))
            .flat_map(|(topic, partitions)| {
                partitions.iter().map(move |(index, value)| (topic, *index, value))
            })
            .filter(|(.., value)| is_expired(value))
            .map(|(topic, index, _)| (topic.clone(), index))
            .collect()
    }

    /// `None` while nothing may expire: members are at work, and what they consume is not known.
    fn basis(&self) -> Option<Basis> {
        let Some(protocol_type) = &self.protocol_type else { return Some(Basis::Committed) };
        match self.state {
            State::Empty => Some(Basis::Emptied(self.since)),
            State::Stable if &**protocol_type == CONSUMER && self.subscribed.is_some() => {
                Some(Basis::Committed)
            }
            State::Stable | State::PreparingRebalance | State::CompletingRebalance | State::Dead => None,
        }
    }
}
