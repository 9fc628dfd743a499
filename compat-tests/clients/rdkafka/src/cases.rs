//! The common cases.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};

use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, Consumer};

use crate::client::{Client, From, PATIENCE, PLAIN, Record, Settings};
use crate::group::{Journal, Member, lock};
use crate::{killed, lost};

pub fn run(name: &str, client: &Client, topic: &str) -> Result<()> {
    if let Some(codec) = name.strip_prefix("codec-") {
        let settings = [("compression.type", codec), ("enable.idempotence", "true"), ("linger.ms", "50")];
        return exchange(client, topic, 10, &"compressible ".repeat(20), &settings);
    }
    if let Some(acks) = name.strip_prefix("acks-") {
        let settings = [("acks", acks), ("enable.idempotence", "false"), ("linger.ms", "50")];
        return exchange(client, topic, 100, "value", &settings);
    }
    match name {
        "default-settings" => exchange(client, topic, 100, "value", &[]),
        "idempotent" => {
            exchange(client, topic, 1000, "value", &[("enable.idempotence", "true")])?;
            same(client.end(topic, 0)?, 1000)
        }
        "keys" => keys(client, topic),
        "headers-duplicate" => headers_duplicate(client, topic),
        "null-and-empty" => null_and_empty(client, topic),
        "record-1mb" => record_1mb(client, topic),
        "read-start" => exchange(client, topic, 10, "value", PLAIN),
        "read-end" => read_end(client, topic),
        "read-offset" => read_offset(client, topic),
        "read-timestamp" => read_timestamp(client, topic),
        "group-of-three" => group_of_three(client, topic),
        "commit-resume" => commit_resume(client, topic),
        "topic-admin" => topic_admin(client, topic),
        "auto-create" => auto_create(client, topic),
        "compacted" => compacted(client),
        "lost-acks" => lost::acks(client, topic),
        "kills-acks-1" => killed::kills(client, topic, "1"),
        "kills-acks-all" => killed::kills(client, topic, "all"),
        "static-twice" => static_twice(client, topic),
        _ => bail!("no such case"),
    }
}

pub fn same<T: PartialEq + Debug>(found: T, wanted: T) -> Result<()> {
    if found != wanted {
        let text = |value: T| format!("{value:?}").chars().take(300).collect::<String>();
        bail!("found {}, wanted {}", text(found), text(wanted));
    }
    Ok(())
}

pub fn until(what: &str, bound: Duration, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !condition()? {
        ensure!(begun.elapsed() < bound, "waited {bound:?} for {what}");
        // The pace of asking, not a time to wait for.
        #[expect(clippy::disallowed_methods, reason = "this is the loop that waits for a condition")]
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn numbered(count: usize, text: &str) -> Vec<Record> {
    (0..count)
        .map(|n| Record { key: Some(b"key".to_vec()), ..Record::value(format!("{text} {n}")) })
        .collect()
}

fn values(records: &[Record]) -> Vec<Option<Vec<u8>>> {
    records.iter().map(|record| record.value.clone()).collect()
}

/// Sends records to a new topic of one partition and reads them back.
fn exchange(client: &Client, topic: &str, count: usize, text: &str, settings: Settings<'_>) -> Result<()> {
    client.create(topic, 1)?;
    let sent = numbered(count, text);
    let dense: Vec<i64> = (0..i64::try_from(count)?).collect();
    let offsets = client.produce(topic, &sent, Some(0), settings)?;
    if !settings.contains(&("acks", "0")) {
        same(&offsets, &dense)?;
    }
    let read = client.read(topic, 0, From::Start, count)?;
    same(read.iter().map(|record| record.offset).collect(), dense)?;
    same(values(&read), values(&sent))
}

fn keys(client: &Client, topic: &str) -> Result<()> {
    client.create(topic, 3)?;
    let keyed =
        |n: i32| Record { key: Some(format!("key {}", n % 20).into_bytes()), ..Record::value(n.to_string()) };
    let sent: Vec<Record> = (0..100).map(keyed).collect();
    client.produce(topic, &sent, None, PLAIN)?;
    let (mut places, mut read) = (BTreeMap::new(), BTreeSet::new());
    for partition in 0..3 {
        let count = client.end(topic, partition)?;
        for record in client.read(topic, partition, From::Start, usize::try_from(count)?)? {
            let place = *places.entry(record.key.clone()).or_insert(partition);
            ensure!(place == partition, "{:?} is on two partitions", record.key);
            read.insert((record.key, record.value));
        }
    }
    same(read, sent.into_iter().map(|record| (record.key, record.value)).collect())
}

fn headers_duplicate(client: &Client, topic: &str) -> Result<()> {
    client.create(topic, 1)?;
    let headers = [("a", "1"), ("b", "2"), ("a", "3"), ("empty", "")];
    let headers = headers.map(|(key, value)| (key.to_owned(), Some(value.as_bytes().to_vec()))).to_vec();
    let sent = Record { headers: headers.clone(), ..Record::value("v") };
    client.produce(topic, &[sent], Some(0), PLAIN)?;
    let read = client.read(topic, 0, From::Start, 1)?;
    same(&read[0].headers, &headers)
}

fn null_and_empty(client: &Client, topic: &str) -> Result<()> {
    client.create(topic, 1)?;
    let sent = [
        Record::value("null key"),
        Record { key: Some(Vec::new()), ..Record::value("empty key") },
        Record { key: Some(b"null value".to_vec()), ..Record::default() },
        Record { key: Some(b"empty value".to_vec()), ..Record::value("") },
    ];
    client.produce(topic, &sent, Some(0), PLAIN)?;
    let read = client.read(topic, 0, From::Start, sent.len())?;
    let pairs = |records: &[Record]| -> Vec<_> {
        records.iter().map(|record| (record.key.clone(), record.value.clone())).collect()
    };
    same(pairs(&read), pairs(&sent))
}

fn record_1mb(client: &Client, topic: &str) -> Result<()> {
    client.create(topic, 1)?;
    let large = Record::value(b"0123456789".repeat(100_000));
    client.produce(topic, std::slice::from_ref(&large), Some(0), &[("message.max.bytes", "1040000")])?;
    let read = client.read(topic, 0, From::Start, 1)?;
    ensure!(read[0].value == large.value, "the record came back changed");
    let larger = Record::value(b"0123456789".repeat(200_000));
    let offsets = client.try_produce(topic, &[larger], Some(0), &[("message.max.bytes", "10000000")])?;
    same(offsets, None).context("a record of 2,000,000 bytes")?;
    same(client.end(topic, 0)?, 1)
}

fn with_ten(client: &Client, topic: &str) -> Result<Vec<Record>> {
    client.create(topic, 1)?;
    let sent = numbered(10, "value");
    client.produce(topic, &sent, Some(0), PLAIN)?;
    Ok(sent)
}

fn read_end(client: &Client, topic: &str) -> Result<()> {
    with_ten(client, topic)?;
    let later = numbered(3, "later");
    let placed = || client.produce(topic, &later, Some(0), PLAIN).map(drop);
    let read = client.read_when_placed(topic, 0, From::End, 3, Some(&placed))?;
    same(values(&read), values(&later))
}

fn read_offset(client: &Client, topic: &str) -> Result<()> {
    let sent = with_ten(client, topic)?;
    let read = client.read(topic, 0, From::At(5), 5)?;
    same(values(&read), values(&sent[5..]))
}

/// The harness writes the topic, and says what must be left of it.
fn compacted(client: &Client) -> Result<()> {
    let made = crate::ask("compacted")?;
    let (topic, survivors) = (made["topic"].as_str(), made["survivors"].as_str());
    let (topic, survivors) = topic.zip(survivors).context("no topic")?;
    let wanted: Vec<String> = survivors.split(';').map(str::to_owned).collect();
    let read = client.read(topic, 0, From::Start, wanted.len())?;
    let text = |bytes: &Option<Vec<u8>>| {
        bytes.as_ref().map_or("-".to_owned(), |bytes| String::from_utf8_lossy(bytes).into_owned())
    };
    let found: Vec<String> = read
        .iter()
        .map(|record| format!("{} {} {}", record.offset, text(&record.key), text(&record.value)))
        .collect();
    same(found, wanted)?;
    same(client.end(topic, 0)?, read.last().map_or(0, |last| last.offset + 1))
}

fn read_timestamp(client: &Client, topic: &str) -> Result<()> {
    client.create(topic, 1)?;
    let first = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())? - 60_000;
    let mut sent = numbered(10, "value");
    for (record, time) in sent.iter_mut().zip((first..).step_by(1000)) {
        record.timestamp = Some(time);
    }
    client.produce(topic, &sent, Some(0), PLAIN)?;
    let found = client.offset_at(topic, 0, first + 4500)?;
    same(found, Some(5))?;
    let read = client.read(topic, 0, From::At(5), 5)?;
    same(values(&read), values(&sent[5..]))?;
    same(client.offset_at(topic, 0, first + 3_600_000)?, None)
}

fn group_of_three(client: &Client, topic: &str) -> Result<()> {
    const LONG: Duration = Duration::from_secs(40);
    client.create(topic, 6)?;
    let group = format!("{topic}-group");
    let journal = Arc::new(Mutex::new(Journal::default()));
    let mut sent = BTreeSet::new();
    let mut send = |text: &str| -> Result<BTreeSet<Vec<u8>>> {
        for partition in 0..6 {
            let records = numbered(10, &format!("{text} {partition}"));
            client.produce(topic, &records, Some(partition), PLAIN)?;
            sent.extend(records.into_iter().filter_map(|record| record.value));
        }
        Ok(sent.clone())
    };
    let join = || Member::join(client, &group, topic, &journal, None);
    let shared = |what: &str, members: &[&Member]| {
        until(what, LONG, || {
            let parts: Vec<BTreeSet<i32>> = members.iter().map(|member| member.assigned()).collect();
            let count: usize = parts.iter().map(BTreeSet::len).sum();
            let all: BTreeSet<i32> = parts.iter().flatten().copied().collect();
            Ok(count == 6 && all.len() == 6 && parts.iter().all(|part| !part.is_empty()))
        })
    };
    let all_read = |what: &str, sent: &BTreeSet<Vec<u8>>| {
        until(what, LONG, || {
            let journal = lock(&journal);
            let read: BTreeSet<&Vec<u8>> =
                journal.read.iter().filter_map(|record| record.value.as_ref()).collect();
            Ok(sent.iter().all(|value| read.contains(value)))
        })
    };

    send("before")?;
    let (first, second) = (join()?, join()?);
    shared("two members to share the partitions", &[&first, &second])?;
    let third = join()?;
    shared("the third member to get its part", &[&first, &second, &third])?;
    crate::ask("restart")?;
    let so_far = send("restarted")?;
    all_read("all records after the restart", &so_far)?;
    shared("the members to be together again", &[&first, &second, &third])?;
    second.leave()?;
    shared("the others to take over", &[&first, &third])?;
    let all = send("left")?;
    all_read("all records after the leave", &all)?;
    first.leave()?;
    third.leave()?;
    let mut last = BTreeMap::new();
    for (partition, offset) in &lock(&journal).commits {
        let before = last.insert(*partition, *offset).unwrap_or(0);
        ensure!(before <= *offset, "the committed offset of {partition} went back from {before} to {offset}");
    }
    for partition in 0..6 {
        same(client.committed(&group, topic, partition)?, Some(30))?;
    }
    Ok(())
}

fn commit_resume(client: &Client, topic: &str) -> Result<()> {
    let sent = with_ten(client, topic)?;
    let group = format!("{topic}-group");
    for half in sent.chunks(5) {
        let journal = Arc::new(Mutex::new(Journal::default()));
        let mut member = Member::join(client, &group, topic, &journal, Some(5))?;
        until("five records", PATIENCE, || Ok(lock(&journal).read.len() >= 5))?;
        member.wait()?;
        same(values(&lock(&journal).read), values(half))?;
    }
    Ok(())
}

fn topic_admin(client: &Client, topic: &str) -> Result<()> {
    ensure!(client.create(topic, 3)?, "the topic was there already");
    // The controller answers when the topic is made; brokers hear of it a moment later.
    until("the topic to be seen", PATIENCE, || Ok(client.partitions(topic)?.is_some()))?;
    same(client.partitions(topic)?, Some(3))?;
    ensure!(!client.create(topic, 3)?, "the topic was created twice");
    client.delete(topic)?;
    until("the topic to be gone", PATIENCE, || Ok(client.partitions(topic)?.is_none()))
}

/// Two members with one group.instance.id: the one that came first is fenced for good, the other reads all.
fn static_twice(client: &Client, topic: &str) -> Result<()> {
    const LONG: Duration = Duration::from_secs(20);
    let sent = with_ten(client, topic)?;
    let group = format!("{topic}-group");
    let settings = [
        ("group.id", group.as_str()),
        ("group.instance.id", "the-one"),
        ("auto.offset.reset", "earliest"),
        ("enable.auto.commit", "false"),
        ("session.timeout.ms", "10000"),
        ("heartbeat.interval.ms", "500"),
    ];
    let join = || -> Result<BaseConsumer> {
        let consumer: BaseConsumer = client.config(&settings).create()?;
        consumer.subscribe(&[topic])?;
        Ok(consumer)
    };
    let poll = |consumer: &BaseConsumer, values: &mut Vec<Option<Vec<u8>>>| {
        if let Some(Ok(message)) = consumer.poll(Duration::from_millis(20)) {
            values.push(message.payload().map(<[u8]>::to_vec));
        }
        consumer.client().fatal_error().is_some()
    };
    let (first, mut by_first) = (join()?, Vec::new());
    until("the first to read", LONG, || {
        ensure!(!poll(&first, &mut by_first), "a member alone is fenced");
        Ok(by_first.len() == sent.len())
    })?;
    let (second, mut by_second) = (join()?, Vec::new());
    until("the first to be fenced and the second to read", LONG, || {
        let fenced = poll(&first, &mut by_first);
        ensure!(!poll(&second, &mut by_second), "the one that came last is fenced");
        Ok(fenced && by_second.len() == sent.len())
    })?;
    same(by_second, values(&sent))?;
    // What is sent now is read by the second alone.
    let later = numbered(5, "later");
    client.produce(topic, &later, Some(0), PLAIN)?;
    let (mut still_first, mut now) = (Vec::new(), Vec::new());
    until("the second to read on", LONG, || {
        poll(&first, &mut still_first);
        poll(&second, &mut now);
        Ok(now.len() == later.len())
    })?;
    same(still_first.len(), 0)
}

fn auto_create(client: &Client, topic: &str) -> Result<()> {
    let begun = Instant::now();
    let sent = [Record::value("first")];
    client.produce(topic, &sent, Some(0), PLAIN)?;
    same(values(&client.read(topic, 0, From::Start, 1)?), values(&sent))?;
    let took = begun.elapsed();
    ensure!(took < Duration::from_secs(5), "took {took:?}");
    Ok(())
}
