//! Incremental fetch sessions.

use anyhow::{Context, Result};

use crate::raw::Case;
use crate::raw::ask::code;
use crate::raw::ask::records::{Fetch, Fetched, Want};
use crate::raw::batch::Batch;
use crate::raw::conn::{Connection, key};
use crate::raw::expect::{equal, holds};
use crate::raw::stage::{Stage, skip, time};
use crate::raw::wire::W;
use crate::target::Kind;

pub const CASES: &[Case] = &[
    Case {
        name: "sessions-incremental",
        proves: "an incremental answer holds only what is new; forgotten partitions stay away; offsets can be moved (B039, surface 59)",
        run: incremental,
    },
    Case {
        name: "sessions-wrong-numbers",
        proves: "an unknown session id and a wrong session epoch are told apart and mended by a full fetch (B039, surface 59)",
        run: wrong_numbers,
    },
    Case {
        name: "sessions-leader-epoch",
        proves: "the leader epoch of a partition can be changed within a session and is checked at every fetch (B039)",
        run: leader_epoch,
    },
    Case {
        name: "sessions-errors-repeated",
        proves: "a partition that answered an error is part of the next answer, too (surface 59)",
        run: errors,
    },
    Case {
        name: "sessions-take-turns",
        proves: "a session whose limit lets only one partition through serves all of them in turn (surface 53)",
        run: turns,
    },
    Case {
        name: "sessions-names-and-ids",
        proves: "a session opened by names and continued by ids is FETCH_SESSION_TOPIC_ID_ERROR (surface 60)",
        run: naming,
    },
    Case {
        name: "sessions-evicted",
        proves: "two thousand sessions opened on one connection: the broker evicts, does not grow, and goes on (B039)",
        run: evicted,
    },
];

fn topics(fetched: &Fetched) -> Vec<(i32, i16, usize)> {
    fetched.partitions.iter().map(|got| (got.partition, got.error, got.bytes.len())).collect()
}

fn produce(to: &mut Connection, topic: &str, partition: i32) -> Result<()> {
    equal("produce", to.produce_bytes(topic, partition, &Batch::of(&["value"], time()).encode()?)?.error, 0)
}

/// Opens a session over the partitions of a topic; answers its id.
fn open(to: &mut Connection, topic: &str, partitions: i32) -> Result<i32> {
    let wants = (0..partitions).map(|partition| Want { partition, ..Want::of(topic, 0) }).collect();
    let first = to.fetch(&Fetch { session_epoch: 0, ..Fetch::now(wants) })?;
    equal("error of the first fetch", first.error, 0)?;
    equal("partitions of the first fetch", first.partitions.len(), usize::try_from(partitions)?)?;
    if first.session == 0 {
        return skip("the broker gives no session now");
    }
    Ok(first.session)
}

fn next(session: i32, epoch: i32) -> Fetch {
    Fetch { session, session_epoch: epoch, ..Fetch::now(Vec::new()) }
}

fn incremental(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 3, &[])?;
    let session = open(&mut to, &topic, 3)?;
    let second = to.fetch(&next(session, 1))?;
    equal("session id is told again", second.session, session)?;
    equal("nothing new", topics(&second), Vec::new())?;
    produce(&mut to, &topic, 1)?;
    let third = to.fetch(&next(session, 2))?;
    equal("one new", third.partitions.iter().map(|got| got.partition).collect(), vec![1])?;
    // Not moved on: the same data again.
    let fourth = to.fetch(&next(session, 3))?;
    equal("still there", fourth.partitions.iter().map(|got| got.partition).collect(), vec![1])?;
    let moved = Fetch { wants: vec![Want { partition: 1, ..Want::of(&topic, 1) }], ..next(session, 4) };
    let fifth = to.fetch(&moved)?;
    holds("moved on: no data", fifth.partitions.iter().all(|got| got.bytes.is_empty()))?;
    let sixth = to.fetch(&Fetch { forget: vec![(topic.clone(), 2)], ..next(session, 5) })?;
    equal("error of forgetting", sixth.error, 0)?;
    produce(&mut to, &topic, 2)?;
    produce(&mut to, &topic, 0)?;
    let seventh = to.fetch(&next(session, 6))?;
    equal("forgotten stays away", seventh.partitions.iter().map(|got| got.partition).collect(), vec![0])?;
    let back = Fetch { wants: vec![Want { partition: 1, ..Want::of(&topic, 0) }], ..next(session, 7) };
    let eighth = to.fetch(&back)?;
    let served = eighth.partitions.iter().find(|got| got.partition == 1).map(|got| got.bytes.len());
    holds("moved back: data again", served.is_some_and(|bytes| bytes > 0))
}

fn wrong_numbers(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    let session = open(&mut to, &topic, 1)?;
    let unknown = to.fetch(&next(session.wrapping_add(12_345) & 0x7fff_ffff, 1))?;
    equal("unknown id", unknown.error, code::FETCH_SESSION_ID_NOT_FOUND)?;
    let ahead = to.fetch(&next(session, 5))?;
    equal("wrong epoch", ahead.error, code::INVALID_FETCH_SESSION_EPOCH)?;
    equal("right epoch", to.fetch(&next(session, 1))?.error, 0)?;
    equal("the same epoch again", to.fetch(&next(session, 1))?.error, code::INVALID_FETCH_SESSION_EPOCH)?;
    // Closing it, and a full fetch that opens another.
    equal("close", to.fetch(&Fetch { wants: vec![Want::of(&topic, 0)], ..next(session, -1) })?.error, 0)?;
    equal("closed", to.fetch(&next(session, 2))?.error, code::FETCH_SESSION_ID_NOT_FOUND)?;
    open(&mut to, &topic, 1).map(|_| ())
}

fn leader_epoch(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    stage.connect()?.create(&topic, 1, &[])?;
    // A restart, so that there is an epoch before the current one.
    stage.broker.restart()?;
    let mut to = stage.connect()?;
    to.wait_led(&topic, 1)?;
    let epoch = to.topic(Some(&topic), [0; 16], false)?.partitions[0].epoch;
    holds(&format!("an epoch before {epoch}"), epoch > 0)?;
    let session = open(&mut to, &topic, 1)?;
    let ahead = Fetch { wants: vec![Want { epoch: epoch + 3, ..Want::of(&topic, 0) }], ..next(session, 1) };
    equal("an epoch ahead", topics(&to.fetch(&ahead)?), vec![(0, code::UNKNOWN_LEADER_EPOCH, 0)])?;
    // Not sent again, and still checked.
    equal("checked again", topics(&to.fetch(&next(session, 2))?), vec![(0, code::UNKNOWN_LEADER_EPOCH, 0)])?;
    let behind = Fetch { wants: vec![Want { epoch: epoch - 1, ..Want::of(&topic, 0) }], ..next(session, 3) };
    equal("an epoch behind", topics(&to.fetch(&behind)?), vec![(0, code::FENCED_LEADER_EPOCH, 0)])?;
    equal("checked again", topics(&to.fetch(&next(session, 4))?), vec![(0, code::FENCED_LEADER_EPOCH, 0)])?;
    produce(&mut to, &topic, 0)?;
    let right = Fetch { wants: vec![Want { epoch, ..Want::of(&topic, 0) }], ..next(session, 5) };
    let got = to.fetch(&right)?;
    equal("the right epoch", got.only()?.error, 0)?;
    holds("data", !got.only()?.bytes.is_empty())
}

fn evicted(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    produce(&mut to, &topic, 0)?;
    let pid = stage.broker.pid().context("no broker")?;
    let before = super::limits::resident(pid)?;
    for _ in 0..2_000 {
        let fetched = to.fetch(&Fetch { session_epoch: 0, ..Fetch::now(vec![Want::of(&topic, 0)]) })?;
        equal("error", fetched.error, 0)?;
        equal("records", fetched.partitions.len(), 1)?;
    }
    let grown = super::limits::resident(pid)?.saturating_sub(before);
    // A JVM grows for reasons of its own.
    holds(&format!("grown by {} MiB", grown >> 20), stage.broker.kind() == Kind::Kafka || grown < 32 << 20)
}

fn turns(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 3, &[])?;
    for partition in 0..3 {
        produce(&mut to, &topic, partition)?;
    }
    let wants = (0..3).map(|partition| Want { partition, ..Want::of(&topic, 0) }).collect();
    let served = |fetched: &Fetched| -> Vec<i32> {
        let full = fetched.partitions.iter().filter(|got| !got.bytes.is_empty());
        full.map(|got| got.partition).collect()
    };
    let first = to.fetch(&Fetch { session_epoch: 0, max_bytes: 1, ..Fetch::now(wants) })?;
    let mut seen = served(&first);
    if first.session == 0 {
        return skip("the broker gives no session now");
    }
    for epoch in 1..4 {
        // Nothing is moved on: the same records are due, the others first.
        let fetched = to.fetch(&Fetch { max_bytes: 1, ..next(first.session, epoch) })?;
        equal(&format!("partitions served in fetch {epoch}"), served(&fetched).len(), 1)?;
        seen.extend(served(&fetched));
    }
    // Kafka counts the turns from the second fetch on.
    seen.sort_unstable();
    seen.dedup();
    equal("partitions served in four fetches", seen, vec![0, 1, 2])
}

fn naming(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    let id = to.create(&topic, 1, &[])?;
    let session = open(&mut to, &topic, 1)?;
    let body = W::new().i32(-1).i32(0).i32(0).i32(1 << 20).i8(0).i32(session).i32(1).carray(1).raw(&id);
    let body = body.carray(1).i32(0).i32(-1).i64(0).i32(-1).i64(-1).i32(1 << 20).tags().tags();
    let mut answer = to.call(key::FETCH, 13, &body.carray(0).cstr("").tags())?;
    answer.i32()?;
    equal("error", answer.i16()?, code::FETCH_SESSION_TOPIC_ID_ERROR)?;
    // And the client mends it with a full fetch.
    open(&mut to, &topic, 1).map(|_| ())
}

fn errors(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    let session = open(&mut to, &topic, 1)?;
    let wrong = Fetch { wants: vec![Want::of(&topic, 99)], ..next(session, 1) };
    equal("out of range", topics(&to.fetch(&wrong)?), vec![(0, code::OFFSET_OUT_OF_RANGE, 0)])?;
    equal("again", topics(&to.fetch(&next(session, 2))?), vec![(0, code::OFFSET_OUT_OF_RANGE, 0)])
}
