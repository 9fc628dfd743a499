//! A store that was restored from a backup, and what every process makes of it.

use super::*;
use crate::past::Memory;
use crate::recovery::{RecoverError, Recovery};

const NOW: u64 = 1_796_000_000;

async fn recovery(server: &Server) -> Recovery<crate::store::memory::Memory> {
    Recovery::open(server.connect(), true).await.unwrap()
}

async fn acknowledge(server: &Server) {
    let mut recovery = recovery(server).await;
    recovery.check_unused().await.unwrap();
    recovery.acknowledge(NOW).await.unwrap();
    recovery.close().await.unwrap();
}

#[tokio::test]
async fn a_restored_store_is_refused_by_all_until_it_is_acknowledged_and_then_begins_a_new_history() {
    let server = Server::new();
    let (nodes, agents) = cluster(&server, 2).await;
    let made = create_placed(&agents[0], topic("orders", 4)).await;
    let backup = server.snapshot();
    // What is lost: a topic, and tenures.
    let lost = create_placed(&agents[1], topic("lost", 1)).await;
    kill_all(agents).await;
    let mut agents = join_all(&nodes).await;
    assert!(agents[0].wait_for(LONG, |view| generations(view).iter().any(|number| *number > 1)).await);
    let newest = generations(&agents[0].view()).into_iter().max().unwrap();
    server.restore(&backup);
    for agent in &agents {
        // Whatever asks the store next finds out, at the latest the list of once a minute.
        assert!(agent.next_producer_ids().await.is_err());
        assert!(agent.ended().await.unwrap().contains("went back"));
        assert!(agent.lease().is_over());
    }
    agents.clear();
    let renewed = |node: &Node| *node.renewed.lock();
    for node in &nodes {
        let Err(error) = node.try_join().await else { panic!("it joined") };
        assert!(error.to_string().contains("felix recover store"), "{error}");
        assert_eq!(renewed(node), 0);
    }
    acknowledge(&server).await;
    let agents = join_all(&nodes).await;
    assert_eq!(nodes.iter().map(renewed).collect::<Vec<_>>(), [1, 1], "no copy is what it was before");
    for agent in &agents {
        assert!(agent.is_unverified(), "copies that the store does not know are kept");
        assert!(agent.wait_for(LONG, |view| view.partitions().all(|one| one.leader().is_some())).await);
        let view = agent.view();
        assert!(view.topic(&lost.id).is_none() && view.partitions_of(&made.id).count() == 4);
        assert!(generations(&view).iter().all(|number| *number > newest), "{:?}", generations(&view));
        check_view(&view).unwrap();
    }
    // From here on it is a store like any other.
    kill_all(agents).await;
    let agents = join_all(&nodes).await;
    assert_eq!(nodes.iter().map(renewed).collect::<Vec<_>>(), [1, 1]);
    let mut recovery = recovery(&server).await;
    assert!(recovery.confirm().await.unwrap() && !recovery.confirm().await.unwrap());
    for agent in &agents {
        assert!(agent.wait_for(LONG, View::is_confirmed).await && !agent.is_unverified());
    }
    stop_all(agents).await;
}

async fn kill_all(agents: Vec<Agent>) {
    for agent in agents {
        kill(agent).await;
    }
}

async fn join_all(nodes: &[Node]) -> Vec<Agent> {
    let mut agents = Vec::new();
    for node in nodes {
        agents.push(node.join().await);
    }
    agents
}

#[tokio::test]
async fn a_backup_of_before_an_earlier_recovery_is_refused_again() {
    let server = Server::new();
    let (nodes, agents) = cluster(&server, 1).await;
    let backup = server.snapshot();
    stop_all(agents).await;
    server.restore(&backup);
    acknowledge(&server).await;
    stop_all(join_all(&nodes).await).await;
    server.restore(&backup);
    // It comes further than it was, which makes no other store of it.
    for _ in 0..1000 {
        server.write_elsewhere();
    }
    let Err(error) = nodes[0].try_join().await else { panic!("it joined") };
    assert!(error.to_string().contains("went back"), "{error}");
    let mut recovery = recovery(&server).await;
    recovery.acknowledge(NOW + 5).await.unwrap();
    stop_all(join_all(&nodes).await).await;
}

#[tokio::test]
async fn nothing_is_acknowledged_while_brokers_use_the_store() {
    let server = Server::new();
    let (_nodes, agents) = cluster(&server, 2).await;
    let mut recovery = recovery(&server).await;
    let running = recovery.check_unused().await;
    let Err(RecoverError::Running(running)) = running else { panic!("{running:?}") };
    assert_eq!(running, [BrokerId(1), BrokerId(2)]);
    stop_all(agents).await;
    recovery.check_unused().await.unwrap();
}

/// It should not be, but it is: the brokers find out, and end.
#[tokio::test]
async fn brokers_under_which_a_store_is_acknowledged_end() {
    let server = Server::new();
    let (nodes, agents) = cluster(&server, 2).await;
    create_placed(&agents[0], topic("orders", 2)).await;
    let mut by_hand = recovery(&server).await;
    let told = loop {
        // A beat may come in between.
        match by_hand.acknowledge(NOW).await {
            Ok(told) => break told,
            Err(RecoverError::Changed) => by_hand = recovery(&server).await,
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(told.fenced.len(), 2);
    for agent in &agents {
        assert!(agent.ended().await.unwrap().contains("felix recover store"));
        assert!(agent.lease().is_over());
    }
    // Nobody has registered under the new history who still has the ids of the old one.
    assert_eq!(by_hand.view().brokers().count(), 0);
    drop(agents);
    stop_all(join_all(&nodes).await).await;
    assert_eq!(nodes.iter().map(|node| *node.renewed.lock()).collect::<Vec<_>>(), [1, 1]);
}

/// The directory's memory is a minute behind, and what it saw since is gone: its copies know better.
#[tokio::test]
async fn a_copy_that_has_accepted_what_the_store_never_granted_tells_on_it() {
    let server = Server::new();
    let (mut nodes, agents) = cluster(&server, 1).await;
    let made = create_placed(&agents[0], topic("orders", 1)).await;
    stop_all(agents).await;
    let id = PartitionId { topic: made.id, index: 0 };
    nodes[0].config.fences.insert(id, Generation::new(1).unwrap());
    stop_all(join_all(&nodes).await).await;
    nodes[0].config.fences.insert(id, Generation::new(9).unwrap());
    let Err(error) = nodes[0].try_join().await else { panic!("it joined") };
    assert!(matches!(error, StartError::Ahead(_)) && error.to_string().contains("generation 9"), "{error}");
    acknowledge(&server).await;
    stop_all(join_all(&nodes).await).await;
}

#[tokio::test]
async fn an_embedded_store_that_was_restored_goes_on_after_an_acknowledgement() {
    let place = in_memory();
    let agent = place.start().await;
    let mut logs = BTreeMap::new();
    create_led(&agent, topic("orders", 1)).await;
    open_all(&agent, &mut logs).await;
    kill(agent).await;
    let file = place.config.directory.join(crate::store::embedded::FILE_NAME);
    let backup = place.disk.content(&file).unwrap();
    for _ in 0..2 {
        let agent = place.start().await;
        open_all(&agent, &mut logs).await;
        agent.stop().await.unwrap();
        kill(agent).await;
    }
    let before = Memory::read(&place.disk, &place.config.directory).unwrap();
    place.disk.put(&file, &backup).unwrap();
    let refused = Agent::start(place.disk.clone(), place.config.clone()).await.map(|_| ());
    let Err(error @ StartError::WentBack { .. }) = refused else { panic!("{refused:?}") };
    assert!(error.to_string().contains("felix recover store"), "{error}");
    let store = crate::store::embedded::Embedded::open(place.disk.clone(), &place.config.directory).unwrap();
    let mut recovery = Recovery::open(store, false).await.unwrap();
    recovery.check_unused().await.unwrap();
    let told = recovery.acknowledge(NOW).await.unwrap();
    recovery.close().await.unwrap();
    let agent = place.start().await;
    assert!(agent.is_unverified());
    open_all(&agent, &mut logs).await;
    assert!(generations(&agent.view()).iter().all(|number| *number > told.floor.number()));
    agent.stop().await.unwrap();
    let after = Memory::read(&place.disk, &place.config.directory).unwrap();
    assert_eq!((before.epoch, after.epoch), (0, told.epoch));
}
