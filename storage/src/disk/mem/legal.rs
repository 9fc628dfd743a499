//! Which states a crash may leave, by what POSIX promises, and ext4 and xfs keep to.
//!
//! Everything that a sync covered is there. What was asked since lies in between, and each *part* of it may have
//! happened or not, whatever became of the others:
//!
//! - **A write** is torn in 512-byte pieces of the file, the unit that devices write as one. Any of them may have
//!   reached the disk: the kernel writes back pages in any order, and a sync in flight may have done any part.
//! - **A file's length** that a write moved up is a part of its own. The pieces that are missing below it read as
//!   zeros: blocks that were allocated and not written (ext4 with delayed allocation, xfs always). A piece that
//!   did arrive carries the length up to its own end with it. The other way round (bytes beyond the length) is
//!   the same as bytes lost.
//! - **A cut** (`ftruncate`, `O_TRUNC`) may be missing though later writes of the same file are there. ext4 and
//!   xfs journal the two in order; POSIX asks for nothing, so neither do we.
//! - **A name** made, renamed or removed is one part each. Journals keep the order of changes of names, POSIX does
//!   not, so any subset is taken. A rename is atomic: the new name is there and the old one is gone, or
//!   neither. Renamed bytes that were not synced are as lost as any others (ext4 writes them back early in some
//!   cases; that is a kindness).
//! - **A folder's removal** is the removal of each name in it, then of its own.
//!
//! A sync of a file says nothing of its name, a sync of a folder nothing of the bytes of its files, and neither
//! anything of the folder above. Bytes whose sync failed are never durable. What is not modelled: damage of bytes
//! that were durable (that is what checksums are for), devices that lie about a sync, and times of files.

use std::collections::{BTreeMap, BTreeSet};

use super::nodes::{Dice, DirNode, DirOp, FileNode, FileOp, Node, NodeId, apply_dir};

/// Bytes that a device writes as one: what survives a torn write is whole pieces of this size.
const SECTOR: usize = 512;

/// How many states are made at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Up to so many parts, every subset of them.
    pub all_of: usize,
    /// Beyond, so many subsets by dice, beside the extremes.
    pub sample: usize,
    /// Beyond `all_of` parts: each part alone there, and each alone missing.
    pub singles: bool,
}

impl Effort {
    /// The subsets, as one flag a part.
    pub(super) fn choices(self, parts: usize, seed: u64) -> impl Iterator<Item = Vec<bool>> {
        let every = parts <= self.all_of;
        let subsets = if every { 1_u64 << parts } else { 0 };
        let all = (0..subsets).map(move |subset| (0..parts).map(|part| subset >> part & 1 == 1).collect());
        let mut dice = Dice::new(seed ^ 0x5EED);
        let extremes = if every { 0 } else { 2 };
        let extremes = (0..extremes).map(move |kept| vec![kept == 1; parts]);
        let singles = if every || !self.singles { 0 } else { 2 * parts };
        let singles = (0..singles).map(move |at| {
            let mut choice = vec![at % 2 == 1; parts];
            choice[at / 2] = at % 2 == 0;
            choice
        });
        let sample = if every { 0 } else { self.sample };
        let sampled = (0..sample).map(move |at| {
            // A crash often comes when next to nothing, or next to everything, was written back.
            let odds = [4, 1, 7][at % 3];
            (0..parts).map(|_| dice.below(8) < odds).collect()
        });
        extremes.chain(all).chain(singles).chain(sampled)
    }
}

/// How many parts lie in between.
pub(super) fn parts(nodes: &BTreeMap<NodeId, Node>) -> usize {
    let mut count = 0;
    after(nodes, &mut |part| {
        count = count.max(part + 1);
        true
    });
    count
}

/// What is left when exactly the parts for which `keep` holds have happened. It is asked in order, once for each.
pub(super) fn after(
    nodes: &BTreeMap<NodeId, Node>,
    keep: &mut dyn FnMut(usize) -> bool,
) -> BTreeMap<NodeId, Node> {
    let named = ever_named(nodes);
    let mut part = 0;
    let mut keep = || {
        part += 1;
        keep(part - 1)
    };
    let mut left = BTreeMap::new();
    for (id, node) in nodes {
        let kept = match node {
            Node::Dir(dir) => {
                let mut names = dir.durable.clone();
                for op in &dir.pending {
                    if keep() {
                        apply_dir(&mut names, op);
                    }
                }
                Node::Dir(DirNode { current: names.clone(), durable: names, pending: Vec::new() })
            }
            // Nobody will ever find it.
            Node::File(_) if !named.contains(id) => continue,
            Node::File(file) => {
                let content = content_after(file, &mut keep);
                Node::File(FileNode {
                    current: content.clone(),
                    durable: content,
                    pending: Vec::new(),
                    modified: file.modified,
                })
            }
        };
        left.insert(*id, kept);
    }
    left
}

/// Whatever has a durable name or may have got one.
fn ever_named(nodes: &BTreeMap<NodeId, Node>) -> BTreeSet<NodeId> {
    let mut named = BTreeSet::new();
    for node in nodes.values() {
        if let Node::Dir(dir) = node {
            named.extend(dir.durable.values());
            named.extend(dir.pending.iter().filter_map(|op| match op {
                DirOp::Insert(_, id) | DirOp::Rename(_, _, id) => Some(*id),
                DirOp::Remove(_) => None,
            }));
        }
    }
    named
}

fn content_after(file: &FileNode, keep: &mut dyn FnMut() -> bool) -> Vec<u8> {
    let mut content = file.durable.clone();
    // How long the file may have been at most: what lies beyond is zeros or nothing.
    let mut longest = content.len();
    // Whether a part before this one changed anything.
    let mut touched = false;
    for op in &file.pending {
        match op {
            FileOp::SetLen(len) => {
                touched = true;
                longest = longest.max(*len);
                if keep() {
                    content.resize(*len, 0);
                }
            }
            FileOp::Write(at, data) => {
                let end = at + data.len();
                if end > longest && keep() && content.len() < end {
                    content.resize(end, 0);
                }
                let mut from = 0;
                while from < data.len() {
                    // Pieces end where sectors of the file end.
                    let len = (SECTOR - (at + from) % SECTOR).min(data.len() - from);
                    let (start, piece) = (at + from, &data[from..from + len]);
                    from += len;
                    let there = !touched && file.durable.get(start..start + len) == Some(piece);
                    let hole = start >= longest && *piece == [0; SECTOR][..len];
                    // The same bytes either way: no part of its own.
                    if there || hole || !keep() {
                        continue;
                    }
                    if content.len() < start + len {
                        content.resize(start + len, 0);
                    }
                    content[start..start + len].copy_from_slice(piece);
                }
                touched = true;
                longest = longest.max(end);
            }
        }
    }
    content
}
