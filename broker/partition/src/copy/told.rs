//! What a copy is told of the cluster, and what it tells of how far it is.

use std::time::Duration;

use felix_protocol::ids::Generation;
use felix_protocol::time::Clock;
use felix_replication::eligible::KeyState;
use felix_replication::event::{Event, Nodes};
use felix_replication::leader::Leader;
use felix_storage::disk::Disk;

use crate::actions::Ports;
use crate::copy::Copy;

impl<D: Disk, C: Clock, W> Copy<D, C, W> {
    /// The partition's key as the cluster's view has it. Of use only where it is newer than what the tenure knows: somebody else
    /// has written it.
    pub fn key_seen(&mut self, generation: Generation, key: KeyState, ports: &mut impl Ports<Writer = W>) {
        let is_news = |leader: &Leader| {
            let known = leader.key();
            let newer = key.revision > known.revision || key.topic > known.topic;
            (leader.generation() == generation && newer).then(|| Event::KeyRead { key: Some(key.clone()) })
        };
        self.step(is_news, ports);
    }

    /// What the control store says of the nodes.
    pub fn nodes(&mut self, nodes: &Nodes, ports: &mut impl Ports<Writer = W>) {
        self.step(|_| Some(Event::Nodes(nodes.clone())), ports);
    }

    /// The same for a tenure that may not have been told anything yet.
    pub fn know_nodes(&mut self, nodes: &Nodes, ports: &mut impl Ports<Writer = W>) {
        let is_news = |leader: &Leader| (leader.nodes() != nodes).then(|| Event::Nodes(nodes.clone()));
        self.step(is_news, ports);
    }

    /// The newest unclean promotion of the partition, before [`Copy::lead`]: followers are told, and may cut what was given up by it.
    pub fn lost_at(&mut self, unclean_at: Option<Generation>) {
        self.unclean_at = unclean_at;
    }

    /// Of a leader: how many records its slowest follower lacks. Of a copy that follows: how many it lacks itself; `None` when that
    /// is not known, because nothing was heard of a leader for longer than `silence`, or the copy has stopped.
    pub fn lag(&self, silence: Duration) -> Option<i64> {
        if self.leads() {
            return self.leader.as_ref().map(Leader::lag);
        }
        self.following.as_ref().and_then(|following| following.lag(self.clock.now(), silence))
    }
}
