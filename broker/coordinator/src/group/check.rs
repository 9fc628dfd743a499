//! The part of `crate::invariants` that looks into a group.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use felix_protocol::time::MonoTime;

use crate::invariants::{Broken, require};
use crate::timers::Alarm;

use super::Group;
use super::member::Member;
use super::state::State;

impl Group {
    /// Every deadline of the group with its alarm.
    pub(crate) fn alarms(&self) -> Vec<(Arc<str>, Alarm, MonoTime)> {
        let own = [(Alarm::Join, self.join_at), (Alarm::Sync, self.sync_at)];
        let members = self.members.iter().map(|(id, member)| (Alarm::Session(id.clone()), member.deadline));
        let pending = self.pending.iter().map(|(id, deadline)| (Alarm::Pending(id.clone()), *deadline));
        own.into_iter()
            .chain(members)
            .chain(pending)
            .filter_map(|(alarm, at)| at.map(|at| (self.id.clone(), alarm, at)))
            .collect()
    }

    /// Whether the log has this generation, and these members with their assignments. (It may have more: a record
    /// that another program wrote may name one instance id twice.)
    fn is_stored(&self) -> bool {
        let Some(stored) = self.durable.metadata() else { return false };
        stored.generation == self.generation
            && self.members.iter().all(|(id, member)| {
                stored
                    .members
                    .iter()
                    .any(|stored| stored.member == *id && stored.assignment == member.assignment)
            })
    }

    /// Invariants G2 to G9 and G11.
    pub(crate) fn check(&self) -> Result<(), Broken> {
        let found = || format!("{self:?}");
        let members = || self.members.values();

        let mut supported: BTreeMap<Arc<str>, usize> = BTreeMap::new();
        for protocol in members().flat_map(Member::protocols) {
            *supported.entry(protocol.name.clone()).or_default() += 1;
        }
        let joined = members().filter(|member| member.join.is_some()).count();
        let bytes: usize = members().map(Member::bytes).sum();
        require(supported == self.supported && joined == self.joined && bytes == self.bytes, "G2", found)?;

        let leads = self.leader.as_ref().map(|leader| self.members.contains_key(leader));
        require(leads.unwrap_or(self.members.is_empty()), "G3", found)?;

        let instances: BTreeMap<Arc<str>, Arc<str>> = self
            .members
            .iter()
            .filter_map(|(id, member)| member.instance.clone().map(|instance| (instance, id.clone())))
            .collect();
        require(instances == self.instances, "G4", found)?;

        let has_members = !self.members.is_empty();
        let fits = match self.state {
            State::Empty => !has_members && self.protocol.is_none(),
            State::PreparingRebalance => members().all(|member| member.sync.is_none()),
            State::CompletingRebalance => has_members && joined == 0,
            State::Stable => has_members && joined == 0 && members().all(|member| member.sync.is_none()),
            State::Dead => false,
        };
        require(fits, "G5", found)?;

        require(self.state != State::Stable || self.is_stored(), "G6", found)?;

        let given_out = self.pending.keys().all(|id| !self.members.contains_key(id));
        require(given_out, "G7", found)?;

        let ids: BTreeSet<&Arc<str>> = self.members.keys().collect();
        let owing = self.unsynced.iter().all(|id| ids.contains(id));
        require(owing && self.sync_at.is_some() != self.unsynced.is_empty(), "G8", found)?;

        require((self.state == State::PreparingRebalance) == self.join_at.is_some(), "G9", found)?;

        let watched = members().all(|member| member.deadline.is_some() || member.is_excused());
        require(watched, "G11", found)
    }
}
