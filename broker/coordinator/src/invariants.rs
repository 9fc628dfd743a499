//! What always holds, numbered for docs, property tests and debug assertions.
//!
//! - **G1** Every deadline that a group, member or id given out has is in the queue once, and the queue holds
//!   nothing else.
//! - **G2** The counts of supported protocols, parked joins and bytes agree with the members.
//! - **G3** A group with members has a leader among them; one without has none.
//! - **G4** Instance ids lead to the static members that bear them, and to nobody else.
//! - **G5** A group is Empty, and no protocol chosen, exactly while it has no members, except that a rebalance
//!   may be waiting for its end. Joins are parked in PreparingRebalance only, syncs in CompletingRebalance only.
//! - **G6** A stable group is stored: the log has its generation, members, protocol and assignments.
//! - **G7** An id that was given out is not a member.
//! - **G8** Whoever owes a sync is a member, and an alarm is set for it.
//! - **G9** PreparingRebalance has an alarm that ends it.
//! - **G10** A group in memory has something stored, a member, or an id given out.
//! - **G11** Every member that we do not keep waiting has a session alarm.

use std::fmt::Display;

use crate::group::Group;
use crate::machine::Shard;

/// Which promise is broken, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Its number.
    pub number: &'static str,
    /// What was found.
    pub found: String,
}

impl Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "invariant {} is broken: {}", self.number, self.found)
    }
}

pub(crate) fn require(holds: bool, number: &'static str, found: impl Fn() -> String) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(Broken { number, found: found() }) }
}

/// Checks a whole shard.
pub fn check(shard: &Shard) -> Result<(), Broken> {
    let (groups, timers, unstored) = shard.parts();
    let mut alarms = 0;
    for (id, group) in groups {
        check_group(group, timers)?;
        alarms += group.alarms().len();
        require(!group.is_nothing(), "G10", || format!("group {id} is nothing"))?;
    }
    require(alarms == timers.len(), "G1", || {
        format!("{} alarms in the queue, {alarms} in the groups", timers.len())
    })?;
    let counted = groups.values().filter(|group| group.durable().is_empty()).count();
    require(counted == unstored, "G2", || format!("{unstored} groups counted as not stored, {counted} are"))
}

/// Checks one group.
pub(crate) fn check_group(group: &Group, timers: &crate::timers::Timers) -> Result<(), Broken> {
    for (id, alarm, at) in group.alarms() {
        let found = || format!("alarm {alarm:?} of group {id} is not in the queue");
        require(timers.holds(&id, alarm.clone(), at), "G1", found)?;
    }
    group.check()
}

/// What a shard remembers durably, for comparing it with a replay of its records.
#[cfg(test)]
pub(crate) fn durable(
    shard: &Shard,
) -> std::collections::BTreeMap<std::sync::Arc<str>, crate::group::durable::Durable> {
    let (groups, ..) = shard.parts();
    groups
        .iter()
        .filter(|(_, group)| !group.durable().is_empty())
        .map(|(id, group)| (id.clone(), group.durable().clone()))
        .collect()
}
