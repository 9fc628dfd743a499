//! Feature levels: what this program could serve, and what the cluster has agreed on.
//!
//! A level is finalised only where everything it promises is served. `transaction.version`, `group.version` and
//! `share.version` therefore stay at 0, which is the same as absent.

use std::collections::BTreeSet;

use thiserror::Error;

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

/// How a level may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Only up.
    Upgrade,
    /// Only down.
    Downgrade,
}

/// One feature's new level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// Its name.
    pub name: String,
    /// The level; 0 takes the feature away.
    pub level: i16,
    /// What the operator expects of it.
    pub direction: Direction,
}

/// Why levels stay as they are.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UpdateRefused {
    /// A feature twice.
    #[error("feature {0} is in the request more than once")]
    Twice(String),
    /// A level below 0.
    #[error("Invalid update version {level} for feature {name}. A feature version cannot be less than 0.")]
    Negative {
        /// The feature.
        name: String,
        /// The level.
        level: i16,
    },
    /// A level that is not served.
    #[error(
        "Invalid update version {level} for feature {name}. This cluster only supports versions {min} to {max} of it"
    )]
    Unsupported {
        /// The feature.
        name: String,
        /// The level.
        level: i16,
        /// The lowest that is served; 0 and no higher: the feature is not known.
        min: i16,
        /// The highest.
        max: i16,
    },
    /// Down, where the operator meant up.
    #[error(
        "Invalid update version {level} for feature {name}. Can't downgrade the version of this feature without setting the \
         upgrade type to either safe or unsafe downgrade."
    )]
    Downgrade {
        /// The feature.
        name: String,
        /// The level.
        level: i16,
    },
    /// Up, where the operator meant down.
    #[error("Invalid update version {level} for feature {name}. Can't downgrade to a newer version.")]
    Upgrade {
        /// The feature.
        name: String,
        /// The level.
        level: i16,
    },
}

/// Changes levels, all or none. `None` when all are so already.
pub fn update(view: &View, updates: &[Update]) -> Result<Option<Decision>, UpdateRefused> {
    let before = &view.features().finalized;
    let mut levels = before.clone();
    let mut seen = BTreeSet::new();
    for update in updates {
        let (name, level) = (update.name.clone(), update.level);
        if !seen.insert(&update.name) {
            return Err(UpdateRefused::Twice(name));
        }
        if level < 0 {
            return Err(UpdateRefused::Negative { name, level });
        }
        let supported = SUPPORTED.iter().find(|one| one.name == name);
        let (min, max) = supported.map_or((0, 0), |one| (one.min, one.max));
        if level < min || level > max {
            return Err(UpdateRefused::Unsupported { name, level, min, max });
        }
        let current = before.get(&name).copied().unwrap_or(0);
        match update.direction {
            Direction::Upgrade if level < current => return Err(UpdateRefused::Downgrade { name, level }),
            Direction::Downgrade if level > current => return Err(UpdateRefused::Upgrade { name, level }),
            Direction::Upgrade | Direction::Downgrade => {}
        }
        if level == 0 {
            levels.remove(&name);
        } else {
            levels.insert(name, level);
        }
    }
    let decision = Decision::new().at(Key::Features, view.revision_of(&Key::Features));
    Ok((levels != *before).then(|| decision.put(Key::Features, &FinalizedFeatures { levels })))
}

#[cfg(test)]
mod tests;
