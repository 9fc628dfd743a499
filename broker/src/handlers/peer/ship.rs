//! Ship: a leader's log on its way to the copies here.
//!
//! Each part is checked and handed to the lane that owns its copy; it is answered by itself, in whatever order the copies are
//! done with it. Where there is no copy (yet), the answer is "retry": copies are made by whoever follows the cluster's view, never
//! because somebody ships.

use felix_cluster::state::Revision;
use felix_partition::following::Shipped;
use felix_protocol::ids::{Generation, PartitionId};
use felix_protocol::peer::Message;
use felix_protocol::peer::bootstrap::Restart;
use felix_protocol::peer::ship::{Answer, Answers, Said, Ship};
use felix_replication::follower::{self, Reply as Told, Token};

use crate::partitions::{Partitions, Unopened};
use crate::peers::Reply;

/// Takes a request. `seen`: how far this broker's view of the cluster is. A leader whose key is newer may mean a copy that is yet
/// to be made, or to be given up: not now.
pub(super) fn take(partitions: &Partitions, seen: Revision, ship: Ship, reply: &Reply) {
    for part in ship.parts {
        let (partition, reply) = (part.partition, reply.clone());
        if part.key_revision > seen.0 {
            reply.send(&answer_of(partition, None, None));
            continue;
        }
        let unopened = partitions.unopened(&partition);
        let answer = move |told: Option<Told>| reply.send(&answer_of(partition, told, unopened));
        match Shipped::unpack(part) {
            // The token is given by the lane.
            Ok(shipped) => partitions.follow(partition, shipped, Box::new(answer)),
            Err(error) => {
                tracing::warn!(%partition, %error, "a leader sent records that are none; it is asked for them again");
                answer(None);
            }
        }
    }
}

/// Hands a leader's word to begin anew on.
pub(super) fn restart(
    partitions: &Partitions,
    seen: Revision,
    restart: Restart,
    rebuild: bool,
    reply: Reply,
) {
    let Restart { partition, key_revision, generation, log, base, log_start } = restart;
    let unopened = partitions.unopened(&partition);
    let answer = move |told: Option<Told>| reply.send(&answer_of(partition, told, unopened));
    if key_revision > seen.0 {
        answer(None);
        return;
    }
    // The token is given by the lane.
    let restart = follower::Restart { token: Token(0), generation, log, base, log_start, rebuild };
    partitions.restart(partition, restart, Box::new(answer));
}

/// What a copy said; nothing where there is none that could, or that it has stopped, where it is known but cannot be opened. Neither is
/// said at a generation: no copy has accepted one.
fn answer_of(partition: PartitionId, told: Option<Told>, unopened: Option<Unopened>) -> Message {
    let none = match unopened {
        None => Answer { partition, generation: Generation::ZERO, log: None, end: 0, said: Said::Retry },
        Some(Unopened { log, end, reason }) => {
            let said = Said::Halted(reason.number());
            Answer { partition, generation: Generation::ZERO, log: Some(log), end, said }
        }
    };
    let answer = told.map_or(none, |told| Answer {
        partition,
        generation: told.generation,
        log: Some(told.log),
        end: told.end,
        said: told.said,
    });
    Message::Answers(Answers { answers: vec![answer] })
}
