//! What was found damaged in a data directory since it was opened: by opening logs, by reading them.
//!
//! Damaged bytes are never cut and never served; whoever reads them gets an error, and everything around them goes
//! on. This book is what an operator is told from.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use parking_lot::Mutex;

use crate::error::Damaged;

/// Places kept at most: beyond that it is the disk that is damaged, and the list helps nobody.
const PLACES: usize = 1_000;

type Listener = Box<dyn Fn(&Damaged) + Send + Sync>;

/// See the module.
#[derive(Default)]
pub struct DamageBook {
    places: Mutex<BTreeMap<(PathBuf, u64), Damaged>>,
    listener: OnceLock<Listener>,
}

impl DamageBook {
    /// `listener` hears of each place once, from now on. Only the first listener counts.
    pub fn listen(&self, listener: impl Fn(&Damaged) + Send + Sync + 'static) {
        let _ = self.listener.set(Box::new(listener));
    }

    /// Notes a place, and tells of it if it is new.
    pub fn note(&self, damaged: &Damaged) {
        {
            let mut places = self.places.lock();
            let key = (damaged.segment.clone(), damaged.position);
            if places.contains_key(&key) || places.len() >= PLACES {
                return;
            }
            places.insert(key, damaged.clone());
        }
        if let Some(listener) = self.listener.get() {
            listener(damaged);
        }
    }

    /// All places, by file and position.
    pub fn all(&self) -> Vec<Damaged> {
        self.places.lock().values().cloned().collect()
    }

    /// The file has left the log, or all files of a folder have.
    pub(crate) fn forget(&self, path: &Path) {
        self.places.lock().retain(|(file, _), _| !file.starts_with(path));
    }
}
