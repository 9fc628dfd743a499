//! The end of a history.

use felix_protocol::ids::{BrokerId, Offset};
use felix_replication::eligible::{Last, Pair};
use felix_replication::rules::Rules;

use super::super::disk::Disk;
use super::super::node::Role;
use super::World;

impl<R: Rules> World<R> {
    /// Everything works again: the cluster must acknowledge a new record, and all copies must become level and eligible, unless
    /// the wiped disk was the only one that may lead.
    pub fn heal(&mut self) -> Result<(), String> {
        self.healing = true;
        self.logs_changed = true;
        self.deaf = BrokerId(0);
        for (one, other) in std::mem::take(&mut self.cut_links) {
            self.connect(one, other);
            self.connect(other, one);
        }
        for id in (1..=3).map(BrokerId) {
            self.start(id);
        }
        self.settle()?;
        let lead_by = |world: &World<R>| {
            let promotable = world.store.promotable();
            let there = |pair: &Pair| world.nodes[&pair.broker].disk.log == pair.log;
            let untouched = world.store.key.last == Last::Never && world.store.key.eligible.is_empty();
            untouched || promotable.iter().any(there)
        };
        if !lead_by(self) {
            return if self.figures.wiped > 0 { Ok(()) } else { Err("nobody may lead".to_owned()) };
        }
        let mut written = None;
        for round in 0..400 {
            for id in (1..=3).map(BrokerId) {
                self.learn(id)?;
                self.settle()?;
                for _ in 0..4 {
                    self.disk_work(id);
                    self.settle()?;
                }
                self.flush(id);
                self.settle()?;
            }
            while !self.store.requests.is_empty() {
                self.store_work()?;
                self.settle()?;
            }
            self.store.promote(round);
            for _ in 0..self.packets.len() {
                self.deliver();
                self.settle()?;
            }
            self.tick();
            self.settle()?;
            if written.is_some_and(|offset| self.is_level(offset)) {
                self.figures.grown += self.store.reports;
                self.figures.resigned += self.store.resigned;
                return Ok(());
            }
            // A leader that was replaced has forgotten who waited.
            if let Some(id) = self.store.key.named.map(|named| named.broker)
                && let Role::Leading(leading) = &self.nodes[&id].role
                && leading.waiting.is_empty()
                && written.is_none_or(|offset| !self.oath.acknowledged.contains_key(&offset))
            {
                let before = self.nodes[&id].disk.end;
                self.append(id);
                self.settle()?;
                written = (self.nodes[&id].disk.end > before).then_some(before);
            }
        }
        let states: Vec<String> = self
            .nodes
            .iter()
            .map(|(id, node)| {
                let Disk { start, end, synced, .. } = node.disk;
                let role = match &node.role {
                    Role::Down => "down".to_owned(),
                    Role::Leading(leading) => {
                        let states: Vec<_> =
                            leading.cursors.values().map(|cursor| format!("{cursor:?}")).collect();
                        format!(
                            "leads at {}, mark {}, {states:?}",
                            leading.leader.generation(),
                            leading.leader.mark()
                        )
                    }
                    Role::Following(following) => format!("follows {:?}", following.follower),
                };
                format!("{id}: [{start}, {end}) synced {synced}, {role}\n")
            })
            .collect();
        Err(format!("nothing goes on: {:?}, written {written:?}\n{}", self.store.key, states.concat()))
    }

    /// Whether the record at `offset` is acknowledged, and everybody holds it and may lead.
    fn is_level(&self, offset: Offset) -> bool {
        let held = self.nodes.values().all(|node| node.disk.synced > offset);
        held && self.oath.acknowledged.contains_key(&offset) && self.store.key.eligible.len() == 2
    }
}
