//! Files and folders of a [`super::MemDisk`]: what is there now, what is durable, and what lies between.

use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};

use felix_protocol::time::WallTime;

use super::Counters;
use super::trace::{Entry, Recorder};

pub(super) type NodeId = u64;

pub(super) struct State {
    pub(super) nodes: BTreeMap<NodeId, Node>,
    pub(super) next: NodeId,
    pub(super) locks: Vec<String>,
    pub(super) counters: Counters,
    pub(super) now: WallTime,
    pub(super) capacity: Option<u64>,
    pub(super) syncs_until_failure: Option<u64>,
    pub(super) writes_until_failure: Option<u64>,
    pub(super) unreadable: Option<String>,
    pub(super) cold: bool,
    pub(super) own: bool,
    pub(super) recorder: Recorder,
}

#[derive(Clone)]
pub(super) enum Node {
    File(FileNode),
    Dir(DirNode),
}

#[derive(Clone, Default)]
pub(super) struct FileNode {
    pub(super) current: Vec<u8>,
    pub(super) durable: Vec<u8>,
    pub(super) pending: Vec<FileOp>,
    pub(super) modified: i64,
}

#[derive(Clone)]
pub(super) enum FileOp {
    Write(usize, Vec<u8>),
    SetLen(usize),
}

#[derive(Clone, Default)]
pub(super) struct DirNode {
    pub(super) current: BTreeMap<String, NodeId>,
    pub(super) durable: BTreeMap<String, NodeId>,
    pub(super) pending: Vec<DirOp>,
}

#[derive(Clone)]
pub(super) enum DirOp {
    Insert(String, NodeId),
    Rename(String, String, NodeId),
    Remove(String),
}

pub(super) const ROOT: NodeId = 0;

pub(super) fn apply_file(content: &mut Vec<u8>, op: &FileOp) {
    match op {
        FileOp::Write(at, data) => {
            if content.len() < at + data.len() {
                content.resize(at + data.len(), 0);
            }
            content[*at..at + data.len()].copy_from_slice(data);
        }
        FileOp::SetLen(len) => content.resize(*len, 0),
    }
}

pub(super) fn apply_dir(names: &mut BTreeMap<String, NodeId>, op: &DirOp) {
    match op {
        DirOp::Insert(name, id) => {
            names.insert(name.clone(), *id);
        }
        // One step, also where the old name was never durable.
        DirOp::Rename(from, to, id) => {
            if names.get(from) == Some(id) {
                names.remove(from);
            }
            names.insert(to.clone(), *id);
        }
        DirOp::Remove(name) => {
            names.remove(name);
        }
    }
}

/// A small generator of dice: good enough to choose what a crash leaves, and the same on every machine.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % (bound.max(1) as u64)).unwrap_or(0)
    }
}

pub(super) fn error(kind: io::ErrorKind) -> io::Error {
    kind.into()
}

/// What a broken device answers.
pub(super) fn device_error() -> io::Error {
    io::Error::other("injected device error")
}

impl State {
    pub(super) fn new() -> State {
        let mut nodes = BTreeMap::new();
        nodes.insert(ROOT, Node::Dir(DirNode::default()));
        State {
            nodes,
            next: 1,
            locks: Vec::new(),
            counters: Counters::default(),
            now: WallTime(0),
            capacity: None,
            syncs_until_failure: None,
            writes_until_failure: None,
            unreadable: None,
            cold: false,
            own: true,
            recorder: Recorder::default(),
        }
    }

    /// A machine that starts with these files: nothing is asked of the disk yet, nothing is broken any more.
    pub(super) fn started_again(&self, nodes: BTreeMap<NodeId, Node>) -> State {
        let mut new = State::new();
        let newest = nodes.keys().next_back().copied().unwrap_or(ROOT);
        new.nodes = nodes;
        new.next = self.next.max(newest + 1);
        new.now = self.now;
        new.own = self.own;
        new.recorder.left_out.clone_from(&self.recorder.left_out);
        new
    }

    /// The files as they are, with what lies in between.
    pub(super) fn started_as_it_is(&self) -> State {
        self.started_again(self.nodes.clone())
    }

    pub(super) fn names(path: &Path) -> Vec<String> {
        path.components()
            .filter_map(|part| match part {
                Component::Normal(name) => name.to_str().map(str::to_string),
                Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => None,
            })
            .collect()
    }

    pub(super) fn find(&self, path: &Path) -> io::Result<NodeId> {
        let mut at = ROOT;
        for name in Self::names(path) {
            at = *self.dir(at)?.current.get(&name).ok_or_else(|| error(io::ErrorKind::NotFound))?;
        }
        Ok(at)
    }

    pub(super) fn dir(&self, id: NodeId) -> io::Result<&DirNode> {
        match self.nodes.get(&id) {
            Some(Node::Dir(dir)) => Ok(dir),
            Some(Node::File(_)) => Err(error(io::ErrorKind::NotADirectory)),
            None => Err(error(io::ErrorKind::NotFound)),
        }
    }

    pub(super) fn dir_mut(&mut self, id: NodeId) -> io::Result<&mut DirNode> {
        match self.nodes.get_mut(&id) {
            Some(Node::Dir(dir)) => Ok(dir),
            Some(Node::File(_)) => Err(error(io::ErrorKind::NotADirectory)),
            None => Err(error(io::ErrorKind::NotFound)),
        }
    }

    pub(super) fn file(&self, id: NodeId) -> io::Result<&FileNode> {
        match self.nodes.get(&id) {
            Some(Node::File(file)) => Ok(file),
            Some(Node::Dir(_)) => Err(error(io::ErrorKind::IsADirectory)),
            None => Err(error(io::ErrorKind::NotFound)),
        }
    }

    pub(super) fn file_mut(&mut self, id: NodeId) -> io::Result<&mut FileNode> {
        match self.nodes.get_mut(&id) {
            Some(Node::File(file)) => Ok(file),
            Some(Node::Dir(_)) => Err(error(io::ErrorKind::IsADirectory)),
            None => Err(error(io::ErrorKind::NotFound)),
        }
    }

    /// The folder that holds `path`, and the last name.
    pub(super) fn parent(&self, path: &Path) -> io::Result<(NodeId, String)> {
        let mut names = Self::names(path);
        let last = names.pop().ok_or_else(|| error(io::ErrorKind::InvalidInput))?;
        let parent = self.find(&names.iter().collect::<PathBuf>())?;
        self.dir(parent)?;
        Ok((parent, last))
    }

    pub(super) fn change(&mut self, dir: NodeId, op: DirOp) -> io::Result<()> {
        self.recorder.note(|| Entry::Name(dir, op.clone()));
        let dir = self.dir_mut(dir)?;
        apply_dir(&mut dir.current, &op);
        dir.pending.push(op);
        Ok(())
    }

    /// Changes a file's bytes or length.
    pub(super) fn write(&mut self, id: NodeId, op: FileOp) -> io::Result<()> {
        self.recorder.note(|| Entry::Bytes(id, op.clone()));
        let now = self.now.0;
        let file = self.file_mut(id)?;
        file.modified = now;
        apply_file(&mut file.current, &op);
        file.pending.push(op);
        Ok(())
    }

    /// Removes what is in a folder, one name after another.
    pub(super) fn empty_dir(&mut self, id: NodeId) -> io::Result<()> {
        for (name, child) in self.dir(id)?.current.clone() {
            if matches!(self.nodes.get(&child), Some(Node::Dir(_))) {
                self.empty_dir(child)?;
            }
            self.change(id, DirOp::Remove(name))?;
        }
        Ok(())
    }

    pub(super) fn insert(&mut self, dir: NodeId, name: String, node: Node) -> io::Result<NodeId> {
        let id = self.next;
        self.next += 1;
        self.recorder.note(|| Entry::Made(id, matches!(node, Node::Dir(_))));
        self.nodes.insert(id, node);
        self.change(dir, DirOp::Insert(name, id))?;
        Ok(id)
    }

    pub(super) fn used(&self) -> u64 {
        self.nodes
            .values()
            .map(|node| match node {
                Node::File(file) => file.current.len() as u64,
                Node::Dir(_) => 0,
            })
            .sum()
    }

    /// Takes one step of a countdown to a failure; whether the failure is now (and from now on).
    pub(super) fn count_down(left: &mut Option<u64>) -> bool {
        match left {
            Some(0) => true,
            Some(more) => {
                *more -= 1;
                false
            }
            None => false,
        }
    }

    pub(super) fn sync_file(&mut self, id: NodeId) -> io::Result<()> {
        let failing = Self::count_down(&mut self.syncs_until_failure);
        let file = self.file_mut(id)?;
        let pending = std::mem::take(&mut file.pending);
        if failing {
            // Dropped like the kernel drops pages whose write-back failed: readable, never durable.
            self.syncs_until_failure = None;
            return Err(device_error());
        }
        for op in &pending {
            apply_file(&mut file.durable, op);
        }
        self.recorder.note(|| Entry::SyncFile(id));
        Ok(())
    }

    pub(super) fn sync_names(&mut self, id: NodeId) -> io::Result<()> {
        if Self::count_down(&mut self.syncs_until_failure) {
            self.syncs_until_failure = None;
            return Err(device_error());
        }
        let dir = self.dir_mut(id)?;
        for op in std::mem::take(&mut dir.pending) {
            apply_dir(&mut dir.durable, &op);
        }
        self.recorder.note(|| Entry::SyncDir(id));
        Ok(())
    }

    /// Makes everything durable, as far as the device takes it.
    pub(super) fn sync_all(&mut self) -> io::Result<()> {
        let failing = Self::count_down(&mut self.syncs_until_failure);
        for node in self.nodes.values_mut() {
            match node {
                Node::File(file) => {
                    for op in std::mem::take(&mut file.pending) {
                        if !failing {
                            apply_file(&mut file.durable, &op);
                        }
                    }
                }
                Node::Dir(dir) => {
                    for op in std::mem::take(&mut dir.pending) {
                        apply_dir(&mut dir.durable, &op);
                    }
                }
            }
        }
        if failing {
            self.syncs_until_failure = None;
            return Err(device_error());
        }
        self.recorder.note(|| Entry::SyncAll);
        Ok(())
    }
}
