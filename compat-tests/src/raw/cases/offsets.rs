//! Committed offsets, and what becomes of groups that are deleted, restarted or left alone.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::groups::{end_join, pair, single, start_join, wait_rebalance};
use crate::raw::Case;
use crate::raw::ask::code;
use crate::raw::ask::groups::{Join, commit_error};
use crate::raw::conn::{Connection, key};
use crate::raw::expect::{equal, holds};
use crate::raw::stage::Stage;
use crate::raw::wire::W;
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "groups-offsets-expire",
        proves: "offsets committed for a time (OffsetCommit 2 to 4) expire after it, others do not; with --full also an empty group's after offsets.retention.minutes, and a live group's not (surface 81)",
        run: offsets_expire,
    },
    Case {
        name: "groups-offsets-by-topic-id",
        proves: "OffsetCommit 10 and OffsetFetch 10 take topics by id; unknown ids and those of deleted topics are UNKNOWN_TOPIC_ID (surface 35, B026)",
        run: by_id,
    },
    Case {
        name: "groups-commit-rules",
        proves: "commits with wrong generation, unknown member, from outside a live group, with too long metadata or for an unknown topic are answered with their codes (surface 79)",
        run: commit_rules,
    },
    Case {
        name: "groups-offset-fetch",
        proves: "OffsetFetch tells offset and metadata, all topics when asked for none by name, and -1 with an empty string where nothing was committed (surface 80)",
        run: offset_fetch,
    },
    Case {
        name: "groups-delete-and-describe",
        proves: "DeleteGroups, OffsetDelete and DescribeGroups answer for busy, unknown and subscribed ones (surface 82, 86)",
        run: delete_and_describe,
    },
    Case {
        name: "groups-deleted-stays-deleted",
        proves: "a group deleted, and an offset deleted, do not come back after kill -9 (B021)",
        run: deleted_stays,
    },
    Case {
        name: "groups-survive-a-restart",
        proves: "members, generation and offsets are there after the broker's restart; members go on without joining anew (B063)",
        run: survive,
    },
];

/// OffsetCommit version 4, whose client says how long its offsets are to be kept: the partition's error code.
fn commit_for(to: &mut Connection, group: &str, topic: &str, offset: i64, keep_ms: i64) -> Result<i16> {
    let body = W::new().str(group).i32(-1).str("").i64(keep_ms).array(1).str(topic);
    commit_error(to.call(key::OFFSET_COMMIT, 4, &body.array(1).i32(0).i64(offset).nstr(None))?)
}

/// A member of a group that is subscribed to a topic, and an offset that it committed.
fn subscribed(to: &mut Connection, group: &str, topic: &str, offset: i64) -> Result<()> {
    to.coordinator(group)?;
    let metadata = W::new().i16(0).array(1).str(topic).i32(-1).done();
    let join =
        Join { session: 600_000, protocols: vec![("range".to_owned(), metadata)], ..Join::consumer(group) };
    let joined = to.join_new(&join)?;
    to.sync(group, joined.generation, &joined.member, None, &[(&joined.member, b"x")])?;
    equal("commit", to.commit_as(group, joined.generation, &joined.member, topic, offset, "")?, 0)
}

fn offsets_expire(stage: &mut Stage) -> Result<()> {
    let minutes = if stage.full { "1" } else { "10080" };
    let settings = [("offsets.retention.minutes", minutes), ("offsets.retention.check.interval.ms", "500")];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let broker = crate::target::Broker::start(&stage.origin, "raw-expiry", &settings)?;
    let mut to = Connection::open(broker.address(), Duration::from_secs(10))?;
    to.create("t", 1, &[])?;
    subscribed(&mut to, "live", "t", 6)?;
    for group in ["short", "empty"] {
        to.coordinator(group)?;
    }
    // The client's own wish, which versions 2 to 4 carry.
    let since = Instant::now();
    equal("commit for 1.5 s", commit_for(&mut to, "short", "t", 5, 1_500)?, 0)?;
    equal("commit", to.commit("empty", "t", 7)?, 0)?;
    wait::until("the short-lived offset to expire", Duration::from_secs(20), || {
        Ok((to.committed_offset("short", "t")? == -1).then_some(()))
    })?;
    let lived = since.elapsed();
    holds(&format!("the short-lived one expired after {lived:?}"), lived >= Duration::from_millis(1_400))?;
    equal("one without such a wish", to.committed_offset("empty", "t")?, 7)?;
    if stage.full {
        wait::until("the offset to expire", Duration::from_secs(120), || {
            Ok((to.committed_offset("empty", "t")? == -1).then_some(()))
        })?;
        let lived = since.elapsed();
        holds(&format!("expired after {lived:?}"), lived >= Duration::from_secs(55))?;
    }
    equal("the live group's", to.committed_offset("live", "t")?, 6)
}

/// OffsetCommit 10 and OffsetFetch 10 name topics by id: (error of the commit, error of the fetch, offset).
fn by_id_once(to: &mut Connection, group: &str, id: [u8; 16]) -> Result<(i16, i16, i64)> {
    let body = W::new().cstr(group).i32(-1).cstr("").cnstr(None).carray(1).raw(&id).carray(1);
    let body = body.i32(0).i64(9).i32(-1).cnstr(Some("by id")).tags().tags().tags();
    let mut answer = to.call(key::OFFSET_COMMIT, 10, &body)?;
    answer.i32()?;
    let errors = answer.ceach(|topic| {
        equal("id in the answer to OffsetCommit", topic.uuid()?, id)?;
        let errors = topic.ceach(|partition| {
            partition.i32()?;
            let error = partition.i16()?;
            partition.tags()?;
            Ok(error)
        })?;
        topic.tags()?;
        Ok(errors)
    })?;
    answer.tags()?;
    answer.end()?;
    let committed =
        errors.into_iter().flatten().next().context("no partition in the answer to OffsetCommit")?;
    let body = W::new().carray(1).cstr(group).cnstr(None).i32(-1).carray(1).raw(&id).carray(1).i32(0);
    let mut answer = to.call(key::OFFSET_FETCH, 10, &body.tags().tags().bool(false).tags())?;
    answer.i32()?;
    let groups = answer.ceach(|group| {
        group.cstr()?;
        let topics = group.ceach(|topic| {
            equal("id in the answer to OffsetFetch", topic.uuid()?, id)?;
            let partitions = topic.ceach(|partition| {
                partition.i32()?;
                let offset = partition.i64()?;
                partition.i32()?;
                partition.cnstr()?;
                let error = partition.i16()?;
                partition.tags()?;
                Ok((error, offset))
            })?;
            topic.tags()?;
            Ok(partitions)
        })?;
        equal("error of the group", group.i16()?, 0)?;
        group.tags()?;
        Ok(topics)
    })?;
    answer.tags()?;
    answer.end()?;
    let fetched = groups.into_iter().flatten().flatten().next();
    let (error, offset) = fetched.context("no partition in the answer to OffsetFetch")?;
    Ok((committed, error, offset))
}

fn by_id(stage: &mut Stage) -> Result<()> {
    let (group, topic) = (stage.name("g"), stage.name("t"));
    let mut to = stage.connect()?;
    let id = to.create(&topic, 1, &[])?;
    to.coordinator(&group)?;
    equal("a known id", by_id_once(&mut to, &group, id)?, (0, 0, 9))?;
    equal("by name", to.committed_offset(&group, &topic)?, 9)?;
    let unknown = by_id_once(&mut to, &group, [5; 16])?;
    equal("an unknown id", unknown, (code::UNKNOWN_TOPIC_ID, code::UNKNOWN_TOPIC_ID, -1))?;
    to.delete(&topic)?;
    let gone = by_id_once(&mut to, &group, id)?;
    equal("the id of a deleted topic", gone, (code::UNKNOWN_TOPIC_ID, code::UNKNOWN_TOPIC_ID, -1))
}

fn commit_rules(stage: &mut Stage) -> Result<()> {
    let (group, topic) = (stage.name("g"), stage.name("t"));
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    to.coordinator(&group)?;
    equal("an empty group from outside", to.commit(&group, &topic, 3)?, 0)?;
    let (member, generation) = single(&mut to, &group)?;
    let commit = |to: &mut Connection, generation, member: &str, metadata: &str| {
        to.commit_as(&group, generation, member, &topic, 5, metadata)
    };
    equal("a member", commit(&mut to, generation, &member, "some metadata")?, 0)?;
    equal("a live group from outside", commit(&mut to, -1, "", "")?, code::UNKNOWN_MEMBER_ID)?;
    equal("wrong generation", commit(&mut to, generation + 1, &member, "")?, code::ILLEGAL_GENERATION)?;
    equal("unknown member", commit(&mut to, generation, "nobody", "")?, code::UNKNOWN_MEMBER_ID)?;
    let long = "m".repeat(4_097);
    equal("long metadata", commit(&mut to, generation, &member, &long)?, code::OFFSET_METADATA_TOO_LARGE)?;
    equal("metadata at the limit", commit(&mut to, generation, &member, &long[1..])?, 0)?;
    let absent = to.commit_as(&group, generation, &member, &stage.name("absent"), 5, "")?;
    equal("unknown topic", absent, code::UNKNOWN_TOPIC_OR_PARTITION)?;
    equal("the last commit", to.committed_offset(&group, &topic)?, 5)?;
    // In a rebalance a member of the current generation may still commit, between join and sync it may not.
    let mut other = stage.connect()?;
    let id = other.join(&Join::consumer(&group))?.member;
    let pending = start_join(&mut other, &Join::consumer(&group).member(&id))?;
    wait_rebalance(&mut to, &group, generation, &member)?;
    equal("while others join", commit(&mut to, generation, &member, "")?, 0)?;
    let joined = to.join(&Join::consumer(&group).member(&member))?;
    end_join(&mut other, pending)?;
    let early = commit(&mut to, joined.generation, &member, "")?;
    equal("between join and sync", early, code::REBALANCE_IN_PROGRESS)
}

fn offset_fetch(stage: &mut Stage) -> Result<()> {
    let (group, topic, other) = (stage.name("g"), stage.name("t"), stage.name("other"));
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    to.create(&other, 1, &[])?;
    to.coordinator(&group)?;
    equal(
        "none yet",
        to.committed(&group, Some(&topic))?.1,
        vec![(topic.clone(), -1, Some(String::new()), 0)],
    )?;
    equal("none yet of all", to.committed(&group, None)?, (0, Vec::new()))?;
    equal("commit", to.commit_as(&group, -1, "", &topic, 17, "words")?, 0)?;
    equal(
        "one",
        to.committed(&group, Some(&topic))?.1,
        vec![(topic.clone(), 17, Some("words".to_owned()), 0)],
    )?;
    equal("all", to.committed(&group, None)?.1, vec![(topic, 17, Some("words".to_owned()), 0)])?;
    equal("another topic", to.committed_offset(&group, &other)?, -1)?;
    let absent = to.committed(&group, Some(&stage.name("absent")))?;
    equal("unknown topic", absent.1.first().map(|(_, offset, ..)| *offset), Some(-1))
}

fn delete_and_describe(stage: &mut Stage) -> Result<()> {
    let (group, topic) = (stage.name("g"), stage.name("t"));
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    let (member, generation) = {
        // A consumer's metadata that names the topic: version 0, one topic, no user data.
        to.coordinator(&group)?;
        let metadata = W::new().i16(0).array(1).str(&topic).i32(-1).done();
        let join = Join { protocols: vec![("range".to_owned(), metadata)], ..Join::consumer(&group) };
        let joined = to.join_new(&join)?;
        to.sync(&group, joined.generation, &joined.member, None, &[(&joined.member, b"x")])?;
        (joined.member, joined.generation)
    };
    equal("commit", to.commit_as(&group, generation, &member, &topic, 2, "")?, 0)?;
    holds("listed", to.groups()?.contains(&group))?;
    equal("describe", to.describe_group(&group)?, (0, "Stable".to_owned(), vec![member.clone()]))?;
    equal("delete a busy group", to.delete_group(&group)?, code::NON_EMPTY_GROUP)?;
    equal("delete a subscribed offset", to.delete_offset(&group, &topic)?, code::GROUP_SUBSCRIBED_TO_TOPIC)?;
    equal("leave", to.leave(&group, &member, None)?, 0)?;
    equal("state", to.describe_group(&group)?.1, "Empty".to_owned())?;
    equal("delete an offset", to.delete_offset(&group, &topic)?, 0)?;
    equal("offset", to.committed_offset(&group, &topic)?, -1)?;
    // The last offset of an empty group may have taken the group with it.
    let deleted = to.delete_group(&group)?;
    holds(&format!("delete: {deleted}"), deleted == 0 || deleted == code::GROUP_ID_NOT_FOUND)?;
    equal("delete again", to.delete_group(&group)?, code::GROUP_ID_NOT_FOUND)?;
    equal("delete an offset of no group", to.delete_offset(&group, &topic)?, code::GROUP_ID_NOT_FOUND)?;
    equal("describe no group", to.describe_group(&group)?, (0, "Dead".to_owned(), Vec::new()))?;
    let mut answer = to.call(key::DESCRIBE_GROUPS, 6, &W::new().carray(1).cstr(&group).bool(false).tags())?;
    answer.i32()?;
    equal("groups", answer.carray()?, 1)?;
    equal("describe no group in version 6", answer.i16()?, code::GROUP_ID_NOT_FOUND)?;
    holds("not listed", !to.groups()?.contains(&group))
}

fn deleted_stays(stage: &mut Stage) -> Result<()> {
    let (gone, kept, topic, second) =
        (stage.name("gone"), stage.name("kept"), stage.name("t"), stage.name("u"));
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    to.create(&second, 1, &[])?;
    for group in [&gone, &kept] {
        to.coordinator(group)?;
        equal("commit", to.commit(group, &topic, 4)?, 0)?;
        equal("commit", to.commit(group, &second, 6)?, 0)?;
    }
    equal("delete group", to.delete_group(&gone)?, 0)?;
    equal("delete offset", to.delete_offset(&kept, &topic)?, 0)?;
    stage.broker.kill_and_restart()?;
    let mut to = stage.connect()?;
    to.coordinator(&gone)?;
    to.coordinator(&kept)?;
    holds("the group is not listed", !to.groups()?.contains(&gone))?;
    equal("its offset", to.committed_offset(&gone, &topic)?, -1)?;
    equal("the deleted offset", to.committed_offset(&kept, &topic)?, -1)?;
    equal("the kept offset", to.committed_offset(&kept, &second)?, 6)
}

fn survive(stage: &mut Stage) -> Result<()> {
    let (group, topic) = (stage.name("g"), stage.name("t"));
    let (mut to, mut other) = (stage.connect()?, stage.connect()?);
    to.create(&topic, 1, &[])?;
    let (leader, follower) = pair(&mut to, &mut other, &group)?;
    equal("commit", to.commit_as(&group, leader.generation, &leader.member, &topic, 11, "kept")?, 0)?;
    for kill in [false, true] {
        if kill {
            stage.broker.kill_and_restart()?;
        } else {
            stage.broker.restart()?;
        }
        let mut to = stage.connect()?;
        to.coordinator(&group)?;
        for member in [&leader.member, &follower.member] {
            let error = to.heartbeat(&group, leader.generation, member, None)?;
            equal(&format!("heartbeat, killed: {kill}"), error, 0)?;
        }
        let share = to.sync(&group, leader.generation, &follower.member, None, &[])?;
        equal("share", share, (0, b"for the follower".to_vec()))?;
        let committed = to.committed(&group, Some(&topic))?.1;
        let (_, offset, metadata, _) = committed.first().context("no offset")?.clone();
        equal("offset", (offset, metadata.as_deref()), (11, Some("kept")))?;
        let (_, state, members) = to.describe_group(&group)?;
        equal("state", (state.as_str(), members.len()), ("Stable", 2))?;
        let commit = to.commit_as(&group, leader.generation, &leader.member, &topic, 11, "kept")?;
        equal("commit goes on", commit, 0)?;
    }
    Ok(())
}
