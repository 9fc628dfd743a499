//! What a fetch returns, how much, and when.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::raw::Case;
use crate::raw::ask::code;
use crate::raw::ask::records::{Fetch, Fetched, Want};
use crate::raw::batch::Batch;
use crate::raw::conn::key;
use crate::raw::expect::{equal, holds};
use crate::raw::stage::{Stage, skip, time};
use crate::raw::wire::W;
use crate::target::Kind;
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "fetch-inside-batch",
        proves: "an offset inside a batch gets that whole batch (B001, surface 52)",
        run: inside_batch,
    },
    Case {
        name: "fetch-long-poll",
        proves: "data is answered at once, nothing after max_wait and not before, a produce wakes the fetch (B002, surface 55)",
        run: long_poll,
    },
    Case {
        name: "fetch-errors-answer-at-once",
        proves: "an error in one partition ends the wait for the others (surface 55)",
        run: errors_at_once,
    },
    Case {
        name: "fetch-min-bytes-of-all",
        proves: "min_bytes counts over all partitions of the request; without time to wait or partitions the answer comes at once (surface 55)",
        run: min_bytes,
    },
    Case {
        name: "fetch-waiters-released",
        proves: "a thousand long polls whose sockets close leave neither descriptors nor memory behind (B002, B077)",
        run: waiters,
    },
    Case {
        name: "fetch-several-topics",
        proves: "topics in odd order, one twice, a partition twice, an unknown one: each answered, the broker lives (B023)",
        run: several_topics,
    },
    Case {
        name: "fetch-beyond-the-log",
        proves: "past the end and before the start is OFFSET_OUT_OF_RANGE, at the end is empty, never null (surface 56, 63)",
        run: beyond,
    },
    Case {
        name: "fetch-leader-epoch",
        proves: "an older leader epoch is FENCED, a newer one UNKNOWN (surface 58)",
        run: epochs,
    },
    Case {
        name: "fetch-large-record-small-limits",
        proves: "a batch larger than every limit comes whole when it is first; after it nothing, in front of it the small ones (B065, surface 53)",
        run: large,
    },
    Case {
        name: "fetch-by-topic-id",
        proves: "Fetch 13 takes topics by id; an unknown one is UNKNOWN_TOPIC_ID (surface 60)",
        run: by_id,
    },
    Case {
        name: "fetch-old-version-zstd",
        proves: "Fetch 4 returns a zstd batch as it is stored (surface 62)",
        run: old_version,
    },
    Case {
        name: "fetch-while-producing",
        proves: "a reader that follows a writer sees every record once and in order, never a cut batch",
        run: follow,
    },
];

fn inside_batch(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    for codec in [0, 4] {
        let base = to.append(&topic, &Batch::of(&["a", "b"], time()).codec(codec))?;
        to.append(&topic, &Batch::of(&["c", "d"], time()).codec(codec))?;
        for (offset, first) in [(0, 0), (1, 0), (2, 2), (3, 2)] {
            let fetched = to.fetch(&Fetch::now(vec![Want::of(&topic, base + offset)]))?;
            let batches = fetched.only()?.batches()?;
            let found = batches.first().with_context(|| format!("nothing at {offset}"))?;
            equal(&format!("first batch at {offset}"), found.base_offset - base, first)?;
        }
    }
    Ok(())
}

fn long_poll(stage: &mut Stage) -> Result<()> {
    let (full, empty) = (stage.name("full"), stage.name("empty"));
    let mut to = stage.connect()?;
    to.create(&full, 1, &[])?;
    to.create(&empty, 1, &[])?;
    to.append(&full, &Batch::of(&["a"], time()))?;
    let poll =
        |topic: &str, max_wait| Fetch { max_wait, min_bytes: 1, ..Fetch::now(vec![Want::of(topic, 0)]) };
    let started = Instant::now();
    holds("data", !to.fetch(&poll(&full, 5_000))?.only()?.bytes.is_empty())?;
    holds(&format!("data after {:?}", started.elapsed()), started.elapsed() < Duration::from_millis(250))?;

    let started = Instant::now();
    holds("nothing", to.fetch(&poll(&empty, 500))?.only()?.bytes.is_empty())?;
    let waited = started.elapsed();
    holds(&format!("nothing after {waited:?}"), (480..1_000).contains(&waited.as_millis()))?;

    // Wanting more bytes than there are waits, too.
    let started = Instant::now();
    let much = Fetch { min_bytes: 100_000, ..poll(&full, 300) };
    holds("what is there", !to.fetch(&much)?.only()?.bytes.is_empty())?;
    holds(
        &format!("too few bytes after {:?}", started.elapsed()),
        started.elapsed() >= Duration::from_millis(280),
    )?;

    let body = poll(&empty, 10_000).body();
    let correlation = to.send(key::FETCH, 11, &body)?;
    let mut other = stage.connect()?;
    // The fetch is under way once a request that was sent after it on another connection is answered; produce only then.
    other.end_of(&empty)?;
    let produced = Instant::now();
    other.append(&empty, &Batch::of(&["wake up"], time()))?;
    let woken = Fetched::read(to.receive_for(correlation, key::FETCH, 11)?)?;
    holds(&format!("woken after {:?}", produced.elapsed()), produced.elapsed() < Duration::from_secs(1))?;
    equal("records", Batch::values(&woken.only()?.batches()?).len(), 1)
}

fn errors_at_once(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    let other = stage.name("other");
    to.create(&other, 1, &[])?;
    let wants = vec![Want::of(&topic, 0), Want::of(&other, 99)];
    let started = Instant::now();
    let fetched = to.fetch(&Fetch { max_wait: 8_000, min_bytes: 1, ..Fetch::now(wants) })?;
    holds(&format!("answered after {:?}", started.elapsed()), started.elapsed() < Duration::from_secs(2))?;
    let errors: Vec<i16> = fetched.partitions.iter().map(|got| got.error).collect();
    holds(&format!("errors {errors:?}"), errors.contains(&code::OFFSET_OUT_OF_RANGE))
}

fn descriptors(pid: i32) -> Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

fn waiters(stage: &mut Stage) -> Result<()> {
    if stage.broker.kind() == Kind::Kafka {
        return skip("Apache Kafka holds them until their time has passed");
    }
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    let pid = stage.broker.pid().context("no broker")?;
    let before = descriptors(pid)?;
    let memory = super::limits::resident(pid)?;
    let body = Fetch { max_wait: 60_000, min_bytes: 1, ..Fetch::now(vec![Want::of(&topic, 0)]) }.body();
    let mut polls = Vec::new();
    for _ in 0..1_000 {
        let mut poll = stage.connect()?;
        poll.send(key::FETCH, 11, &body)?;
        polls.push(poll);
    }
    wait::until("the polls to be there", Duration::from_secs(15), || {
        Ok((descriptors(pid)? >= before + 900).then_some(()))
    })?;
    drop(polls);
    wait::until("the descriptors of closed sockets to go", Duration::from_secs(15), || {
        Ok((descriptors(pid)? <= before + 10).then_some(()))
    })?;
    let grown = super::limits::resident(pid)?.saturating_sub(memory);
    holds(&format!("{} MiB are left of the polls", grown >> 20), grown < 48 << 20)?;
    to.append(&topic, &Batch::of(&["a"], time())).map(|_| ())
}

fn min_bytes(stage: &mut Stage) -> Result<()> {
    let (one, two) = (stage.name("one"), stage.name("two"));
    let mut to = stage.connect()?;
    for topic in [&one, &two] {
        to.create(topic, 1, &[])?;
        to.append(topic, &Batch::of(&[&"x".repeat(300)], time()))?;
    }
    let poll = |wants: &[&str], max_wait, min_bytes| Fetch {
        max_wait,
        min_bytes,
        ..Fetch::now(wants.iter().map(|topic| Want::of(topic, 0)).collect())
    };
    for (what, fetch) in [
        ("both together are enough", poll(&[&one, &two], 8_000, 600)),
        ("no time to wait", poll(&[&one], 0, 100_000)),
        ("no partition to wait for", poll(&[], 8_000, 1)),
    ] {
        let started = Instant::now();
        equal(&format!("{what}: error"), to.fetch(&fetch)?.error, 0)?;
        holds(&format!("{what}: after {:?}", started.elapsed()), started.elapsed() < Duration::from_secs(2))?;
    }
    let started = Instant::now();
    equal("one alone", to.fetch(&poll(&[&one], 400, 600))?.error, 0)?;
    holds(
        &format!("one alone is not enough: after {:?}", started.elapsed()),
        started.elapsed() >= Duration::from_millis(380),
    )
}

fn several_topics(stage: &mut Stage) -> Result<()> {
    let names: Vec<String> = ["c", "a", "b"].iter().map(|name| stage.name(name)).collect();
    let mut to = stage.connect()?;
    for name in &names {
        to.create(name, 3, &[])?;
        for partition in 0..3 {
            let bytes = Batch::of(&[&format!("{name} {partition}")], time()).encode()?;
            equal("produce", to.produce_bytes(name, partition, &bytes)?.error, 0)?;
        }
    }
    let want = |name: &str, partition| Want { partition, ..Want::of(name, 0) };
    let all: Vec<Want> =
        names.iter().flat_map(|name| [2, 0, 1].map(|partition| want(name, partition))).collect();
    let fetched = to.fetch(&Fetch::now(all.clone()))?;
    equal("partitions", fetched.partitions.len(), 9)?;
    for got in &fetched.partitions {
        let values = Batch::values(&got.batches()?);
        equal(
            "value",
            values.first().map(|(_, value)| value.clone()),
            Some(format!("{} {}", got.topic, got.partition)),
        )?;
    }
    let mut odd =
        vec![want(&names[0], 0), want(&stage.name("absent"), 0), want(&names[1], 0), want(&names[0], 1)];
    odd.push(want(&names[0], 1));
    odd.push(want(&names[2], 9));
    let fetched = to.fetch(&Fetch::now(odd))?;
    let errors =
        fetched.partitions.iter().filter(|got| got.error == code::UNKNOWN_TOPIC_OR_PARTITION).count();
    equal("unknown ones", errors, 2)?;
    holds("the others", fetched.partitions.iter().filter(|got| got.error == 0).count() >= 3)
}

fn beyond(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    let at = |to: &mut crate::raw::conn::Connection, offset| -> Result<(i16, usize)> {
        let fetched = to.fetch(&Fetch::now(vec![Want::of(&topic, offset)]))?;
        let got = fetched.only()?;
        Ok((got.error, got.bytes.len()))
    };
    equal("an empty log at 0", at(&mut to, 0)?, (0, 0))?;
    equal("an empty log at 1", at(&mut to, 1)?, (code::OFFSET_OUT_OF_RANGE, 0))?;
    to.append(&topic, &Batch::of(&["a", "b", "c"], time()))?;
    equal("at the end", at(&mut to, 3)?, (0, 0))?;
    equal("past the end", at(&mut to, 4)?, (code::OFFSET_OUT_OF_RANGE, 0))?;
    equal("negative", at(&mut to, -1)?, (code::OFFSET_OUT_OF_RANGE, 0))?;
    equal("delete", to.delete_records(&topic, 2)?, (0, 2))?;
    equal("before the start", at(&mut to, 1)?, (code::OFFSET_OUT_OF_RANGE, 0))?;
    holds("at the start", at(&mut to, 2)?.1 > 0)
}

fn epochs(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    to.append(&topic, &Batch::of(&["a"], time()))?;
    stage.broker.restart()?;
    let mut to = stage.connect()?;
    to.wait_led(&topic, 1)?;
    let epoch = to.topic(Some(&topic), [0; 16], false)?.partitions[0].epoch;
    for (epoch, expected) in [(epoch, 0), (-1, 0), (epoch + 1, code::UNKNOWN_LEADER_EPOCH)] {
        let fetched = to.fetch(&Fetch::now(vec![Want { epoch, ..Want::of(&topic, 0) }]))?;
        equal(&format!("epoch {epoch}"), fetched.only()?.error, expected)?;
    }
    if epoch > 0 {
        let fetched = to.fetch(&Fetch::now(vec![Want { epoch: epoch - 1, ..Want::of(&topic, 0) }]))?;
        equal("an older epoch", fetched.only()?.error, code::FENCED_LEADER_EPOCH)?;
    }
    Ok(())
}

fn large(stage: &mut Stage) -> Result<()> {
    let (big, small) = (stage.name("big"), stage.name("small"));
    let mut to = stage.connect()?;
    to.create(&big, 1, &[("max.message.bytes", "3000000")])?;
    to.create(&small, 1, &[])?;
    let value = "x".repeat(2_000_000);
    to.append(&big, &Batch::of(&[&value], time()))?;
    to.append(&big, &Batch::of(&["second"], time()))?;
    for number in 0..3 {
        to.append(&small, &Batch::of(&[&format!("small {number}")], time()))?;
    }
    for limit in [1, 1_024] {
        let want = |topic: &str| Want { max_bytes: limit, ..Want::of(topic, 0) };
        let fetched = to.fetch(&Fetch { max_bytes: limit, ..Fetch::now(vec![want(&big)]) })?;
        let batches = fetched.only()?.batches()?;
        equal("batches", batches.len(), 1)?;
        equal("length", batches[0].records[0].value.as_ref().map(Vec::len), Some(2_000_000))?;

        let fetched = to.fetch(&Fetch { max_bytes: limit, ..Fetch::now(vec![want(&big), want(&small)]) })?;
        let of =
            |topic: &str| fetched.partitions.iter().find(|got| got.topic == topic).map(|got| got.bytes.len());
        holds("the first comes whole", of(&big).is_some_and(|bytes| bytes > 2_000_000))?;
        equal("nothing behind it", of(&small).unwrap_or(0), 0)?;

        let fetched = to.fetch(&Fetch { max_bytes: limit, ..Fetch::now(vec![want(&small), want(&big)]) })?;
        let of =
            |topic: &str| fetched.partitions.iter().find(|got| got.topic == topic).map(|got| got.bytes.len());
        holds("the small one comes", of(&small).is_some_and(|bytes| bytes > 0))?;
        equal("the big one waits", of(&big).unwrap_or(0), 0)?;
    }
    Ok(())
}

fn by_id(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    let id = to.create(&topic, 1, &[])?;
    to.append(&topic, &Batch::of(&["by id"], time()))?;
    for (id, expected) in [(id, 0), ([9; 16], code::UNKNOWN_TOPIC_ID)] {
        let body =
            W::new().i32(-1).i32(0).i32(1).i32(1 << 20).i8(0).i32(0).i32(-1).carray(1).raw(&id).carray(1);
        let body = body.i32(0).i32(-1).i64(0).i32(-1).i64(-1).i32(1 << 20).tags().tags();
        let mut answer = to.call(key::FETCH, 13, &body.carray(0).cstr("").tags())?;
        answer.i32()?;
        equal("error of all", answer.i16()?, 0)?;
        answer.i32()?;
        equal("topics", answer.carray()?, 1)?;
        equal("topic id", answer.uuid()?, id)?;
        equal("partitions", answer.carray()?, 1)?;
        equal("partition", answer.i32()?, 0)?;
        equal("error", answer.i16()?, expected)?;
    }
    Ok(())
}

fn old_version(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    to.append(&topic, &Batch::of(&["a", "b"], time()).codec(4))?;
    let body = W::new().i32(-1).i32(0).i32(0).i32(1 << 20).i8(0).array(1).str(&topic).array(1).i32(0).i64(0);
    let mut answer = to.call(key::FETCH, 4, &body.i32(1 << 20))?;
    answer.i32()?;
    equal("topics", answer.array()?, 1)?;
    equal("topic", answer.str()?, topic)?;
    equal("partitions", answer.array()?, 1)?;
    equal("partition", answer.i32()?, 0)?;
    equal("error", answer.i16()?, 0)?;
    answer.raw(16)?;
    answer.array()?;
    let batches = Batch::decode_all(&answer.nbytes()?.context("null records")?)?;
    answer.end()?;
    equal("codec", batches[0].attributes & 7, 4)?;
    equal("values", Batch::values(&batches).len(), 2)
}

fn follow(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut reader = stage.connect()?;
    reader.create(&topic, 1, &[("segment.bytes", "1048576")])?;
    let count: i64 = if stage.full { 20_000 } else { 1_500 };
    let mut writer = stage.connect()?;
    let name = topic.clone();
    let writing = std::thread::spawn(move || -> Result<()> {
        let filler = "f".repeat(900);
        for number in 0..count {
            let value = format!("{number} {filler}");
            let batch = Batch::of(&[&value, &value], time()).codec(if number % 5 == 0 { 3 } else { 0 });
            equal("offset", writer.append(&name, &batch)?, number * 2)?;
        }
        Ok(())
    });
    let mut next = 0;
    while next < count * 2 {
        let want = Want { max_bytes: 20_000, ..Want::of(&topic, next) };
        let fetched = reader.fetch(&Fetch { max_wait: 2_000, min_bytes: 1, ..Fetch::now(vec![want]) })?;
        let got = fetched.only()?;
        equal("error", got.error, 0)?;
        let batches = got.batches()?;
        holds(&format!("nothing at {next}"), !batches.is_empty())?;
        for (offset, value) in Batch::values(&batches) {
            equal("offset", offset, next)?;
            equal("value", value.split(' ').next().map(str::to_owned), Some((offset / 2).to_string()))?;
            next += 1;
        }
        holds("mark within the log", got.mark <= count * 2)?;
    }
    match writing.join() {
        Ok(written) => written,
        Err(_) => anyhow::bail!("the writer panicked"),
    }
}
