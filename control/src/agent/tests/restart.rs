//! What a restart finds: stops, kills, power cuts, and directories that do not fit.

use felix_cluster::registration::Stranger;
use felix_cluster::state::Last;

use super::*;

#[tokio::test]
async fn every_start_leads_at_the_next_generation() {
    let place = on_disk();
    let mut logs = BTreeMap::new();
    let mut agent = place.start().await;
    let cluster = agent.view().cluster_id().to_owned();
    create_led(&agent, topic("orders", 4)).await;
    open_all(&agent, &mut logs).await;
    for generation in 2..6 {
        let before = agent.session();
        // Stopped in order, and not.
        if generation % 2 == 0 {
            agent.drain().await.unwrap();
            agent.stop().await.unwrap();
        }
        kill(agent).await;
        agent = place.start().await;
        assert_ne!(agent.session(), before);
        let view = agent.view();
        assert_eq!(view.cluster_id(), cluster);
        assert_eq!(generations(&view), vec![generation; 4]);
        for partition in view.partitions() {
            let led = partition.led_by(agent.node(), agent.session());
            assert_eq!(led.map(Generation::number), Some(generation));
            assert!(!partition.opened(), "the new tenure has yet to open");
            assert_eq!(partition.leader().unwrap().log, Some(logs[&partition.id]));
        }
        open_all(&agent, &mut logs).await;
        assert!(agent.view().partitions().all(|partition| partition.opened()));
    }
}

#[tokio::test]
async fn a_tenure_that_never_opened_is_replaced_and_loses_nothing() {
    let place = in_memory();
    let mut logs = BTreeMap::new();
    let agent = place.start().await;
    create_led(&agent, topic("orders", 1)).await;
    kill(agent).await;
    let agent = place.start().await;
    let led = agent.view().partitions().next().unwrap().leader().copied().unwrap();
    assert_eq!(led.log, None, "nothing was ever acknowledged: any copy will do");
    open_all(&agent, &mut logs).await;
    kill(agent).await;
    let place = place.after(Crash::LoseUnsynced);
    kill(place.start().await).await;
    let agent = place.start().await;
    let view = agent.view();
    let partition = view.partitions().next().unwrap();
    assert_eq!(partition.generation().number(), 4);
    assert_eq!(partition.leader().unwrap().log, Some(logs[&partition.id]));
    assert!(matches!(partition.state.last, Last::Opened { generation, .. } if generation.number() == 2));
}

#[tokio::test]
async fn a_topic_half_made_or_half_deleted_is_finished_after_a_power_cut() {
    let place = in_memory();
    let agent = place.start().await;
    kill(agent).await;
    for writes in 0..60 {
        let place = place.after(Crash::KeepAll);
        let agent = place.start().await;
        let made = create(&agent, topic("kept", 3), Duration::ZERO).await;
        place.disk.fail_writes_after(Some(writes));
        let half = agent.create_topics(vec![topic("half", 7)], false, Duration::ZERO).await.remove(0);
        let deleted = agent.delete_topics(vec![TopicRef::Id(made.id)]).await.remove(0);
        let place = place.after(Crash::Random(writes));
        drop(agent);
        place.disk.fail_writes_after(None);
        let agent = place.start().await;
        let view = agent.view();
        check_view(&view).unwrap();
        if half.is_ok() {
            assert!(view.topic_named("half").is_some(), "it was acknowledged");
        }
        if deleted.is_ok() {
            assert!(view.topic_named("kept").is_none(), "it was acknowledged");
        }
        kill(agent).await;
    }
}

#[tokio::test]
async fn a_lost_copy_is_declined_and_waits_for_an_operator() {
    let place = in_memory();
    let mut logs = BTreeMap::new();
    let agent = place.start().await;
    let made = create_led(&agent, topic("orders", 2)).await;
    open_all(&agent, &mut logs).await;
    kill(agent).await;

    let agent = place.start().await;
    let [wiped, doubted] = [0, 1].map(|index| PartitionId { topic: made.id, index });
    let generation = Generation::new(2).unwrap();
    let learned = |id| agent.view().learned(&id).unwrap();
    let gone = |reason, current| Declined { reason, current, accepted: Generation::new(1).unwrap(), end: 7 };
    let nothing = gone(DeclineReason::Wiped, None);
    agent.report_declined(wiped, generation, nothing, learned(wiped)).await.unwrap();
    let other = LogId::random();
    let tail = gone(DeclineReason::Doubt, Some(other));
    agent.report_declined(doubted, generation, tail, learned(doubted)).await.unwrap();
    let promoted =
        |view: &View| view.partition(&doubted).is_some_and(|partition| partition.leader().is_some());
    assert!(agent.wait_for(LONG, promoted).await);

    // The one in doubt is all there will ever be: it leads, and the loss is marked.
    let view = agent.view();
    let partition = view.partition(&doubted).unwrap();
    assert_eq!(partition.leader().unwrap().log, Some(other));
    assert_eq!(partition.state.unclean_at, Some(partition.generation()));
    // The wiped one is leaderless, visibly, also after another start.
    assert_eq!(view.partition(&wiped).unwrap().leader_id(), None);
    logs.insert(doubted, other);
    open_all(&agent, &mut logs).await;
    kill(agent).await;
    let agent = place.start().await;
    assert_eq!(agent.view().partition(&wiped).unwrap().leader_id(), None);
    assert_eq!(agent.view().partition(&doubted).unwrap().leader().unwrap().log, Some(other));

    // The operator says that loss is better than waiting.
    let allow = Overrides::from([("unclean.leader.election.enable".to_owned(), "true".to_owned())]);
    agent
        .alter_configs(ConfigTarget::Topic("orders".to_owned()), false, move |_| Ok(allow.clone()))
        .await
        .unwrap();
    assert!(
        agent.wait_for(LONG, |view| view.partition(&wiped).is_some_and(|it| it.leader().is_some())).await
    );
    let state = agent.view().partition(&wiped).unwrap().state.clone();
    assert_eq!((state.leader.unwrap().log, state.unclean_at), (None, Some(state.generation)));
}

#[tokio::test]
async fn strangers_are_refused() {
    let place = in_memory();
    let agent = place.start().await;
    let cluster = agent.view().cluster_id().to_owned();
    agent.stop().await.unwrap();
    let again = |change: &dyn Fn(&mut AgentConfig), disk: MemDisk| {
        let mut config = place.config.clone();
        change(&mut config);
        async move { Agent::start(disk, config).await.map(|_| ()) }
    };
    let copy = || place.disk.crash(Crash::KeepAll);
    let other = again(&|config| config.cluster_id = Some("other".to_owned()), copy()).await;
    assert!(matches!(other, Err(StartError::Stranger(Stranger::Cluster { .. }))), "{other:?}");
    let same = again(&|config| config.cluster_id = Some(cluster.clone()), copy()).await;
    assert!(same.is_ok(), "{same:?}");
    let moved = |config: &mut AgentConfig| {
        config.cluster_id = Some(cluster.clone());
        config.directory_id = Uuid::from_u128(6);
    };
    let moved = again(&moved, copy()).await;
    assert!(matches!(moved, Err(StartError::Stranger(Stranger::Directory { .. }))), "{moved:?}");

    // The directory's memory is that of an earlier time: the store was written by a process it knows nothing of.
    let past = place.config.directory.join(crate::past::FILE_NAME);
    let before = place.disk.content(&past).unwrap();
    let disk = copy();
    for _ in 0..2 {
        kill(Agent::start(disk.clone(), place.config.clone()).await.unwrap()).await;
    }
    disk.put(&past, &before).unwrap();
    let unknown = again(&|_| (), disk).await;
    assert!(matches!(unknown, Err(StartError::Stranger(Stranger::Session(_)))), "{unknown:?}");

    // The store is replaced by an older copy of itself, or lost.
    let file = place.config.directory.join(crate::store::embedded::FILE_NAME);
    let old = copy();
    let agent = Agent::start(copy(), place.config.clone()).await.unwrap();
    kill(agent).await;
    let disk = copy();
    let agent = Agent::start(disk.clone(), place.config.clone()).await.unwrap();
    create(&agent, topic("orders", 1), Duration::ZERO).await;
    agent.stop().await.unwrap();
    kill(agent).await;
    disk.put(&file, &old.content(&file).unwrap()).unwrap();
    let back = again(&|_| (), disk.clone()).await;
    assert!(matches!(back, Err(StartError::WentBack { .. })), "{back:?}");
    disk.remove_file(&file).unwrap();
    let lost = again(&|_| (), disk).await;
    assert!(matches!(lost, Err(StartError::WentBack { .. })), "{lost:?}");
}

#[tokio::test]
async fn a_lost_memory_keeps_nobody_out_and_is_remembered() {
    let place = in_memory();
    let agent = place.start().await;
    create(&agent, topic("orders", 1), Duration::ZERO).await;
    assert!(!agent.is_unverified());
    agent.stop().await.unwrap();
    let past = place.config.directory.join(crate::past::FILE_NAME);
    for content in [None, Some(&b""[..]), Some(b"x"), Some(&[b'x'; 9000])] {
        let place = place.after(Crash::KeepAll);
        place.disk.remove_file(&past).unwrap();
        if let Some(content) = content {
            place.disk.put(&past, content).unwrap();
        }
        for _ in 0..2 {
            let agent = place.start().await;
            assert!(agent.is_unverified(), "nobody can tell whether the store went back then");
            assert!(agent.view().topic_named("orders").is_some());
            kill(agent).await;
        }
    }
}

#[tokio::test]
async fn an_empty_store_is_not_founded_beside_copies() {
    let mut place = in_memory();
    let agent = place.start().await;
    let cluster = agent.view().cluster_id().to_owned();
    agent.stop().await.unwrap();
    kill(agent).await;
    place.config.copies = 3;
    for known in [None, Some(cluster)] {
        let disk = place.disk.crash(Crash::KeepAll);
        for file in [crate::past::FILE_NAME, crate::store::embedded::FILE_NAME] {
            disk.remove_file(&place.config.directory.join(file)).unwrap();
        }
        let config = AgentConfig { cluster_id: known, ..place.config.clone() };
        let refused = Agent::start(disk, config).await.map(|_| ());
        assert!(matches!(refused, Err(StartError::Orphans(3))), "{refused:?}");
    }
    // The directory lost its name, and somebody starts another node in it.
    let config = AgentConfig { node: BrokerId(2), ..place.config.clone() };
    let refused = Agent::start(place.disk.clone(), config).await.map(|_| ());
    assert!(matches!(refused, Err(StartError::OtherNode { .. })), "{refused:?}");
    kill(place.start().await).await;
}

#[tokio::test]
async fn a_panic_in_one_request_touches_no_other() {
    let place = in_memory();
    let agent = place.start().await;
    create(&agent, topic("beside", 1), Duration::ZERO).await;
    let target = ConfigTarget::Topic("beside".to_owned());
    let broken = agent.alter_configs(target.clone(), false, |_| panic!("on purpose"));
    let beside = agent.create_topics(vec![topic("orders", 1)], false, Duration::ZERO);
    let (broken, beside) = tokio::join!(broken, beside);
    assert!(matches!(broken, Err(AdminError::Control(ControlError::Broken))), "{broken:?}");
    assert!(beside[0].is_ok());
    agent.alter_configs(target, false, |now| Ok(now.clone())).await.unwrap();
}

#[tokio::test]
async fn a_process_that_ended_before_it_named_its_directory_is_followed_by_one_that_does() {
    let mut place = in_memory();
    let agent = place.start().await;
    let cluster = agent.view().cluster_id().to_owned();
    kill(agent).await;
    place.config.directory_id = Uuid::from_u128(6);
    let agent = place.start().await;
    assert_eq!(agent.view().cluster_id(), cluster);
    assert_eq!(agent.view().broker(BrokerId(1)).unwrap().node.directory, Uuid::from_u128(6));
    kill(agent).await;
    // From then on the directory has its name.
    place.config.cluster_id = Some(cluster);
    place.config.directory_id = Uuid::from_u128(7);
    let other = Agent::start(place.disk.clone(), place.config.clone()).await.map(|_| ());
    assert!(matches!(other, Err(StartError::Stranger(Stranger::Directory { .. }))), "{other:?}");
}

#[tokio::test]
async fn a_failed_flush_ends_the_control_side() {
    let place = in_memory();
    let agent = place.start().await;
    place.disk.fail_sync_after(0);
    let refused = agent.next_producer_ids().await;
    assert!(refused.is_err(), "{refused:?}");
    assert!(agent.ended().await.unwrap().contains("control.redb"));
    assert_eq!(agent.lease().ends_at(), MonoTime(0));
}

#[tokio::test]
async fn refused_writes_are_told_and_heal() {
    let place = in_memory();
    let agent = place.start().await;
    place.disk.fail_writes_after(Some(0));
    let refused = agent.create_topics(vec![topic("orders", 1)], false, Duration::ZERO).await.remove(0);
    assert!(matches!(refused, Err(AdminError::Control(_))), "{refused:?}");
    assert_eq!(agent.lease().ends_at(), MonoTime::NEVER, "the lock is still held");
    place.disk.fail_writes_after(None);
    let made = create(&agent, topic("later", 1), Duration::ZERO).await;
    assert!(agent.wait_for(LONG, |view| view.partitions_of(&made.id).count() == 1).await);
    check_view(&agent.view()).unwrap();
}
