//! The end of a history.

use felix_protocol::ids::{BrokerId, Offset};
use felix_replication::eligible::{Last, Pair};
use felix_replication::rules::Rules;

use super::super::disk::Disk;
use super::super::node::{Packet, Role};
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
            self.calm(&[1, 2, 3])?;
            self.store.promote(round);
            if round % 50 == 49 && written.is_none() {
                self.store.give_back();
            }
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
        Err(format!("nothing goes on, written {written:?}: {}", self.portrait()))
    }

    /// Everything as it stands.
    pub fn portrait(&self) -> String {
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
        format!("{:?}\n{}", self.store.key, states.concat())
    }

    /// Nothing goes wrong for a while. Only these hear of what the store says.
    fn calm(&mut self, hear: &[i32]) -> Result<(), String> {
        for id in (1..=3).map(BrokerId) {
            if hear.contains(&id.0) {
                self.learn(id)?;
            }
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
        for _ in 0..self.packets.len() {
            self.deliver();
            self.settle()?;
        }
        self.tick();
        self.settle()
    }

    fn calm_until(&mut self, hear: &[i32], done: impl Fn(&Self) -> bool) -> Result<(), String> {
        for _ in 0..300 {
            self.calm(hear)?;
            if done(self) {
                return Ok(());
            }
        }
        Err(format!("the scene could not be set: {}", self.portrait()))
    }

    /// An old leader that has heard of nothing speaks to a follower that has followed the next one, and died since (C7).
    pub fn an_old_leader_speaks_first(&mut self) -> Result<(), String> {
        let [one, two, three] = [1, 2, 3].map(BrokerId);
        self.healing = true;
        self.store.promote(0);
        self.calm_until(&[1, 2, 3], |world| world.store.key.eligible.len() == 2)?;
        self.append(one);
        self.calm_until(&[], |world| !world.oath.acknowledged.is_empty())?;
        // The first one is cut off from the third, and fenced; the third leads, and the second follows it.
        self.toggle(one, three);
        self.store.sessions.insert(one, 0);
        self.tell_nodes();
        self.store.promote(1);
        let led = |world: &Self| world.store.opened() && world.store.key.eligible.len() == 1;
        self.calm_until(&[2, 3], led)?;
        let offset = self.nodes[&three].disk.end;
        self.append(three);
        self.calm_until(&[2, 3], |world| world.oath.acknowledged.contains_key(&offset))?;
        // The second dies, loses nothing, and hears of the first one before it hears of the third.
        self.node(two).disk.crash(None);
        self.node(two).role = Role::Down;
        self.disconnect_all(two);
        self.settle()?;
        self.start(two);
        self.logs_changed = true;
        self.settle()?;
        for _ in 0..20 {
            let between = |packet: &Packet| [packet.from, packet.to].iter().all(|id| *id != three);
            if let Some(at) = self.packets.iter().position(between) {
                self.deliver_at(at);
            }
            self.settle()?;
            self.disk_work(two);
            self.flush(two);
            self.settle()?;
        }
        self.calm_until(&[1, 2, 3], |world| world.nodes[&two].disk.synced > offset)
    }

    /// Whether the record at `offset` is acknowledged, and everybody holds it and may lead.
    fn is_level(&self, offset: Offset) -> bool {
        let held = self.nodes.values().all(|node| node.disk.synced > offset);
        held && self.oath.acknowledged.contains_key(&offset) && self.store.key.eligible.len() == 2
    }
}
