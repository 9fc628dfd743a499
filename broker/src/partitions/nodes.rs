//! What leaders here are told of the other nodes: their sessions and whose is over, who is about to stop, and whose beats move.
//!
//! Told when it changes. That a beat does not move any more nobody says, so it is looked for now and then, where there are other
//! nodes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use felix_cluster::state::NodeState;
use felix_cluster::view::View;
use felix_control::agent::Agent;
use felix_protocol::ids::BrokerId;
use felix_protocol::time::{Clock, MonoTime};
use felix_replication::event::Nodes;
use tokio::sync::watch;

use crate::clock::SystemClock;
use crate::partitions::lane::{LaneSender, Message};

/// A node whose beat has not moved for half a lease (three beats), but at least so long, does not count as alive: a leader that hears
/// nothing of it is not cut off.
const BEATING: Duration = Duration::from_secs(1);
/// How often beats are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Tells the lanes until it is stopped. Holds nothing that a stopped broker must let go of.
pub(super) async fn watch(
    lanes: Vec<LaneSender>,
    clock: SystemClock,
    agent: Agent,
    mut stopped: watch::Receiver<bool>,
) {
    let mut changed = agent.changed();
    let mut told = Nodes::default();
    loop {
        changed.mark_unchanged();
        let view = agent.view();
        let lease_ms = view.cluster().map_or(0, |cluster| cluster.value.lease_ms);
        let within = (Duration::from_millis(lease_ms) / 2).max(BEATING);
        let mut nodes = of(&states(&view), &agent.heard(), within, clock.now());
        nodes.sessions = view.nodes().map(|(id, node)| (id, node.node.session)).collect();
        if nodes != told {
            told = nodes;
            let nodes = Arc::new(told.clone());
            for lane in &lanes {
                lane.send(Message::Nodes(Arc::clone(&nodes)));
            }
        }
        let has_others = view.nodes().nth(1).is_some();
        let go_on = tokio::select! {
            changed = changed.changed() => changed.is_ok(),
            _ = stopped.wait_for(|stop| *stop) => false,
            () = tokio::time::sleep(LOOK_EVERY), if has_others => true,
        };
        if !go_on {
            return;
        }
    }
}

fn states(view: &View) -> BTreeMap<BrokerId, NodeState> {
    view.nodes().map(|(id, node)| (id, node.node.state)).collect()
}

fn of(
    states: &BTreeMap<BrokerId, NodeState>,
    heard: &BTreeMap<BrokerId, MonoTime>,
    within: Duration,
    now: MonoTime,
) -> Nodes {
    // Its last beat may have been on its way for a moment, and it is looked for only now and then.
    let mut nodes = Nodes { beating_after_death: within + LOOK_EVERY * 2, ..Nodes::default() };
    for (id, state) in states {
        match state {
            NodeState::Fenced => {
                nodes.fenced.insert(*id);
                continue;
            }
            NodeState::Draining => drop(nodes.draining.insert(*id)),
            NodeState::Live => {}
        }
        if heard.get(id).is_some_and(|at| now.since(*at) <= within) {
            nodes.beating.insert(*id);
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_alive_by_its_beats_unless_its_session_is_over() {
        let second = 1_000_000_000;
        let states = [
            (BrokerId(1), NodeState::Live),
            (BrokerId(2), NodeState::Draining),
            (BrokerId(3), NodeState::Fenced),
            (BrokerId(4), NodeState::Live),
            (BrokerId(5), NodeState::Live),
        ]
        .into();
        let heard = [(1, 9), (2, 8), (3, 10), (4, 7)].map(|(id, at)| (BrokerId(id), MonoTime(at * second)));
        let nodes = of(&states, &heard.into(), Duration::from_secs(2), MonoTime(10 * second));
        assert_eq!(nodes.fenced, [BrokerId(3)].into());
        assert_eq!(nodes.draining, [BrokerId(2)].into());
        assert_eq!(nodes.beating, [BrokerId(1), BrokerId(2)].into(), "within two seconds");
        assert_eq!(nodes.beating_after_death, Duration::from_secs(3));
    }
}
