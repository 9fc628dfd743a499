//! Planned moves end to end on the control side: three agents on one store, and a test in place of the brokers, which opens
//! what it is given and resigns what it is asked for.

use felix_cluster::elect::{Election, NotElected};
use felix_cluster::eligible::Report;
use felix_cluster::features::{Direction, METADATA_VERSION, Update};
use felix_cluster::quotas::{Entity, Who, binding};
use felix_cluster::reassign;
use felix_cluster::registration::NotRemoved;
use felix_cluster::state::Resigned;

use super::*;
use crate::agent::ElectError;

/// The one copy that each broker has.
fn pair(broker: i32) -> Pair {
    Pair { broker: BrokerId(broker), log: LogId(Uuid::from_u128(broker.unsigned_abs().into())) }
}

/// Does once what a broker does: opens, makes all live replicas eligible, and resigns what it is asked for.
async fn serve(agent: &Agent) {
    let asked = agent.revoked().set;
    for partition in agent.view().partitions() {
        let Some(generation) = partition.led_by(agent.node(), agent.session()) else { continue };
        let learned = agent.view().learned(&partition.id).unwrap();
        let tenure = felix_cluster::revoke::Revocation { partition: partition.id, generation };
        let report = if !partition.opened() {
            Report::Opened(pair(agent.node().0).log)
        } else if asked.contains(&tenure) {
            Report::Resigned(Resigned { end: 3, pairs: partition.state.eligible.clone() })
        } else {
            // Who drains is left out, as controllers do.
            let view = agent.view();
            let drains =
                |id: BrokerId| view.broker(id).is_some_and(|node| node.node.state == NodeState::Draining);
            let others = partition.state.replicas.iter().filter(|id| **id != agent.node() && !drains(**id));
            let pairs = others.map(|id| pair(id.0)).collect();
            Report::Eligible { pairs, dead: BTreeSet::new(), need: 1 }
        };
        // Who has changed it meanwhile is looked at in the next round.
        let _ = agent.report(partition.id, generation, report, learned).await;
    }
    agent.tidy_revocations().await.unwrap();
}

/// All serve until `test` holds.
async fn serve_until(agents: &[Agent], what: &str, test: impl Fn(&View) -> bool) {
    let began = tokio::time::Instant::now();
    while !agents.iter().all(|agent| test(&agent.view())) {
        assert!(began.elapsed() < LONG, "{what}: {:?}", agents[0].view().partitions().collect::<Vec<_>>());
        for agent in agents {
            serve(agent).await;
        }
        agents[0].wait_for(LEASE / 20, &test).await;
    }
}

fn led_by<'a>(ids: &'a [PartitionId], broker: i32) -> impl Fn(&View) -> bool + 'a {
    move |view| {
        ids.iter().all(|id| {
            view.partition(id).is_some_and(|it| it.opened() && it.leader_id() == Some(BrokerId(broker)))
        })
    }
}

async fn placed(agents: &[Agent], replicas: &[i32], count: i32) -> Vec<PartitionId> {
    let replicas: Vec<BrokerId> = replicas.iter().copied().map(BrokerId).collect();
    let assignments = (0..count).map(|index| (index, replicas.clone())).collect();
    let new = NewTopic { name: "t".to_owned(), assignments: Some(assignments), ..NewTopic::default() };
    let topic = create(&agents[0], new, Duration::ZERO).await.id;
    let ids: Vec<PartitionId> = (0..count).map(|index| PartitionId { topic, index }).collect();
    let first = replicas[0].0;
    serve_until(agents, "they open and are level", |view| {
        led_by(&ids, first)(view)
            && ids
                .iter()
                .all(|id| view.partition(id).is_some_and(|it| it.state.eligible.len() + 1 == replicas.len()))
    })
    .await;
    ids
}

#[tokio::test]
async fn a_node_that_drains_hands_over_and_an_election_brings_the_leaders_back() {
    let server = Server::new();
    let (nodes, mut agents) = cluster(&server, 3).await;
    let ids = placed(&agents, &[1, 2, 3], 5).await;
    agents[0].drain().await.unwrap();
    assert_eq!(agents[0].drained().movable, 5);
    let session = agents[0].session();
    let is_gone = |view: &View| felix_cluster::moves::drain(view, BrokerId(1), session).is_done();
    let handed_over = |view: &View| led_by(&ids, 2)(view) && is_gone(view);
    serve_until(&agents, "they are handed over, and it is out of their sets", handed_over).await;
    assert_eq!(agents[0].drained(), felix_cluster::moves::Drain::default());
    assert!(agents[0].wait_for(LONG, |view| view.revocations(BrokerId(1)).unwrap().value.is_empty()).await);
    let all: BTreeSet<PartitionId> = ids.iter().copied().collect();
    let elect = |agent: &Agent| {
        let agent = agent.clone();
        let all = all.clone();
        async move { agent.elect_leaders(all, Election::Preferred, BTreeMap::new(), LONG).await }
    };
    let refused = elect(&agents[2]).await;
    let unavailable = Err(ElectError::NotElected(NotElected::PreferredNotAvailable));
    assert!(refused.values().all(|result| *result == unavailable), "{refused:?}");
    // It stops, and comes back.
    agents.remove(0).stop().await.unwrap();
    agents.insert(0, nodes[0].join().await);
    let live = |view: &View| view.broker(BrokerId(1)).is_some_and(|node| !node.is_fenced());
    assert!(agents[2].wait_for(LONG, live).await);
    let is_level = |view: &View| view.partitions().all(|partition| partition.state.eligible.len() == 2);
    serve_until(&agents, "it is level again", is_level).await;
    let serving = serve_until(&agents, "they come back", led_by(&ids, 1));
    let (results, ()) = tokio::join!(elect(&agents[2]), serving);
    assert_eq!(results.len(), 5);
    assert!(results.values().all(Result::is_ok), "{results:?}");
    let again = elect(&agents[2]).await;
    assert!(again.values().all(|result| *result == Err(ElectError::NotElected(NotElected::NotNeeded))));
    stop_all(agents).await;
}

#[tokio::test]
async fn one_that_does_not_resign_gets_its_partitions_back() {
    let server = Server::new();
    let (_nodes, agents) = cluster(&server, 2).await;
    let ids = placed(&agents, &[1, 2], 2).await;
    let before = agents[0].view().partition(&ids[0]).unwrap().generation();
    agents[0].drain().await.unwrap();
    // Nobody serves: the request runs out, by the controller's clock.
    let given_back = |view: &View| {
        ids.iter().all(|id| {
            let partition = view.partition(id).unwrap();
            partition.leader_id() == Some(BrokerId(1)) && Some(partition.generation()) == before.next()
        })
    };
    assert!(agents[1].wait_for(LONG, given_back).await);
    stop_all(agents).await;
}

#[tokio::test]
async fn replicas_move_to_other_brokers_and_back() {
    let server = Server::new();
    let (_nodes, agents) = cluster(&server, 3).await;
    let ids = placed(&agents, &[1], 1).await;
    let wanted = |target: Option<&[i32]>| {
        let target = target.map(|ids| ids.iter().copied().map(BrokerId).collect());
        agents[1].alter_reassignments(vec![(ids[0], target)], true)
    };
    assert_eq!(wanted(Some(&[3, 2])).await, [Ok(())]);
    let at = |replicas: &'static [i32]| {
        let id = ids[0];
        move |view: &View| {
            let state = &view.partition(&id).unwrap().state;
            let there: Vec<i32> = state.replicas.iter().map(|id| id.0).collect();
            there == replicas && !reassign::in_progress(state)
        }
    };
    serve_until(&agents, "it moves", at(&[3, 2])).await;
    serve_until(&agents, "and is led there", led_by(&ids, 3)).await;
    assert_eq!(wanted(None).await, [Err(AdminError::Refused(reassign::Refused::NotInProgress))]);
    assert_eq!(wanted(Some(&[9])).await.len(), 1);
    stop_all(agents).await;
}

#[tokio::test]
async fn quotas_features_and_removed_nodes_are_seen_by_all() {
    let server = Server::new();
    let (_nodes, mut agents) = cluster(&server, 3).await;
    let user = Entity::User(Who::Named("ann".to_owned()));
    let limits = vec![("producer_byte_rate".to_owned(), Some(1024.0))];
    let set = |validate_only| agents[0].alter_quotas(vec![(user.clone(), limits.clone())], validate_only);
    assert_eq!(set(true).await, [Ok(())]);
    assert_eq!(agents[0].view().quotas().count(), 0);
    assert_eq!(set(false).await, [Ok(())]);
    let bound =
        |view: &View| binding(view, "ann", "any", "producer_byte_rate") == Some((user.clone(), 1024.0));
    assert!(agents[2].wait_for(LONG, bound).await);
    let name = "metadata.version".to_owned();
    let down = Update { name: name.clone(), level: METADATA_VERSION - 1, direction: Direction::Downgrade };
    agents[1].update_features(vec![down], false).await.unwrap();
    let lowered = |view: &View| view.features().finalized[&name] == METADATA_VERSION - 1;
    assert!(agents[0].wait_for(LONG, lowered).await);
    let running = agents[0].unregister(BrokerId(3)).await;
    assert!(matches!(running, Err(AdminError::Refused(NotRemoved::Running(_)))), "{running:?}");
    agents.remove(2).stop().await.unwrap();
    assert!(agents[0].wait_for(LONG, |view| view.brokers().count() == 2).await);
    agents[0].unregister(BrokerId(3)).await.unwrap();
    assert!(agents[1].wait_for(LONG, |view| view.nodes().count() == 2).await);
    stop_all(agents).await;
}
