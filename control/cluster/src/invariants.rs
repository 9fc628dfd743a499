//! What must hold of control state, one check a number, used by assertions and property tests. The numbers are
//! those of `docs/invariants.md`; those that begin with K concern the keys alone,
//! those with S sessions.

use std::collections::BTreeSet;

use felix_protocol::ids::{BrokerId, SessionId};
use felix_protocol::time::MonoTime;
use thiserror::Error;

use crate::keys::folded;
use crate::lease::{Reading, Terms};
use crate::reassign::old_set;
use crate::state::{Last, Partition};
use crate::view::View;

/// What does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{number} is broken: {what}")]
pub struct Broken {
    /// Its number.
    pub number: &'static str,
    /// What was seen.
    pub what: String,
}

fn hold(number: &'static str, holds: bool, what: impl FnOnce() -> String) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(Broken { number, what: what() }) }
}

/// What one partition's value must say.
pub fn check_partition(partition: &Partition) -> Result<(), Broken> {
    let seen = || format!("{partition:?}");
    let replica = |id: &BrokerId| partition.replicas.contains(id);
    hold("K1", !partition.replicas.is_empty() && distinct(&partition.replicas), seen)?;
    hold("K1", partition.adding.iter().all(replica) && partition.removing.iter().all(replica), seen)?;
    hold("K2", partition.leader.is_none_or(|leader| replica(&leader.broker)), seen)?;
    let stays = |list: &[BrokerId]| partition.replicas.iter().any(|id| !list.contains(id));
    hold("K12", stays(&partition.adding) && stays(&partition.removing), seen)?;
    if let Last::Opened { generation, .. } = partition.last {
        hold("K3", generation <= partition.generation, seen)?;
    }
    let brokers: BTreeSet<BrokerId> = partition.eligible.iter().map(|pair| pair.broker).collect();
    hold("C13", brokers.len() == partition.eligible.len() && brokers.iter().all(replica), seen)?;
    if partition.opened() {
        let own = partition.leader.is_some_and(|leader| brokers.contains(&leader.broker));
        hold("C13", !own, seen)?;
    }
    let promotable = partition.promotable();
    hold("K11", !partition.gone.iter().any(|gone| promotable.contains(&gone.pair)), seen)?;
    if let Some(resigned) = &partition.resigned {
        hold("K4", partition.leader.is_none() && resigned.pairs.is_subset(&partition.eligible), seen)?;
    }
    Ok(())
}

fn distinct(ids: &[BrokerId]) -> bool {
    ids.iter().collect::<BTreeSet<_>>().len() == ids.len()
}

/// What one write may do to a partition.
pub fn check_step(before: &Partition, after: &Partition) -> Result<(), Broken> {
    let seen = || format!("{before:?} became {after:?}");
    hold("K5", after.generation >= before.generation, seen)?;
    if after.generation == before.generation {
        // C6: a generation belongs to one session; it can only be given up.
        hold("C6", after.leader == before.leader || after.leader.is_none(), seen)?;
    } else {
        hold("K6", after.leader.is_some(), seen)?;
        hold("K7", after.leader.is_some_and(|named| named_lawfully(before, after, named.broker)), seen)?;
    }
    if before.leader.is_some() && after.resigned.is_some() {
        // Only who opened has something to hand over, and hands it over as it was.
        let as_it_was = before.opened() && after.generation == before.generation && after.last == before.last;
        hold("K4", as_it_was && after.eligible == before.eligible, seen)?;
    }
    check_replicas(before, after)?;
    // C13: only an opened leader enlarges the set, save for what C10 moves there.
    let mut allowed = before.eligible.clone();
    allowed.extend(before.last.pair());
    let same_tenure = before.opened() && after.opened() && before.generation == after.generation;
    hold("C13", same_tenure || after.eligible.is_subset(&allowed), seen)?;
    // I8: what may be promoted is forgotten only by a decline, a report or an unclean promotion.
    let opening = after.opened() && after.last != before.last;
    let lost: Vec<_> = before.promotable().difference(&after.promotable()).copied().collect();
    let unclean = after.unclean_at == Some(after.generation) && after.unclean_at != before.unclean_at;
    let declined = lost.iter().all(|pair| after.gone.iter().any(|gone| gone.pair == *pair));
    let leaders_own = |broker: BrokerId| after.leader.is_some_and(|leader| leader.broker == broker);
    let taken_over = opening && lost.iter().all(|pair| leaders_own(pair.broker));
    hold("I8", same_tenure || unclean || declined || taken_over, seen)
}

/// What one write may do to the replicas. Copies that count leave only with the write that completes a reassignment, from a
/// leader that opened and stays; or nothing was acknowledged. The old set changes by nothing else.
fn check_replicas(before: &Partition, after: &Partition) -> Result<(), Broken> {
    let seen = || format!("{before:?} became {after:?}");
    let leaves = |id: BrokerId| !after.replicas.contains(&id);
    let counted = before.promotable().iter().any(|pair| leaves(pair.broker));
    let stays = before.opened() && after.opened() && before.leader == after.leader;
    hold("K13", !counted || (stays && before.generation == after.generation), seen)?;
    let (old, new) = (sorted(&old_set(before)), sorted(&old_set(after)));
    let completed = after.adding.is_empty() && after.removing.is_empty();
    hold("K14", old == new || (completed && (before.untouched() || stays)), seen)
}

fn sorted(ids: &[BrokerId]) -> Vec<BrokerId> {
    ids.iter().copied().collect::<BTreeSet<_>>().into_iter().collect()
}

/// A new leader holds everything acknowledged, or nothing was, or the loss is marked.
fn named_lawfully(before: &Partition, after: &Partition, broker: BrokerId) -> bool {
    let named = after.leader.and_then(|leader| leader.log);
    let clean = before.promotable().iter().any(|pair| pair.broker == broker && Some(pair.log) == named);
    clean || before.untouched() || after.unclean_at == Some(after.generation)
}

/// What a session's holder believes at the moment at which the store ends that session, and ever after: that its lease
/// is over. So the leases of two sessions of one node, or of two leaders of one partition, never overlap. `until` is the
/// end of the lease and `now` the time, both by the holder's clock.
pub fn check_ended_session(session: SessionId, until: MonoTime, now: MonoTime) -> Result<(), Broken> {
    hold("S1", until <= now, || {
        format!("session {session} was ended with {:?} of its lease left", until.since(now))
    })
}

/// What a fence rests on: the node that writes it has beaten itself all the while, so that it was not the store that was
/// silent. `last` is its own last confirmed beat.
pub fn check_fence(last: Reading, now: Reading, terms: Terms) -> Result<(), Broken> {
    let ago = now.longest_since(last);
    hold("S2", ago <= terms.gap(), || format!("a fence is written {ago:?} after the own last confirmed beat"))
}

/// What all keys together must say once a controller has been through them.
pub fn check_view(view: &View) -> Result<(), Broken> {
    for partition in view.partitions() {
        check_partition(&partition.state)?;
        hold("K8", view.topic(&partition.id.topic).is_some(), || format!("{} has no topic", partition.id))?;
    }
    let mut names = BTreeSet::new();
    for topic in view.topics() {
        hold("K9", names.insert(folded(&topic.name)), || format!("{} collides", topic.name))?;
        let named = view.topic_named(&topic.name).map(|named| named.id);
        hold("K9", named == Some(topic.id), || format!("{} is not found by its name", topic.name))?;
        let placed = view.partitions_of(&topic.id).count();
        let whole = usize::try_from(topic.partition_count).is_ok_and(|count| count == placed);
        hold("K10", whole, || {
            format!("{} has {placed} of {} partitions", topic.name, topic.partition_count)
        })?;
    }
    Ok(())
}
