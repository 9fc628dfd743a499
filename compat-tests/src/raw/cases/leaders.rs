//! Leaders and replicas, as administrators ask for others. One broker can move nothing, so these are about what is refused.

use anyhow::Result;

use crate::raw::Case;
use crate::raw::ask::code;
use crate::raw::ask::leaders::partition_codes;
use crate::raw::conn::{Connection, key};
use crate::raw::expect::equal;
use crate::raw::stage::Stage;
use crate::raw::wire::W;

pub const CASES: &[Case] = &[
    Case {
        name: "leaders-elections",
        proves: "ElectLeaders answers each partition: 84 where the leader is right, 3 where there is none; of all only those that needed one; 42 for another kind (surface 93)",
        run: elections,
    },
    Case {
        name: "leaders-reassignments",
        proves: "AlterPartitionReassignments refuses what cannot be (3, 39, 85), takes what is so already, and lists nothing then (surface 93)",
        run: reassignments,
    },
    Case {
        name: "leaders-unregister",
        proves: "UnregisterBroker of an id that is not there is BROKER_ID_NOT_REGISTERED",
        run: unregister,
    },
];

const ELECTION_NOT_NEEDED: i16 = 84;
const NO_REASSIGNMENT_IN_PROGRESS: i16 = 85;
const INVALID_REPLICA_ASSIGNMENT: i16 = 39;
const BROKER_ID_NOT_REGISTERED: i16 = 102;

type Told = Vec<(String, Vec<(i32, i16)>)>;

/// Elections of that kind at version 2: the error of the whole, and of each partition.
fn elect(to: &mut Connection, kind: i8, named: Option<&[(&str, &[i32])]>) -> Result<(i16, Told)> {
    let mut body = W::new().i8(kind);
    match named {
        None => body = body.uvarint(0),
        Some(named) => {
            body = body.carray(named.len());
            for (topic, partitions) in named {
                body = body.cstr(topic).carray(partitions.len());
                for partition in *partitions {
                    body = body.i32(*partition);
                }
                body = body.tags();
            }
        }
    }
    let mut answer = to.call(key::ELECT_LEADERS, 2, &body.i32(10_000).tags())?;
    answer.i32()?;
    let error = answer.i16()?;
    let mut told = answer.ceach(|topic| {
        let name = topic.cstr()?;
        let partitions = topic.ceach(|partition| {
            let told = (partition.i32()?, partition.i16()?);
            partition.cnstr()?;
            partition.tags()?;
            Ok(told)
        })?;
        topic.tags()?;
        Ok((name, partitions))
    })?;
    answer.tags()?;
    answer.end()?;
    told.sort();
    Ok((error, told))
}

fn elections(stage: &mut Stage) -> Result<()> {
    let (topic, absent) = (stage.name("t"), stage.name("absent"));
    let mut to = stage.connect()?;
    to.create(&topic, 2, &[])?;
    to.wait_led(&topic, 2)?;
    for kind in [0, 1] {
        let named: &[(&str, &[i32])] = &[(&topic, &[0, 1, 7]), (&absent, &[0])];
        let (error, told) = elect(&mut to, kind, Some(named))?;
        equal("error", error, 0)?;
        let there =
            vec![(0, ELECTION_NOT_NEEDED), (1, ELECTION_NOT_NEEDED), (7, code::UNKNOWN_TOPIC_OR_PARTITION)];
        let mut expected =
            vec![(topic.clone(), there), (absent.clone(), vec![(0, code::UNKNOWN_TOPIC_OR_PARTITION)])];
        expected.sort();
        equal("partitions", told, expected)?;
    }
    let (error, told) = elect(&mut to, 0, None)?;
    equal("error", error, 0)?;
    let partitions =
        told.into_iter().find(|(name, _)| *name == topic).map_or_else(Vec::new, |(_, told)| told);
    equal("of all, those that needed one", partitions, vec![])?;
    let (error, _) = elect(&mut to, 5, Some(&[(&topic, &[0])]))?;
    equal("another kind", error, code::INVALID_REQUEST)
}

/// The code of one partition's move to `replicas` at version 1; none: cancels it.
fn alter(to: &mut Connection, topic: &str, replicas: Option<&[i32]>, may_change: bool) -> Result<i16> {
    let mut body = W::new().i32(10_000).bool(may_change).carray(1).cstr(topic).carray(1).i32(0);
    body = match replicas {
        None => body.uvarint(0),
        Some(ids) => ids.iter().fold(body.carray(ids.len()), |body, id| body.i32(*id)),
    };
    let mut answer = to.call(key::ALTER_PARTITION_REASSIGNMENTS, 1, &body.tags().tags().tags())?;
    answer.i32()?;
    equal("what was allowed", answer.bool()?, may_change)?;
    equal("error", answer.i16()?, 0)?;
    answer.cnstr()?;
    let mut codes = partition_codes(&mut answer)?;
    answer.tags()?;
    answer.end()?;
    equal("partitions", codes.iter().map(Vec::len).sum::<usize>(), 1)?;
    Ok(codes.remove(0).remove(0))
}

fn reassignments(stage: &mut Stage) -> Result<()> {
    let (topic, absent) = (stage.name("t"), stage.name("absent"));
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    to.wait_led(&topic, 1)?;
    let here = to.topic(Some(&topic), [0; 16], false)?.partitions[0].leader;
    equal("no such topic", alter(&mut to, &absent, Some(&[here]), true)?, code::UNKNOWN_TOPIC_OR_PARTITION)?;
    equal("nobody", alter(&mut to, &topic, Some(&[]), true)?, INVALID_REPLICA_ASSIGNMENT)?;
    equal("twice", alter(&mut to, &topic, Some(&[here, here]), true)?, INVALID_REPLICA_ASSIGNMENT)?;
    equal("a stranger", alter(&mut to, &topic, Some(&[here + 77]), true)?, INVALID_REPLICA_ASSIGNMENT)?;
    equal(
        "a stranger, and another number",
        alter(&mut to, &topic, Some(&[here, here + 77]), false)?,
        INVALID_REPLICA_ASSIGNMENT,
    )?;
    equal(
        "nobody, and another number",
        alter(&mut to, &topic, Some(&[]), false)?,
        INVALID_REPLICA_ASSIGNMENT,
    )?;
    equal("a negative one", alter(&mut to, &topic, Some(&[-1]), true)?, INVALID_REPLICA_ASSIGNMENT)?;
    equal("no such topic to cancel", alter(&mut to, &absent, None, true)?, code::UNKNOWN_TOPIC_OR_PARTITION)?;
    equal("nothing to cancel", alter(&mut to, &topic, None, true)?, NO_REASSIGNMENT_IN_PROGRESS)?;
    equal("where it is", alter(&mut to, &topic, Some(&[here]), false)?, 0)?;
    let body = W::new().i32(10_000).uvarint(0).tags();
    let mut answer = to.call(key::LIST_PARTITION_REASSIGNMENTS, 0, &body)?;
    answer.i32()?;
    equal("error", answer.i16()?, 0)?;
    answer.cnstr()?;
    equal("moving", answer.carray()?, 0)
}

fn unregister(stage: &mut Stage) -> Result<()> {
    let mut to = stage.connect()?;
    let mut answer = to.call(key::UNREGISTER_BROKER, 0, &W::new().i32(7_777).tags())?;
    answer.i32()?;
    equal("error", answer.i16()?, BROKER_ID_NOT_REGISTERED)?;
    answer.cnstr()?;
    answer.tags()?;
    answer.end()
}
