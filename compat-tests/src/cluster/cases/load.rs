//! What clients see while brokers and etcd are killed, paused and restarted under them: nothing that they would have to handle.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::cluster::Case;
use crate::cluster::load::Load;
use crate::cluster::plan::Cluster;
use crate::cluster::proxy::Direction;
use crate::cluster::stage::{Loader, Stage, shown};
use crate::raw::expect::equal;

pub const CASES: &[Case] = &[
    Case {
        name: "killed-under-load",
        proves: "kill -9 of each broker in turn under load from idempotent librdkafka and Java producers and a group of each: nothing that was \
                 acknowledged is lost or doubled, order is kept, the groups skip nothing and never go back, no client reports an error",
        seconds: 150,
        run: killed,
    },
    Case {
        name: "paused-under-load",
        proves: "the same while each broker in turn stands still (SIGSTOP) for longer than its lease",
        seconds: 150,
        run: paused,
    },
    Case {
        name: "rolling-restart",
        proves: "the same with three replicas of everything while three brokers are stopped and started again one after the other (SIGTERM)",
        seconds: 150,
        run: rolling,
    },
    Case {
        name: "bad-ways-under-load",
        proves: "the same while the ways between clients and brokers are slow, end, refuse, are half-open or deaf in one direction",
        seconds: 150,
        run: bad_ways,
    },
];

const PARTITIONS: i32 = 6;
/// What the clients wait for an answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// Loads by both clients while `trouble` happens to each broker in turn; the longest stalls. Without replicas a partition waits for its
/// broker.
fn each_broker(
    stage: &Stage,
    rounds: usize,
    replicas: i16,
    trouble: impl Fn(&mut Cluster, i32) -> Result<()>,
) -> Result<String> {
    let mut cluster = stage.plan().set("offsets.topic.replication.factor", &replicas.to_string()).start()?;
    for topic in ["rdkafka", "java"] {
        let (error, message) = cluster.broker(1)?.connect()?.create_on(topic, PARTITIONS, replicas, &[])?;
        equal(&format!("creating {topic}: {message:?}"), error, 0)?;
    }
    let mut loads = [
        stage.load_existing(&cluster, Loader::Rdkafka, "rdkafka", PARTITIONS)?,
        stage.load_existing(&cluster, Loader::Java, "java", PARTITIONS)?,
    ];
    let mut stalls = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        let at = i32::try_from(round)? % 3 + 1;
        for load in &mut loads {
            load.measure()?;
        }
        trouble(&mut cluster, at)?;
        cluster.wait_alive(&[1, 2, 3])?;
        if replicas == 3 {
            // An operator restarts the next one then, not before.
            for topic in ["rdkafka", "java", "__consumer_offsets"] {
                cluster.wait_in_sync(1, topic, &[1, 2, 3])?;
            }
        }
        for (load, stalls) in loads.iter_mut().zip(&mut stalls) {
            load.progress(u64::try_from(PARTITIONS)? * 4)?;
            load.all_go_on()?;
            stalls.push(load.longest_stall()?);
        }
    }
    let sent = loads.into_iter().map(Load::finish).collect::<Result<Vec<u64>>>()?;
    cluster.all_run()?;
    stage.verify(&mut cluster)?;
    let (rdkafka, java) = (shown(&stalls[0]), shown(&stalls[1]));
    Ok(format!("{sent:?} records; longest stall of a partition: librdkafka {rdkafka}; Java {java}"))
}

fn bad_ways(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().ways_to_brokers().start()?;
    let mut loads = [
        stage.load(&cluster, Loader::Rdkafka, "rdkafka", PARTITIONS)?,
        stage.load(&cluster, Loader::Java, "java", PARTITIONS)?,
    ];
    let go_on = |loads: &mut [Load]| -> Result<()> {
        for load in loads {
            load.progress(u64::try_from(PARTITIONS)? * 4)?;
            load.all_go_on()?;
        }
        Ok(())
    };
    for round in 0..stage.rounds(1, 10) {
        let at = i32::try_from(round)? % 3 + 1;
        let way = cluster.way_to_broker(at)?;
        for direction in [Direction::There, Direction::Back] {
            way.delay(direction, Duration::from_millis(100));
            go_on(&mut loads)?;
            way.delay(direction, Duration::ZERO);
        }
        way.end_all();
        go_on(&mut loads)?;
        way.refuse(true);
        way.end_all();
        loads.iter_mut().try_for_each(|load| load.stands_still(Duration::from_secs(1)))?;
        way.refuse(false);
        go_on(&mut loads)?;
        // Only time tells a client that nobody is there.
        way.half_open();
        loads.iter_mut().try_for_each(|load| load.stands_still(REQUEST_TIMEOUT / 2))?;
        go_on(&mut loads)?;
        for direction in [Direction::There, Direction::Back] {
            way.lose(direction, true);
            loads.iter_mut().try_for_each(|load| load.stands_still(REQUEST_TIMEOUT / 2))?;
            way.lose(direction, false);
            go_on(&mut loads)?;
        }
    }
    let sent = loads.into_iter().map(Load::finish).collect::<Result<Vec<u64>>>()?;
    cluster.all_run()?;
    stage.verify(&mut cluster)?;
    Ok(format!("{sent:?} records"))
}

fn killed(stage: &Stage) -> Result<String> {
    each_broker(stage, stage.rounds(3, 30), 1, |cluster, at| {
        cluster.broker(at)?.kill();
        // Every other time the others have noticed before it returns.
        if at != 2 {
            let left: Vec<i32> = cluster.ids().into_iter().filter(|id| *id != at).collect();
            cluster.wait_alive(&left)?;
        }
        cluster.broker(at)?.start()
    })
}

fn paused(stage: &Stage) -> Result<String> {
    each_broker(stage, stage.rounds(3, 30), 1, |cluster, at| {
        cluster.broker(at)?.pause()?;
        let left: Vec<i32> = cluster.ids().into_iter().filter(|id| *id != at).collect();
        cluster.wait_alive(&left)?;
        cluster.broker(at)?.resume()
    })
}

fn rolling(stage: &Stage) -> Result<String> {
    each_broker(stage, stage.rounds(3, 30), 3, |cluster, at| {
        cluster.broker(at)?.stop()?;
        cluster.broker(at)?.start().context("starting it again")
    })
}
