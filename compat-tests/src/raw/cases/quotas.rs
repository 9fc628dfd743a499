//! Client quotas and feature levels: what is set, what it does to connections.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::raw::Case;
use crate::raw::ask::code;
use crate::raw::ask::quotas::Parts;
use crate::raw::batch::Batch;
use crate::raw::conn::{Connection, key};
use crate::raw::expect::{equal, holds};
use crate::raw::stage::{Stage, time};
use crate::raw::wire::{R, W};

pub const CASES: &[Case] = &[
    Case {
        name: "quotas-alter-and-describe",
        proves: "quotas of users, clients, both and addresses are set, validated, found by exact, default and any matches, and removed; nonsense is INVALID_REQUEST",
        run: alter_and_describe,
    },
    Case {
        name: "quotas-producer-rests",
        proves: "a producer over producer_byte_rate is answered at once with its throttle time and then not read from for that long; another client is not slowed (surface 95)",
        run: producer,
    },
    Case {
        name: "quotas-consumer-rests",
        proves: "a consumer over consumer_byte_rate is told its throttle time, not read from meanwhile, and gets everything in the end (surface 95)",
        run: consumer,
    },
    Case {
        name: "quotas-changes-of-topics",
        proves: "controller_mutation_rate: THROTTLING_QUOTA_EXCEEDED for CreateTopics 6; version 4 is let through and throttled (surface 96)",
        run: changes,
    },
    Case {
        name: "features-update",
        proves: "UpdateFeatures 0 to 2: down only when allowed, up again, INVALID_UPDATE_VERSION at the top; ApiVersions shows level and epoch (surface 94)",
        run: features,
    },
];

/// What a described entity is made of, and its limits.
type Described = (Vec<(String, Option<String>)>, Vec<(String, f64)>);

/// DescribeClientQuotas version 0, sorted; components are (kind, match type, match).
fn describe(
    to: &mut Connection,
    components: &[(&str, i8, Option<&str>)],
    strict: bool,
) -> Result<Result<Vec<Described>, i16>> {
    let mut body = W::new().array(components.len());
    for (kind, match_type, name) in components {
        body = body.str(kind).i8(*match_type).nstr(*name);
    }
    let mut answer = to.call(key::DESCRIBE_CLIENT_QUOTAS, 0, &body.bool(strict))?;
    answer.i32()?;
    let error = answer.i16()?;
    answer.nstr()?;
    if error != 0 {
        return Ok(Err(error));
    }
    let mut entries = answer.each(|entry| {
        let mut parts = entry.each(|part| Ok((part.str()?, part.nstr()?)))?;
        let mut values = entry.each(|value| {
            let name = value.str()?;
            Ok((name, f64::from_be_bytes(value.raw(8)?.try_into()?)))
        })?;
        parts.sort();
        values.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok((parts, values))
    })?;
    answer.end()?;
    entries.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(Ok(entries))
}

fn alter_and_describe(stage: &mut Stage) -> Result<()> {
    let mut to = stage.connect()?;
    let (user, client) = (stage.name("user"), stage.name("client"));
    let of_user: Parts<'_> = &[("user", Some(&user))];
    let of_both: Parts<'_> = &[("user", Some(&user)), ("client-id", None)];
    let of_client: Parts<'_> = &[("client-id", Some(&client))];
    let of_ip: Parts<'_> = &[("ip", Some("10.9.8.7"))];
    to.set_quota(of_user, "producer_byte_rate", Some(1_048_576.0))?;
    to.set_quota(of_both, "request_percentage", Some(12.5))?;
    to.set_quota(of_client, "consumer_byte_rate", Some(2_000_000.0))?;
    to.set_quota(of_client, "controller_mutation_rate", Some(0.25))?;
    to.set_quota(of_ip, "connection_creation_rate", Some(1_000.0))?;
    let checked = to.alter_quotas(of_client, &[("consumer_byte_rate", Some(1.0))], true)?;
    equal("validated only", checked, code::NONE)?;
    let limits = |to: &mut Connection, components: &[(&str, i8, Option<&str>)], strict| -> Result<Vec<f64>> {
        let found = describe(to, components, strict)?;
        let found = found.map_err(|error| anyhow::anyhow!("describing: error {error}"))?;
        Ok(found.into_iter().flat_map(|(_, limits)| limits).map(|(_, value)| value).collect())
    };
    // An answer stands on every broker after a moment.
    crate::wait::until("the quotas", Duration::from_secs(10), || {
        let seen = limits(&mut to, &[("client-id", 0, Some(&client))], true)?;
        Ok((seen == [2_000_000.0, 0.25]).then_some(()))
    })?;
    let exact = ("user", 0, Some(user.as_str()));
    equal("a user and its clients", limits(&mut to, &[exact], false)?, vec![12.5, 1_048_576.0])?;
    equal("a user alone", limits(&mut to, &[exact], true)?, vec![1_048_576.0])?;
    equal("with its default", limits(&mut to, &[exact, ("client-id", 1, None)], true)?, vec![12.5])?;
    equal("with any client", limits(&mut to, &[exact, ("client-id", 2, None)], true)?, vec![12.5])?;
    equal("an address", limits(&mut to, &[("ip", 0, Some("10.9.8.7"))], false)?, vec![1_000.0])?;
    for (what, components, expected) in [
        ("an exact match of nothing", vec![("user", 0, None)], code::INVALID_REQUEST),
        ("a default with a name", vec![("user", 1, Some("u"))], code::INVALID_REQUEST),
        ("any with a name", vec![("user", 2, Some("u"))], code::INVALID_REQUEST),
        ("a kind twice", vec![("user", 2, None), ("user", 1, None)], code::INVALID_REQUEST),
        ("an address and a user", vec![("user", 2, None), ("ip", 2, None)], code::INVALID_REQUEST),
        ("an unknown kind", vec![("group", 2, None)], code::UNSUPPORTED_VERSION),
    ] {
        equal(what, describe(&mut to, &components, false)?.err(), Some(expected))?;
    }
    for (what, entity, name, value) in [
        ("nobody", &[][..], "producer_byte_rate", 1.0),
        ("an unknown kind", &[("group", Some("g"))], "producer_byte_rate", 1.0),
        ("an empty name", &[("user", Some(""))], "producer_byte_rate", 1.0),
        ("an unknown limit", of_user, "no_such_rate", 1.0),
        ("a limit of addresses", of_user, "connection_creation_rate", 1.0),
        ("an address and a user", &[("user", None), ("ip", None)], "producer_byte_rate", 1.0),
        ("a fraction of a byte", of_user, "producer_byte_rate", 1.5),
        ("zero", of_user, "producer_byte_rate", 0.0),
    ] {
        equal(what, to.alter_quotas(entity, &[(name, Some(value))], false)?, code::INVALID_REQUEST)?;
    }
    to.set_quota(of_user, "producer_byte_rate", None)?;
    to.set_quota(of_both, "request_percentage", None)?;
    to.set_quota(of_client, "consumer_byte_rate", None)?;
    to.set_quota(of_client, "controller_mutation_rate", None)?;
    to.set_quota(of_ip, "connection_creation_rate", None)?;
    crate::wait::until("the end of the quotas", Duration::from_secs(10), || {
        Ok(limits(&mut to, &[exact], false)?.is_empty().then_some(()))
    })
}

/// How long the answer to Metadata takes.
fn asked(to: &mut Connection) -> Result<Duration> {
    let began = Instant::now();
    holds("a broker", to.sees_a_broker()?)?;
    Ok(began.elapsed())
}

/// The connection rests about so long, and another client's does not.
fn rests(stage: &Stage, to: &mut Connection, throttle_ms: i32) -> Result<()> {
    let other = asked(&mut stage.connect()?)?;
    holds(&format!("another client waits {other:?}"), other < Duration::from_millis(500))?;
    let rested = asked(to)?;
    let told = Duration::from_millis(u64::try_from(throttle_ms)?);
    let expected = told / 2..told + Duration::from_secs(2);
    holds(&format!("told {told:?}, rested {rested:?}"), expected.contains(&rested))
}

fn producer(stage: &mut Stage) -> Result<()> {
    let (topic, client) = (stage.name("t"), stage.name("client"));
    let mut admin = stage.connect()?;
    admin.create(&topic, 1, &[])?;
    let entity: Parts<'_> = &[("client-id", Some(&client))];
    // Ten windows of a second allow 200 kB at once.
    admin.set_quota(entity, "producer_byte_rate", Some(20_000.0))?;
    let mut to = stage.connect()?.named(&client);
    let mut sent = 0_u32;
    let throttle = loop {
        let (error, throttle) = to.produce_throttled(&topic, 0, 40_000)?;
        equal("error", error, code::NONE)?;
        sent += 1;
        if throttle > 0 {
            break throttle;
        }
        holds(&format!("{sent} batches were let through"), sent < 20)?;
    };
    holds(&format!("throttled after {sent} batches"), sent >= 4)?;
    holds(&format!("a throttle of {throttle} ms"), throttle <= 5_000)?;
    rests(stage, &mut to, throttle)?;
    let (error, throttle) = stage.connect()?.produce_throttled(&topic, 0, 40_000)?;
    equal("another client", (error, throttle), (code::NONE, 0))?;
    admin.set_quota(entity, "producer_byte_rate", None)?;
    crate::wait::until("a producer without quota", Duration::from_secs(10), || {
        Ok((stage.connect()?.named(&client).produce_throttled(&topic, 0, 10)?.1 == 0).then_some(()))
    })
}

/// Fetch version 4 up to 100 kB: (throttle time, records' bytes).
fn fetch(to: &mut Connection, topic: &str, offset: i64) -> Result<(i32, Vec<u8>)> {
    let body = W::new().i32(-1).i32(0).i32(0).i32(100_000).i8(0);
    let body = body.array(1).str(topic).array(1).i32(0).i64(offset).i32(100_000);
    let mut answer = to.call(key::FETCH, 4, &body)?;
    let throttle = answer.i32()?;
    let records = answer.each(|topic| {
        topic.str()?;
        topic.each(|partition| {
            partition.i32()?;
            equal("error", partition.i16()?, code::NONE)?;
            partition.raw(16)?;
            partition.each(R::i64)?;
            Ok(partition.nbytes()?.unwrap_or_default())
        })
    })?;
    Ok((throttle, records.into_iter().flatten().flatten().collect()))
}

fn consumer(stage: &mut Stage) -> Result<()> {
    let (topic, client) = (stage.name("t"), stage.name("client"));
    let mut admin = stage.connect()?;
    admin.create(&topic, 1, &[])?;
    let value = "x".repeat(45_000);
    let count = 20;
    for _ in 0..count {
        admin.append(&topic, &Batch::of(&[&value], time()))?;
    }
    let entity: Parts<'_> = &[("client-id", Some(&client))];
    // Ten windows of a second allow 700 kB at once.
    admin.set_quota(entity, "consumer_byte_rate", Some(70_000.0))?;
    let mut to = stage.connect()?.named(&client);
    let (mut next, mut told) = (0, false);
    while next < count {
        let (throttle, records) = fetch(&mut to, &topic, next)?;
        next += i64::try_from(Batch::decode_all(&records)?.len())?;
        if throttle > 0 {
            holds(&format!("throttled after {next} batches"), next >= 10)?;
            holds(&format!("a throttle of {throttle} ms"), throttle <= 5_000)?;
            if !told {
                rests(stage, &mut to, throttle)?;
            }
            told = true;
        }
    }
    holds("a throttle time", told)?;
    let (throttle, records) = fetch(&mut stage.connect()?, &topic, 0)?;
    holds("another client is not throttled", throttle == 0 && !records.is_empty())?;
    admin.set_quota(entity, "consumer_byte_rate", None)
}

fn changes(stage: &mut Stage) -> Result<()> {
    let client = stage.name("client");
    let mut admin = stage.connect()?;
    let entity: Parts<'_> = &[("client-id", Some(&client))];
    // Eleven windows of a second allow eleven partitions at once.
    admin.set_quota(entity, "controller_mutation_rate", Some(1.0))?;
    // Each on a connection of its own: those that are throttled rest.
    let create = |version: i16, what: &str, partitions: i32| -> Result<(i32, i16)> {
        let mut to = stage.connect()?.named(&client);
        let name = stage.name(what);
        if version < 5 {
            let body = W::new().array(1).str(&name).i32(partitions).i16(1).array(0).array(0);
            let mut answer = to.call(key::CREATE_TOPICS, version, &body.i32(10_000).bool(false))?;
            let throttle = answer.i32()?;
            answer.array()?;
            answer.str()?;
            return Ok((throttle, answer.i16()?));
        }
        let body = W::new().carray(1).cstr(&name).i32(partitions).i16(1).carray(0).carray(0).tags();
        let body = body.i32(10_000).bool(false).tags();
        let mut answer = to.call(key::CREATE_TOPICS, version, &body)?;
        let throttle = answer.i32()?;
        answer.carray()?;
        answer.cstr()?;
        Ok((throttle, answer.i16()?))
    };
    equal("what the burst allows", create(6, "one", 8)?, (0, code::NONE))?;
    let (throttle, error) = create(6, "two", 8)?;
    equal("a lump over it", error, code::NONE)?;
    // Kafka lets a lump through without a word and refuses what comes next.
    holds(&format!("throttled {throttle} ms"), (0..=6_000).contains(&throttle))?;
    let (throttle, error) = create(6, "three", 1)?;
    equal("one too many", error, code::THROTTLING_QUOTA_EXCEEDED)?;
    holds(&format!("throttled {throttle} ms"), (1..=6_000).contains(&throttle))?;
    let (throttle, error) = create(4, "four", 1)?;
    equal("an old client", error, code::NONE)?;
    holds(&format!("throttled {throttle} ms"), (1..=7_000).contains(&throttle))?;
    equal("another client", admin.try_create(&stage.name("five"), 1, &[])?, code::NONE)?;
    admin.set_quota(entity, "controller_mutation_rate", None)
}

/// ApiVersions version 3: the level of metadata.version and the epoch of all levels.
fn level(to: &mut Connection) -> Result<(i16, i64)> {
    let mut answer = to.call(key::API_VERSIONS, 3, &W::new().cstr("raw").cstr("1").tags())?;
    equal("error", answer.i16()?, code::NONE)?;
    answer.ceach(|api| {
        api.raw(6)?;
        api.tags()
    })?;
    answer.i32()?;
    let (mut epoch, mut level) = (-1, 0);
    for (tag, bytes) in answer.tags()? {
        let mut field = R::new(bytes);
        match tag {
            1 => epoch = field.i64()?,
            2 => {
                let features = field.ceach(|feature| {
                    let (name, most, _) = (feature.cstr()?, feature.i16()?, feature.i16()?);
                    feature.tags()?;
                    Ok((name, most))
                })?;
                let found = features.iter().find(|(name, _)| name == "metadata.version");
                level = found.context("no metadata.version")?.1;
            }
            _ => {}
        }
    }
    Ok((level, epoch))
}

fn features(stage: &mut Stage) -> Result<()> {
    let mut to = stage.connect()?;
    let (before, epoch) = level(&mut to)?;
    holds(&format!("level {before}, epoch {epoch}"), before >= 21 && epoch >= 0)?;
    // The error at the top, and the results below version 2.
    let update =
        |to: &mut Connection, version: i16, level: i16, kind: i8, validate| -> Result<(i16, usize)> {
            let body = W::new().i32(10_000).carray(1).cstr("metadata.version").i16(level);
            let body = if version == 0 {
                body.bool(kind != 1).tags().tags()
            } else {
                body.i8(kind).tags().bool(validate).tags()
            };
            let mut answer = to.call(key::UPDATE_FEATURES, version, &body)?;
            answer.i32()?;
            let error = answer.i16()?;
            answer.cnstr()?;
            let results = match version {
                0 | 1 => answer.ceach(|result| {
                    result.cstr()?;
                    let error = result.i16()?;
                    result.cnstr()?;
                    result.tags()?;
                    Ok(error)
                })?,
                _ => Vec::new(),
            };
            Ok((error, results.iter().filter(|error| **error == 0).count()))
        };
    for version in 0..=2 {
        let named = usize::from(version < 2);
        equal("the same level", update(&mut to, version, before, 1, false)?, (code::NONE, named))?;
        let refused = (code::INVALID_UPDATE_VERSION, 0);
        equal("a level of the future", update(&mut to, version, 9_999, 1, false)?, refused)?;
        equal("down without leave", update(&mut to, version, before - 1, 1, false)?, refused)?;
        if version > 0 {
            equal("an unknown kind of change", update(&mut to, version, before, 7, false)?, refused)?;
            equal("validated", update(&mut to, version, before, 1, true)?, (code::NONE, named))?;
        }
    }
    equal("nothing has changed", level(&mut to)?.0, before)
}
