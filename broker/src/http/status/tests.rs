use felix_cluster::decision::Change;
use felix_cluster::keys::Key;
use felix_cluster::state::{self, Revision, encode};
use felix_protocol::ids::{Generation, LogId, TopicId};
use felix_replication::halted::HaltReason;

use super::*;
use crate::admin::testing::view_with;

fn facts<'a>(view: &'a View, holds: &'a dyn Fn(&PartitionId) -> Option<Replica>) -> Facts<'a> {
    let second = |seconds: u64| MonoTime(seconds * 1_000_000_000);
    Facts {
        view,
        node: BrokerId(1),
        session: SessionId(1),
        sessions: 1,
        lease_ends_at: second(102),
        now: second(100),
        heard: BTreeMap::from([(BrokerId(1), second(100)), (BrokerId(2), second(40))]),
        ready: true,
        sick: None,
        halted: Vec::new(),
        unknown: Vec::new(),
        holds,
    }
}

fn put<T: serde::Serialize>(view: &mut View, key: &Key, value: &T) {
    let revision = Revision(view.revision().0 + 1);
    view.apply(&Change { key: key.to_string(), value: Some(encode(value)), revision }).unwrap();
    view.advance(revision);
}

fn founded(view: &mut View) {
    put(view, &Key::Cluster, &state::Cluster::founded("cluster", 2000));
}

/// Broker 1 leads everything and has opened it.
fn sound(topics: &[(&str, i32)]) -> View {
    let mut view = view_with(topics);
    founded(&mut view);
    let all: Vec<_> = view.partitions().map(|one| (one.id, one.state.clone())).collect();
    for (id, mut partition) in all {
        let pair = state::Pair { broker: BrokerId(1), log: LogId::random() };
        partition.last = state::Last::Opened { pair, generation: partition.generation };
        put(&mut view, &Key::Partition(id), &partition);
    }
    view
}

fn nothing(_: &PartitionId) -> Option<Replica> {
    None
}

#[test]
fn a_sound_cluster_is_healthy() {
    let view = sound(&[("orders", 3)]);
    let status = status(&facts(&view, &nothing), &Query::default());
    assert!(status.healthy && status.problems.is_empty(), "{:?}", status.problems);
    assert_eq!((status.partitions.topics, status.partitions.total), (1, 3));
    assert_eq!(status.asked.lease_left_ms, Some(2000));
    let node = &status.nodes[0];
    assert_eq!((node.id, node.state, node.leads, node.replicas), (1, NodeState::Live, 3, 3));
    assert_eq!((node.heard_ms_ago, node.address.as_str()), (Some(0), "localhost:9092"));
    let page = page(&facts(&view, &nothing), &Query::default());
    assert_eq!(serde_json::from_str::<Status>(&page).unwrap(), status);
}

#[test]
fn what_is_wrong_is_told_in_a_line_each() {
    let mut view = sound(&[("orders", 40)]);
    let first = view.partitions().next().unwrap();
    let (id, mut short) = (first.id, first.state.clone());
    short.replicas = vec![BrokerId(1), BrokerId(2)];
    put(&mut view, &Key::Partition(id), &short);
    for (id, mut partition) in
        view.partitions().skip(1).take(30).map(|one| (one.id, one.state.clone())).collect::<Vec<_>>()
    {
        partition.leader = None;
        put(&mut view, &Key::Partition(id), &partition);
    }
    let one = view.broker(BrokerId(1)).unwrap().node.clone();
    let two = state::Node { state: NodeState::Fenced, suspect: true, ..one.clone() };
    put(&mut view, &Key::Node(BrokerId(2)), &two);
    put(&mut view, &Key::Node(BrokerId(3)), &one);
    let recovered = state::Cluster { control_epoch: 9, ..state::Cluster::founded("cluster", 2000) };
    put(&mut view, &Key::Cluster, &recovered);
    let halted = felix_replication::halted::Halted {
        partition: id,
        node: BrokerId(1),
        generation: Generation::ZERO,
        position: 0,
        reason: HaltReason::Storage,
    };
    let unknown = PartitionId { topic: TopicId::random(), index: 3 };
    let mut facts = facts(&view, &nothing);
    facts.heard.insert(BrokerId(3), MonoTime(90_000_000_000));
    facts.sick = Some("1 copies are halted".to_owned());
    facts.halted = vec![halted];
    facts.unknown = vec![unknown];
    facts.ready = false;
    facts.lease_ends_at = MonoTime(99_000_000_000);
    let told = status(&facts, &Query::default());
    assert!(!told.healthy);
    let wanted = [
        "does not serve clients",
        "broker 1 has no lease",
        "1 copies are halted",
        "node 2: a flush failed",
        "node 2 is down: its session was ended, last heard of 60 s ago",
        "node 3 is silent, last heard of 10 s ago",
        "30 partitions have no leader",
        "1 partitions have fewer copies",
        "felix recover confirm",
    ];
    assert_eq!(told.problems.len(), wanted.len(), "{:?}", told.problems);
    for (problem, wanted) in told.problems.iter().zip(wanted) {
        assert!(problem.contains(wanted), "{problem}");
    }
    assert_eq!(told.unknown_copies.first, [unknown.to_string()]);
    assert_eq!(told.halted.first[0].partition, "orders-0");
    assert_eq!(told.under_replicated.first[0].partition, "orders-0");
    // An outage makes no page of thousands of rows, unless it is asked for.
    assert_eq!((told.leaderless.count, told.leaderless.first.len()), (30, ROWS));
    assert_eq!(status(&facts, &Query::parse("all")).leaderless.first.len(), 30);
}

#[test]
fn what_a_broker_holds_is_told_by_name() {
    let view = sound(&[("with-dash", 2)]);
    let log = LogId::random();
    let holds = |id: &PartitionId| {
        (id.index == 1).then(|| Replica {
            log_id: log,
            accepted: Generation::new(7).unwrap(),
            mark: 5,
            mark_generation: Generation::ZERO,
            log_start: 0,
            synced: 12,
            clean: true,
            unsynced: false,
            diverged: false,
        })
    };
    let query = Query::parse("copies=with-dash-1,with-dash-0,other-9,nonsense&x=1");
    let copies = status(&facts(&view, &holds), &query).copies;
    let logs: Vec<_> = copies.iter().map(|copy| (copy.log.as_deref(), copy.accepted, copy.end)).collect();
    assert_eq!(logs[0], (Some(log.to_string().as_str()), 7, 12));
    assert!(logs[1..].iter().all(|copy| *copy == (None, 0, 0)));
    assert_eq!(Query::parse(&format!("copies={}", "a,".repeat(10_000))).copies.len(), COPIES);
}
