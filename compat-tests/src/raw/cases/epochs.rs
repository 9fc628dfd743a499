//! Leader epochs on one broker, and what survives a restart.

use anyhow::{Context, Result};

use crate::raw::Case;
use crate::raw::ask::code;
use crate::raw::batch::Batch;
use crate::raw::conn::{Connection, key};
use crate::raw::expect::{equal, holds};
use crate::raw::stage::{Stage, now_ms, time};
use crate::raw::wire::{R, W};

pub const CASES: &[Case] = &[
    Case {
        name: "epochs-end-offsets",
        proves: "OffsetForLeaderEpoch: unknown and future epochs have none, the current one ends at the log end, past ones where the next began (B010, surface 68)",
        run: end_offsets,
    },
    Case {
        name: "epochs-without-records",
        proves: "an epoch in which nothing was written, and epochs older than the log, answer with the epochs and offsets around them; a record is found with the epoch that it was written in (B010, surface 66, 68)",
        run: gaps,
    },
    Case {
        name: "epochs-fenced-and-diverging",
        proves: "a fetch with a stale epoch is told leader and address; one that continues another history is told where the two part (surface 36, 58)",
        run: diverging,
    },
    Case {
        name: "kill-keeps-what-was-acknowledged",
        proves: "every record acknowledged before kill -9 is there after the restart, at its offset; the epoch never goes back (surface 19)",
        run: kill,
    },
];

fn end_offsets(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    let mut history: Vec<(i32, i64)> = Vec::new();
    for round in 0..3 {
        let epoch = to.topic(Some(&topic), [0; 16], false)?.partitions[0].epoch;
        holds("an epoch", epoch >= 0)?;
        if history.last().is_none_or(|(last, _)| *last != epoch) {
            history.push((epoch, round * 2));
        }
        to.append(&topic, &Batch::of(&["a", "b"], time()))?;
        stage.broker.restart()?;
        to = stage.connect()?;
        to.wait_led(&topic, 1)?;
    }
    let current = to.topic(Some(&topic), [0; 16], false)?.partitions[0].epoch;
    holds("the epoch does not go back", history.last().is_some_and(|(last, _)| *last <= current))?;
    to.append(&topic, &Batch::of(&["c"], time()))?;
    if history.last().is_some_and(|(last, _)| *last < current) {
        history.push((current, 6));
    }
    equal("log end", to.end_of(&topic)?, 7)?;
    for (at, (epoch, _)) in history.iter().enumerate() {
        let end = history.get(at + 1).map_or(7, |(_, start)| *start);
        equal(
            &format!("epoch {epoch} of {history:?}"),
            to.end_of_epoch(&topic, -1, *epoch)?,
            (0, *epoch, end),
        )?;
    }
    equal("the future", to.end_of_epoch(&topic, -1, current + 1)?, (0, -1, -1))?;
    equal("none", to.end_of_epoch(&topic, -1, -1)?, (0, -1, -1))?;
    equal("right current epoch", to.end_of_epoch(&topic, current, current)?, (0, current, 7))?;
    equal(
        "current epoch ahead",
        to.end_of_epoch(&topic, current + 1, current)?.0,
        code::UNKNOWN_LEADER_EPOCH,
    )?;
    if current > 0 {
        equal(
            "current epoch behind",
            to.end_of_epoch(&topic, current - 1, current)?.0,
            code::FENCED_LEADER_EPOCH,
        )?;
    }
    Ok(())
}

/// The epoch of partition 0 after a restart.
fn after_restart(stage: &mut Stage, topic: &str) -> Result<(Connection, i32)> {
    stage.broker.restart()?;
    let mut to = stage.connect()?;
    to.wait_led(topic, 1)?;
    let epoch = to.topic(Some(topic), [0; 16], false)?.partitions[0].epoch;
    Ok((to, epoch))
}

fn gaps(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    let first = to.topic(Some(&topic), [0; 16], false)?.partitions[0].epoch;
    to.append(&topic, &Batch::of(&["a", "b"], time()))?;
    let (mut to, second) = after_restart(stage, &topic)?;
    to.append(&topic, &Batch::of(&["c", "d"], time() + 10))?;
    // Nothing is written in the third.
    let (_, third) = after_restart(stage, &topic)?;
    let (mut to, fourth) = after_restart(stage, &topic)?;
    holds("each restart begins an epoch", first < second && second < third && third < fourth)?;
    to.append(&topic, &Batch::of(&["e"], time() + 20))?;
    for (asked, expected) in [
        (first, (0, first, 2)),
        (second, (0, second, 4)),
        (third, (0, second, 4)),
        (fourth, (0, fourth, 5)),
        (fourth + 1, (0, -1, -1)),
        (-1, (0, -1, -1)),
    ] {
        let history = [first, second, third, fourth];
        equal(&format!("epoch {asked} of {history:?}"), to.end_of_epoch(&topic, -1, asked)?, expected)?;
    }
    for (at, offset, epoch) in [(0, 0, first), (10, 2, second), (20, 4, fourth)] {
        let found = to.offset_at(&topic, 0, time() + at)?;
        equal(&format!("epoch of the record at +{at} ms"), (found.offset, found.epoch), (offset, epoch))?;
    }
    // Older than all that is known: the asked one ends where the first known one begins.
    equal("delete", to.delete_records(&topic, 4)?, (0, 4))?;
    equal("older than the log", to.end_of_epoch(&topic, -1, first)?, (0, first, 4))?;
    equal("the current one", to.end_of_epoch(&topic, -1, fourth)?, (0, fourth, 5))
}

/// Fetch version 16 of partition 0: the error, and the tagged fields of the partition and of the answer.
#[expect(clippy::type_complexity, reason = "read in one place and taken apart in the next")]
fn fetch_tagged(
    to: &mut Connection,
    id: [u8; 16],
    current: i32,
    offset: i64,
    last: i32,
) -> Result<(i16, Vec<(u32, Vec<u8>)>, Vec<(u32, Vec<u8>)>)> {
    let body = W::new().i32(0).i32(0).i32(1 << 20).i8(0).i32(0).i32(-1).carray(1).raw(&id).carray(1);
    let body = body.i32(0).i32(current).i64(offset).i32(last).i64(-1).i32(1 << 20).tags().tags();
    let mut answer = to.call(key::FETCH, 16, &body.carray(0).cstr("").tags())?;
    answer.i32()?;
    equal("error of all", answer.i16()?, 0)?;
    answer.i32()?;
    let topics = answer.ceach(|topic| {
        topic.uuid()?;
        let partitions = topic.ceach(|partition| {
            partition.i32()?;
            let error = partition.i16()?;
            partition.raw(24)?;
            equal("aborted transactions", partition.carray()?, 0)?;
            partition.i32()?;
            partition.cnbytes()?;
            Ok((error, partition.tags()?))
        })?;
        topic.tags()?;
        Ok(partitions)
    })?;
    let all = answer.tags()?;
    answer.end()?;
    let (error, own) = topics.into_iter().flatten().next().context("no partition in the answer")?;
    Ok((error, own, all))
}

fn diverging(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    let id = to.create(&topic, 1, &[])?;
    let first = to.topic(Some(&topic), [0; 16], false)?.partitions[0].epoch;
    to.append(&topic, &Batch::of(&["a", "b"], time()))?;
    let (mut to, second) = after_restart(stage, &topic)?;
    to.append(&topic, &Batch::of(&["c", "d"], time()))?;
    // Fields of a partition: 0 diverging epoch, 1 current leader. Of the answer: 0 addresses of nodes.
    let field = |fields: &[(u32, Vec<u8>)], tag| -> Option<R> {
        fields.iter().find(|(found, _)| *found == tag).map(|(_, content)| R::new(content.clone()))
    };
    let (error, own, all) = fetch_tagged(&mut to, id, first, 0, -1)?;
    equal("a stale epoch", error, code::FENCED_LEADER_EPOCH)?;
    let mut leader = field(&own, 1).context("no current leader")?;
    equal("leader and epoch", (leader.i32()?, leader.i32()?), (1, second))?;
    let nodes = field(&all, 0).context("no addresses")?.ceach(|node| {
        let address = (node.i32()?, node.cstr()?, node.i32()?);
        node.cnstr()?;
        node.tags()?;
        Ok(address)
    })?;
    let address = stage.broker.address();
    equal("addresses", nodes, vec![(1, address.ip().to_string(), i32::from(address.port()))])?;
    for (what, offset, last, expected) in [
        ("the same history", 2, first, None),
        ("the same history at its end", 4, second, None),
        ("more in the first epoch than the broker has", 3, first, Some((first, 2))),
        ("more in the second epoch than the broker has", 9, second, Some((second, 4))),
    ] {
        let (error, own, _) = fetch_tagged(&mut to, id, second, offset, last)?;
        equal(&format!("{what}: error"), error, 0)?;
        let told = match field(&own, 0) {
            Some(mut told) => Some((told.i32()?, told.i64()?)),
            None => None,
        };
        equal(what, told, expected)?;
    }
    Ok(())
}

fn kill(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    let id = to.create(&topic, 1, &[("segment.bytes", "1048576")])?;
    let (producer, epoch) = to.producer_id()?;
    let filler = "f".repeat(3_000);
    let mut acknowledged = 0_i64;
    let mut last_epoch = -1;
    for round in 0..3 {
        for _ in 0..300 {
            let value = format!("{acknowledged} {filler}");
            let batch =
                Batch::of(&[&value], now_ms()).by_producer(producer, epoch, i32::try_from(acknowledged)?);
            equal("offset", to.append(&topic, &batch)?, acknowledged)?;
            acknowledged += 1;
        }
        // The last one may or may not be there: it was sent and not waited for.
        let value = format!("{acknowledged} {filler}");
        let batch = Batch::of(&[&value], now_ms()).by_producer(producer, epoch, i32::try_from(acknowledged)?);
        to.send(0, 8, &Connection::produce_body(-1, &topic, 0, &batch.encode()?))?;
        stage.broker.kill_and_restart()?;
        to = stage.connect()?;
        let same = to.wait_led(&topic, 1)?;
        equal("topic id", same, id)?;
        let seen = to.topic(Some(&topic), [0; 16], false)?.partitions[0].epoch;
        holds(&format!("epoch {seen} after {last_epoch}"), seen >= last_epoch)?;
        last_epoch = seen;
        let end = to.end_of(&topic)?;
        holds(
            &format!("round {round}: log end {end}, acknowledged {acknowledged}"),
            (acknowledged..=acknowledged + 1).contains(&end),
        )?;
        // Whether it was appended or not, sending it again must leave it there once.
        equal("the one in doubt", to.append(&topic, &batch)?, acknowledged)?;
        acknowledged += 1;
        let all = to.read_all(&topic, 0)?;
        equal("records", all.len() as i64, acknowledged)?;
        for (at, (offset, value)) in all.iter().enumerate() {
            equal("offset", *offset, at as i64)?;
            equal("value", value.split(' ').next().map(str::to_owned), Some(at.to_string()))?;
        }
    }
    Ok(())
}
