//! What was found damaged in a data directory: by opening logs, by reading them, by the scrub.
//!
//! Damaged bytes are never cut and never served; whoever reads them gets an error, and everything around them goes
//! on. There is one door for all of it. [`DamageBook`] holds every place since the start: an operator is told from
//! it. What was met while a copy was in use is kept apart until the copy's owner has settled it
//! ([`DamageBook::take_unsettled`]): it makes a note durable ([`remember`]), gives the copy a new log id, and opens
//! the log again around the damage. A note stands beside the segment (`.damaged`) and makes every later open look
//! through the segment, sealed or not. Its text is for people; it goes with the damage.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use felix_protocol::ids::PartitionId;
use parking_lot::Mutex;

use crate::data_dir::DataDir;
use crate::disk::Disk;
use crate::error::{Damaged, StorageError};
use crate::layout::{self, Kind};

/// Places kept at most: beyond that it is the disk that is damaged, and the list helps nobody.
const PLACES: usize = 1_000;

type Listener = Box<dyn Fn(&Damaged) + Send + Sync>;
type Waker = Box<dyn Fn() + Send + Sync>;
type Place = (PathBuf, u64);

/// See the module.
#[derive(Default)]
pub struct DamageBook {
    inner: Mutex<Inner>,
    listener: OnceLock<Listener>,
    waker: OnceLock<Waker>,
}

#[derive(Default)]
struct Inner {
    places: BTreeMap<Place, Damaged>,
    /// Whatever was ever noted: a place that was settled once does not disturb its copy again, even if it comes and
    /// goes.
    known: BTreeSet<Place>,
    unsettled: BTreeMap<PartitionId, Vec<Damaged>>,
}

impl DamageBook {
    /// `listener` hears of each place once, from now on. Only the first listener counts.
    pub fn listen(&self, listener: impl Fn(&Damaged) + Send + Sync + 'static) {
        let _ = self.listener.set(Box::new(listener));
    }

    /// `wake` is called when there is something to take ([`DamageBook::take_unsettled`]). Only the first one counts.
    pub fn wake(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.waker.set(Box::new(wake));
    }

    /// Notes a place that an open found, and tells of it if it is new.
    pub(crate) fn note(&self, damaged: &Damaged) {
        if self.enter(damaged, |_| {}) {
            self.tell(damaged);
        }
    }

    /// Notes a place that was met while the copy was in use.
    pub(crate) fn meet(&self, partition: PartitionId, damaged: &Damaged) {
        let new = self.enter(damaged, |unsettled| {
            unsettled.entry(partition).or_default().push(damaged.clone());
        });
        if new {
            self.tell(damaged);
            if let Some(wake) = self.waker.get() {
                wake();
            }
        }
    }

    fn enter(&self, damaged: &Damaged, also: impl FnOnce(&mut BTreeMap<PartitionId, Vec<Damaged>>)) -> bool {
        let mut inner = self.inner.lock();
        let place = (damaged.segment.clone(), damaged.position);
        if inner.places.contains_key(&place) || inner.known.len() >= PLACES {
            return false;
        }
        inner.places.insert(place.clone(), damaged.clone());
        let new = inner.known.insert(place);
        if new {
            also(&mut inner.unsettled);
        }
        new
    }

    fn tell(&self, damaged: &Damaged) {
        if let Some(listener) = self.listener.get() {
            listener(damaged);
        }
    }

    /// What was met in copies in use since this was asked last.
    pub fn take_unsettled(&self) -> BTreeMap<PartitionId, Vec<Damaged>> {
        std::mem::take(&mut self.inner.lock().unsettled)
    }

    /// All places, by file and position.
    pub fn all(&self) -> Vec<Damaged> {
        self.inner.lock().places.values().cloned().collect()
    }

    /// How many they are.
    pub fn count(&self) -> usize {
        self.inner.lock().places.len()
    }

    /// The file has left the log, or is right again; or all files of a folder have.
    pub(crate) fn forget(&self, path: &Path) {
        self.inner.lock().places.retain(|(file, _), _| !file.starts_with(path));
    }
}

/// Makes it durable that a segment is damaged, for every open to come.
pub fn remember<D: Disk>(dir: &DataDir<D>, damaged: &Damaged) -> Result<(), StorageError> {
    let name = damaged.segment.file_name().and_then(|name| name.to_str()).and_then(layout::parse_file_name);
    let (Some((base, Kind::Log)), Some(folder)) = (name, damaged.segment.parent()) else { return Ok(()) };
    let text = format!("{damaged}\n");
    layout::write_durably(dir.disk(), folder, &layout::file_name(base, Kind::Damage), text.as_bytes())
}

#[cfg(test)]
mod tests {
    use felix_protocol::ids::{TopicId, Uuid};

    use super::*;

    fn damaged(file: &str, position: u64) -> Damaged {
        let reason = "test".to_string();
        Damaged { segment: PathBuf::from(file), position, offset: 1, promised: true, reason }
    }

    #[test]
    fn each_place_is_told_once_and_settled_once() {
        let book = DamageBook::default();
        let told = std::sync::Arc::new(Mutex::new(Vec::new()));
        let hears = told.clone();
        book.listen(move |damaged| hears.lock().push(damaged.position));
        let partition = PartitionId { topic: TopicId(Uuid::from_u128(1)), index: 0 };
        book.note(&damaged("a/0.log", 1));
        book.meet(partition, &damaged("a/0.log", 1));
        assert!(book.take_unsettled().is_empty(), "the open knew");
        book.meet(partition, &damaged("a/0.log", 7));
        book.meet(partition, &damaged("a/0.log", 7));
        assert_eq!(book.take_unsettled()[&partition], [damaged("a/0.log", 7)]);
        assert_eq!(*told.lock(), [1, 7]);
        // It was right when it was looked at again, and then was not: shown, but the copy is left alone.
        book.forget(Path::new("a/0.log"));
        assert!(book.all().is_empty());
        book.meet(partition, &damaged("a/0.log", 7));
        assert_eq!(book.count(), 1);
        assert!(book.take_unsettled().is_empty());
    }

    #[test]
    fn a_disk_full_of_damage_fills_no_memory() {
        let book = DamageBook::default();
        for at in 0..3_000 {
            book.note(&damaged("a/0.log", at));
        }
        assert_eq!(book.count(), PLACES);
    }
}
