//! Several agents on one store.

use felix_protocol::time::Clock;

use super::*;
use crate::store::memory::{Fate, Reach, Server};

mod node;
mod operate;
mod producers;
mod recovery;

use node::{LEASE, Node, eventually};

/// That many nodes of one cluster, all there.
async fn cluster(server: &Server, count: i32) -> (Vec<Node>, Vec<Agent>) {
    let nodes: Vec<Node> = (1..=count).map(|id| Node::new(server, id)).collect();
    let mut agents = Vec::new();
    for node in &nodes {
        agents.push(node.join().await);
    }
    for agent in &agents {
        assert!(agent.wait_for(LONG, |view| view.brokers().count() == nodes.len()).await);
    }
    (nodes, agents)
}

/// Creates a topic and waits until each of its partitions is led by somebody; nobody opens them here.
async fn create_placed(agent: &Agent, new: NewTopic) -> CreatedTopic {
    let made = create(agent, new, Duration::ZERO).await;
    let count = usize::try_from(made.partitions).unwrap();
    let led = |view: &View| view.partitions_of(&made.id).filter(|it| it.leader().is_some()).count() == count;
    assert!(agent.wait_for(LONG, led).await);
    made
}

fn leaders(view: &View) -> BTreeMap<PartitionId, Option<BrokerId>> {
    view.partitions().map(|partition| (partition.id, partition.leader_id())).collect()
}

async fn stop_all(agents: Vec<Agent>) {
    for agent in agents {
        agent.stop().await.unwrap();
    }
}

#[tokio::test]
async fn three_nodes_form_one_cluster_and_all_see_what_one_of_them_does() {
    let server = Server::new();
    let (nodes, agents) = cluster(&server, 3).await;
    let id = agents[0].view().cluster_id().to_owned();
    assert!(!id.is_empty() && agents.iter().all(|agent| agent.view().cluster_id() == id));
    for (node, agent) in nodes.iter().zip(&agents) {
        eventually("the lease is there", || node.holds(agent)).await;
        assert!(agent.lease().ends_at() < MonoTime::NEVER);
    }
    // On the one whose turn it never is.
    let made = create_placed(&agents[2], topic("orders", 6)).await;
    for agent in &agents {
        let led = |view: &View| view.partitions_of(&made.id).filter(|it| it.leader().is_some()).count() == 6;
        assert!(agent.wait_for(LONG, led).await);
        let led = leaders(&agent.view());
        let counted = |id| led.values().filter(|leader| **leader == Some(BrokerId(id))).count();
        assert_eq!((counted(1), counted(2), counted(3)), (2, 2, 2));
        check_view(&agent.view()).unwrap();
    }
    agents[1].delete_topics(vec![TopicRef::Id(made.id)]).await.remove(0).unwrap();
    for agent in &agents {
        assert!(agent.wait_for(LONG, |view| view.partition_count() == 0).await);
    }
    stop_all(agents).await;
}

/// Asks a node whose watch is told nothing, until it has looked into the store by itself.
async fn ask_behind<T>(node: &Node, ask: impl Future<Output = T>) -> T {
    let before = node.ways.reads();
    let told = async {
        eventually("it looks into the store", || node.ways.reads() > before).await;
        node.ways.hold_watches(false);
    };
    tokio::join!(ask, told).0
}

/// Whoever asks may know more than the node that is asked: it has heard of it from another.
#[tokio::test]
async fn nobody_is_refused_for_what_a_node_has_not_heard_of_yet() {
    let server = Server::new();
    let (nodes, mut agents) = cluster(&server, 2).await;
    nodes[1].ways.hold_watches(true);
    agents.push(Node::new(&server, 3).join().await);
    assert_eq!(agents[1].view().brokers().count(), 2, "it has not heard of the node");
    let wide = NewTopic { replication_factor: 3, ..topic("wide", 1) };
    let created = ask_behind(&nodes[1], create(&agents[1], wide, Duration::ZERO)).await;
    assert_eq!(created.replication_factor, 3);
    // All that is done to a topic that was made elsewhere this instant.
    let behind = async |name: &str| {
        nodes[1].ways.hold_watches(true);
        let made = create(&agents[0], topic(name, 1), Duration::ZERO).await;
        assert!(agents[1].view().topic(&made.id).is_none(), "it has not heard of the topic");
        made
    };
    let made = behind("orders").await;
    let deleted = ask_behind(&nodes[1], agents[1].delete_topics(vec![TopicRef::Id(made.id)])).await.remove(0);
    assert_eq!(deleted.unwrap().id, made.id);
    let again = agents[1].delete_topics(vec![TopicRef::Id(made.id)]).await.remove(0);
    assert!(matches!(again, Err(AdminError::Refused(_))), "what is not there is refused all the same");
    behind("wider").await;
    let widened = agents[1].create_partitions("wider", 3, None, false, Duration::ZERO);
    ask_behind(&nodes[1], widened).await.unwrap();
    behind("set").await;
    let set = |_: &Overrides| Ok(Overrides::from([("retention.ms".to_owned(), "5".to_owned())]));
    let set = agents[1].alter_configs(ConfigTarget::Topic("set".to_owned()), false, set);
    ask_behind(&nodes[1], set).await.unwrap();
    let made = behind("moved").await;
    let to = (PartitionId { topic: made.id, index: 0 }, Some(vec![BrokerId(3)]));
    let placed = |view: &View| view.partitions_of(&made.id).count() == 1;
    assert!(agents[0].wait_for(LONG, placed).await);
    ask_behind(&nodes[1], agents[1].alter_reassignments(vec![to], true)).await.remove(0).unwrap();
    // What is answered from the view waits until that has it.
    let made = behind("seen").await;
    let view = ask_behind(&nodes[1], agents[1].catch_up()).await.unwrap();
    assert!(view.topic(&made.id).is_some() && agents[1].view().topic(&made.id).is_some());
    stop_all(agents).await;
}

#[tokio::test]
async fn three_that_start_at_once_found_one_cluster() {
    let server = Server::new();
    let nodes: Vec<Node> = (1..=3).map(|id| Node::new(&server, id)).collect();
    let (first, second, third) = tokio::join!(nodes[0].join(), nodes[1].join(), nodes[2].join());
    let agents = vec![first, second, third];
    for agent in &agents {
        assert!(agent.wait_for(LONG, |view| view.brokers().count() == 3).await);
        assert_eq!(agent.view().cluster_id(), agents[0].view().cluster_id());
    }
    stop_all(agents).await;
}

#[tokio::test]
async fn a_dead_node_is_fenced_and_what_it_led_comes_back_with_it() {
    let server = Server::new();
    let (nodes, mut agents) = cluster(&server, 3).await;
    let made = create_placed(&agents[0], topic("orders", 3)).await;
    let before = agents[0].view();
    let died_at = nodes[0].clock.now();
    kill(agents.remove(1)).await;
    assert!(agents[0].wait_for(LONG, |view| view.broker(BrokerId(2)).unwrap().is_fenced()).await);
    let took = nodes[0].clock.now().since(died_at);
    // How soon at the latest is said where time is not a busy machine's (`observe`).
    assert!(took >= LEASE / 2, "{took:?}");
    // With one replica there is nobody else, and that shows.
    let leaderless = |view: &View| view.partitions().filter(|it| it.leader().is_none()).count() == 1;
    assert!(agents[0].wait_for(LONG, leaderless).await);
    let agent = nodes[1].join().await;
    let led = |view: &View| view.partitions_of(&made.id).all(|partition| partition.leader().is_some());
    assert!(agents[0].wait_for(LONG, led).await);
    for partition in agents[0].view().partitions() {
        let earlier = before.partition(&partition.id).unwrap();
        assert_eq!(partition.leader_id(), earlier.leader_id());
        let again = u32::from(partition.leader_id() == Some(BrokerId(2)));
        assert_eq!(partition.generation().number(), earlier.generation().number() + again);
    }
    assert_eq!(*nodes[1].renewed.lock(), 0, "its copies are what they were");
    agents.push(agent);
    stop_all(agents).await;
}

#[tokio::test]
async fn a_restart_within_the_lease_waits_for_nobody() {
    let server = Server::new();
    let (nodes, mut agents) = cluster(&server, 2).await;
    let made = create_placed(&agents[0], topic("orders", 2)).await;
    kill(agents.remove(1)).await;
    let began_at = nodes[1].clock.now();
    let agent = nodes[1].join().await;
    let took = nodes[1].clock.now().since(began_at);
    assert!(took < LEASE / 2, "{took:?}");
    let session = agent.session();
    let led = |view: &View| {
        view.partitions_of(&made.id).any(|partition| partition.led_by(BrokerId(2), session).is_some())
    };
    assert!(agent.wait_for(LONG, led).await);
    agents.push(agent);
    stop_all(agents).await;
}

#[tokio::test]
async fn another_boot_of_the_machine_waits_for_the_lease_of_the_one_before() {
    let server = Server::new();
    let (mut nodes, mut agents) = cluster(&server, 1).await;
    kill(agents.remove(0)).await;
    nodes[0].config.boot_id = "later".to_owned();
    let began_at = nodes[0].clock.now();
    let agent = nodes[0].join().await;
    assert!(nodes[0].clock.now().since(began_at) >= LEASE);
    assert_eq!(*nodes[0].renewed.lock(), 0);
    // A clean stop leaves nothing to wait for, whatever the boot.
    agent.stop().await.unwrap();
    nodes[0].config.boot_id = "much later".to_owned();
    let began_at = nodes[0].clock.now();
    let agent = nodes[0].join().await;
    assert!(nodes[0].clock.now().since(began_at) < LEASE / 2);
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn a_node_cut_off_stops_before_it_is_fenced_and_begins_anew_in_the_same_process() {
    let server = Server::new();
    let (nodes, agents) = cluster(&server, 3).await;
    create_placed(&agents[0], topic("orders", 3)).await;
    let (lease, session) = (agents[1].lease(), agents[1].session());
    nodes[1].ways.set_reach(Reach::Nothing);
    let mut changed = agents[0].changed();
    while !agents[0].view().broker(BrokerId(2)).unwrap().is_fenced() {
        changed.changed().await.unwrap();
    }
    assert!(lease.ends_at() <= nodes[1].clock.now(), "S1");
    assert!(!lease.is_over(), "it cannot know yet");
    nodes[1].ways.set_reach(Reach::Everything);
    eventually("another session", || agents[1].session() != session).await;
    assert!(lease.is_over());
    let session = agents[1].session();
    eventually("another lease", || nodes[1].holds(&agents[1])).await;
    let led =
        |view: &View| view.partitions().any(|partition| partition.led_by(BrokerId(2), session).is_some());
    assert!(agents[0].wait_for(LONG, led).await);
    stop_all(agents).await;
}

#[tokio::test]
async fn an_outage_of_the_store_ends_leases_and_no_session() {
    let server = Server::new();
    let (nodes, agents) = cluster(&server, 3).await;
    create_placed(&agents[0], topic("orders", 3)).await;
    let sessions: Vec<_> = agents.iter().map(Agent::session).collect();
    for reach in [Reach::Nothing, Reach::ReadOnly] {
        nodes.iter().for_each(|node| node.ways.set_reach(reach));
        for (node, agent) in nodes.iter().zip(&agents) {
            eventually("the lease runs out", || !node.holds(agent)).await;
        }
        // Longer than everybody would wait for anybody.
        tokio::time::sleep(LEASE * 2).await;
        nodes.iter().for_each(|node| node.ways.set_reach(Reach::Everything));
        for (node, agent) in nodes.iter().zip(&agents) {
            eventually("the lease is back", || node.holds(agent)).await;
        }
        tokio::time::sleep(LEASE * 2).await;
        assert_eq!(agents.iter().map(Agent::session).collect::<Vec<_>>(), sessions);
        assert_eq!(agents[0].view().brokers().count(), 3);
        assert!(agents[0].view().partitions().all(|partition| partition.generation().number() == 1));
    }
    stop_all(agents).await;
}

#[tokio::test]
async fn a_second_process_of_a_live_id_is_refused() {
    let server = Server::new();
    let (nodes, agents) = cluster(&server, 2).await;
    let mut other = Node::new(&server, 2);
    other.config.directory_id = Uuid::from_u128(77);
    let Err(error) = other.try_join().await else { panic!("it joined") };
    assert!(error.to_string().starts_with("node 2 is running elsewhere"), "{error}");
    assert!(nodes[1].holds(&agents[1]));
    stop_all(agents).await;
}

#[tokio::test]
async fn a_wiped_directory_takes_over_once_the_old_session_is_over() {
    let server = Server::new();
    let (nodes, mut agents) = cluster(&server, 2).await;
    kill(agents.remove(1)).await;
    let mut other = Node::new(&server, 2);
    other.config.directory_id = Uuid::from_u128(77);
    let agent = other.join().await;
    assert_eq!(*other.renewed.lock(), 1, "whatever it holds is nothing that the store knows");
    assert_eq!(agent.view().broker(BrokerId(2)).unwrap().node.directory, Uuid::from_u128(77));
    drop(nodes);
    agents.push(agent);
    stop_all(agents).await;
}

#[tokio::test]
async fn after_a_failed_flush_the_store_says_what_the_disk_could_not_note() {
    let server = Server::new();
    let (mut nodes, mut agents) = cluster(&server, 2).await;
    agents.remove(1).stop_suspect().await.unwrap();
    let told = |view: &View| view.broker(BrokerId(2)).is_some_and(|it| it.node.suspect && it.is_fenced());
    assert!(agents[0].wait_for(LONG, told).await);
    let agent = nodes[1].join().await;
    assert_eq!(*nodes[1].renewed.lock(), 1, "before the registration that takes the word back");
    assert!(!agent.view().broker(BrokerId(2)).unwrap().node.suspect);
    agent.stop_suspect().await.unwrap();
    nodes[1].config.doubts_settled = true;
    agents.push(nodes[1].join().await);
    assert_eq!(*nodes[1].renewed.lock(), 1, "the directory knows which copies are in doubt");
    stop_all(agents).await;
}

#[tokio::test]
async fn one_whose_place_was_taken_ends() {
    let server = Server::new();
    let (nodes, agents) = cluster(&server, 2).await;
    nodes[1].ways.set_reach(Reach::Nothing);
    let mut other = Node::new(&server, 2);
    other.config.directory_id = Uuid::from_u128(77);
    let second = other.join().await;
    nodes[1].ways.set_reach(Reach::Everything);
    let why = agents[1].ended().await.unwrap();
    assert!(why.starts_with("node 2 is running elsewhere"), "{why}");
    assert!(agents[1].lease().is_over());
    second.stop().await.unwrap();
    agents[0].stop().await.unwrap();
}

#[tokio::test]
async fn a_store_of_another_cluster_or_one_that_went_back_is_refused() {
    let server = Server::new();
    let (mut nodes, agents) = cluster(&server, 1).await;
    let early = server.snapshot();
    create_placed(&agents[0], topic("orders", 1)).await;
    stop_all(agents).await;
    server.restore(&early);
    let Err(error) = nodes[0].try_join().await else { panic!("it joined") };
    assert!(error.to_string().contains("went back"), "{error}");
    let node = Node {
        config: AgentConfig { cluster_id: Some("other".to_owned()), ..nodes.remove(0).config },
        ..Node::new(&server, 1)
    };
    let Err(error) = node.try_join().await else { panic!("it joined") };
    assert!(matches!(error, StartError::OtherCluster { .. }), "{error}");
}

#[tokio::test]
async fn a_broker_that_does_not_keep_up_with_the_store_loses_its_lease_until_it_does() {
    let server = Server::new();
    let (nodes, agents) = cluster(&server, 1).await;
    let (agent, node) = (&agents[0], &nodes[0]);
    let applying = agent.applying();
    let session = agent.session();
    eventually("the lease runs out", || !node.holds(agent)).await;
    applying.applied(agent.view().revision(), 0);
    eventually("the lease is back", || node.holds(agent)).await;
    assert_eq!(agent.session(), session);
    stop_all(agents).await;
}

#[tokio::test]
async fn lost_answers_neither_lose_nor_double() {
    let server = Server::new();
    let (nodes, agents) = cluster(&server, 3).await;
    let fates =
        [Fate::AnswerLost, Fate::Late(2), Fate::Answered, Fate::RequestLost, Fate::Refused, Fate::Answered];
    for round in 0..6 {
        for (at, node) in nodes.iter().enumerate() {
            let mut fates = fates;
            fates.rotate_left((at + round) % 6);
            node.ways.script(&fates);
        }
        let name = format!("topic{round}");
        let agent = &agents[round % 3];
        // What is not known to have happened may have.
        let made = agent.create_topics(vec![topic(&name, 3)], false, Duration::ZERO).await.remove(0);
        let known = |view: &View| view.topic_named(&name).is_some();
        match made {
            Ok(_) => assert!(agents[0].wait_for(LONG, known).await),
            Err(error) => assert!(matches!(error, AdminError::Control(_)), "{error}"),
        }
    }
    server.deliver();
    for agent in &agents {
        // Looked at in the view that is whole: in the next one a topic whose request was late may just have arrived.
        let mut looked = None;
        let whole = |view: &View| {
            let led = |topic: &TopicId| view.partitions_of(topic).filter(|it| it.leader().is_some()).count();
            let is_whole = view.topics().all(|topic| led(&topic.id) == 3);
            looked = is_whole.then(|| check_view(view));
            is_whole
        };
        assert!(agent.wait_for(LONG, whole).await);
        assert_eq!(looked, Some(Ok(())));
    }
    // What is left of a script must not befall the stop.
    for node in &nodes {
        node.ways.script(&[]);
    }
    stop_all(agents).await;
}
