//! One node: a disk, and the machine that works on it.

use std::collections::{BTreeMap, VecDeque};

use felix_protocol::ids::{BrokerId, Generation, Offset};
use felix_replication::cursor::{Cursor, FrameId};
use felix_replication::follower::{self, Follower, Reply};
use felix_replication::leader::Leader;
use felix_replication::rules::Rules;

use super::disk::{Disk, Value};

/// What is on its way between two nodes.
#[derive(Clone, Debug)]
pub struct Packet {
    pub from: BrokerId,
    pub to: BrokerId,
    /// Which connection: packets of one arrive in order, those of two do not.
    pub connection: u64,
    pub content: Content,
}

#[derive(Clone, Debug)]
pub enum Content {
    /// To a follower. `frame` and `generation` say what the answer is to.
    Request { work: Work, frame: FrameId, generation: Generation },
    /// To a leader.
    Answer { reply: Reply, frame: FrameId, generation: Generation },
}

#[derive(Clone, Debug)]
pub enum Work {
    Frame(follower::Frame, Vec<(Offset, Value)>),
    Restart(follower::Restart),
}

/// Where the answer to a token goes.
#[derive(Clone, Copy, Debug)]
pub struct Return {
    pub to: BrokerId,
    pub connection: u64,
    pub frame: FrameId,
    pub generation: Generation,
}

pub struct Leading<R: Rules> {
    pub leader: Leader<R>,
    pub cursors: BTreeMap<BrokerId, Cursor<R>>,
    /// What each waiting writer wrote.
    pub waiting: BTreeMap<u32, (Offset, Value)>,
    pub begins: Offset,
    pub mark: Offset,
}

pub struct Following<R: Rules> {
    pub follower: Follower<R>,
    pub queue: VecDeque<Packet>,
    pub returns: BTreeMap<u64, Return>,
    pub records: BTreeMap<u64, Vec<(Offset, Value)>>,
    /// What the machine waits for, done when the disk has time.
    pub pending: VecDeque<follower::Action>,
    pub next_token: u64,
}

pub enum Role<R: Rules> {
    Down,
    Leading(Box<Leading<R>>),
    Following(Box<Following<R>>),
}

pub struct Node<R: Rules> {
    pub disk: Disk,
    pub session: u64,
    pub role: Role<R>,
}

impl<R: Rules> Node<R> {
    pub fn is_down(&self) -> bool {
        matches!(self.role, Role::Down)
    }

    pub fn leads_at(&self) -> Option<Generation> {
        match &self.role {
            Role::Leading(leading) => Some(leading.leader.generation()),
            Role::Down | Role::Following(_) => None,
        }
    }

    pub fn follow(&mut self) {
        self.role = Role::Following(Box::new(Following {
            follower: Follower::new(self.disk.held()),
            queue: VecDeque::new(),
            returns: BTreeMap::new(),
            records: BTreeMap::new(),
            pending: VecDeque::new(),
            next_token: 0,
        }));
    }
}
