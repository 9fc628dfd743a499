//! Topics, configurations and records, as administrators change them.

use anyhow::{Context, Result, bail};

use crate::raw::Case;
use crate::raw::ask::code;
use crate::raw::ask::records::{Fetch, Want};
use crate::raw::batch::Batch;
use crate::raw::conn::{Connection, key};
use crate::raw::expect::{equal, holds, one_of};
use crate::raw::stage::{Stage, time};
use crate::raw::wire::W;

pub const CASES: &[Case] = &[
    Case {
        name: "admin-config-operations",
        proves: "SET, DELETE, APPEND and SUBTRACT on lists; APPEND on another type is INVALID_CONFIG; the broker goes on (B005, surface 89)",
        run: operations,
    },
    Case {
        name: "admin-legacy-alter-replaces",
        proves: "AlterConfigs replaces all overrides of a topic (surface 89)",
        run: legacy,
    },
    Case {
        name: "admin-describe-configs-whole",
        proves: "DescribeConfigs tells every config with type, source and synonyms; defaults are not made overrides at creation (surface 87, 88)",
        run: describe,
    },
    Case {
        name: "admin-create-topics",
        proves: "defaults for -1, manual assignments, validate_only, and the codes 17, 36, 37, 38, 39, 40 (surface 90)",
        run: create,
    },
    Case {
        name: "admin-create-partitions",
        proves: "CreatePartitions answers every topic with its own code and makes partitions that serve (surface 90)",
        run: partitions,
    },
    Case {
        name: "admin-delete-records",
        proves: "DeleteRecords to the middle of a batch is exact, survives restarts, answers bounds, and the log goes on at its old end (B046, surface 69)",
        run: delete_records,
    },
    Case {
        name: "admin-acls-disabled",
        proves: "DescribeAcls says SECURITY_DISABLED (surface 92)",
        run: acls,
    },
    Case {
        name: "admin-delete-topics-echoed",
        proves: "DeleteTopics names every topic that it was asked for, with its own code (surface 2.3)",
        run: delete_topics,
    },
    Case {
        name: "admin-config-live",
        proves: "a changed max.message.bytes and message.timestamp.type hold for the next record",
        run: live,
    },
    Case {
        name: "retention-by-size",
        proves: "retention.bytes deletes old segments and moves the start, a record from the future does not stop it (B048)",
        run: retention,
    },
];

fn value(to: &mut Connection, topic: &str, name: &str) -> Result<(Option<String>, i8)> {
    let configs = to.configs(2, topic)?;
    let found = configs.into_iter().find(|(config, ..)| config == name);
    found.map(|(_, value, source, _)| (value, source)).with_context(|| format!("no config {name}"))
}

fn operations(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    let policy = |to: &mut Connection| -> Result<String> {
        Ok(value(to, &topic, "cleanup.policy")?.0.unwrap_or_default())
    };
    equal("set", to.alter(&topic, "cleanup.policy", 0, Some("compact"))?, 0)?;
    equal("after set", policy(&mut to)?, "compact".to_owned())?;
    equal("append", to.alter(&topic, "cleanup.policy", 2, Some("delete"))?, 0)?;
    equal("after append", policy(&mut to)?, "compact,delete".to_owned())?;
    equal("append again", to.alter(&topic, "cleanup.policy", 2, Some("delete"))?, 0)?;
    equal("after append again", policy(&mut to)?, "compact,delete".to_owned())?;
    equal("subtract", to.alter(&topic, "cleanup.policy", 3, Some("compact"))?, 0)?;
    equal("after subtract", policy(&mut to)?, "delete".to_owned())?;
    equal("delete", to.alter(&topic, "cleanup.policy", 1, None)?, 0)?;
    equal("after delete", value(&mut to, &topic, "cleanup.policy")?, (Some("delete".to_owned()), 5))?;
    for (what, name, operation, value, expected) in [
        ("append to a number", "retention.ms", 2, Some("1"), code::INVALID_CONFIG),
        ("subtract from a number", "retention.ms", 3, Some("1"), code::INVALID_CONFIG),
        ("not a number", "retention.ms", 0, Some("soon"), code::INVALID_CONFIG),
        ("out of bounds", "segment.bytes", 0, Some("-5"), code::INVALID_CONFIG),
        ("unknown name", "no.such.config", 0, Some("1"), code::INVALID_CONFIG),
        ("not in the list", "cleanup.policy", 0, Some("shred"), code::INVALID_CONFIG),
    ] {
        equal(what, to.alter(&topic, name, operation, value)?, expected)?;
    }
    // Kafka's own answer is UNKNOWN_SERVER_ERROR (-1), which nobody needs to copy.
    let odd = to.alter(&topic, "retention.ms", 9, Some("1"))?;
    one_of("unknown operation", odd, &[-1, code::INVALID_REQUEST, code::INVALID_CONFIG])?;
    let absent = to.alter(&stage.name("absent"), "retention.ms", 0, Some("1"))?;
    equal("unknown topic", absent, code::UNKNOWN_TOPIC_OR_PARTITION)?;
    to.append(&topic, &Batch::of(&["goes on"], time()))?;
    equal("read", to.read_all(&topic, 0)?.len(), 1)
}

fn legacy(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[("retention.ms", "1000000"), ("segment.ms", "2000000")])?;
    let body =
        W::new().array(1).i8(2).str(&topic).array(1).str("retention.ms").nstr(Some("3000000")).bool(false);
    let mut answer = to.call(key::ALTER_CONFIGS, 0, &body)?;
    answer.i32()?;
    let errors = answer.each(|result| {
        let error = result.i16()?;
        result.nstr()?;
        result.i8()?;
        result.str()?;
        Ok(error)
    })?;
    equal("errors", errors, vec![0])?;
    equal("set", value(&mut to, &topic, "retention.ms")?, (Some("3000000".to_owned()), 1))?;
    equal("no longer set", value(&mut to, &topic, "segment.ms")?.1, 5)
}

fn describe(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[("retention.ms", "123456789")])?;
    let configs = to.configs(2, &topic)?;
    for name in [
        "cleanup.policy",
        "compression.type",
        "delete.retention.ms",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "index.interval.bytes",
        "max.compaction.lag.ms",
        "max.message.bytes",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.type",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "min.insync.replicas",
        "preallocate",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
        "unclean.leader.election.enable",
        "remote.storage.enable",
    ] {
        let found = configs.iter().find(|(config, ..)| config == name);
        let (_, value, _, kind) = found.with_context(|| format!("no {name}"))?;
        holds(&format!("{name} has a value"), value.is_some())?;
        holds(&format!("{name} has a type"), *kind > 0)?;
    }
    let set: Vec<&str> =
        configs.iter().filter(|(.., source, _)| *source == 1).map(|(name, ..)| name.as_str()).collect();
    equal("overrides of the topic", set, vec!["retention.ms"])?;
    let broker = to.configs(4, "1")?;
    holds(&format!("{} broker configs", broker.len()), broker.len() > 100)?;
    let own = broker.iter().filter(|(name, ..)| name.starts_with("log.retention")).count();
    holds("retention of the broker", own >= 3)?;
    let defaults = to.configs(4, "")?;
    holds("the cluster's defaults can be asked for", defaults.len() < 1_000)?;
    match to.configs(4, "77") {
        Ok(_) => bail!("an unknown broker is described"),
        Err(error) => holds(&format!("{error}"), error.to_string().contains("42")),
    }
}

fn create(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    let ask = |to: &mut Connection,
               name: &str,
               partitions,
               factor,
               configs: &[(&str, &str)],
               validate|
     -> Result<i16> {
        let mut body = W::new().array(1).str(name).i32(partitions).i16(factor).array(0).array(configs.len());
        for (name, value) in configs {
            body = body.str(name).nstr(Some(value));
        }
        let mut answer = to.call(key::CREATE_TOPICS, 4, &body.i32(10_000).bool(validate))?;
        answer.i32()?;
        equal("topics", answer.array()?, 1)?;
        equal("name", answer.str()?, name.to_owned())?;
        answer.i16()
    };
    equal("validated", ask(&mut to, &topic, 1, 1, &[], true)?, 0)?;
    equal("not made", to.topic(Some(&topic), [0; 16], false)?.error, code::UNKNOWN_TOPIC_OR_PARTITION)?;
    equal("defaults", ask(&mut to, &topic, -1, -1, &[], false)?, 0)?;
    to.wait_led(&topic, 1)?;
    equal("twice", ask(&mut to, &topic, 1, 1, &[], false)?, code::TOPIC_ALREADY_EXISTS)?;
    equal("twice, validated", ask(&mut to, &topic, 1, 1, &[], true)?, code::TOPIC_ALREADY_EXISTS)?;
    let other = stage.name("other");
    equal("no partitions", ask(&mut to, &other, 0, 1, &[], false)?, code::INVALID_PARTITIONS)?;
    equal("factor 0", ask(&mut to, &other, 1, 0, &[], false)?, code::INVALID_REPLICATION_FACTOR)?;
    equal("factor 2", ask(&mut to, &other, 1, 2, &[], false)?, code::INVALID_REPLICATION_FACTOR)?;
    equal("bad value", ask(&mut to, &other, 1, 1, &[("retention.ms", "x")], false)?, code::INVALID_CONFIG)?;
    equal("bad name", ask(&mut to, &other, 1, 1, &[("no.such", "x")], false)?, code::INVALID_CONFIG)?;
    for bad in ["", ".", "..", "a b", "ä", &"x".repeat(250)] {
        equal(&format!("name {bad:?}"), ask(&mut to, bad, 1, 1, &[], false)?, code::INVALID_TOPIC_EXCEPTION)?;
    }
    let assigned = stage.name("assigned");
    let assign = |replica: i32| {
        let body =
            W::new().array(1).str(&assigned).i32(-1).i16(-1).array(2).i32(0).array(1).i32(1).i32(1).array(1);
        body.i32(replica).array(0).i32(10_000).bool(false)
    };
    let error = |mut answer: crate::raw::wire::R| -> Result<i16> {
        answer.i32()?;
        answer.array()?;
        answer.str()?;
        answer.i16()
    };
    equal("assigned to a stranger", error(to.call(key::CREATE_TOPICS, 4, &assign(9))?)?, 39)?;
    equal("assigned", error(to.call(key::CREATE_TOPICS, 4, &assign(1))?)?, 0)?;
    to.wait_led(&assigned, 2).map(|_| ())
}

fn partitions(stage: &mut Stage) -> Result<()> {
    let (topic, absent, other) = (stage.name("t"), stage.name("absent"), stage.name("other"));
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    to.create(&other, 2, &[])?;
    let mut body = W::new().array(3);
    for (name, count) in [(&topic, 4), (&absent, 2), (&other, 1)] {
        body = body.str(name).i32(count).i32(-1);
    }
    let mut answer = to.call(key::CREATE_PARTITIONS, 1, &body.i32(10_000).bool(false))?;
    answer.i32()?;
    let mut results = answer.each(|result| {
        let all = (result.str()?, result.i16()?);
        result.nstr()?;
        Ok(all)
    })?;
    answer.end()?;
    results.sort();
    let mut expected = vec![
        (topic.clone(), 0),
        (absent, code::UNKNOWN_TOPIC_OR_PARTITION),
        (other, code::INVALID_PARTITIONS),
    ];
    expected.sort();
    equal("results", results, expected)?;
    to.wait_led(&topic, 4)?;
    let bytes = Batch::of(&["in a new one"], time()).encode()?;
    equal("produce", to.produce_bytes(&topic, 3, &bytes)?.error, 0)
}

fn delete_records(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    equal("all of an empty log", to.delete_records(&topic, -1)?, (0, 0))?;
    let values: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    to.append(&topic, &Batch::of(&values, time()))?;
    equal("beyond the mark", to.delete_records(&topic, 101)?.0, code::OFFSET_OUT_OF_RANGE)?;
    equal("negative", to.delete_records(&topic, -2)?.0, code::OFFSET_OUT_OF_RANGE)?;
    equal("to the middle", to.delete_records(&topic, 50)?, (0, 50))?;
    equal("back again", to.delete_records(&topic, 20)?, (0, 50))?;
    let absent = to.delete_records(&stage.name("absent"), 0)?.0;
    equal("unknown topic", absent, code::UNKNOWN_TOPIC_OR_PARTITION)?;
    for restart in [0, 1, 2] {
        match restart {
            1 => stage.broker.restart()?,
            2 => stage.broker.kill_and_restart()?,
            _ => {}
        }
        to = stage.connect()?;
        to.wait_led(&topic, 1)?;
        equal(&format!("start, restart {restart}"), to.offset_at(&topic, 0, -2)?.offset, 50)?;
        let fetched = to.fetch(&Fetch::now(vec![Want::of(&topic, 50)]))?;
        let got = fetched.only()?;
        equal("start in the fetch", got.log_start, 50)?;
        equal("the batch that holds it", got.batches()?.first().map(|batch| batch.base_offset), Some(0))?;
        equal("records", to.read_all(&topic, 50)?.len(), 50)?;
        let below = to.fetch(&Fetch::now(vec![Want::of(&topic, 49)]))?;
        equal("below the start", below.only()?.error, code::OFFSET_OUT_OF_RANGE)?;
    }
    equal("all", to.delete_records(&topic, -1)?, (0, 100))?;
    let produced = to.produce(&topic, &Batch::of(&["on"], time()))?;
    equal("goes on", (produced.error, produced.base_offset, produced.log_start), (0, 100, 100))
}

fn acls(stage: &mut Stage) -> Result<()> {
    let mut to = stage.connect()?;
    let body = W::new().i8(1).nstr(None).i8(1).nstr(None).nstr(None).i8(1).i8(1);
    let mut answer = to.call(key::DESCRIBE_ACLS, 1, &body)?;
    answer.i32()?;
    equal("error", answer.i16()?, code::SECURITY_DISABLED)?;
    answer.nstr()?;
    equal("resources", answer.array()?, 0)?;
    answer.end()
}

fn delete_topics(stage: &mut Stage) -> Result<()> {
    let (topic, absent) = (stage.name("t"), stage.name("absent"));
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    let body = W::new().array(2).str(&absent).str(&topic).i32(10_000);
    let mut answer = to.call(key::DELETE_TOPICS, 3, &body)?;
    answer.i32()?;
    let mut results = answer.each(|topic| Ok((topic.str()?, topic.i16()?)))?;
    answer.end()?;
    results.sort();
    let mut expected = vec![(topic, 0), (absent, code::UNKNOWN_TOPIC_OR_PARTITION)];
    expected.sort();
    equal("results", results, expected)
}

fn live(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    let batch = Batch::of(&[&"x".repeat(2_000)], time());
    equal("before", to.produce(&topic, &batch)?.error, 0)?;
    equal("alter", to.alter(&topic, "max.message.bytes", 0, Some("1000"))?, 0)?;
    // Kafka applies a change a moment after it has answered.
    crate::wait::until("the new limit", std::time::Duration::from_secs(5), || {
        Ok((to.produce(&topic, &batch)?.error == code::MESSAGE_TOO_LARGE).then_some(()))
    })?;
    equal("alter", to.alter(&topic, "max.message.bytes", 1, None)?, 0)?;
    equal("alter", to.alter(&topic, "message.timestamp.type", 0, Some("LogAppendTime"))?, 0)?;
    crate::wait::until("append times", std::time::Duration::from_secs(5), || {
        let produced = to.produce(&topic, &batch)?;
        Ok((produced.error == 0 && produced.append_time > time()).then_some(()))
    })
}

fn retention(stage: &mut Stage) -> Result<()> {
    let settings = [
        ("log.retention.check.interval.ms".to_owned(), "500".to_owned()),
        ("log.initial.task.delay.ms".to_owned(), "500".to_owned()),
    ];
    let broker = crate::target::Broker::start(&stage.origin, "raw-retention", &settings)?;
    let mut to = Connection::open(broker.address(), std::time::Duration::from_secs(10))?;
    let topic = stage.name("t");
    let now = crate::raw::stage::now_ms();
    to.create(
        &topic,
        1,
        &[("segment.bytes", "1048576"), ("retention.bytes", "2500000"), ("file.delete.delay.ms", "100")],
    )?;
    let large = "x".repeat(100_000);
    to.append(&topic, &Batch::of(&["from the future"], now + 3_000_000))?;
    for _ in 0..60 {
        to.append(&topic, &Batch::of(&[&large], now))?;
    }
    let start = crate::wait::until("old segments to go", std::time::Duration::from_secs(20), || {
        let start = to.offset_at(&topic, 0, -2)?.offset;
        Ok((start > 20).then_some(start))
    })?;
    let all = to.read_all(&topic, start)?;
    equal(
        "what is left is whole",
        (all.first().map(|(offset, _)| *offset), all.len() as i64),
        (Some(start), 61 - start),
    )?;
    holds("not more than was due", start <= 50)
}
