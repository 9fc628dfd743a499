//! Entering a cluster whose store others use as well: when is the life before this one over?
//!
//! | the store has of this id | then |
//! |---|---|
//! | nothing | register |
//! | a session that is fenced | register |
//! | a session that this directory knows, from this directory and this boot of the machine | the process that had it held the lock that we hold now, so it is dead: register |
//! | any other session | look at its beat; unchanged for W: register; changed: the id is in use elsewhere |
//!
//! A session that the directory does not know means that the directory or the store is a copy of an earlier time: what
//! the copies here promised since is not known, so all of them get new log ids before the node registers. So they do after a flush
//! that failed, of which the store was told and the directory knows nothing: a disk that fails may not take that in.

use std::time::Duration;

use felix_protocol::ids::{BrokerId, SessionId, Uuid};
use thiserror::Error;

use super::Past;
use crate::decision::Decision;
use crate::keys::Key;
use crate::lease::{Reading, Terms};
use crate::state::{Beat, Node, NodeState, Revision};

/// What one linearizable look at the id's keys found, with the revision of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Looked {
    /// The node.
    pub node: Option<(Revision, Node)>,
    /// When its beat was written.
    pub beat: Revision,
}

/// What to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Look again after this.
    Look(Duration),
    /// Register by [`Entry::decide`].
    Register {
        /// The copies here need new identities first.
        renew_logs: bool,
    },
}

/// The id is in use: its node beats, or somebody registered while we waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "node {node} is running elsewhere: its session {session} has beaten while this process waited for it to be over; stop it, or \
     give this one another node-id"
)]
pub struct LiveElsewhere {
    /// The id.
    pub node: BrokerId,
    /// Who has it.
    pub session: SessionId,
}

/// See the module. One process's way in.
#[derive(Clone, Debug)]
pub struct Entry {
    id: BrokerId,
    directory: Uuid,
    boot: String,
    terms: Terms,
    watched: Option<Watched>,
    last: Looked,
}

#[derive(Clone, Copy, Debug)]
struct Watched {
    session: SessionId,
    beat: Revision,
    since: Reading,
    looked_at: Reading,
}

impl Entry {
    /// A process that wants to be node `id`, with the lock on that directory, on that boot of its machine.
    pub fn new(id: BrokerId, directory: Uuid, boot: &str, terms: Terms) -> Entry {
        let last = Looked { node: None, beat: Revision::ABSENT };
        Entry { id, directory, boot: boot.to_owned(), terms, watched: None, last }
    }

    /// Takes one look in, which was answered at `now`. A look that failed is none: after a gap the wait begins anew.
    pub fn step(&mut self, looked: Looked, past: &Past, now: Reading) -> Result<Step, LiveElsewhere> {
        self.last = looked;
        let Some((_, node)) = &self.last.node else { return Ok(Step::Register { renew_logs: false }) };
        let known = past.sessions.contains(&node.session);
        let in_doubt = node.suspect && !past.doubts_settled;
        let register = Step::Register { renew_logs: !known || in_doubt };
        let here = node.directory == self.directory && node.boot == self.boot;
        if node.state == NodeState::Fenced || (known && here) {
            return Ok(register);
        }
        let (session, beat) = (node.session, self.last.beat);
        let watched = match self.watched {
            Some(watched) if (watched.session, watched.beat) != (session, beat) => {
                return Err(LiveElsewhere { node: self.id, session });
            }
            Some(watched) if now.longest_since(watched.looked_at) <= self.terms.gap() => watched,
            Some(_) | None => Watched { session, beat, since: now, looked_at: now },
        };
        if now.shortest_since(watched.since) >= self.terms.wait() {
            return Ok(register);
        }
        self.watched = Some(Watched { looked_at: now, ..watched });
        Ok(Step::Look(self.terms.beat_every()))
    }

    /// Whether somebody else's session is being waited for.
    pub fn waits_for(&self) -> Option<SessionId> {
        self.watched.map(|watched| watched.session)
    }

    /// Registers `node`, if nothing has changed since the last look.
    pub fn decide(&self, node: &Node) -> Decision {
        let key = Key::Node(self.id);
        let at = self.last.node.as_ref().map_or(Revision::ABSENT, |(revision, _)| *revision);
        let beat = Beat { session: node.session, counter: 0 };
        let decision = Decision::new().at(key.clone(), at).at(Key::Beat(self.id), self.last.beat);
        decision.put(key, node).put(Key::Beat(self.id), &beat)
    }
}

#[cfg(test)]
mod tests {
    use felix_protocol::time::MonoTime;

    use super::*;
    use crate::lease::Clocks;

    const ID: BrokerId = BrokerId(3);

    fn terms() -> Terms {
        Terms::new(1000, Clocks::Both)
    }

    fn at(milliseconds: u64) -> Reading {
        let time = MonoTime(milliseconds * 1_000_000);
        Reading { boottime: time, raw: time }
    }

    fn entry() -> Entry {
        Entry::new(ID, Uuid::from_u128(1), "boot", terms())
    }

    fn past(sessions: &[u64]) -> Past {
        Past { sessions: sessions.iter().copied().map(SessionId).collect(), ..Past::default() }
    }

    fn looked(session: u64, directory: u128, boot: &str, state: NodeState, beat: u64) -> Looked {
        let node = Node {
            session: SessionId(session),
            state,
            directory: Uuid::from_u128(directory),
            suspect: false,
            boot: boot.to_owned(),
            listeners: Vec::new(),
            internal: None,
            rack: None,
            version: String::new(),
        };
        Looked { node: Some((Revision(50), node)), beat: Revision(beat) }
    }

    /// Looks every 100 ms at what does not change, and says when it may register.
    fn wait(entry: &mut Entry, looked: &Looked, past: &Past, from: u64) -> (u64, Step) {
        let mut time = from;
        loop {
            match entry.step(looked.clone(), past, at(time)).unwrap() {
                Step::Look(after) => assert_eq!(after, terms().beat_every()),
                register => return (time - from, register),
            }
            time += 100;
        }
    }

    #[test]
    fn whose_predecessor_is_surely_dead_need_not_wait() {
        let (known, nobody) = (past(&[7]), Looked { node: None, beat: Revision::ABSENT });
        assert_eq!(entry().step(nobody, &known, at(0)), Ok(Step::Register { renew_logs: false }));
        let same = looked(7, 1, "boot", NodeState::Live, 60);
        assert_eq!(entry().step(same, &known, at(0)), Ok(Step::Register { renew_logs: false }));
        let fenced = looked(7, 2, "other", NodeState::Fenced, 60);
        assert_eq!(entry().step(fenced.clone(), &known, at(0)), Ok(Step::Register { renew_logs: false }));
        assert_eq!(entry().step(fenced, &past(&[8]), at(0)), Ok(Step::Register { renew_logs: true }));
    }

    #[test]
    fn what_a_disk_that_failed_could_not_note_the_store_tells() {
        let mut found = looked(7, 1, "boot", NodeState::Fenced, 60);
        found.node.as_mut().unwrap().1.suspect = true;
        let known = past(&[7]);
        assert_eq!(entry().step(found.clone(), &known, at(0)), Ok(Step::Register { renew_logs: true }));
        let settled = Past { doubts_settled: true, ..known };
        assert_eq!(entry().step(found, &settled, at(0)), Ok(Step::Register { renew_logs: false }));
    }

    #[test]
    fn everyone_else_watches_the_beat_for_w() {
        for (found, renew_logs) in [
            (looked(7, 1, "later boot", NodeState::Live, 60), false),
            (looked(7, 2, "boot", NodeState::Draining, 60), false),
            (looked(8, 1, "boot", NodeState::Live, 60), true),
        ] {
            let mut entry = entry();
            let waited = wait(&mut entry, &found, &past(&[7]), 500);
            assert_eq!(waited, (1100, Step::Register { renew_logs }));
        }
    }

    #[test]
    fn what_was_lost_of_the_past_is_an_unknown_session() {
        let waited = wait(&mut entry(), &looked(7, 1, "boot", NodeState::Live, 60), &past(&[]), 0);
        assert_eq!(waited, (1100, Step::Register { renew_logs: true }));
    }

    #[test]
    fn a_beat_or_another_session_in_between_means_that_the_id_is_live() {
        for found in [looked(8, 1, "boot", NodeState::Live, 61), looked(9, 1, "boot", NodeState::Live, 60)] {
            let mut entry = entry();
            let first = looked(8, 1, "boot", NodeState::Live, 60);
            assert!(matches!(entry.step(first, &past(&[7]), at(0)), Ok(Step::Look(_))));
            assert_eq!(entry.waits_for(), Some(SessionId(8)));
            let session = found.node.as_ref().unwrap().1.session;
            let told = entry.step(found, &past(&[7]), at(100));
            assert_eq!(told, Err(LiveElsewhere { node: ID, session }));
        }
    }

    #[test]
    fn somebody_else_may_fence_it_first() {
        let mut entry = entry();
        assert!(entry.step(looked(8, 1, "x", NodeState::Live, 60), &past(&[8]), at(0)).is_ok());
        let fenced = looked(8, 1, "x", NodeState::Fenced, 60);
        assert_eq!(entry.step(fenced, &past(&[8]), at(100)), Ok(Step::Register { renew_logs: false }));
    }

    #[test]
    fn time_without_looks_does_not_count() {
        let mut entry = entry();
        let found = looked(8, 1, "x", NodeState::Live, 60);
        assert!(matches!(entry.step(found.clone(), &past(&[8]), at(0)), Ok(Step::Look(_))));
        assert!(matches!(entry.step(found.clone(), &past(&[8]), at(5000)), Ok(Step::Look(_))));
        assert_eq!(wait(&mut entry, &found, &past(&[8]), 5100).0, 1000);
    }

    #[test]
    fn it_registers_only_over_what_it_last_saw() {
        let mut entry = entry();
        let found = looked(7, 1, "boot", NodeState::Live, 60);
        entry.step(found.clone(), &past(&[7]), at(0)).unwrap();
        let decision = entry.decide(&found.node.unwrap().1);
        assert_eq!(decision.compares().len(), 2);
        assert_eq!(decision.writes().len(), 2);
    }
}
