//! Brokers form a cluster, and every one of them says the same of it.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;

use crate::cluster::Case;
use crate::cluster::plan::{AGREE, Cluster};
use crate::cluster::stage::{Stage, median, timed};
use crate::raw::ask::cluster::PartitionDescribed;
use crate::raw::ask::code;
use crate::raw::expect::{equal, holds};
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "three-on-one-etcd",
        proves: "three brokers on one member of etcd form a cluster: Metadata, DescribeCluster, DescribeTopicPartitions, FindCoordinator, \
                 DescribeQuorum and DescribeConfigs are the same on each, and a topic that is created on one is served by its leaders",
        seconds: 60,
        run: |stage| same_everywhere(&mut stage.plan().start()?),
    },
    Case {
        name: "three-on-three-etcd",
        proves: "the same on three members of etcd",
        seconds: 60,
        run: |stage| same_everywhere(&mut stage.plan().etcd(3).start()?),
    },
    Case {
        name: "three-on-loopback",
        proves: "the same without namespaces, all on 127.0.0.1",
        seconds: 60,
        run: |stage| same_everywhere(&mut stage.plan().loopback().start()?),
    },
    Case {
        name: "visible-everywhere",
        proves: "topics, configs and deletions made on one broker are seen on all when they are answered, or soon after; what was created on one is moved and \
                 deleted by name on another at once",
        seconds: 60,
        run: visible_everywhere,
    },
    Case {
        name: "thousand-partitions",
        proves: "1,000 partitions in one request are placed evenly, within one a broker, and with racks no partition has two replicas in one rack",
        seconds: 90,
        run: thousand_partitions,
    },
    Case {
        name: "one-name-twice",
        proves: "of two brokers that are asked to create the same name at the same time one does, and the other says TOPIC_ALREADY_EXISTS",
        seconds: 60,
        run: one_name_twice,
    },
];

fn same_everywhere(cluster: &mut Cluster) -> Result<String> {
    let (error, message) = cluster.broker(2)?.connect()?.create_on("plain", 7, 1, &[])?;
    equal("creating on broker 2", (error, message), (code::NONE, None))?;
    wait::until("a coordinator", AGREE, || {
        let (error, _) = cluster.broker(1)?.connect()?.coordinator_of("the-group")?;
        Ok((error == code::NONE).then_some(()))
    })?;
    cluster.wait_led(1, "plain")?;
    let seen = cluster.agreed("Metadata", |to| to.metadata())?;
    equal("brokers", seen.brokers.iter().map(|broker| broker.id).collect::<Vec<_>>(), vec![1, 2, 3])?;
    equal("leaders", seen.led("plain").into_values().collect::<BTreeSet<_>>(), BTreeSet::from([2, 3]))?;
    for (broker, told) in cluster.brokers().zip(&seen.brokers) {
        equal("address", told.address.clone(), broker.told().to_string())?;
    }
    let described = cluster.agreed("DescribeCluster", |to| to.describe_cluster())?;
    equal("cluster id", Some(described.0), seen.cluster.clone())?;
    equal("brokers", described.1, seen.brokers.clone())?;
    let partitions = cluster.agreed("DescribeTopicPartitions", |to| to.describe_partitions("plain"))?;
    for (at, (described, seen)) in partitions.iter().zip(&seen.topics["plain"]).enumerate() {
        let wanted = PartitionDescribed {
            error: 0,
            index: i32::try_from(at)?,
            leader: seen.leader,
            epoch: seen.epoch,
            replicas: vec![seen.leader],
            isr: vec![seen.leader],
            elr: Vec::new(),
            offline: Vec::new(),
        };
        equal("a partition", described.clone(), wanted)?;
    }
    let (error, coordinator) = cluster.agreed("the coordinator", |to| to.coordinator_of("the-group"))?;
    equal("FindCoordinator", error, 0)?;
    holds("the coordinator is a broker", (1..=3).contains(&coordinator))?;
    let quorum = cluster.agreed("DescribeQuorum", |to| to.quorum())?;
    let mut everyone = [quorum.voters.clone(), quorum.observers.clone()].concat();
    everyone.sort_unstable();
    equal("voters and observers", everyone, vec![1, 2, 3])?;
    holds("a voter leads the quorum", quorum.voters.contains(&quorum.leader))?;
    cluster.agreed("a topic's configs", |to| to.configs(2, "plain"))?;
    cluster.agreed("the defaults of all brokers", |to| to.configs(4, ""))?;
    for broker in cluster.brokers() {
        // What a broker was started with is known to itself alone, as with Kafka.
        holds("its own configs", !broker.connect()?.configs(4, &broker.id().to_string())?.is_empty())?;
    }
    // Each leader takes records for its partitions, and nobody else does.
    for (index, partition) in seen.topics["plain"].iter().enumerate() {
        for broker in cluster.brokers() {
            let mut to = broker.connect()?;
            let batch = crate::raw::batch::Batch::of(&["x"], crate::raw::stage::time()).encode()?;
            let produced = to.produce_bytes("plain", i32::try_from(index)?, &batch)?;
            let wanted =
                if partition.leader == broker.id() { code::NONE } else { code::NOT_LEADER_OR_FOLLOWER };
            equal(&format!("producing to {index} at broker {}", broker.id()), produced.error, wanted)?;
        }
    }
    cluster.all_run()?;
    for id in cluster.ids() {
        cluster.broker(id)?.stop()?;
    }
    Ok(String::new())
}

fn visible_everywhere(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().set("num.partitions", "7").start()?;
    // Created because somebody asks for it.
    cluster.broker(2)?.connect()?.topic(Some("by-itself"), [0; 16], true)?;
    let seen = cluster.agreed("the topic", |to| Ok(to.metadata()?.topics.get("by-itself").map(Vec::len)))?;
    equal("its partitions", seen, Some(7))?;
    let mut all = Vec::new();
    for round in 0..stage.rounds(6, 60) {
        let topic = format!("t{round}");
        let at = i32::try_from(round)? % 3 + 1;
        let (error, _) = cluster.broker(at)?.connect()?.create_on(&topic, 6, 1, &[])?;
        equal("creating", error, 0)?;
        let (_, took) = timed(|| {
            cluster
                .agreed("the new topic", |to| Ok(to.metadata()?.topics.get(&topic).map(Vec::len)))
                .and_then(|seen| equal("partitions", seen, Some(6)))
        })?;
        all.push(took);
        let error = cluster.broker(at % 3 + 1)?.connect()?.alter(&topic, "retention.ms", 0, Some("77777"))?;
        equal("altering", error, 0)?;
        let (_, took) = timed(|| {
            wait::until("the config everywhere", AGREE, || {
                for broker in cluster.brokers() {
                    let configs = broker.connect()?.configs(2, &topic)?;
                    let found = configs.iter().find(|(name, ..)| name == "retention.ms");
                    if found.is_none_or(|(_, value, ..)| value.as_deref() != Some("77777")) {
                        return Ok(None);
                    }
                }
                Ok(Some(()))
            })
        })?;
        all.push(took);
        let there = at % 3 + 1;
        let (mut creates, mut deletes) = (cluster.broker(at)?.connect()?, cluster.broker(there)?.connect()?);
        for again in 0..20 {
            let early = format!("early-{round}-{again}");
            equal("creating", creates.create_on(&early, 1, 1, &[])?.0, 0)?;
            if again % 2 == 0 {
                deletes.reassign(&early, 1, Some(&[there]))?;
            }
            deletes.delete(&early)?;
        }
        cluster.broker((at + 1) % 3 + 1)?.connect()?.delete(&topic)?;
        let (_, took) = timed(|| {
            wait::until("the end of the topic everywhere", AGREE, || {
                for broker in cluster.brokers() {
                    if broker.connect()?.metadata()?.topics.contains_key(&topic) {
                        return Ok(None);
                    }
                }
                Ok(Some(()))
            })
        })?;
        all.push(took);
    }
    // A watch that lags lags every time; a machine that is busy does so now and then.
    let (middle, longest) = (median(all.clone()), all.into_iter().max().unwrap_or_default());
    holds(&format!("everything is seen within a second: {middle:?}"), middle < Duration::from_secs(1))?;
    holds(&format!("and soon always: {longest:?}"), longest < Duration::from_secs(10))?;
    cluster.all_run()?;
    Ok(format!("seen on all brokers after {} ms at most", longest.as_millis()))
}

fn thousand_partitions(stage: &Stage) -> Result<String> {
    let plan =
        (1..=3).fold(stage.plan(), |plan, id| plan.flag_of(id, "rack", if id == 3 { "b" } else { "a" }));
    let mut cluster = plan.start()?;
    let (_, took) = timed(|| {
        let mut to = cluster.broker(1)?.connect_with(Duration::from_secs(40))?;
        equal("creating", to.create_on("many", 1_000, 1, &[])?.0, 0)
    })?;
    let seen = cluster.agreed("Metadata", |to| to.metadata())?;
    let led = seen.led("many");
    equal("led by", led.keys().copied().collect::<Vec<_>>(), vec![1, 2, 3])?;
    let counts: Vec<usize> = led.into_values().collect();
    holds(
        &format!("balanced within one: {counts:?}"),
        counts.iter().all(|count| (333..=334).contains(count)),
    )?;
    let (_, answered) = timed(|| {
        wait::until("every leader to answer", AGREE, || {
            for (index, partition) in seen.topics["many"].iter().enumerate() {
                let mut to = cluster.broker(partition.leader)?.connect()?;
                if to.offset_at("many", i32::try_from(index)?, -1)?.error != 0 {
                    return Ok(None);
                }
            }
            Ok(Some(()))
        })
    })?;
    // Two replicas: one in each rack, where brokers 1 and 2 share one.
    equal("creating with two replicas", cluster.broker(2)?.connect()?.create_on("racks", 30, 2, &[])?.0, 0)?;
    let seen = cluster.agreed("Metadata", |to| to.metadata())?;
    for partition in &seen.topics["racks"] {
        holds(&format!("a replica in each rack: {:?}", partition.replicas), partition.replicas.contains(&3))?;
    }
    let mut held: Vec<usize> = Vec::new();
    for id in [1, 2] {
        let replicas = |partition: &&crate::raw::ask::topics::PartitionSeen| partition.replicas.contains(&id);
        held.push(seen.topics["racks"].iter().filter(replicas).count());
    }
    equal("replicas in the rack of two", held, vec![15, 15])?;
    equal(
        "more replicas than brokers",
        cluster.broker(1)?.connect()?.create_on("four", 1, 4, &[])?.0,
        code::INVALID_REPLICATION_FACTOR,
    )?;
    cluster.all_run()?;
    Ok(format!(
        "1,000 partitions created in {:.2} s, all asked within {:.2} s",
        took.as_secs_f64(),
        answered.as_secs_f64()
    ))
}

fn one_name_twice(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().start()?;
    let rounds = stage.rounds(20, 300);
    let mut won = [0_usize; 2];
    for round in 0..rounds {
        let topic = format!("t{round}");
        let connections = [cluster.broker(1)?.connect()?, cluster.broker(2)?.connect()?];
        let start = std::sync::Arc::new(std::sync::Barrier::new(2));
        let threads = connections.map(|mut to| {
            let (topic, start) = (topic.clone(), std::sync::Arc::clone(&start));
            std::thread::spawn(move || {
                start.wait();
                to.create_on(&topic, 3, 1, &[])
            })
        });
        let mut errors = Vec::new();
        for thread in threads {
            errors.push(thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??.0);
        }
        let mut sorted = errors.clone();
        sorted.sort_unstable();
        equal(&format!("answers for {topic}"), sorted, vec![code::NONE, code::TOPIC_ALREADY_EXISTS])?;
        won[usize::from(errors[1] == code::NONE)] += 1;
        let seen = cluster.agreed("Metadata", |to| Ok(to.metadata()?.topics.get(&topic).map(Vec::len)))?;
        equal("partitions", seen, Some(3))?;
    }
    cluster.all_run()?;
    Ok(format!("{} won by one broker, {} by the other", won[0], won[1]))
}
