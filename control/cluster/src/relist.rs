//! Comparing a full list of the store with a view: what a watch lost, or everything when there was none yet.

use std::collections::BTreeSet;

use crate::decision::Change;
use crate::keys::Key;
use crate::state::Revision;
use crate::view::View;

/// The changes that turn `view` into what `listed` says was there at `revision`: keys that are newer than known,
/// and deletions of those that are listed no more.
pub fn changes(view: &View, listed: Vec<Change>, revision: Revision) -> Vec<Change> {
    let mut missing: BTreeSet<Key> = view.keys();
    let mut changes: Vec<Change> = Vec::new();
    for entry in listed {
        let Some(key) = Key::parse(&entry.key).filter(View::keeps) else { continue };
        missing.remove(&key);
        if view.revision_of(&key) < entry.revision {
            changes.push(entry);
        }
    }
    let gone = missing.into_iter().map(|key| Change { key: key.to_string(), value: None, revision });
    changes.extend(gone);
    changes
}
