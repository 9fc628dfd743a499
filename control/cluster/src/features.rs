//! Feature levels: what this program could serve, and what the cluster has agreed on.
//!
//! A level is finalised only where everything it promises is served. `transaction.version`, `group.version` and
//! `share.version` therefore stay at 0, which is the same as absent.

use crate::decision::Decision;
use crate::keys::Key;
use crate::state::FinalizedFeatures;
use crate::view::View;

/// A feature and the levels this program serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Supported {
    /// Kafka's name of it.
    pub name: &'static str,
    /// The lowest level.
    pub min: i16,
    /// The highest.
    pub max: i16,
}

/// 4.0-IV3: the newest level that the tools of every Apache Kafka 4.x release know by name. (They resolve names
/// themselves, and fail on a level they do not know.)
pub const METADATA_VERSION: i16 = 25;

/// What this program serves. Kafka's own lowest `metadata.version` is 7 (3.3-IV3).
pub const SUPPORTED: &[Supported] = &[
    Supported { name: "kraft.version", min: 0, max: 1 },
    Supported { name: "metadata.version", min: 7, max: METADATA_VERSION },
];

/// What a new cluster starts with.
pub fn initial() -> FinalizedFeatures {
    let levels = [("kraft.version".to_owned(), 1), ("metadata.version".to_owned(), METADATA_VERSION)];
    FinalizedFeatures { levels: levels.into() }
}

/// Writes the initial levels, unless there are some.
pub fn finalise(view: &View) -> Option<Decision> {
    let missing = view.features().finalized.is_empty();
    missing.then(|| Decision::new().absent(Key::Features).put(Key::Features, &initial()))
}
