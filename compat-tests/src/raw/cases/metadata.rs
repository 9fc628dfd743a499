//! Metadata: topics by name and id, automatic creation, topics made anew.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::raw::Case;
use crate::raw::ask::code;
use crate::raw::ask::records::{Fetch, Want};
use crate::raw::ask::topics::before_topics;
use crate::raw::batch::Batch;
use crate::raw::conn::{Connection, key};
use crate::raw::expect::{equal, holds, one_of};
use crate::raw::stage::{Stage, time};
use crate::raw::wire::W;
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "metadata-all-or-none",
        proves: "version 0: an empty list means all topics; later: null means all, empty none (surface 16)",
        run: all_or_none,
    },
    Case {
        name: "metadata-endpoint",
        proves: "the broker tells the address of the listener that was asked, its id and a cluster id that stays (surface 22)",
        run: endpoint,
    },
    Case {
        name: "metadata-second-listener",
        proves: "clients of a second listener are told its advertised address, those of the first the first's (surface 22)",
        run: second_listener,
    },
    Case {
        name: "metadata-by-id",
        proves: "a topic is found by its id from version 12 on; an unknown id is UNKNOWN_TOPIC_ID with a null name (surface 17, 18)",
        run: by_id,
    },
    Case {
        name: "metadata-ids-before-version-12",
        proves: "Metadata 10 and 11 with an id or without a name are refused with INVALID_REQUEST (surface 17)",
        run: early_ids,
    },
    Case {
        name: "metadata-auto-create",
        proves: "a missing topic is 3 or 5 and there soon after, with allow_auto_topic_creation only; never error 0 without partitions; bad names make nothing (B031, surface 23)",
        run: auto_create,
    },
    Case {
        name: "metadata-around-creation",
        proves: "Metadata asked again and again while topics are made never tells of a topic without partitions or a leader without epoch (B031, surface 19, 21)",
        run: around_creation,
    },
    Case {
        name: "topic-made-anew",
        proves: "a topic deleted and made again has a new id and nothing of the old: no records, no offsets; the old id is unknown everywhere (B026, surface 20)",
        run: anew,
    },
    Case {
        name: "topic-made-anew-in-a-session",
        proves: "a fetch session that knew the deleted topic by id is told, and does not see the new topic's records (B026, surface 60)",
        run: anew_in_session,
    },
    Case {
        name: "describe-topic-partitions-paging",
        proves: "DescribeTopicPartitions sorts by name, pages by the limit (one partition at least), tells where to go on, refuses a cursor outside the list, and makes no topic (surface 25)",
        run: paging,
    },
];

/// Names of all topics in an answer of version 0 or 1.
fn names(mut answer: crate::raw::wire::R, version: i16) -> Result<Vec<String>> {
    answer.each(|broker| {
        broker.i32()?;
        broker.str()?;
        broker.i32()?;
        if version >= 1 {
            broker.nstr()?;
        }
        Ok(())
    })?;
    if version >= 1 {
        answer.i32()?;
    }
    let names = answer.each(|topic| {
        topic.i16()?;
        let name = topic.str()?;
        if version >= 1 {
            topic.bool()?;
        }
        topic.each(|partition| {
            partition.i16()?;
            partition.i32()?;
            partition.i32()?;
            partition.each(|replica| replica.i32())?;
            partition.each(|replica| replica.i32())
        })?;
        Ok(name)
    })?;
    answer.end()?;
    Ok(names)
}

fn all_or_none(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 2, &[])?;
    let all = names(to.call(key::METADATA, 0, &W::new().i32(0))?, 0)?;
    holds("version 0, empty: all", all.contains(&topic))?;
    let none = names(to.call(key::METADATA, 1, &W::new().i32(0))?, 1)?;
    equal("version 1, empty: none", none.len(), 0)?;
    let all = names(to.call(key::METADATA, 1, &W::new().i32(-1))?, 1)?;
    holds("version 1, null: all", all.contains(&topic))
}

fn endpoint(stage: &mut Stage) -> Result<()> {
    let ask = |stage: &Stage| -> Result<String> {
        let mut answer = stage.connect()?.call(key::METADATA, 5, &W::new().array(0).bool(false))?;
        answer.i32()?;
        let brokers = answer.each(|broker| {
            let all = (broker.i32()?, broker.str()?, broker.i32()?);
            broker.nstr()?;
            Ok(all)
        })?;
        let address = stage.broker.address();
        equal("brokers", brokers, vec![(1, address.ip().to_string(), i32::from(address.port()))])?;
        let cluster = answer.nstr()?.context("no cluster id")?;
        equal("length of the cluster id", cluster.len(), 22)?;
        equal("controller", answer.i32()?, 1)?;
        Ok(cluster)
    };
    let before = ask(stage)?;
    stage.broker.restart()?;
    equal("the cluster id after a restart", ask(stage)?, before)
}

fn second_listener(stage: &mut Stage) -> Result<()> {
    let broker = crate::target::Broker::start_lossy(&stage.origin, "raw-second", &[])?;
    let (second, told) = broker.second_listener().context("no second listener")?;
    for (at, expected) in [(broker.address(), broker.address()), (second, told)] {
        let mut to = Connection::open(at, Duration::from_secs(10))?;
        let mut answer = to.call(key::METADATA, 1, &W::new().array(0))?;
        let addresses = answer.each(|broker| {
            broker.i32()?;
            let address = (broker.str()?, broker.i32()?);
            broker.nstr()?;
            Ok(address)
        })?;
        let expected = (expected.ip().to_string(), i32::from(expected.port()));
        equal(&format!("told at {at}"), addresses, vec![expected.clone()])?;
        to.coordinator("g")?;
        let mut answer = to.call(key::FIND_COORDINATOR, 1, &W::new().str("g").i8(0))?;
        answer.i32()?;
        equal("error of FindCoordinator", answer.i16()?, 0)?;
        answer.nstr()?;
        answer.i32()?;
        equal(&format!("coordinator told at {at}"), (answer.str()?, answer.i32()?), expected)?;
    }
    Ok(())
}

fn early_ids(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    let id = to.create(&topic, 1, &[])?;
    for version in [10, 11] {
        for (what, id, name) in [("an id", id, Some(topic.as_str())), ("no name", [0; 16], None)] {
            let mut body = W::new().carray(1).raw(&id).cnstr(name).tags().bool(false);
            if version == 10 {
                body = body.bool(false);
            }
            let mut answer = to.call(key::METADATA, version, &body.bool(false).tags())?;
            before_topics(&mut answer)?;
            equal("topics", answer.carray()?, 1)?;
            equal(&format!("version {version} with {what}"), answer.i16()?, code::INVALID_REQUEST)?;
        }
    }
    Ok(())
}

fn by_id(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    let id = to.create(&topic, 2, &[])?;
    holds("the id is not zero", id != [0; 16])?;
    let seen = to.topic(None, id, true)?;
    equal("by id", (seen.error, seen.name.as_deref(), seen.id), (0, Some(topic.as_str()), id))?;
    equal("partitions", seen.partitions.len(), 2)?;
    let unknown = to.topic(None, [3; 16], true)?;
    equal("unknown id", (unknown.error, unknown.name, unknown.id), (code::UNKNOWN_TOPIC_ID, None, [3; 16]))?;
    let named = to.topic(Some(&topic), [0; 16], false)?;
    equal("id by name", named.id, id)
}

fn auto_create(stage: &mut Stage) -> Result<()> {
    let mut to = stage.connect()?;
    let refused = stage.name("refused");
    for _ in 0..5 {
        let seen = to.topic(Some(&refused), [0; 16], false)?;
        equal("not allowed", (seen.error, seen.partitions.len()), (code::UNKNOWN_TOPIC_OR_PARTITION, 0))?;
    }
    let wanted = stage.name("wanted");
    let first = to.topic(Some(&wanted), [0; 16], true)?;
    one_of(
        "first answer",
        first.error,
        &[code::UNKNOWN_TOPIC_OR_PARTITION, code::LEADER_NOT_AVAILABLE, code::NONE],
    )?;
    wait::until("the topic to be made", Duration::from_secs(5), || {
        let seen = to.topic(Some(&wanted), [0; 16], true)?;
        holds("error 0 without partitions", seen.error != 0 || !seen.partitions.is_empty())?;
        Ok((seen.error == 0 && seen.partitions.iter().all(|partition| partition.leader >= 0)).then_some(()))
    })?;
    for bad in ["two words", "", ".", "..", &"x".repeat(250), "sla/sh", "ünicode"] {
        let seen = to.topic(Some(bad), [0; 16], true)?;
        equal(&format!("name {bad:?}"), seen.error, code::INVALID_TOPIC_EXCEPTION)?;
    }
    // Versions 0 to 3 always create.
    let old = stage.name("old");
    wait::until("the topic of an old client", Duration::from_secs(5), || {
        to.call(key::METADATA, 1, &W::new().array(1).str(&old))?;
        Ok((to.topic(Some(&old), [0; 16], false)?.error == 0).then_some(()))
    })
}

fn around_creation(stage: &mut Stage) -> Result<()> {
    let mut asking = stage.connect()?;
    let mut making = stage.connect()?;
    for round in 0..20 {
        let topic = stage.name(&round.to_string());
        let body = W::new().array(1).str(&topic).i32(3).i16(1).array(0).array(0).i32(10_000).bool(false);
        let pending = making.send(key::CREATE_TOPICS, 4, &body)?;
        wait::until("the topic", Duration::from_secs(10), || {
            let seen = asking.topic(Some(&topic), [0; 16], false)?;
            match seen.error {
                code::NONE => {
                    equal("partitions", seen.partitions.len(), 3)?;
                    for partition in &seen.partitions {
                        let led = partition.error == 0 && partition.leader >= 0;
                        let unled = partition.error == code::LEADER_NOT_AVAILABLE && partition.leader == -1;
                        holds(&format!("{partition:?}"), led && partition.epoch >= 0 || unled)?;
                        equal("replicas", partition.replicas.len(), 1)?;
                    }
                    Ok(seen.partitions.iter().all(|partition| partition.leader >= 0).then_some(()))
                }
                code::LEADER_NOT_AVAILABLE | code::UNKNOWN_TOPIC_OR_PARTITION => Ok(None),
                error => anyhow::bail!("error {error}"),
            }
        })?;
        making.receive_for(pending, key::CREATE_TOPICS, 4)?;
    }
    Ok(())
}

fn anew(stage: &mut Stage) -> Result<()> {
    let (topic, group) = (stage.name("t"), stage.name("g"));
    let mut to = stage.connect()?;
    let old = to.create(&topic, 1, &[])?;
    for _ in 0..10 {
        to.append(&topic, &Batch::of(&["old"], time()))?;
    }
    to.coordinator(&group)?;
    equal("commit", to.commit(&group, &topic, 10)?, 0)?;
    to.delete(&topic)?;
    equal("gone", to.topic(None, old, false)?.error, code::UNKNOWN_TOPIC_ID)?;
    let new = to.create(&topic, 1, &[])?;
    holds("a new id", new != old)?;
    equal("empty", (to.offset_at(&topic, 0, -2)?.offset, to.end_of(&topic)?), (0, 0))?;
    for _ in 0..5 {
        to.append(&topic, &Batch::of(&["new"], time()))?;
    }
    let all = to.read_all(&topic, 0)?;
    holds(&format!("{all:?}"), all.len() == 5 && all.iter().all(|(_, value)| value == "new"))?;
    equal("the old offset", to.committed_offset(&group, &topic)?, -1)?;
    equal("the old id", to.topic(None, old, false)?.error, code::UNKNOWN_TOPIC_ID)?;
    let (error, _, got) = fetch_by_id(&mut to, 0, -1, Some(old))?;
    equal("Fetch by the old id", (error, got), (0, vec![(old, code::UNKNOWN_TOPIC_ID, 0)]))?;
    let records = Batch::of(&["late"], time()).encode()?;
    let body = W::new().cnstr(None).i16(-1).i32(10_000).carray(1).raw(&old).carray(1).i32(0).cbytes(&records);
    let mut answer = to.call(key::PRODUCE, 13, &body.tags().tags().tags())?;
    equal("topics", answer.carray()?, 1)?;
    equal("topic id", answer.uuid()?, old)?;
    equal("partitions", answer.carray()?, 1)?;
    equal("partition", answer.i32()?, 0)?;
    equal("Produce by the old id", answer.i16()?, code::UNKNOWN_TOPIC_ID)?;
    equal("log end", to.end_of(&topic)?, 5)?;
    stage.broker.kill_and_restart()?;
    let mut to = stage.connect()?;
    to.wait_led(&topic, 1)?;
    to.coordinator(&group)?;
    equal("records after kill -9", to.read_all(&topic, 0)?.len(), 5)?;
    equal("the old offset after kill -9", to.committed_offset(&group, &topic)?, -1)?;
    equal("the old id after kill -9", to.topic(None, old, false)?.error, code::UNKNOWN_TOPIC_ID)?;
    equal("the new id after kill -9", to.topic(Some(&topic), [0; 16], false)?.id, new)
}

/// Fetch version 13 in a session: (error of all, session id, (topic id, error, bytes) of each partition).
#[expect(clippy::type_complexity, reason = "read in one place and taken apart in the next")]
fn fetch_by_id(
    to: &mut Connection,
    session: i32,
    epoch: i32,
    id: Option<[u8; 16]>,
) -> Result<(i16, i32, Vec<([u8; 16], i16, usize)>)> {
    let mut body = W::new().i32(-1).i32(0).i32(0).i32(1 << 20).i8(0).i32(session).i32(epoch);
    body = match id {
        Some(id) => {
            let body = body.carray(1).raw(&id).carray(1).i32(0).i32(-1).i64(0).i32(-1).i64(-1);
            body.i32(1 << 20).tags().tags()
        }
        None => body.carray(0),
    };
    let mut answer = to.call(key::FETCH, 13, &body.carray(0).cstr("").tags())?;
    answer.i32()?;
    let (error, session) = (answer.i16()?, answer.i32()?);
    let topics = answer.ceach(|topic| {
        let id = topic.uuid()?;
        let partitions = topic.ceach(|partition| {
            partition.i32()?;
            let error = partition.i16()?;
            partition.raw(24)?;
            partition.ceach(|aborted| {
                aborted.raw(16)?;
                aborted.tags()
            })?;
            partition.i32()?;
            let bytes = partition.cnbytes()?.context("null records")?;
            partition.tags()?;
            Ok((id, error, bytes.len()))
        })?;
        topic.tags()?;
        Ok(partitions)
    })?;
    answer.tags()?;
    answer.end()?;
    Ok((error, session, topics.into_iter().flatten().collect()))
}

fn anew_in_session(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    let old = to.create(&topic, 1, &[])?;
    to.append(&topic, &Batch::of(&["old"], time()))?;
    let (error, session, got) = fetch_by_id(&mut to, 0, 0, Some(old))?;
    equal("first fetch", (error, got.len()), (0, 1))?;
    if session == 0 {
        return crate::raw::stage::skip("the broker gives no session now");
    }
    let mut other = stage.connect()?;
    other.delete(&topic)?;
    let new = other.create(&topic, 1, &[])?;
    other.append(&topic, &Batch::of(&["new"], time()))?;
    let (error, _, got) = fetch_by_id(&mut to, session, 1, None)?;
    let told = got.iter().any(|(id, error, _)| *id == old && [code::UNKNOWN_TOPIC_ID, 103].contains(error));
    holds(
        &format!("told of the change: {error}, {got:?}"),
        [code::UNKNOWN_TOPIC_ID, 103].contains(&error) || told,
    )?;
    holds(&format!("no new records under the old id: {got:?}"), got.iter().all(|(_, _, bytes)| *bytes == 0))?;
    let (error, _, got) = fetch_by_id(&mut to, 0, -1, Some(new))?;
    equal("the new id", (error, got.len()), (0, 1))?;
    holds("its records", got.iter().all(|(_, error, bytes)| *error == 0 && *bytes > 0))?;
    let by_name = to.fetch(&Fetch::now(vec![Want::of(&topic, 0)]))?;
    equal("by name", Batch::values(&by_name.only()?.batches()?), vec![(0, "new".to_owned())])
}

/// DescribeTopicPartitions: ((topic, partitions) of the page, cursor).
#[expect(clippy::type_complexity, reason = "read in one place and taken apart in the next")]
fn describe(
    to: &mut Connection,
    topics: &[&str],
    limit: i32,
    cursor: Option<(&str, i32)>,
) -> Result<(Vec<(String, i16, Vec<i32>)>, Option<(String, i32)>)> {
    let mut body = W::new().carray(topics.len());
    for topic in topics {
        body = body.cstr(topic).tags();
    }
    body = body.i32(limit);
    body = match cursor {
        Some((topic, partition)) => body.i8(1).cstr(topic).i32(partition).tags(),
        None => body.i8(-1),
    };
    let mut answer = to.call(key::DESCRIBE_TOPIC_PARTITIONS, 0, &body.tags())?;
    answer.i32()?;
    let page = answer.ceach(|topic| {
        let (error, name) = (topic.i16()?, topic.cnstr()?.unwrap_or_default());
        topic.uuid()?;
        topic.bool()?;
        let partitions = topic.ceach(|partition| {
            partition.i16()?;
            let index = partition.i32()?;
            partition.i32()?;
            partition.i32()?;
            for _ in 0..5 {
                partition.ceach(|replica| replica.i32())?;
            }
            partition.tags()?;
            Ok(index)
        })?;
        topic.i32()?;
        topic.tags()?;
        Ok((name, error, partitions))
    })?;
    let cursor = match answer.i8()? {
        -1 => None,
        _ => {
            let next = (answer.cstr()?, answer.i32()?);
            answer.tags()?;
            Some(next)
        }
    };
    answer.tags()?;
    answer.end()?;
    Ok((page, cursor))
}

fn paging(stage: &mut Stage) -> Result<()> {
    let (a, b, absent) = (stage.name("a"), stage.name("b"), stage.name("absent"));
    let mut to = stage.connect()?;
    to.create(&b, 3, &[])?;
    to.create(&a, 3, &[])?;
    let (page, cursor) = describe(&mut to, &[&b, &absent, &a], 100, None)?;
    let seen: Vec<(&str, i16, usize)> =
        page.iter().map(|(name, error, all)| (name.as_str(), *error, all.len())).collect();
    let expected =
        vec![(a.as_str(), 0, 3), (absent.as_str(), code::UNKNOWN_TOPIC_OR_PARTITION, 0), (b.as_str(), 0, 3)];
    equal("one page, sorted", seen, expected)?;
    equal("no cursor at the end", cursor, None)?;
    let (page, cursor) = describe(&mut to, &[&b, &a], 4, None)?;
    equal("first page", page.iter().map(|(_, _, all)| all.clone()).collect(), vec![vec![0, 1, 2], vec![0]])?;
    equal("cursor", cursor, Some((b.clone(), 1)))?;
    let (page, cursor) = describe(&mut to, &[&b, &a], 4, Some((&b, 1)))?;
    equal("second page", page.iter().map(|(_, _, all)| all.clone()).collect(), vec![vec![1, 2]])?;
    equal("no more", cursor, None)?;
    for limit in [0, -5] {
        let (page, cursor) = describe(&mut to, &[&a], limit, None)?;
        equal("one partition at least", page.iter().map(|(_, _, all)| all.len()).sum(), 1_usize)?;
        equal("and where to go on", cursor, Some((a.clone(), 1)))?;
    }
    let (page, _) = describe(&mut to, &[&a], 10, Some((&b, 0)))?;
    let codes: Vec<i16> = page.iter().map(|(_, error, _)| *error).collect();
    equal("a cursor at a topic that is not asked for", codes, vec![code::INVALID_REQUEST])?;
    equal(
        "nothing was made",
        to.topic(Some(&absent), [0; 16], false)?.error,
        code::UNKNOWN_TOPIC_OR_PARTITION,
    )
}
