//! What was asked of a [`MemDisk`], so that every state that a crash may leave at any moment of it can be made.
//!
//! A [`Trace`] holds the disk as it was and every change since, in order. [`Replay`] walks over it: before the
//! first entry, after the first, and so on, the last being the disk as it is. At each of these moments the
//! machine may stop, and [`Replay::states`] gives the disks that may be found then.
//!
//! A sync is an entry of its own: the moment before it covers the crash during it (it may have done any part),
//! the moment after it the crash once it has returned.
//!
//! The steps that durability rests on ([`Step`]) are known by what they do, on which kind of file and where in
//! the code. Any of them can be left out ([`MemDisk::leave_out`]), as if the line were missing.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::Location;
use std::path::Path;

use super::MemDisk;
use super::legal::{self, Effort};
use super::nodes::{DirNode, DirOp, FileNode, FileOp, Node, NodeId, State, apply_dir, apply_file};
use crate::layout;

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Act {
    /// A file's bytes are made durable.
    SyncFile,
    /// A folder's names are made durable.
    SyncDir,
    /// Everything is made durable.
    SyncAll,
    /// A name is changed.
    Rename,
    /// A file is removed.
    Remove,
    /// A file's length is set.
    Cut,
}

/// A step that durability rests on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Step {
    /// What it does.
    pub act: Act,
    /// The kind of file: its name with the numbers taken out.
    pub on: String,
    /// Where in the code, as far as `#[track_caller]` leads.
    pub site: String,
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} of {:?} at {}", self.act, self.on, self.site)
    }
}

#[derive(Clone)]
pub(super) enum Entry {
    Made(NodeId, bool),
    Bytes(NodeId, FileOp),
    Name(NodeId, DirOp),
    SyncFile(NodeId),
    SyncDir(NodeId),
    SyncAll,
}

/// The recording side, inside of the disk.
#[derive(Default)]
pub(super) struct Recorder {
    running: Option<Running>,
    pub(super) left_out: Option<Step>,
    /// Files read.
    pub(super) read: Option<BTreeSet<String>>,
}

struct Running {
    before: Box<State>,
    entries: Vec<Entry>,
    steps: BTreeSet<Step>,
}

impl Recorder {
    pub(super) fn begin(&mut self, before: State) {
        self.running =
            Some(Running { before: Box::new(before), entries: Vec::new(), steps: BTreeSet::new() });
    }

    pub(super) fn len(&self) -> usize {
        self.running.as_ref().map_or(0, |running| running.entries.len())
    }

    pub(super) fn note(&mut self, entry: impl FnOnce() -> Entry) {
        if let Some(running) = &mut self.running {
            running.entries.push(entry());
        }
    }

    /// Takes notice of a step; whether it is to be left out.
    #[track_caller]
    pub(super) fn leaves_out(&mut self, act: Act, path: &str) -> bool {
        if self.running.is_none() && self.left_out.is_none() {
            return false;
        }
        let step = Step { act, on: kind_of(path), site: site(Location::caller()) };
        let left_out = self.left_out.as_ref() == Some(&step);
        if let Some(running) = &mut self.running {
            running.steps.insert(step);
        }
        left_out
    }

    pub(super) fn take(&mut self) -> Option<Trace> {
        let Running { before, entries, steps } = self.running.take()?;
        Some(Trace { before, entries, steps })
    }
}

fn site(location: &Location<'_>) -> String {
    let file = location.file();
    let file = file.split_once("src/").map_or(file, |(_, file)| file);
    format!("{file}:{}", location.line())
}

/// The last name of a path, without what differs between two files of a kind.
fn kind_of(path: &str) -> String {
    let name = Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or("/");
    if layout::parse_folder_name(name).is_some() {
        return "<partition>".to_string();
    }
    let digits = name.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 20 { format!("<offset>{}", &name[digits..]) } else { name.to_string() }
}

/// What was recorded.
pub struct Trace {
    before: Box<State>,
    entries: Vec<Entry>,
    steps: BTreeSet<Step>,
}

impl Trace {
    /// The steps that were made.
    pub fn steps(&self) -> &BTreeSet<Step> {
        &self.steps
    }

    /// Stands before the first entry.
    pub fn replay(&self) -> Replay<'_> {
        Replay { trace: self, at: 0, nodes: self.before.nodes.clone() }
    }
}

/// A moment of a [`Trace`].
pub struct Replay<'a> {
    trace: &'a Trace,
    at: usize,
    nodes: BTreeMap<NodeId, Node>,
}

impl Replay<'_> {
    /// How many entries lie behind.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Whether the next entry is a sync, or none follows: the moments at which most lies in between.
    pub fn is_full(&self) -> bool {
        match self.trace.entries.get(self.at) {
            None | Some(Entry::SyncFile(_) | Entry::SyncDir(_) | Entry::SyncAll) => true,
            Some(Entry::Made(..) | Entry::Bytes(..) | Entry::Name(..)) => false,
        }
    }

    /// Goes one entry on; false at the end.
    pub fn advance(&mut self) -> bool {
        let Some(entry) = self.trace.entries.get(self.at) else { return false };
        self.at += 1;
        match entry {
            Entry::Made(id, true) => {
                self.nodes.insert(*id, Node::Dir(DirNode::default()));
            }
            Entry::Made(id, false) => {
                self.nodes.insert(*id, Node::File(FileNode::default()));
            }
            Entry::Bytes(id, op) => {
                if let Some(Node::File(file)) = self.nodes.get_mut(id) {
                    file.pending.push(op.clone());
                }
            }
            Entry::Name(id, op) => {
                if let Some(Node::Dir(dir)) = self.nodes.get_mut(id) {
                    dir.pending.push(op.clone());
                }
            }
            Entry::SyncFile(id) | Entry::SyncDir(id) => {
                if let Some(node) = self.nodes.get_mut(id) {
                    settle(node);
                }
            }
            Entry::SyncAll => self.nodes.values_mut().for_each(settle),
        }
        true
    }

    /// What a crash at this moment may leave: all of it where `effort` suffices, else the extremes and a
    /// sample that is the same every time.
    pub fn states(&self, effort: Effort) -> impl Iterator<Item = MemDisk> + '_ {
        let parts = legal::parts(&self.nodes);
        effort.choices(parts, self.at as u64).map(move |choice| {
            let nodes = legal::after(&self.nodes, &mut |part| choice[part]);
            MemDisk::of(self.trace.before.started_again(nodes))
        })
    }
}

fn settle(node: &mut Node) {
    match node {
        Node::File(file) => {
            for op in std::mem::take(&mut file.pending) {
                apply_file(&mut file.durable, &op);
            }
        }
        Node::Dir(dir) => {
            for op in std::mem::take(&mut dir.pending) {
                apply_dir(&mut dir.durable, &op);
            }
        }
    }
}
