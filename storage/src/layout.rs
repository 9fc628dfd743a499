//! Names and formats of the files in a data directory: Apache Kafka's own, so that its dump tool reads them.
//!
//! ```text
//! <data dir>/.lock                        held with flock while a process owns the directory
//! <data dir>/meta.properties              whose directory it is
//! <data dir>/replicas.table               what must be durable about all copies (see `replicas`)
//! <data dir>/<topic id>-<partition>/      one copy
//!     partition.metadata                  the topic id again
//!     leader-epoch-checkpoint             {generation -> first offset}
//!     00000000000000000000.log            a segment; the number is its base offset
//!     00000000000000000000.index          sparse: offset -> position
//!     00000000000000000000.timeindex      sparse: greatest timestamp so far -> offset
//!     00000000000000000000.snapshot       producers as of that offset
//!     00000000000000000000.txnindex       aborted transactions
//!     00000000000000000000.seal           checksum of a closed segment (see `seal`; not one of Kafka's)
//!     00000000000000000000.damaged        where it was found damaged (see `damage`; not one of Kafka's)
//! ```
//!
//! A name with `.deleted` appended, or a folder ending in `-delete`, waits to be removed. A name with `.tmp`
//! appended was never finished, nor was one with `.cleaned` unless there is one with `.swap`: that is a compacted
//! segment on the way to its place, and the next open brings it there.

use std::path::{Path, PathBuf};

use felix_protocol::generation_map::GenerationMap;
use felix_protocol::ids::{Generation, Offset, PartitionId, TopicId};

use crate::data_dir::Identity;
use crate::disk::{Disk, DiskFile, OpenMode, write_all_at};
use crate::error::{Doing, StorageError};

/// The lock of a data directory.
pub const LOCK: &str = ".lock";
/// Whose data directory it is.
pub const META_PROPERTIES: &str = "meta.properties";
/// The table of copies.
pub const REPLICAS: &str = "replicas.table";
/// The topic id in a partition's folder.
pub const PARTITION_METADATA: &str = "partition.metadata";
/// The generation map in a partition's folder.
pub const EPOCH_CHECKPOINT: &str = "leader-epoch-checkpoint";
/// Appended to the name of a file that waits to be removed.
pub const DELETED: &str = ".deleted";
/// Appended to the name of a file that is being written.
pub const UNFINISHED: &str = ".tmp";
/// Appended to the name of a file that says nothing and was put aside.
pub const ASIDE: &str = ".unreadable";
/// Appended to the name of a file that compaction is writing.
pub const CLEANED: &str = ".cleaned";
/// Appended to the name of a compacted segment that counts, and whose place is being made free.
pub const SWAP: &str = ".swap";
/// Ends the name of a folder that waits to be removed.
pub const DELETED_FOLDER: &str = "-delete";

/// The kinds of files that carry an offset in their name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Record batches.
    Log,
    /// Offset index.
    Index,
    /// Time index.
    TimeIndex,
    /// Producers.
    Snapshot,
    /// Aborted transactions.
    TxnIndex,
    /// The checksum of a closed segment.
    Seal,
    /// That the segment was found damaged, and where.
    Damage,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 7] =
        [Kind::Log, Kind::Index, Kind::TimeIndex, Kind::Snapshot, Kind::TxnIndex, Kind::Seal, Kind::Damage];

    /// The name's ending, without the dot.
    pub fn ending(self) -> &'static str {
        match self {
            Kind::Log => "log",
            Kind::Index => "index",
            Kind::TimeIndex => "timeindex",
            Kind::Snapshot => "snapshot",
            Kind::TxnIndex => "txnindex",
            Kind::Seal => "seal",
            Kind::Damage => "damaged",
        }
    }
}

/// The name of a file of `kind` at `offset`.
pub fn file_name(offset: Offset, kind: Kind) -> String {
    format!("{offset:020}.{}", kind.ending())
}

/// The path of a file of `kind` at `offset` in a partition's folder.
pub fn file_path(folder: &Path, offset: Offset, kind: Kind) -> PathBuf {
    folder.join(file_name(offset, kind))
}

/// What a name says, if it is one of ours.
pub fn parse_file_name(name: &str) -> Option<(Offset, Kind)> {
    let (number, ending) = name.split_once('.')?;
    let kind = Kind::ALL.into_iter().find(|kind| kind.ending() == ending)?;
    if number.len() != 20 || !number.bytes().all(|letter| letter.is_ascii_digit()) {
        return None;
    }
    Some((number.parse().ok()?, kind))
}

/// What a folder's name says, if it is a partition's.
pub fn parse_folder_name(name: &str) -> Option<PartitionId> {
    // The topic id itself may contain dashes: the partition's number follows the last one.
    let (topic, index) = name.rsplit_once('-')?;
    let index: i32 = index.parse().ok().filter(|index| *index >= 0)?;
    let partition = PartitionId { topic: TopicId::parse(topic)?, index };
    (partition.to_string() == name).then_some(partition)
}

/// `partition.metadata`, as Kafka writes it.
pub fn format_partition_metadata(topic: TopicId) -> String {
    format!("version: 0\ntopic_id: {topic}")
}

/// The topic id in `partition.metadata`; `None` when it does not say one.
pub fn parse_partition_metadata(text: &str) -> Option<TopicId> {
    let mut version = None;
    let mut topic = None;
    for line in text.lines() {
        match line.split_once(':').map(|(key, value)| (key.trim(), value.trim())) {
            Some(("version", value)) => version = value.parse::<u32>().ok(),
            Some(("topic_id", value)) => topic = TopicId::parse(value),
            _ => {}
        }
    }
    if version == Some(0) { topic } else { None }
}

/// `leader-epoch-checkpoint`, as Kafka writes it: version, number of entries, entries.
pub fn format_epoch_checkpoint(map: &GenerationMap) -> String {
    let mut text = format!("0\n{}\n", map.entries().len());
    for (generation, first) in map.entries() {
        text.push_str(&format!("{} {first}\n", generation.leader_epoch()));
    }
    text
}

/// The map in `leader-epoch-checkpoint`; `None` when it is not one (its rising entries included).
pub fn parse_epoch_checkpoint(text: &str) -> Option<GenerationMap> {
    let mut lines = text.lines();
    if lines.next()?.trim() != "0" {
        return None;
    }
    let count: usize = lines.next()?.trim().parse().ok()?;
    let mut map = GenerationMap::default();
    let mut last: Option<(Generation, Offset)> = None;
    for _ in 0..count {
        let (generation, first) = lines.next()?.trim().split_once(' ')?;
        let generation = Generation::from_leader_epoch(generation.parse().ok()?)?;
        let first: Offset = first.parse().ok().filter(|first| *first >= 0)?;
        if last.is_some_and(|(before, from)| generation <= before || first <= from) {
            return None;
        }
        last = Some((generation, first));
        map.begin(generation, first);
    }
    lines.all(|line| line.trim().is_empty()).then_some(map)
}

/// `meta.properties`, as Kafka writes it (version 1).
pub fn format_meta_properties(identity: &Identity) -> String {
    format!(
        "version=1\ncluster.id={}\nnode.id={}\ndirectory.id={}\n",
        identity.cluster_id, identity.node_id, identity.directory_id
    )
}

/// The identity in `meta.properties`, or what is wrong with it.
pub fn parse_meta_properties(text: &str) -> Result<Identity, String> {
    let value = |key: &str| {
        text.lines()
            .map(str::trim)
            .filter(|line| !line.starts_with(['#', '!']))
            .filter_map(|line| line.split_once('='))
            .find(|(name, _)| name.trim() == key)
            .map(|(_, value)| value.trim().to_string())
            .ok_or_else(|| format!("{key} is missing"))
    };
    match value("version")?.as_str() {
        "1" => {}
        other => return Err(format!("version is {other}, only 1 is known")),
    }
    let node_id = value("node.id")?;
    Ok(Identity {
        cluster_id: value("cluster.id")?,
        node_id: node_id.parse().map_err(|_| format!("node.id is not a number: {node_id}"))?,
        directory_id: value("directory.id")?,
    })
}

/// Replaces a small file so that after a crash either the old or the new content is there: a temporary file,
/// its bytes synced, renamed, the folder synced.
#[track_caller]
pub fn write_durably<D: Disk>(
    disk: &D,
    folder: &Path,
    name: &str,
    content: &[u8],
) -> Result<(), StorageError> {
    write_unsynced(disk, folder, name, content)?.sync_data().doing("flush", &folder.join(name))?;
    finish(disk, folder, name)?;
    disk.sync_dir(folder).doing("flush", folder)
}

/// Replaces a small file without a flush: for what is noticed when a crash loses or tears it, and made again.
pub(crate) fn write_loosely<D: Disk>(
    disk: &D,
    folder: &Path,
    name: &str,
    content: &[u8],
) -> Result<(), StorageError> {
    write_unsynced(disk, folder, name, content)?;
    finish(disk, folder, name)
}

/// First part of [`write_durably`]: the temporary file, not synced yet.
pub(crate) fn write_unsynced<D: Disk>(
    disk: &D,
    folder: &Path,
    name: &str,
    content: &[u8],
) -> Result<D::File, StorageError> {
    let path = folder.join(format!("{name}{UNFINISHED}"));
    let file = disk.open(&path, OpenMode::Replace).doing("create", &path)?;
    write_all_at(&file, content, 0).doing("write", &path)?;
    Ok(file)
}

/// Second part, once the temporary file is synced: takes its name. The folder is not synced yet.
pub(crate) fn finish<D: Disk>(disk: &D, folder: &Path, name: &str) -> Result<(), StorageError> {
    let to = folder.join(name);
    let from = folder.join(format!("{name}{UNFINISHED}"));
    match disk.rename(&from, &to) {
        // A folder in the file's place was put there by nobody of ours, and must not stop the log.
        Err(error) if is_folder(&error) => {
            disk.remove_dir_all(&to).doing("remove", &to)?;
            disk.rename(&from, &to).doing("rename", &to)
        }
        other => other.doing("rename", &to),
    }
}

pub(crate) fn is_folder(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::IsADirectory | std::io::ErrorKind::DirectoryNotEmpty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kafkas() {
        assert_eq!(file_name(42, Kind::Log), "00000000000000000042.log");
        assert_eq!(parse_file_name("00000000000000000042.timeindex"), Some((42, Kind::TimeIndex)));
        assert_eq!(parse_file_name("42.log"), None);
        assert_eq!(parse_file_name("00000000000000000042.log.deleted"), None);
        let partition = PartitionId { topic: TopicId::random(), index: 7 };
        assert_eq!(parse_folder_name(&partition.to_string()), Some(partition));
        assert_eq!(parse_folder_name(&format!("{}-07", partition.topic)), None);
        assert_eq!(parse_folder_name("orders-0"), None);
    }

    #[test]
    fn side_files_read_back_and_nonsense_does_not() {
        let topic = TopicId::random();
        assert_eq!(parse_partition_metadata(&format_partition_metadata(topic)), Some(topic));
        assert_eq!(parse_partition_metadata("version: 1\ntopic_id: x"), None);
        let mut map = GenerationMap::default();
        map.begin(Generation::new(1).unwrap(), 0);
        map.begin(Generation::new(4).unwrap(), 17);
        assert_eq!(format_epoch_checkpoint(&map), "0\n2\n1 0\n4 17\n");
        assert_eq!(parse_epoch_checkpoint("0\n2\n1 0\n4 17\n"), Some(map));
        for wrong in
            ["", "0", "0\n2\n1 0\n", "1\n0\n", "0\n2\n4 0\n1 17\n", "0\n1\n1 0\n4 17\n", "0\n1\nx y\n"]
        {
            assert_eq!(parse_epoch_checkpoint(wrong), None, "{wrong:?}");
        }
        let identity = Identity { cluster_id: "c".into(), node_id: 3, directory_id: "d".into() };
        assert_eq!(parse_meta_properties(&format_meta_properties(&identity)), Ok(identity));
        assert!(parse_meta_properties("version=0\n").is_err());
    }
}
