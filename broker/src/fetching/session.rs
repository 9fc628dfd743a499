//! Fetch sessions (KIP-227): the broker remembers which partitions a consumer reads and how far it has got, so
//! that a request names only what changed, and an answer only what is new.
//!
//! The cache is bounded in sessions and in partitions. When it is full, the session that has not been used for
//! the longest time makes room, if that time is long enough; otherwise the newcomer is answered without a session
//! (id 0), which every client understands. Entries are keyed by topic id where the client speaks of ids, so that a
//! topic created again under the same name is another topic.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::time::Duration;

use felix_protocol::ids::{Offset, TopicId};
use felix_protocol::messages::TopicName;
use felix_protocol::time::MonoTime;
use indexmap::IndexMap;
use parking_lot::Mutex;
use thiserror::Error;

/// A session that was used within this time is not evicted.
const EVICT_AFTER: Duration = Duration::from_secs(120);
/// Partitions that all sessions together may remember.
const MOST_PARTITIONS: usize = 500_000;

/// How a client names a topic.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TopicKey {
    /// By name, up to version 12.
    Name(TopicName),
    /// By id, from version 13 on.
    Id(TopicId),
}

/// One partition of a topic as a client names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The topic.
    pub topic: TopicKey,
    /// The partition's number.
    pub partition: i32,
}

/// What a client wants of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// From where on.
    pub offset: Offset,
    /// At most so many bytes, unless the first batch is larger.
    pub max_bytes: i32,
    /// The leader epoch that the client believes in, or -1.
    pub current_epoch: i32,
    /// The epoch of the last record that the client has, or -1.
    pub last_epoch: i32,
}

/// What a session remembers of a partition.
#[derive(Clone, Debug)]
struct Remembered {
    wanted: Wanted,
    /// The high watermark that was last told; -1 when the partition must be told again.
    mark: Offset,
    log_start: Offset,
}

/// What was found out about a partition, as far as a session must know.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    /// The high watermark.
    pub mark: Offset,
    /// The log start.
    pub log_start: Offset,
    /// Whether records go with it.
    pub has_records: bool,
    /// Whether something must be told in any case: a diverging epoch.
    pub urgent: bool,
    /// Whether it is an error.
    pub failed: bool,
}

/// Why a session cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SessionError {
    /// The cache does not hold it (any more).
    #[error("no such fetch session")]
    NotFound,
    /// Another request was expected.
    #[error("the fetch session is at another epoch")]
    WrongEpoch,
    /// The session names topics by name and the request by id, or the other way round.
    #[error("the fetch session names topics in another way")]
    OtherNaming,
}

/// What a request is, by its session id and epoch.
#[derive(Debug)]
pub enum Context {
    /// Full, and nothing is remembered.
    Sessionless,
    /// Full, and to be remembered; the cache decides when the answer is there.
    New,
    /// Part of a session.
    Incremental(Arc<Mutex<Session>>),
}

/// One consumer's session.
#[derive(Debug)]
pub struct Session {
    id: i32,
    epoch: i32,
    by_id: bool,
    partitions: IndexMap<Key, Remembered>,
    /// Where the next answer begins, so that a partition full of records does not starve those behind it.
    first: usize,
}

/// All sessions of this broker.
pub struct Sessions {
    cache: Mutex<Cache>,
    dice: RandomState,
}

#[derive(Default)]
struct Cache {
    sessions: HashMap<i32, Entry>,
    partitions: usize,
    drawn: u64,
}

struct Entry {
    session: Arc<Mutex<Session>>,
    used_at: MonoTime,
    partitions: usize,
}

/// Epochs count from 1 to the largest number and begin again at 1.
fn next_epoch(epoch: i32) -> i32 {
    epoch.checked_add(1).unwrap_or(1)
}

impl Session {
    /// Its id.
    pub fn id(&self) -> i32 {
        self.id
    }

    /// Every partition, those that were behind the last records first.
    pub fn wanted(&self) -> Vec<(Key, Wanted)> {
        let count = self.partitions.len();
        let first = if self.first < count { self.first } else { 0 };
        let (before, behind) = self.partitions.as_slice().split_at(first);
        behind.iter().chain(before.iter()).map(|(key, remembered)| (key.clone(), remembered.wanted)).collect()
    }

    /// Takes the request's changes in.
    fn change(&mut self, changed: Vec<(Key, Wanted)>, forgotten: &[Key]) {
        for (key, wanted) in changed {
            match self.partitions.get_mut(&key) {
                Some(remembered) => remembered.wanted = wanted,
                None => {
                    self.partitions.insert(key, Remembered { wanted, mark: -1, log_start: -1 });
                }
            }
        }
        for key in forgotten {
            self.partitions.shift_remove(key);
        }
    }

    /// Whether the answer must name this partition; notes what it is told.
    pub fn tell(&mut self, key: &Key, told: Told) -> bool {
        let Some(at) = self.partitions.get_index_of(key) else { return true };
        let remembered = &mut self.partitions[at];
        let news = told.has_records
            || told.urgent
            || told.failed
            || remembered.mark != told.mark
            || remembered.log_start != told.log_start;
        // After an error the partition is told again, even if nothing else changes.
        remembered.mark = if told.failed { -1 } else { told.mark };
        remembered.log_start = told.log_start;
        if told.has_records {
            self.first = at + 1;
        }
        news
    }
}

impl Sessions {
    /// No sessions yet.
    pub fn new() -> Sessions {
        Sessions { cache: Mutex::default(), dice: RandomState::new() }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.cache.lock().sessions.len()
    }

    /// Tells what a request is, and takes its changes into its session.
    pub fn open(
        &self,
        (id, epoch): (i32, i32),
        by_id: bool,
        changed: &mut Vec<(Key, Wanted)>,
        forgotten: &[Key],
        now: MonoTime,
    ) -> Result<Context, SessionError> {
        if epoch <= 0 {
            // -1 ends a session, 0 begins one; both end the one that is named.
            self.close(id);
            return Ok(if epoch == 0 { Context::New } else { Context::Sessionless });
        }
        let mut cache = self.cache.lock();
        let cache = &mut *cache;
        let entry = cache.sessions.get_mut(&id).ok_or(SessionError::NotFound)?;
        let shared = Arc::clone(&entry.session);
        let mut session = shared.lock();
        if session.epoch != epoch {
            return Err(SessionError::WrongEpoch);
        }
        if session.by_id != by_id && !(changed.is_empty() && forgotten.is_empty()) {
            return Err(SessionError::OtherNaming);
        }
        session.change(std::mem::take(changed), forgotten);
        session.epoch = next_epoch(epoch);
        entry.used_at = now;
        cache.partitions = cache.partitions - entry.partitions + session.partitions.len();
        entry.partitions = session.partitions.len();
        drop(session);
        Ok(Context::Incremental(shared))
    }

    /// Remembers a full request; `None` when there is no room.
    pub fn create(
        &self,
        by_id: bool,
        wanted: Vec<(Key, Wanted)>,
        most: usize,
        now: MonoTime,
    ) -> Option<(Arc<Mutex<Session>>, usize)> {
        let mut cache = self.cache.lock();
        let mut evicted = 0;
        while cache.sessions.len() >= most || cache.partitions + wanted.len() > MOST_PARTITIONS {
            cache.evict(now)?;
            evicted += 1;
        }
        let id = loop {
            cache.drawn += 1;
            let mut hasher = self.dice.build_hasher();
            hasher.write_u64(cache.drawn);
            let id = i32::try_from(hasher.finish() & 0x7fff_ffff).unwrap_or(1);
            if id != 0 && !cache.sessions.contains_key(&id) {
                break id;
            }
        };
        let mut session = Session { id, epoch: 1, by_id, partitions: IndexMap::new(), first: 0 };
        session.change(wanted, &[]);
        let partitions = session.partitions.len();
        let session = Arc::new(Mutex::new(session));
        cache.partitions += partitions;
        cache.sessions.insert(id, Entry { session: Arc::clone(&session), used_at: now, partitions });
        Some((session, evicted))
    }

    /// Forgets a session, if it is there.
    pub fn close(&self, id: i32) {
        let mut cache = self.cache.lock();
        if let Some(entry) = cache.sessions.remove(&id) {
            cache.partitions -= entry.partitions;
        }
    }
}

impl Cache {
    /// Drops the session that was not used for the longest time, if that is long enough.
    fn evict(&mut self, now: MonoTime) -> Option<()> {
        let (id, used_at) = self.oldest()?;
        if now.since(used_at) < EVICT_AFTER {
            return None;
        }
        let entry = self.sessions.remove(&id)?;
        self.partitions -= entry.partitions;
        Some(())
    }

    #[expect(clippy::iter_over_hash_type, reason = "a minimum does not depend on the order")]
    fn oldest(&self) -> Option<(i32, MonoTime)> {
        let mut oldest: Option<(i32, MonoTime)> = None;
        for (id, entry) in &self.sessions {
            if oldest.is_none_or(|(_, used_at)| entry.used_at < used_at) {
                oldest = Some((*id, entry.used_at));
            }
        }
        oldest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use felix_protocol::messages::StrBytes;

    const SECOND: u64 = 1_000_000_000;

    fn key(partition: i32) -> Key {
        Key { topic: TopicKey::Name(TopicName(StrBytes::from_static_str("t"))), partition }
    }

    fn wanted(offset: Offset) -> Wanted {
        Wanted { offset, max_bytes: 100, current_epoch: -1, last_epoch: -1 }
    }

    fn told(mark: Offset) -> Told {
        Told { mark, log_start: 0, has_records: false, urgent: false, failed: false }
    }

    fn create(sessions: &Sessions, partitions: i32, now: u64) -> Option<Arc<Mutex<Session>>> {
        let all = (0..partitions).map(|partition| (key(partition), wanted(0))).collect();
        sessions.create(false, all, 10, MonoTime(now)).map(|(session, _)| session)
    }

    fn incremental(sessions: &Sessions, id: i32, epoch: i32) -> Result<Vec<(Key, Wanted)>, SessionError> {
        match sessions.open((id, epoch), false, &mut Vec::new(), &[], MonoTime(0))? {
            Context::Incremental(session) => Ok(session.lock().wanted()),
            Context::New | Context::Sessionless => panic!("not incremental"),
        }
    }

    #[test]
    fn a_session_follows_changes_and_forgets() {
        let sessions = Sessions::new();
        let session = create(&sessions, 3, 0).unwrap();
        let id = session.lock().id();
        let mut changed = vec![(key(1), wanted(7)), (key(3), wanted(9))];
        let context = sessions.open((id, 1), false, &mut changed, &[key(0)], MonoTime(0)).unwrap();
        let Context::Incremental(session) = context else { panic!("not incremental") };
        let now: Vec<_> =
            session.lock().wanted().iter().map(|(key, one)| (key.partition, one.offset)).collect();
        assert_eq!(now, [(1, 7), (2, 0), (3, 9)]);
        assert_eq!(incremental(&sessions, id, 1), Err(SessionError::WrongEpoch));
        assert_eq!(incremental(&sessions, id, 2).unwrap().len(), 3);
        assert_eq!(incremental(&sessions, id + 1, 3), Err(SessionError::NotFound));
        let mut by_id = vec![(key(1), wanted(7))];
        let other = sessions.open((id, 3), true, &mut by_id, &[], MonoTime(0));
        assert_eq!(other.err(), Some(SessionError::OtherNaming));
        assert!(matches!(
            sessions.open((id, -1), false, &mut Vec::new(), &[], MonoTime(0)),
            Ok(Context::Sessionless)
        ));
        assert_eq!(sessions.count(), 0);
    }

    #[test]
    fn only_news_is_told_and_errors_are_told_again() {
        let sessions = Sessions::new();
        let session = create(&sessions, 2, 0).unwrap();
        let mut session = session.lock();
        assert!(session.tell(&key(0), told(5)));
        assert!(!session.tell(&key(0), told(5)));
        assert!(session.tell(&key(0), told(6)));
        assert!(session.tell(&key(0), Told { failed: true, ..told(6) }));
        assert!(session.tell(&key(0), told(6)), "after an error");
        assert!(session.tell(&key(0), Told { has_records: true, ..told(6) }));
        let order: Vec<_> = session.wanted().iter().map(|(key, _)| key.partition).collect();
        assert_eq!(order, [1, 0], "whoever got records comes last next time");
    }

    #[test]
    fn the_cache_is_bounded_and_only_old_sessions_make_room() {
        let sessions = Sessions::new();
        for at in 0..10 {
            assert!(create(&sessions, 5, at * SECOND).is_some());
        }
        assert!(create(&sessions, 5, 60 * SECOND).is_none());
        for _ in 0..2000 {
            create(&sessions, 5, 1000 * SECOND);
        }
        assert_eq!(sessions.count(), 10);
        assert_eq!(sessions.cache.lock().partitions, 50);
        let all: Vec<_> = (0..600_000).map(|partition| (key(partition), wanted(0))).collect();
        assert!(sessions.create(false, all, 10, MonoTime(1001 * SECOND)).is_none());
    }

    #[test]
    fn epochs_begin_again_at_one() {
        assert_eq!(next_epoch(1), 2);
        assert_eq!(next_epoch(i32::MAX), 1);
    }
}
