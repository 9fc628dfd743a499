//! Groups of the classic protocol and committed offsets.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::raw::Case;
use crate::raw::ask::code;
use crate::raw::ask::groups::{Join, Joined};
use crate::raw::conn::{Connection, key};
use crate::raw::expect::{equal, holds};
use crate::raw::stage::Stage;
use crate::raw::wire::W;
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "groups-member-id-required",
        proves: "a dynamic member is asked for its id from JoinGroup 4 on, and joins at once in versions 0 to 3 (surface 70, 72, headline 8)",
        run: member_id,
    },
    Case {
        name: "groups-join-rules",
        proves: "session timeouts out of bounds, unknown members, other protocol types and no common protocol are answered with their codes; only the leader sees the members (surface 72, 73)",
        run: join_rules,
    },
    Case {
        name: "groups-heartbeat-codes",
        proves: "heartbeats tell a wrong generation, an unknown member and a rebalance under way (surface 76)",
        run: heartbeats,
    },
    Case {
        name: "groups-sync-waits-for-the-leader",
        proves: "a follower's SyncGroup waits for the leader's and brings its own assignment, whatever bytes it is made of (surface 74)",
        run: sync,
    },
    Case {
        name: "groups-rejoin-unchanged",
        proves: "a follower that joins again unchanged gets the same generation; a changed one, and the leader in any case, start a rebalance (surface 77)",
        run: rejoin,
    },
    Case {
        name: "groups-any-protocol-type",
        proves: "a group of type connect with metadata that is no consumer's is served (issue item 5)",
        run: connect,
    },
    Case {
        name: "groups-session-expires",
        proves: "a silent member is removed after its session timeout, an id that was given and not used is no longer good then, a member that waits in a join is not removed (surface 70, 75)",
        run: expiry,
    },
    Case {
        name: "groups-static-members",
        proves: "a static member that comes back gets a new id without a rebalance, its old id is fenced, and so after kill -9 (B051, surface 78)",
        run: static_members,
    },
    Case {
        name: "groups-static-in-a-rebalance",
        proves: "a static member that comes back while others join, or before the leader has synced, replaces its old self there, too (B051)",
        run: static_in_rebalance,
    },
    Case {
        name: "groups-initial-delay",
        proves: "the first join of an empty group waits group.initial.rebalance.delay.ms, so that members who start together share one generation (surface 71)",
        run: initial_delay,
    },
    Case {
        name: "groups-parked-join-released",
        proves: "a join that waits holds nothing back on other connections, and its closed socket does not keep the group waiting for ever (B077)",
        run: parked,
    },
];

/// A group with one member in Stable: (member id, generation).
pub(super) fn single(to: &mut Connection, group: &str) -> Result<(String, i32)> {
    to.coordinator(group)?;
    let joined = to.join_new(&Join::consumer(group))?;
    let (error, _) =
        to.sync(group, joined.generation, &joined.member, None, &[(&joined.member, b"all of it")])?;
    equal("error of SyncGroup", error, code::NONE)?;
    Ok((joined.member, joined.generation))
}

/// Sends a join and does not wait for its answer.
pub(super) fn start_join(to: &mut Connection, join: &Join) -> Result<i32> {
    to.send(key::JOIN_GROUP, 5, &join.body())
}

pub(super) fn end_join(to: &mut Connection, correlation: i32) -> Result<Joined> {
    Joined::read(to.receive_for(correlation, key::JOIN_GROUP, 5)?)
}

/// Waits until a member's heartbeat tells of a rebalance.
pub(super) fn wait_rebalance(to: &mut Connection, group: &str, generation: i32, member: &str) -> Result<()> {
    wait::until("a rebalance", Duration::from_secs(10), || {
        let error = to.heartbeat(group, generation, member, None)?;
        Ok((error == code::REBALANCE_IN_PROGRESS).then_some(()))
    })
}

/// Adds a second dynamic member to a group of one and syncs both: (the two joins, leader first).
pub(super) fn pair(to: &mut Connection, other: &mut Connection, group: &str) -> Result<(Joined, Joined)> {
    let (first, generation) = single(to, group)?;
    let id = other.join(&Join::consumer(group))?.member;
    let pending = start_join(other, &Join::consumer(group).member(&id))?;
    wait_rebalance(to, group, generation, &first)?;
    let one = to.join(&Join::consumer(group).member(&first))?;
    let two = end_join(other, pending)?;
    equal("errors", (one.error, two.error), (0, 0))?;
    equal("one generation", one.generation, two.generation)?;
    let (leader, follower, to_leader, to_follower) =
        if one.leader == one.member { (one, two, to, other) } else { (two, one, other, to) };
    let shares: [(&str, &[u8]); 2] =
        [(&leader.member, b"for the leader"), (&follower.member, b"for the follower")];
    equal("leader's sync", to_leader.sync(group, leader.generation, &leader.member, None, &shares)?.0, 0)?;
    let (error, share) = to_follower.sync(group, leader.generation, &follower.member, None, &[])?;
    equal("follower's sync", (error, share.as_slice()), (0, b"for the follower".as_slice()))?;
    Ok((leader, follower))
}

fn member_id(stage: &mut Stage) -> Result<()> {
    let mut to = stage.connect()?;
    for version in 0..=5_i16 {
        let group = stage.name(&version.to_string());
        to.coordinator(&group)?;
        let mut body = W::new().str(&group).i32(10_000);
        if version >= 1 {
            body = body.i32(10_000);
        }
        body = body.str("");
        if version >= 5 {
            body = body.nstr(None);
        }
        let mut answer =
            to.call(key::JOIN_GROUP, version, &body.str("consumer").array(1).str("range").bytes(&[1, 2]))?;
        if version >= 2 {
            answer.i32()?;
        }
        let error = answer.i16()?;
        answer.i32()?;
        answer.str()?;
        answer.str()?;
        let member = answer.str()?;
        answer.each(|member| {
            member.str()?;
            if version >= 5 {
                member.nstr()?;
            }
            member.nbytes()
        })?;
        answer.end()?;
        holds(&format!("version {version}: a member id"), !member.is_empty())?;
        equal(
            &format!("version {version}"),
            error,
            if version >= 4 { code::MEMBER_ID_REQUIRED } else { code::NONE },
        )?;
    }
    let group = stage.name("static");
    to.coordinator(&group)?;
    equal("a static member at once", to.join(&Join::consumer(&group).instance("one"))?.error, code::NONE)
}

fn join_rules(stage: &mut Stage) -> Result<()> {
    let group = stage.name("g");
    let mut to = stage.connect()?;
    to.coordinator(&group)?;
    for session in [5_999, 1_800_001, 0, -1] {
        let join = Join { session, ..Join::consumer(&group) };
        equal(&format!("session of {session} ms"), to.join(&join)?.error, code::INVALID_SESSION_TIMEOUT)?;
    }
    let unknown = Join::consumer(&group).member("nobody");
    equal("unknown member of an unknown group", to.join(&unknown)?.error, code::UNKNOWN_MEMBER_ID)?;
    equal("an empty group id", to.join(&Join { group: String::new(), ..Join::consumer(&group) })?.error, 24)?;

    let mut other = stage.connect()?;
    let (leader, follower) = pair(&mut to, &mut other, &group)?;
    equal("protocol", (leader.protocol.as_str(), follower.protocol.as_str()), ("range", "range"))?;
    equal("members that the leader sees", leader.members.len(), 2)?;
    equal("members that the follower sees", follower.members.len(), 0)?;
    let mut third = stage.connect()?;
    let kind = Join { kind: "connect".to_owned(), ..Join::consumer(&group) };
    equal("another protocol type", third.join(&kind)?.error, code::INCONSISTENT_GROUP_PROTOCOL)?;
    let protocols = vec![("sticky".to_owned(), vec![])];
    let alone = Join { protocols, ..Join::consumer(&group) };
    equal("no common protocol", third.join(&alone)?.error, code::INCONSISTENT_GROUP_PROTOCOL)?;
    let none = Join { protocols: Vec::new(), ..Join::consumer(&stage.name("none")) };
    third.coordinator(&stage.name("none"))?;
    equal("no protocol at all", third.join(&none)?.error, code::INCONSISTENT_GROUP_PROTOCOL)
}

fn heartbeats(stage: &mut Stage) -> Result<()> {
    let group = stage.name("g");
    let mut to = stage.connect()?;
    to.coordinator(&group)?;
    equal("unknown group", to.heartbeat(&group, 1, "nobody", None)?, code::UNKNOWN_MEMBER_ID)?;
    let joined = to.join_new(&Join::consumer(&group))?;
    let (member, generation) = (joined.member, joined.generation);
    // Between join and sync a heartbeat is fine, too.
    equal("before the sync", to.heartbeat(&group, generation, &member, None)?, code::NONE)?;
    to.sync(&group, generation, &member, None, &[(&member, b"x")])?;
    equal("stable", to.heartbeat(&group, generation, &member, None)?, code::NONE)?;
    equal(
        "wrong generation",
        to.heartbeat(&group, generation + 1, &member, None)?,
        code::ILLEGAL_GENERATION,
    )?;
    equal("unknown member", to.heartbeat(&group, generation, "nobody", None)?, code::UNKNOWN_MEMBER_ID)?;
    let mut other = stage.connect()?;
    let id = other.join(&Join::consumer(&group))?.member;
    let pending = start_join(&mut other, &Join::consumer(&group).member(&id))?;
    wait_rebalance(&mut to, &group, generation, &member)?;
    equal("leave", to.leave(&group, &member, None)?, code::NONE)?;
    let alone = end_join(&mut other, pending)?;
    equal("the other is alone", (alone.error, alone.members.len()), (0, 1))?;
    equal("who left", to.heartbeat(&group, generation, &member, None)?, code::UNKNOWN_MEMBER_ID)
}

fn sync(stage: &mut Stage) -> Result<()> {
    let group = stage.name("g");
    let (mut to, mut other) = (stage.connect()?, stage.connect()?);
    let (first, generation) = single(&mut to, &group)?;
    let id = other.join(&Join::consumer(&group))?.member;
    let pending = start_join(&mut other, &Join::consumer(&group).member(&id))?;
    wait_rebalance(&mut to, &group, generation, &first)?;
    let one = to.join(&Join::consumer(&group).member(&first))?;
    let two = end_join(&mut other, pending)?;
    let (leader, follower, mut to_leader, mut to_follower) =
        if one.leader == one.member { (one, two, to, other) } else { (two, one, other, to) };
    let body = W::new().str(&group).i32(follower.generation).str(&follower.member).nstr(None).array(0);
    let waiting = to_follower.send(key::SYNC_GROUP, 3, &body)?;
    to_follower.patience(Duration::from_millis(300))?;
    holds("the follower waits", to_follower.receive().is_err())?;
    to_follower.patience(Duration::from_secs(10))?;
    let share: Vec<u8> = (0..=255).collect();
    let shares: [(&str, &[u8]); 1] = [(&follower.member, &share)];
    let (error, own) = to_leader.sync(&group, leader.generation, &leader.member, None, &shares)?;
    equal("the leader gave itself nothing", (error, own.len()), (0, 0))?;
    let mut answer = to_follower.receive_for(waiting, key::SYNC_GROUP, 3)?;
    answer.i32()?;
    equal("the follower's error", answer.i16()?, 0)?;
    equal("the follower's share", answer.nbytes()?, Some(share.clone()))?;
    equal("again", to_follower.sync(&group, follower.generation, &follower.member, None, &[])?, (0, share))?;
    let wrong = to_follower.sync(&group, follower.generation + 1, &follower.member, None, &[])?;
    equal("wrong generation", wrong.0, code::ILLEGAL_GENERATION)
}

fn rejoin(stage: &mut Stage) -> Result<()> {
    let group = stage.name("g");
    let (mut to, mut other) = (stage.connect()?, stage.connect()?);
    let (leader, follower) = pair(&mut to, &mut other, &group)?;
    let mut third = stage.connect()?;
    let again = third.join(&Join::consumer(&group).member(&follower.member))?;
    equal("generation of an unchanged follower", (again.error, again.generation), (0, follower.generation))?;
    equal("nobody is disturbed", third.heartbeat(&group, leader.generation, &leader.member, None)?, 0)?;
    // The leader is how a group rebalances when its topics have changed: its join starts a rebalance even with nothing changed in it.
    let pending = start_join(&mut to, &Join::consumer(&group).member(&leader.member))?;
    wait_rebalance(&mut third, &group, leader.generation, &follower.member)?;
    let follower = third.join(&Join::consumer(&group).member(&follower.member))?;
    let leader = end_join(&mut to, pending)?;
    equal(
        "both are in the next one",
        (leader.error, follower.error, follower.generation),
        (0, 0, leader.generation),
    )?;
    equal("the leader stays", leader.leader.as_str(), leader.member.as_str())?;
    let shares: [(&str, &[u8]); 2] = [(&leader.member, b"x"), (&follower.member, b"y")];
    equal("sync", to.sync(&group, leader.generation, &leader.member, None, &shares)?.0, 0)?;
    let protocols = vec![("range".to_owned(), vec![7, 7, 7])];
    let changed = Join { protocols, ..Join::consumer(&group).member(&follower.member) };
    let pending = start_join(&mut third, &changed)?;
    wait_rebalance(&mut to, &group, leader.generation, &leader.member)?;
    let one = to.join(&Join::consumer(&group).member(&leader.member))?;
    let two = end_join(&mut third, pending)?;
    equal(
        "the next generation",
        (one.generation, two.generation),
        (leader.generation + 1, leader.generation + 1),
    )
}

fn connect(stage: &mut Stage) -> Result<()> {
    let group = stage.name("g");
    let mut to = stage.connect()?;
    to.coordinator(&group)?;
    let protocols = vec![("sessioned".to_owned(), (0..200).collect()), ("eager".to_owned(), Vec::new())];
    let join = Join { kind: "connect".to_owned(), protocols, ..Join::consumer(&group) };
    let joined = to.join_new(&join)?;
    equal("protocol", joined.protocol.as_str(), "sessioned")?;
    let shares: [(&str, &[u8]); 1] = [(&joined.member, &[255, 0, 255])];
    equal(
        "sync",
        to.sync(&group, joined.generation, &joined.member, None, &shares)?,
        (0, vec![255, 0, 255]),
    )?;
    let (error, state, members) = to.describe_group(&group)?;
    equal("description", (error, state.as_str(), members.len()), (0, "Stable", 1))
}

fn expiry(stage: &mut Stage) -> Result<()> {
    let group = stage.name("g");
    let (mut to, mut other) = (stage.connect()?, stage.connect()?);
    to.coordinator(&group)?;
    let short = Join { session: 6_000, rebalance: 20_000, ..Join::consumer(&group) };
    let unused = to.join(&short)?.member;
    let joined = to.join_new(&short)?;
    to.sync(&group, joined.generation, &joined.member, None, &[(&joined.member, b"x")])?;
    let id = other.join(&short)?.member;
    let started = Instant::now();
    // Waits for the first, which says nothing any more; must itself not be taken for silent.
    other.patience(Duration::from_secs(25))?;
    let two = other.join(&short.clone().member(&id))?;
    equal("error of who waited", two.error, 0)?;
    let waited = started.elapsed();
    holds(&format!("waited {waited:?}"), (4_000..21_500).contains(&waited.as_millis()))?;
    equal("alone", two.members.len(), 1)?;
    equal(
        "the silent one",
        to.heartbeat(&group, joined.generation, &joined.member, None)?,
        code::UNKNOWN_MEMBER_ID,
    )?;
    // It was given before the silent one joined, and its session is as long.
    equal("an id that nobody joined with", to.join(&short.member(&unused))?.error, code::UNKNOWN_MEMBER_ID)
}

fn static_members(stage: &mut Stage) -> Result<()> {
    let group = stage.name("g");
    let mut to = stage.connect()?;
    to.coordinator(&group)?;
    let join = Join { session: 60_000, ..Join::consumer(&group).instance("one") };
    let first = to.join(&join)?;
    equal("error of the first join", first.error, 0)?;
    to.sync(&group, first.generation, &first.member, Some("one"), &[(&first.member, b"share")])?;
    let second = to.join(&join)?;
    equal("comes back", (second.error, second.generation), (0, first.generation))?;
    holds("with a new id", second.member != first.member)?;
    let share = to.sync(&group, second.generation, &second.member, Some("one"), &[])?;
    equal("the same share", share, (0, b"share".to_vec()))?;
    let beat =
        |to: &mut Connection, member: &str| to.heartbeat(&group, first.generation, member, Some("one"));
    equal("the old id", beat(&mut to, &first.member)?, code::FENCED_INSTANCE_ID)?;
    equal("the new id", beat(&mut to, &second.member)?, 0)?;
    let old = Join { member: first.member.clone(), ..join.clone() };
    equal("the old id joins", to.join(&old)?.error, code::FENCED_INSTANCE_ID)?;
    stage.broker.kill_and_restart()?;
    let mut to = stage.connect()?;
    to.coordinator(&group)?;
    equal("the new id after kill -9", beat(&mut to, &second.member)?, 0)?;
    equal("the old id after kill -9", beat(&mut to, &first.member)?, code::FENCED_INSTANCE_ID)?;
    equal("leaves by its instance id", to.leave(&group, "", Some("one"))?, 0)?;
    let gone = beat(&mut to, &second.member)?;
    holds(&format!("gone: {gone}"), gone == code::UNKNOWN_MEMBER_ID || gone == code::FENCED_INSTANCE_ID)
}

fn static_in_rebalance(stage: &mut Stage) -> Result<()> {
    let group = stage.name("g");
    let (mut to, mut other) = (stage.connect()?, stage.connect()?);
    to.coordinator(&group)?;
    let join = |instance: &str| Join {
        session: 60_000,
        rebalance: 15_000,
        ..Join::consumer(&group).instance(instance)
    };
    let first = to.join(&join("one"))?;
    equal("alone", first.error, 0)?;
    to.sync(&group, first.generation, &first.member, Some("one"), &[(&first.member, b"x")])?;
    // While others join: a second static member waits for the first, which comes back under a new id.
    let pending = start_join(&mut other, &join("two"))?;
    wait::until("a rebalance", Duration::from_secs(10), || {
        let error = to.heartbeat(&group, first.generation, &first.member, Some("one"))?;
        Ok((error == code::REBALANCE_IN_PROGRESS).then_some(()))
    })?;
    let one = to.join(&join("one"))?;
    let two = end_join(&mut other, pending)?;
    equal("both", (one.error, two.error, one.generation), (0, 0, two.generation))?;
    holds("a new id", one.member != first.member)?;
    let old = to.heartbeat(&group, one.generation, &first.member, Some("one"))?;
    equal("the old id", old, code::FENCED_INSTANCE_ID)?;
    // Before the leader has synced: the other member comes back; whatever the broker makes of it, both end in one generation.
    let mut third = stage.connect()?;
    let pending = start_join(&mut third, &join("two"))?;
    let deadline = Instant::now() + Duration::from_secs(20);
    to.patience(Duration::from_secs(20))?;
    let mut mine = one;
    let back = loop {
        third.patience(Duration::from_millis(200))?;
        if let Ok(back) = end_join(&mut third, pending) {
            break back;
        }
        holds("the member that came back waits for ever", Instant::now() < deadline)?;
        mine = to.join(&join("one").member(&mine.member))?;
        equal("error of the other", mine.error, 0)?;
    };
    equal("error", back.error, 0)?;
    holds("a new id again", back.member != two.member)?;
    let old = to.heartbeat(&group, back.generation, &two.member, Some("two"))?;
    equal("the old id of the other", old, code::FENCED_INSTANCE_ID)
}

fn initial_delay(stage: &mut Stage) -> Result<()> {
    let settings = [("group.initial.rebalance.delay.ms".to_owned(), "1500".to_owned())];
    let broker = crate::target::Broker::start(&stage.origin, "raw-delay", &settings)?;
    let open = || Connection::open(broker.address(), Duration::from_secs(10));
    let (mut to, mut other) = (open()?, open()?);
    to.coordinator("g")?;
    let ids = [to.join(&Join::consumer("g"))?.member, other.join(&Join::consumer("g"))?.member];
    let started = Instant::now();
    let pending = start_join(&mut to, &Join::consumer("g").member(&ids[0]))?;
    let two = start_join(&mut other, &Join::consumer("g").member(&ids[1]))?;
    let (one, two) = (end_join(&mut to, pending)?, end_join(&mut other, two)?);
    let waited = started.elapsed();
    holds(&format!("waited {waited:?}"), (1_400..6_000).contains(&waited.as_millis()))?;
    equal("one generation", (one.error, two.error, one.generation, two.generation), (0, 0, 1, 1))?;
    equal("both in it", one.members.len().max(two.members.len()), 2)
}

fn parked(stage: &mut Stage) -> Result<()> {
    let group = stage.name("g");
    let mut to = stage.connect()?;
    to.coordinator(&group)?;
    let short = Join { session: 6_000, rebalance: 6_000, ..Join::consumer(&group) };
    let joined = to.join_new(&short)?;
    to.sync(&group, joined.generation, &joined.member, None, &[(&joined.member, b"x")])?;
    let mut other = stage.connect()?;
    let id = other.join(&short)?.member;
    start_join(&mut other, &short.clone().member(&id))?;
    wait_rebalance(&mut to, &group, joined.generation, &joined.member)?;
    drop(other);
    holds("others are served", stage.connect()?.sees_a_broker()?)?;
    // The first member answers the rebalance; whoever closed its socket is gone after its session at the latest.
    to.patience(Duration::from_secs(20))?;
    let mut member = joined.member;
    let deadline = Instant::now() + Duration::from_secs(25);
    loop {
        let again = to.join(&short.clone().member(&member))?;
        equal("error", again.error, 0)?;
        member.clone_from(&again.member);
        if again.leader == member && again.members.len() == 1 {
            return Ok(());
        }
        let shares: Vec<(&str, &[u8])> = vec![(&member, b"x")];
        to.sync(&group, again.generation, &member, None, &shares)?;
        wait::until("the lost member to go", deadline.saturating_duration_since(Instant::now()), || {
            let error = to.heartbeat(&group, again.generation, &member, None)?;
            Ok((error == code::REBALANCE_IN_PROGRESS).then_some(()))
        })?;
    }
}
