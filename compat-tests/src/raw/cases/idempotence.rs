//! Producers with ids: duplicates, gaps, epochs, the wrap of sequence numbers, and restarts.

use anyhow::Result;

use crate::raw::Case;
use crate::raw::ask::code;
use crate::raw::batch::Batch;
use crate::raw::conn::{Connection, key};
use crate::raw::expect::{equal, holds};
use crate::raw::stage::{Stage, now_ms, skip};
use crate::raw::wire::W;
use crate::target::Kind;

pub const CASES: &[Case] = &[
    Case {
        name: "idempotence-duplicates",
        proves: "each of the last five batches, sent again, is answered with its first offset and not appended; so after kill -9 (B015, surface 37)",
        run: duplicates,
    },
    Case {
        name: "idempotence-order",
        proves: "a gap is OUT_OF_ORDER_SEQUENCE, a new epoch starts at 0, an old one is INVALID_PRODUCER_EPOCH, a negative sequence INVALID_RECORD (surface 38, 40, B017)",
        run: order,
    },
    Case {
        name: "idempotence-unknown-producer",
        proves: "a producer of whom nothing is known may start at any sequence, also after DeleteRecords took all it wrote (surface 38)",
        run: unknown,
    },
    Case {
        name: "idempotence-sequence-wrap",
        proves: "after sequence 2147483647 comes 0, inside a batch too, and after a restart (B017, surface 39)",
        run: wrap,
    },
    Case {
        name: "idempotence-epoch-bump",
        proves: "InitProducerId with the current id and epoch gives the next epoch; a higher epoch than the one given out is taken (surface 39)",
        run: bump,
    },
    Case {
        name: "idempotence-producers-described",
        proves: "DescribeProducers tells a producer's epoch and last sequence, after a restart, too (surface 41)",
        run: described,
    },
    Case {
        name: "transactional-id-refused",
        proves: "InitProducerId with a transactional id is refused with an error that no client retries for ever",
        run: transactional,
    },
];

fn batch(id: i64, epoch: i16, sequence: i32, count: usize) -> Batch {
    // Recent timestamps: what is known of a producer expires by the timestamps of its batches.
    Batch::of(&vec!["value"; count], now_ms()).by_producer(id, epoch, sequence)
}

/// Produces and answers (error, base offset).
fn send(to: &mut Connection, topic: &str, batch: &Batch) -> Result<(i16, i64)> {
    let produced = to.produce(topic, batch)?;
    Ok((produced.error, produced.base_offset))
}

fn duplicates(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    let (id, epoch) = to.producer_id()?;
    for number in 0..7 {
        let sent = send(&mut to, &topic, &batch(id, epoch, number * 3, 3))?;
        equal("first time", sent, (0, i64::from(number) * 3))?;
    }
    for restarted in [false, true] {
        // Kafka's snapshots keep only the last batch of a producer; the log that follows them could tell of five.
        let known = if restarted && stage.broker.kind() == Kind::Kafka { 6..7 } else { 2..7 };
        for number in known.rev() {
            let sent = send(&mut to, &topic, &batch(id, epoch, number * 3, 3))?;
            equal(
                &format!("batch {number} again, restarted: {restarted}"),
                sent,
                (0, i64::from(number) * 3),
            )?;
        }
        equal("log end", to.end_of(&topic)?, 21)?;
        // Too old to be known, and no successor of the last one either.
        let (error, _) = send(&mut to, &topic, &batch(id, epoch, 0, 3))?;
        holds(
            &format!("a batch older than five: error {error}"),
            [code::OUT_OF_ORDER_SEQUENCE_NUMBER, 46].contains(&error),
        )?;
        equal("log end", to.end_of(&topic)?, 21)?;
        if !restarted {
            stage.broker.kill_and_restart()?;
            to = stage.connect()?;
            to.wait_led(&topic, 1)?;
        }
    }
    equal("the next batch", send(&mut to, &topic, &batch(id, epoch, 21, 1))?, (0, 21))
}

fn order(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    let (id, epoch) = to.producer_id()?;
    equal("first", send(&mut to, &topic, &batch(id, epoch, 0, 2))?, (0, 0))?;
    let gap = send(&mut to, &topic, &batch(id, epoch, 5, 1))?;
    equal("a gap", gap, (code::OUT_OF_ORDER_SEQUENCE_NUMBER, -1))?;
    equal("the successor", send(&mut to, &topic, &batch(id, epoch, 2, 1))?, (0, 2))?;
    let (error, _) = send(&mut to, &topic, &batch(id, epoch + 1, 3, 1))?;
    equal("a new epoch not at 0", error, code::OUT_OF_ORDER_SEQUENCE_NUMBER)?;
    equal("a new epoch at 0", send(&mut to, &topic, &batch(id, epoch + 1, 0, 1))?, (0, 3))?;
    let (error, _) = send(&mut to, &topic, &batch(id, epoch, 3, 1))?;
    equal("the old epoch", error, code::INVALID_PRODUCER_EPOCH)?;
    let (error, _) = send(&mut to, &topic, &batch(id, epoch + 1, -1, 1))?;
    equal("a negative sequence", error, code::INVALID_RECORD)?;
    equal("log end", to.end_of(&topic)?, 4)
}

fn unknown(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    let (id, epoch) = to.producer_id()?;
    equal("starts at 100", send(&mut to, &topic, &batch(id, epoch, 100, 1))?, (0, 0))?;
    equal("goes on", send(&mut to, &topic, &batch(id, epoch, 101, 1))?, (0, 1))?;
    equal("all deleted", to.delete_records(&topic, -1)?, (0, 2))?;
    equal("goes on after DeleteRecords", send(&mut to, &topic, &batch(id, epoch, 102, 1))?, (0, 2))
}

fn wrap(stage: &mut Stage) -> Result<()> {
    let mut to = stage.connect()?;
    for restart in [false, true] {
        let topic = stage.name(if restart { "restart" } else { "t" });
        to.create(&topic, 1, &[])?;
        let (id, epoch) = to.producer_id()?;
        equal("8 up to the end", send(&mut to, &topic, &batch(id, epoch, 2_147_483_640, 8))?, (0, 0))?;
        if restart {
            stage.broker.restart()?;
            to = stage.connect()?;
            to.wait_led(&topic, 1)?;
        }
        equal("0 follows", send(&mut to, &topic, &batch(id, epoch, 0, 1))?, (0, 8))?;
        let (id, epoch) = to.producer_id()?;
        equal("across the wrap", send(&mut to, &topic, &batch(id, epoch, 2_147_483_646, 4))?, (0, 9))?;
        let (error, _) = send(&mut to, &topic, &batch(id, epoch, 3, 1))?;
        equal("one too far", error, code::OUT_OF_ORDER_SEQUENCE_NUMBER)?;
        equal("2 follows", send(&mut to, &topic, &batch(id, epoch, 2, 1))?, (0, 13))?;
        equal(
            "the wrapping batch again",
            send(&mut to, &topic, &batch(id, epoch, 2_147_483_646, 4))?,
            (0, 9),
        )?;
    }
    Ok(())
}

/// InitProducerId version 3: (error, id, epoch).
fn init(to: &mut Connection, transactional: Option<&str>, id: i64, epoch: i16) -> Result<(i16, i64, i16)> {
    let body = W::new().cnstr(transactional).i32(60_000).i64(id).i16(epoch).tags();
    let mut answer = to.call(key::INIT_PRODUCER_ID, 3, &body)?;
    answer.i32()?;
    let all = (answer.i16()?, answer.i64()?, answer.i16()?);
    answer.tags()?;
    answer.end()?;
    Ok(all)
}

fn bump(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    let (id, epoch) = to.producer_id()?;
    let (other, _) = to.producer_id()?;
    holds("ids are not given twice", other != id)?;
    equal("first", send(&mut to, &topic, &batch(id, epoch, 0, 1))?, (0, 0))?;
    // Without a transactional id a producer bumps its epoch by itself, or asks for a fresh id.
    let (error, fresh, fresh_epoch) = init(&mut to, None, id, epoch)?;
    equal("error of a bump", error, code::NONE)?;
    holds(&format!("id {fresh} epoch {fresh_epoch} after {id} {epoch}"), fresh != id || fresh_epoch > epoch)?;
    equal("an epoch of its own", send(&mut to, &topic, &batch(id, epoch + 5, 0, 1))?, (0, 1))
}

fn described(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    let (id, epoch) = to.producer_id()?;
    equal("first", send(&mut to, &topic, &batch(id, epoch, 0, 3))?, (0, 0))?;
    equal("second", send(&mut to, &topic, &batch(id, epoch, 3, 2))?, (0, 3))?;
    for restarted in [false, true] {
        if restarted {
            stage.broker.restart()?;
            to = stage.connect()?;
            to.wait_led(&topic, 1)?;
        }
        let body = W::new().carray(1).cstr(&topic).carray(1).i32(0).tags().tags();
        let mut answer = to.call(key::DESCRIBE_PRODUCERS, 0, &body)?;
        answer.i32()?;
        let topics = answer.ceach(|topic| {
            topic.cstr()?;
            let partitions = topic.ceach(|partition| {
                partition.i32()?;
                equal("error", partition.i16()?, 0)?;
                partition.cnstr()?;
                let producers = partition.ceach(|producer| {
                    let (id, epoch, sequence) = (producer.i64()?, producer.i32()?, producer.i32()?);
                    producer.i64()?;
                    let rest = (producer.i32()?, producer.i64()?);
                    producer.tags()?;
                    Ok((id, epoch, sequence, rest))
                })?;
                partition.tags()?;
                Ok(producers)
            })?;
            topic.tags()?;
            Ok(partitions)
        })?;
        answer.tags()?;
        answer.end()?;
        let producers: Vec<_> = topics.into_iter().flatten().flatten().collect();
        equal(
            &format!("producers, restarted: {restarted}"),
            producers,
            vec![(id, i32::from(epoch), 4, (-1, -1))],
        )?;
    }
    Ok(())
}

fn transactional(stage: &mut Stage) -> Result<()> {
    if stage.broker.kind() == Kind::Kafka {
        return skip("Apache Kafka serves transactions");
    }
    let mut to = stage.connect()?;
    for _ in 0..2 {
        let (error, id, _) = init(&mut to, Some("a-transaction"), -1, -1)?;
        // Codes on which clients try again: not leader, timed out, loading, not available, not coordinator, concurrent.
        let retried = [0, 3, 5, 6, 7, 13, 14, 15, 16, 51].contains(&error);
        holds(&format!("error {error} is fatal"), !retried)?;
        equal("no id", id, -1)?;
    }
    Ok(())
}
