//! Groups and committed offsets.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::code;
use crate::raw::conn::{Connection, key};
use crate::raw::wire::{R, W};
use crate::wait;

/// A JoinGroup request.
#[derive(Debug, Clone)]
pub struct Join {
    /// Group.
    pub group: String,
    /// Member id, empty for a new one.
    pub member: String,
    /// group.instance.id.
    pub instance: Option<String>,
    /// Session timeout in ms.
    pub session: i32,
    /// Rebalance timeout in ms.
    pub rebalance: i32,
    /// Protocol type.
    pub kind: String,
    /// Protocols with metadata, in order of preference.
    pub protocols: Vec<(String, Vec<u8>)>,
}

impl Join {
    /// A consumer that knows "range".
    pub fn consumer(group: &str) -> Self {
        Self {
            group: group.to_owned(),
            member: String::new(),
            instance: None,
            session: 10_000,
            rebalance: 10_000,
            kind: "consumer".to_owned(),
            protocols: vec![("range".to_owned(), vec![0, 0])],
        }
    }

    /// The same with a session that outlasts whatever else a case does meanwhile.
    pub fn patient(mut self) -> Self {
        self.session = 300_000;
        self
    }

    /// The same with a member id.
    pub fn member(mut self, member: &str) -> Self {
        self.member = member.to_owned();
        self
    }

    /// The same with a static id.
    pub fn instance(mut self, instance: &str) -> Self {
        self.instance = Some(instance.to_owned());
        self
    }

    /// Version 5.
    pub fn body(&self) -> W {
        let mut body = W::new().str(&self.group).i32(self.session).i32(self.rebalance).str(&self.member);
        body = body.nstr(self.instance.as_deref()).str(&self.kind).array(self.protocols.len());
        for (name, metadata) in &self.protocols {
            body = body.str(name).bytes(metadata);
        }
        body
    }
}

/// Answer to JoinGroup.
#[derive(Debug, Clone)]
pub struct Joined {
    /// Error code.
    pub error: i16,
    /// Group generation.
    pub generation: i32,
    /// The protocol chosen.
    pub protocol: String,
    /// The leader's member id.
    pub leader: String,
    /// This member's id.
    pub member: String,
    /// For the leader: all members with their instance ids.
    pub members: Vec<(String, Option<String>)>,
}

impl Joined {
    /// Reads version 5.
    pub fn read(mut from: R) -> Result<Self> {
        from.i32()?;
        let (error, generation) = (from.i16()?, from.i32()?);
        let (protocol, leader, member) = (from.nstr()?.unwrap_or_default(), from.str()?, from.str()?);
        let members = from.each(|member| {
            let ids = (member.str()?, member.nstr()?);
            member.nbytes()?;
            Ok(ids)
        })?;
        from.end()?;
        Ok(Self { error, generation, protocol, leader, member, members })
    }
}

/// What became of the only partition in an answer to OffsetCommit, versions 3 to 7: its error code.
pub fn commit_error(mut answer: R) -> Result<i16> {
    answer.i32()?;
    let errors = answer.each(|topic| {
        topic.str()?;
        topic.each(|partition| {
            partition.i32()?;
            partition.i16()
        })
    })?;
    answer.end()?;
    errors.into_iter().flatten().next().context("no partition in the answer to OffsetCommit")
}

impl Connection {
    /// Waits until the group's coordinator is there and has loaded it.
    pub fn coordinator(&mut self, group: &str) -> Result<()> {
        wait::until(&format!("the coordinator of {group}"), Duration::from_secs(30), || {
            let mut answer = self.call(key::FIND_COORDINATOR, 1, &W::new().str(group).i8(0))?;
            answer.i32()?;
            match answer.i16()? {
                code::NONE => {}
                code::COORDINATOR_NOT_AVAILABLE | code::COORDINATOR_LOAD_IN_PROGRESS => return Ok(None),
                error => bail!("FindCoordinator: error {error}"),
            }
            let (error, _) = self.committed(group, None)?;
            match error {
                code::NONE => Ok(Some(())),
                code::COORDINATOR_NOT_AVAILABLE
                | code::COORDINATOR_LOAD_IN_PROGRESS
                | code::NOT_COORDINATOR => Ok(None),
                error => bail!("OffsetFetch: error {error}"),
            }
        })
    }

    /// JoinGroup version 5.
    pub fn join(&mut self, join: &Join) -> Result<Joined> {
        Joined::read(self.call(key::JOIN_GROUP, 5, &join.body())?)
    }

    /// Joins as a new dynamic member, id first; waits for the rebalance.
    pub fn join_new(&mut self, join: &Join) -> Result<Joined> {
        let first = self.join(join)?;
        if first.error != code::MEMBER_ID_REQUIRED {
            bail!("the first join of a dynamic member: error {} instead of MEMBER_ID_REQUIRED", first.error);
        }
        let joined = self.join(&join.clone().member(&first.member))?;
        if joined.error != 0 {
            bail!("joining {}: error {}", join.group, joined.error);
        }
        Ok(joined)
    }

    /// SyncGroup version 3 with these assignments: (error, assignment).
    pub fn sync(
        &mut self,
        group: &str,
        generation: i32,
        member: &str,
        instance: Option<&str>,
        assignments: &[(&str, &[u8])],
    ) -> Result<(i16, Vec<u8>)> {
        let mut body =
            W::new().str(group).i32(generation).str(member).nstr(instance).array(assignments.len());
        for (member, assignment) in assignments {
            body = body.str(member).bytes(assignment);
        }
        let mut answer = self.call(key::SYNC_GROUP, 3, &body)?;
        answer.i32()?;
        let (error, assignment) = (answer.i16()?, answer.nbytes()?.context("a null assignment")?);
        answer.end()?;
        Ok((error, assignment))
    }

    /// Heartbeat version 3: the error code.
    pub fn heartbeat(
        &mut self,
        group: &str,
        generation: i32,
        member: &str,
        instance: Option<&str>,
    ) -> Result<i16> {
        let body = W::new().str(group).i32(generation).str(member).nstr(instance);
        let mut answer = self.call(key::HEARTBEAT, 3, &body)?;
        answer.i32()?;
        let error = answer.i16()?;
        answer.end()?;
        Ok(error)
    }

    /// LeaveGroup version 3 for one member: the member's error code (or the request's).
    pub fn leave(&mut self, group: &str, member: &str, instance: Option<&str>) -> Result<i16> {
        let body = W::new().str(group).array(1).str(member).nstr(instance);
        let mut answer = self.call(key::LEAVE_GROUP, 3, &body)?;
        answer.i32()?;
        let error = answer.i16()?;
        let members = answer.each(|member| {
            member.str()?;
            member.nstr()?;
            member.i16()
        })?;
        answer.end()?;
        Ok(if error == 0 { members.first().copied().unwrap_or(0) } else { error })
    }

    /// OffsetCommit version 7 for partition 0: the partition's error code.
    pub fn commit_as(
        &mut self,
        group: &str,
        generation: i32,
        member: &str,
        topic: &str,
        offset: i64,
        metadata: &str,
    ) -> Result<i16> {
        let body = W::new().str(group).i32(generation).str(member).nstr(None).array(1).str(topic);
        let body = body.array(1).i32(0).i64(offset).i32(-1).nstr(Some(metadata));
        commit_error(self.call(key::OFFSET_COMMIT, 7, &body)?)
    }

    /// Commits from outside any group generation.
    pub fn commit(&mut self, group: &str, topic: &str, offset: i64) -> Result<i16> {
        self.commit_as(group, -1, "", topic, offset, "")
    }

    /// OffsetFetch version 5 of partition 0 of a topic, or of all: error of all, and (topic, offset, metadata, error).
    #[expect(clippy::type_complexity, reason = "read in one place and taken apart in the next")]
    pub fn committed(
        &mut self,
        group: &str,
        topic: Option<&str>,
    ) -> Result<(i16, Vec<(String, i64, Option<String>, i16)>)> {
        let body = match topic {
            Some(topic) => W::new().str(group).array(1).str(topic).array(1).i32(0),
            None => W::new().str(group).i32(-1),
        };
        let mut answer = self.call(key::OFFSET_FETCH, 5, &body)?;
        answer.i32()?;
        let topics = answer.each(|topic| {
            let name = topic.str()?;
            topic.each(|partition| {
                partition.i32()?;
                let offset = partition.i64()?;
                partition.i32()?;
                Ok((name.clone(), offset, partition.nstr()?, partition.i16()?))
            })
        })?;
        let error = answer.i16()?;
        answer.end()?;
        Ok((error, topics.into_iter().flatten().collect()))
    }

    /// The committed offset of partition 0, -1 for none.
    pub fn committed_offset(&mut self, group: &str, topic: &str) -> Result<i64> {
        let (error, topics) = self.committed(group, Some(topic))?;
        match topics.first() {
            Some((_, offset, _, 0)) if error == 0 => Ok(*offset),
            other => bail!("OffsetFetch of {group}: error {error}, {other:?}"),
        }
    }

    /// ListGroups version 1: the groups' ids, once no part of the coordinator is loading any more.
    pub fn groups(&mut self) -> Result<Vec<String>> {
        wait::until("a list of all groups", Duration::from_secs(20), || {
            let mut answer = self.call(key::LIST_GROUPS, 1, &W::new())?;
            answer.i32()?;
            let error = answer.i16()?;
            let groups = answer.each(|group| {
                let id = group.str()?;
                group.str()?;
                Ok(id)
            })?;
            answer.end()?;
            match error {
                code::NONE => Ok(Some(groups)),
                code::COORDINATOR_LOAD_IN_PROGRESS | code::COORDINATOR_NOT_AVAILABLE => Ok(None),
                error => bail!("ListGroups: error {error}"),
            }
        })
    }

    /// DescribeGroups version 4: (error, state, member ids).
    pub fn describe_group(&mut self, group: &str) -> Result<(i16, String, Vec<String>)> {
        let mut answer = self.call(key::DESCRIBE_GROUPS, 4, &W::new().array(1).str(group).bool(false))?;
        answer.i32()?;
        let mut groups = answer.each(|group| {
            let error = group.i16()?;
            group.str()?;
            let state = group.str()?;
            group.str()?;
            group.str()?;
            let members = group.each(|member| {
                let id = member.str()?;
                member.nstr()?;
                member.str()?;
                member.str()?;
                member.nbytes()?;
                member.nbytes()?;
                Ok(id)
            })?;
            group.i32()?;
            Ok((error, state, members))
        })?;
        answer.end()?;
        groups.pop().context("no group in the answer to DescribeGroups")
    }

    /// DeleteGroups version 1: the error code.
    pub fn delete_group(&mut self, group: &str) -> Result<i16> {
        let mut answer = self.call(key::DELETE_GROUPS, 1, &W::new().array(1).str(group))?;
        answer.i32()?;
        let groups = answer.each(|group| {
            group.str()?;
            group.i16()
        })?;
        answer.end()?;
        groups.first().copied().context("no group in the answer to DeleteGroups")
    }

    /// OffsetDelete version 0 of partition 0: the error code (of all, or of the partition).
    pub fn delete_offset(&mut self, group: &str, topic: &str) -> Result<i16> {
        let body = W::new().str(group).array(1).str(topic).array(1).i32(0);
        let mut answer = self.call(key::OFFSET_DELETE, 0, &body)?;
        let error = answer.i16()?;
        answer.i32()?;
        let topics = answer.each(|topic| {
            topic.str()?;
            topic.each(|partition| {
                partition.i32()?;
                partition.i16()
            })
        })?;
        answer.end()?;
        Ok(if error == 0 { topics.into_iter().flatten().next().unwrap_or(0) } else { error })
    }
}
