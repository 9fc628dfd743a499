//! Leader epochs on one broker, and what survives a restart.

use anyhow::Result;

use crate::raw::Case;
use crate::raw::ask::code;
use crate::raw::batch::Batch;
use crate::raw::expect::{equal, holds};
use crate::raw::stage::{Stage, now_ms, time};

pub const CASES: &[Case] = &[
    Case {
        name: "epochs-end-offsets",
        proves: "OffsetForLeaderEpoch: unknown and future epochs have none, the current one ends at the log end, past ones where the next began (B010, surface 68)",
        run: end_offsets,
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
        to.send(0, 8, &crate::raw::conn::Connection::produce_body(-1, &topic, 0, &batch.encode()?))?;
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
