//! The promises, by their numbers (`docs/invariants.md`).

use std::collections::{BTreeMap, BTreeSet};

use felix_protocol::ids::{BrokerId, Generation, Offset};
use felix_replication::rules::Rules;

use super::disk::{Disk, Value};
use super::node::Node;
use super::store::Store;

/// What was promised so far.
#[derive(Default)]
pub struct Oath {
    /// Acknowledged under acks=all, with the generation that did.
    pub acknowledged: BTreeMap<Offset, (Value, Generation)>,
    /// What stood at or below somebody's mark.
    pub committed: BTreeMap<Offset, Value>,
    /// Compacted away somewhere, which only happens below the mark.
    pub compacted: BTreeSet<Offset>,
}

impl Oath {
    /// I1 and the acknowledgement itself.
    pub fn acknowledge(&mut self, offset: Offset, value: Value, at: Generation) {
        self.acknowledged.insert(offset, (value, at));
    }

    /// I2: one value for each offset below a mark, for ever.
    pub fn commit(&mut self, disk: &Disk, from: Offset, mark: Offset) -> Result<(), String> {
        for (offset, value) in disk.records.range(from.min(mark)..mark) {
            let known = *self.committed.entry(*offset).or_insert(*value);
            if known != *value {
                return Err(format!("I2: {known:?} and {value:?} at {offset}, both below a mark"));
            }
        }
        Ok(())
    }

    pub fn holds(&self, disk: &Disk, offset: Offset, value: &Value) -> bool {
        disk.keeps(offset, value) || (self.compacted.contains(&offset) && offset < disk.synced)
    }

    /// I1: a later leader has everything that was acknowledged before it.
    pub fn opened(&self, who: BrokerId, disk: &Disk, at: Generation) -> Result<(), String> {
        for (offset, (value, by)) in &self.acknowledged {
            if *by < at && !self.holds(disk, *offset, value) {
                return Err(format!("I1: broker {who} leads at {at} without {value:?} at {offset}"));
            }
        }
        Ok(())
    }
}

/// C8: what is acknowledged is on as many disks as it needs, there and then.
pub fn is_held<R: Rules>(
    oath: &Oath,
    nodes: &BTreeMap<BrokerId, Node<R>>,
    offset: Offset,
    value: &Value,
    need: usize,
) -> Result<(), String> {
    let holders = nodes.values().filter(|node| oath.holds(&node.disk, offset, value)).count();
    if holders < need {
        return Err(format!("C8: {value:?} at {offset} is acknowledged with {holders} holders"));
    }
    Ok(())
}

/// I8: whoever may lead holds what was acknowledged.
pub fn promotable<R: Rules>(
    oath: &Oath,
    store: &Store,
    nodes: &BTreeMap<BrokerId, Node<R>>,
) -> Result<(), String> {
    for pair in store.promotable() {
        let disk = &nodes[&pair.broker].disk;
        if disk.log != pair.log {
            continue;
        }
        for (offset, (value, by)) in &oath.acknowledged {
            if !oath.holds(disk, *offset, value) {
                let who = pair.broker;
                return Err(format!(
                    "I8: broker {who} may lead without {value:?} at {offset}, acknowledged at {by}"
                ));
            }
        }
    }
    Ok(())
}

/// I3.
pub fn logs<R: Rules>(oath: &Oath, nodes: &BTreeMap<BrokerId, Node<R>>) -> Result<(), String> {
    let disks: Vec<(&BrokerId, &Disk)> = nodes.iter().map(|(id, node)| (id, &node.disk)).collect();
    for (at, (one, first)) in disks.iter().enumerate() {
        for (other, second) in &disks[at + 1..] {
            matching(oath, first, second).map_err(|what| format!("I3: brokers {one} and {other}: {what}"))?;
        }
    }
    Ok(())
}

fn matching(oath: &Oath, one: &Disk, other: &Disk) -> Result<(), String> {
    let equal = |(offset, value): &(&Offset, &Value)| {
        other.records.get(*offset).is_some_and(|held| held.0 == value.0)
    };
    let Some((last, _)) = one.records.iter().rev().find(equal) else { return Ok(()) };
    for offset in one.start.max(other.start)..=*last {
        let (held, there) = (one.records.get(&offset), other.records.get(&offset));
        let gap = oath.compacted.contains(&offset) && (held.is_none() || there.is_none());
        if held != there && !gap {
            return Err(format!("at {offset} {held:?} and {there:?}, although equal at {last}"));
        }
    }
    Ok(())
}
