//! Brokers in one process that ship to each other over their own listeners.

use felix_cluster::view::View;
use felix_control::store::memory::Server;
use felix_protocol::time::Clock as _;

use super::following::LONG;
use super::leased::Member;
use super::*;

fn members(server: &Server, ids: &[i32]) -> Vec<Member> {
    ids.iter().map(|id| Member::with_peers(server, *id, TempDir::new().unwrap())).collect()
}

/// A topic with one partition, whose copies are on those brokers; the first of them leads.
fn topic_on(by: &Member, replicas: &[i32]) -> PartitionId {
    topic_named("t", by, replicas)
}

fn topic_named(name: &str, by: &Member, replicas: &[i32]) -> PartitionId {
    let new = felix_cluster::topics::NewTopic {
        name: name.to_owned(),
        partitions: 1,
        replication_factor: i16::try_from(replicas.len()).unwrap(),
        assignments: Some([(0, replicas.iter().copied().map(BrokerId).collect())].into()),
        overrides: Default::default(),
    };
    let created = by.broker.runtime.block_on(by.agent.create_topics(vec![new], false, LONG));
    PartitionId { topic: created.into_iter().next().unwrap().unwrap().id, index: 0 }
}

fn eligible(view: &View, partition: &PartitionId) -> usize {
    view.partition(partition).map_or(0, |it| it.state.eligible.len())
}

/// The partition, if that broker leads it with an open copy.
fn leads(member: &Member, partition: &PartitionId) -> Option<PartitionHandle> {
    let handle = member.broker.partitions.get(partition)?;
    (handle.stage() == Stage::Open && handle.is_leader()).then_some(handle)
}

/// The copy's log as it lies on the disk, if the copy is there.
fn stored(member: &Member, partition: &PartitionId) -> Vec<u8> {
    logs(member, partition).iter().map(|log| std::fs::read(log).unwrap()).collect::<Vec<_>>().concat()
}

fn logs(member: &Member, partition: &PartitionId) -> Vec<std::path::PathBuf> {
    let folder = member.broker.partitions.opener.dir.folder(partition);
    let mut logs: Vec<_> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "log"))
        .collect();
    logs.sort();
    logs
}

#[test]
fn all_replicas_become_members_while_writes_go_on_and_any_of_them_leads_with_everything() {
    let server = Server::new();
    let mut members = members(&server, &[1, 2, 3]);
    let partition = topic_on(&members[0], &[1, 2, 3]);
    let one = members.remove(0);
    let handle = one.led(partition, one.agent.session());
    let mut written = 0;
    // Too few are members in the beginning, and refuse what asks for more.
    until(&one, || {
        written += usize::from(handle_append(&one, &handle));
        eligible(&one.agent.view(), &partition) == 2 && written > 10
    });
    let (end, bytes) = (handle.log_end(), stored(&one, &partition));
    assert_eq!(handle.mark(), end, "everything was acknowledged by all of them");
    for member in &members {
        member.eventually(|| (stored(member, &partition) == bytes).then_some(()));
        let lag = member.broker.partitions.lags().pop().unwrap();
        assert_eq!((lag.leads, lag.records), (false, Some(0)));
    }
    let lag = one.broker.partitions.lags().pop().unwrap();
    assert_eq!((lag.leads, lag.records), (true, Some(0)));
    drop(handle);
    one.broker.runtime.block_on(one.agent.drain()).unwrap();
    one.stop();
    // One of the two leads with all of it, and the other stands for what is written from now on.
    let (leader, handle) = members[0]
        .eventually(|| members.iter().find_map(|member| Some((member, leads(member, &partition)?))));
    assert_eq!(handle.log_end(), end);
    until(leader, || handle_append(leader, &handle));
    assert_eq!(handle.mark(), handle.log_end());
    drop(handle);
    for member in members {
        member.stop();
    }
}

#[test]
fn a_leader_whose_copy_breaks_gives_way_to_one_that_has_everything() {
    let server = Server::new();
    let members = members(&server, &[1, 2, 3]);
    let one = &members[0];
    let (partition, alone) = (topic_on(one, &[1, 2, 3]), topic_named("alone", one, &[1]));
    let (handle, own) = (one.led(partition, one.agent.session()), one.led(alone, one.agent.session()));
    until(one, || handle_append(one, &handle) && eligible(&one.agent.view(), &partition) == 2);
    let end = handle.log_end();
    for id in [alone, partition] {
        one.broker.partitions.lane_of(&id).send(Message::Break { partition: id });
    }
    let (leader, next) =
        one.eventually(|| members[1..].iter().find_map(|member| Some((member, leads(member, &partition)?))));
    assert_eq!(next.log_end(), end, "nothing is lost");
    until(leader, || handle_append(leader, &next));
    assert_eq!(one.broker.partitions.losses(), 0);
    // It says that it has stopped, and those who acknowledge do without it.
    let broken = |pair: &felix_cluster::state::Pair| pair.broker == BrokerId(1);
    one.wait_for(|view| !view.partition(&partition).unwrap().state.eligible.iter().any(broken));
    assert_eq!(one.broker.partitions.halted().len(), 2);
    // Nobody else could lead this one, and what it has can still be read.
    let view = one.agent.view();
    assert!(view.partition(&alone).unwrap().led_by(BrokerId(1), one.agent.session()).is_some());
    assert_eq!(own.stage(), Stage::Halted);
    drop((handle, own, next));
    for member in members {
        member.stop();
    }
}

/// Tries until it is so, from outside of the runtime: who writes waits on it.
fn until(member: &Member, mut test: impl FnMut() -> bool) {
    for _ in 0..4000 {
        if test() {
            return;
        }
        member.broker.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(5)).await });
    }
    panic!("it never happens");
}

fn handle_append(member: &Member, handle: &PartitionHandle) -> bool {
    member.broker.append(handle, append(batch(3), Acks::All)).is_ok()
}

#[test]
fn a_replica_that_is_added_begins_where_the_log_does_and_completes_the_move() {
    let server = Server::new();
    let members = members(&server, &[1, 2]);
    let (one, two) = (&members[0], &members[1]);
    let partition = topic_on(one, &[1]);
    let handle = one.led(partition, one.agent.session());
    for _ in 0..3 {
        assert!(handle_append(one, &handle));
    }
    let (answer, deleted) = oneshot::channel();
    let to = felix_partition::copy::DeleteTo::Offset(4);
    one.broker.partitions.lane_of(&partition).send(Message::DeleteRecords { partition, to, answer });
    assert_eq!(one.broker.runtime.block_on(deleted).unwrap(), Ok(4));
    let target = Some(vec![BrokerId(1), BrokerId(2)]);
    let moved = one.agent.alter_reassignments(vec![(partition, target)], true);
    assert!(one.broker.runtime.block_on(moved)[0].is_ok());
    one.wait_for(|view| {
        let state = &view.partition(&partition).unwrap().state;
        state.adding.is_empty() && state.replicas.len() == 2 && state.eligible.len() == 1
    });
    let row = two.broker.partitions.opener.replicas.get(&partition).unwrap();
    let view = one.agent.view();
    let pair = view.partition(&partition).unwrap().state.eligible.first().copied().unwrap();
    assert_eq!((pair.broker, pair.log), (BrokerId(2), row.log_id));
    assert!(row.log_start >= 3, "what was deleted was not shipped");
    assert!(handle_append(one, &handle));
    // Four batches of the same length were written, the first of which is deleted.
    let whole = stored(one, &partition);
    two.eventually(|| (stored(two, &partition) == whole[whole.len() / 4..]).then_some(()));
    drop(handle);
    for member in members {
        member.stop();
    }
}

/// One partition's copy is made from nothing, mostly from the leader's disk, while another one is written to with acks=all: both are
/// shipped over one connection. How long things took is printed; on a machine that does other work it says little.
#[test]
fn a_partition_that_is_far_behind_and_one_that_is_not_share_a_connection() {
    let server = Server::new();
    let members = members(&server, &[1, 2]);
    let (one, two) = (&members[0], &members[1]);
    let (large, live) = (topic_named("large", one, &[1]), topic_named("live", one, &[1, 2]));
    let handle = one.led(large, one.agent.session());
    let clock = SystemClock::start();
    let mut builder = BatchBuilder::new();
    builder.push(clock.wall().0, None, Some(&vec![7; 512 << 10]));
    let half_a_mebibyte = builder.build().unwrap();
    // More than is kept in memory.
    let batches = 80;
    for _ in 0..batches {
        assert!(one.broker.append(&handle, append(half_a_mebibyte.clone(), Acks::Leader)).is_ok());
    }
    let live_handle = one.led(live, one.agent.session());
    let timed = || {
        let from = clock.now();
        handle_append(one, &live_handle).then(|| clock.now().since(from))
    };
    until(one, || timed().is_some() && eligible(&one.agent.view(), &live) == 1);
    let alone: Vec<Duration> = (0..60).filter_map(|_| timed()).collect();
    let from = clock.now();
    let target = Some(vec![BrokerId(1), BrokerId(2)]);
    let moved = one.agent.alter_reassignments(vec![(large, target)], true);
    assert!(one.broker.runtime.block_on(moved)[0].is_ok());
    let mut beside = Vec::new();
    until(one, || {
        beside.extend(timed());
        eligible(&one.agent.view(), &large) == 1
    });
    let took = clock.now().since(from);
    let from = clock.now();
    let whole = stored(one, &large);
    let read = clock.now().since(from);
    two.eventually(|| (stored(two, &large) == whole).then_some(()));
    until(one, || timed().is_some() && eligible(&one.agent.view(), &live) == 1);
    let figures = |mut times: Vec<Duration>| {
        times.sort_unstable();
        (times.len(), times.get(times.len() / 2).copied(), times.last().copied())
    };
    println!(
        "{} MiB caught up in {took:?}, read in {read:?}; appends (count, median, longest) alone {:?}, beside it {:?}",
        whole.len() >> 20,
        figures(alone),
        figures(beside)
    );
    drop((handle, live_handle));
    for member in members {
        member.stop();
    }
}
