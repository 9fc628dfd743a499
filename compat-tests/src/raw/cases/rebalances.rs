//! Rebalances: which protocol is chosen, who is left behind, and static members who lead.

use std::time::Duration;

use anyhow::{Context, Result};

use super::groups::{end_join, single, start_join, wait_rebalance};
use crate::raw::Case;
use crate::raw::ask::code;
use crate::raw::ask::groups::Join;
use crate::raw::conn::{Connection, key};
use crate::raw::expect::{equal, holds};
use crate::raw::stage::Stage;
use crate::raw::wire::W;
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "groups-protocol-votes",
        proves: "the protocol is one that all members know, and of those the one that most prefer (surface 73)",
        run: votes,
    },
    Case {
        name: "groups-members-who-never-sync",
        proves: "a member that joined and does not ask for its share within the rebalance timeout is removed (surface 74)",
        run: unsynced,
    },
    Case {
        name: "groups-static-leader-skips-assignment",
        proves: "JoinGroup 9 tells a static leader that comes back to a stable group to assign nothing, and it has all it needs to lead (surface 78)",
        run: skip_assignment,
    },
    Case {
        name: "groups-leave-together",
        proves: "LeaveGroup answers each of several members with its own code, by member id and by instance id (surface 78)",
        run: leave,
    },
    Case {
        name: "groups-coordinator-restarts",
        proves: "over and over again a restart leaves a group its generation, members and commits: 14, 15 or 16 meanwhile, no rebalance, and the coordinator that is named is there (B063)",
        run: coordinator_restarts,
    },
];

/// A consumer that knows these protocols, the first most liked.
fn knows(group: &str, protocols: &[&str]) -> Join {
    let protocols = protocols.iter().map(|name| ((*name).to_owned(), vec![0, 0])).collect();
    Join { protocols, ..Join::consumer(group) }
}

fn votes(stage: &mut Stage) -> Result<()> {
    for (name, first, second, chosen) in [
        ("common", vec!["a", "b"], vec!["b", "c"], "b"),
        // One vote each: either is right, as long as both members are told the same.
        ("tie", vec!["a", "b"], vec!["b", "a"], ""),
    ] {
        let group = stage.name(name);
        let (mut to, mut other) = (stage.connect()?, stage.connect()?);
        to.coordinator(&group)?;
        let one = to.join_new(&knows(&group, &first))?;
        equal("alone", one.protocol.as_str(), "a")?;
        to.sync(&group, one.generation, &one.member, None, &[(&one.member, b"x")])?;
        let id = other.join(&knows(&group, &second))?.member;
        let pending = start_join(&mut other, &knows(&group, &second).member(&id))?;
        wait_rebalance(&mut to, &group, one.generation, &one.member)?;
        let one = to.join(&knows(&group, &first).member(&one.member))?;
        let two = end_join(&mut other, pending)?;
        equal("errors", (one.error, two.error), (0, 0))?;
        equal("both are told the same", one.protocol.as_str(), two.protocol.as_str())?;
        holds(&one.protocol, chosen.is_empty() || one.protocol == chosen)?;
        if name == "tie" {
            // A third voice decides.
            let shares: [(&str, &[u8]); 1] = [(&one.member, b"x")];
            let (leader, to_leader) =
                if one.leader == one.member { (&one, &mut to) } else { (&two, &mut other) };
            to_leader.sync(&group, leader.generation, &leader.member, None, &shares)?;
            let mut third = stage.connect()?;
            let id = third.join(&knows(&group, &["b", "a"]))?.member;
            let pending = start_join(&mut third, &knows(&group, &["b", "a"]).member(&id))?;
            wait_rebalance(&mut to, &group, one.generation, &one.member)?;
            let again = start_join(&mut to, &knows(&group, &first).member(&one.member))?;
            let two = other.join(&knows(&group, &second).member(&two.member))?;
            equal("two of three like b", two.protocol.as_str(), "b")?;
            equal("the first", end_join(&mut to, again)?.protocol.as_str(), "b")?;
            equal("the third", end_join(&mut third, pending)?.protocol.as_str(), "b")?;
        }
    }
    Ok(())
}

fn unsynced(stage: &mut Stage) -> Result<()> {
    let group = stage.name("g");
    let (mut to, mut other) = (stage.connect()?, stage.connect()?);
    let join = Join { session: 60_000, rebalance: 1_500, ..Join::consumer(&group) };
    to.coordinator(&group)?;
    let one = to.join_new(&join)?;
    to.sync(&group, one.generation, &one.member, None, &[(&one.member, b"x")])?;
    let id = other.join(&join)?.member;
    let pending = start_join(&mut other, &join.clone().member(&id))?;
    wait_rebalance(&mut to, &group, one.generation, &one.member)?;
    let one = to.join(&join.clone().member(&one.member))?;
    let two = end_join(&mut other, pending)?;
    equal("errors", (one.error, two.error), (0, 0))?;
    // Whoever leads, the second never asks for its share; the first does, and assigns if it is to.
    let shares = [(one.member.as_str(), b"x".as_slice())];
    let body = W::new().str(&group).i32(one.generation).str(&one.member).nstr(None).array(1);
    let waiting = to.send(key::SYNC_GROUP, 3, &body.str(shares[0].0).bytes(shares[0].1))?;
    let mut asking = stage.connect()?;
    wait::until("the silent one to be removed", Duration::from_secs(10), || {
        let error = asking.heartbeat(&group, one.generation, &two.member, None)?;
        Ok((error == code::UNKNOWN_MEMBER_ID).then_some(()))
    })?;
    to.receive_for(waiting, key::SYNC_GROUP, 3)?;
    let alone = to.join(&join.member(&one.member))?;
    equal("the first goes on", (alone.error, alone.members.len()), (0, 1))
}

fn skip_assignment(stage: &mut Stage) -> Result<()> {
    let group = stage.name("g");
    let mut to = stage.connect()?;
    to.coordinator(&group)?;
    let mut ask = |member: &str| -> Result<(i16, String, String, bool, usize)> {
        let body = W::new().cstr(&group).i32(60_000).i32(60_000).cstr(member).cnstr(Some("one"));
        let body = body.cstr("consumer").carray(1).cstr("range").cbytes(&[0, 0]).tags().cnstr(None).tags();
        let mut answer = to.call(key::JOIN_GROUP, 9, &body)?;
        answer.i32()?;
        let error = answer.i16()?;
        let generation = answer.i32()?;
        answer.cnstr()?;
        answer.cnstr()?;
        let (leader, skip, member) = (answer.cstr()?, answer.bool()?, answer.cstr()?);
        let members = answer.ceach(|member| {
            member.cstr()?;
            member.cnstr()?;
            member.cnbytes()?;
            member.tags()
        })?;
        answer.tags()?;
        answer.end()?;
        if member == leader && !skip {
            let share: [(&str, &[u8]); 1] = [(&member, b"share")];
            equal("sync", to.sync(&group, generation, &member, Some("one"), &share)?.0, 0)?;
        }
        Ok((error, leader, member, skip, members.len()))
    };
    let (error, leader, first, skip, members) = ask("")?;
    equal("the first time", (error, skip, members), (0, false, 1))?;
    equal("it leads", leader, first.clone())?;
    let (error, leader, second, skip, members) = ask("")?;
    equal("it comes back", (error, skip, members), (0, true, 1))?;
    holds("a new id", first != second)?;
    equal("it leads under its new id", leader, second)
}

/// LeaveGroup version 5 of several members: their codes, in the order of the answer.
fn leave_all(to: &mut Connection, group: &str, members: &[(&str, Option<&str>)]) -> Result<Vec<i16>> {
    let mut body = W::new().cstr(group).carray(members.len());
    for (member, instance) in members {
        body = body.cstr(member).cnstr(*instance).cnstr(Some("tired")).tags();
    }
    let mut answer = to.call(key::LEAVE_GROUP, 5, &body.tags())?;
    answer.i32()?;
    equal("error of all", answer.i16()?, 0)?;
    let mut order = Vec::new();
    let codes = answer.ceach(|member| {
        order.push((member.cstr()?, member.cnstr()?));
        let error = member.i16()?;
        member.tags()?;
        Ok(error)
    })?;
    answer.tags()?;
    answer.end()?;
    let asked: Vec<_> =
        members.iter().map(|(id, instance)| ((*id).to_owned(), instance.map(str::to_owned))).collect();
    equal("members in the order they were asked for", order, asked)?;
    Ok(codes)
}

fn leave(stage: &mut Stage) -> Result<()> {
    let group = stage.name("g");
    let (mut to, mut other) = (stage.connect()?, stage.connect()?);
    let (dynamic, generation) = single(&mut to, &group)?;
    let pending = start_join(&mut other, &Join::consumer(&group).instance("one"))?;
    wait_rebalance(&mut to, &group, generation, &dynamic)?;
    to.join(&Join::consumer(&group).member(&dynamic))?;
    let stays = end_join(&mut other, pending)?;
    equal("error of the static one", stays.error, 0)?;
    let asked = [("nobody", None), (dynamic.as_str(), None), ("", Some("two")), ("wrong", Some("one"))];
    let codes = leave_all(&mut to, &group, &asked)?;
    let expected =
        vec![code::UNKNOWN_MEMBER_ID, code::NONE, code::UNKNOWN_MEMBER_ID, code::FENCED_INSTANCE_ID];
    equal("codes", codes, expected)?;
    equal("by instance id", leave_all(&mut to, &group, &[("", Some("one"))])?, vec![code::NONE])?;
    let (error, state, members) = to.describe_group(&group)?;
    equal("the group is empty", (error, state.as_str(), members.len()), (0, "Empty", 0)).context("at the end")
}

/// A member asks until its coordinator has loaded the group; what it is told then.
fn after_loading(to: &mut Connection, mut ask: impl FnMut(&mut Connection) -> Result<i16>) -> Result<i16> {
    wait::until("the coordinator to have loaded the group", Duration::from_secs(30), || {
        let error = ask(to)?;
        let loading = matches!(
            error,
            code::COORDINATOR_LOAD_IN_PROGRESS | code::COORDINATOR_NOT_AVAILABLE | code::NOT_COORDINATOR
        );
        Ok((!loading).then_some(error))
    })
}

fn coordinator_restarts(stage: &mut Stage) -> Result<()> {
    let (group, topic) = (stage.name("g"), stage.name("t"));
    let (mut to, mut other) = (stage.connect()?, stage.connect()?);
    to.create(&topic, 1, &[])?;
    to.coordinator(&group)?;
    // Nobody's session ends while the broker is away.
    let join = Join { session: 60_000, rebalance: 60_000, ..Join::consumer(&group) };
    let first = to.join_new(&join)?;
    to.sync(&group, first.generation, &first.member, None, &[(&first.member, b"x")])?;
    let id = other.join(&join)?.member;
    let pending = start_join(&mut other, &join.clone().member(&id))?;
    wait_rebalance(&mut to, &group, first.generation, &first.member)?;
    let one = to.join(&join.clone().member(&first.member))?;
    let two = end_join(&mut other, pending)?;
    equal("one generation", one.generation, two.generation)?;
    let shares: [(&str, &[u8]); 2] = [(&one.member, b"one"), (&two.member, b"two")];
    let (leading, following) = if one.leader == one.member { (&one, &two) } else { (&two, &one) };
    to.sync(&group, one.generation, &leading.member, None, &shares)?;
    other.sync(&group, one.generation, &following.member, None, &[])?;

    let mut committed = -1;
    for round in 0..if stage.full { 30 } else { 4 } {
        // A clean stop and a kill in turn.
        if round % 2 == 0 {
            stage.broker.restart()?
        } else {
            stage.broker.kill_and_restart()?
        }
        for member in [&one.member, &two.member] {
            let mut to = stage.connect()?;
            let heard = after_loading(&mut to, |to| to.heartbeat(&group, one.generation, member, None))?;
            equal(&format!("heartbeat after restart {round}"), heard, 0)?;
            to.coordinator(&group)?;
            equal(
                &format!("committed before restart {round}"),
                to.committed_offset(&group, &topic)?,
                committed,
            )?;
            committed += 1;
            let heard = after_loading(&mut to, |to| {
                to.commit_as(&group, one.generation, member, &topic, committed, "")
            })?;
            equal(&format!("commit after restart {round}"), heard, 0)?;
        }
        let mut to = stage.connect()?;
        let heard = to.heartbeat(&group, one.generation, "somebody", None)?;
        equal("whoever is no member", heard, code::UNKNOWN_MEMBER_ID)?;
        let (error, state, mut members) = to.describe_group(&group)?;
        let mut expected = [one.member.clone(), two.member.clone()];
        members.sort();
        expected.sort();
        equal("the group", (error, state.as_str()), (0, "Stable"))?;
        equal("its members", members.as_slice(), expected.as_slice())?;
    }
    Ok(())
}
