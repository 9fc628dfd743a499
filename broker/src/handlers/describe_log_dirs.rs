//! DescribeLogDirs: the data directory, its disk, and the copies in it.
//!
//! - No topics, or null, means all copies. The directory is listed even if nothing in it was asked for: clients before
//!   Java's 3.2 take an empty list for a lack of permission.
//! - 4 and later: the size of the file system and what is left of it; 5: no directory is ever cordoned.
//! - The lag is how far a copy is behind what it knows to be committed: none, for a leader.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use felix_cluster::view::View;
use felix_protocol::error_code::ErrorCode;
use felix_protocol::messages::describe_log_dirs_request::DescribableLogDirTopic;
use felix_protocol::messages::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use felix_protocol::messages::log_dirs::LogDirs;
use felix_protocol::messages::{ApiKey, DescribeLogDirsRequest, DescribeLogDirsResponse, TopicName};

use super::{Answer, Api, Call, Class, Handled, Reply, text};
use crate::node::Node;
use crate::partitions::Lag;

pub const API: Api = Api {
    key: ApiKey::DescribeLogDirs,
    oldest: 1,
    newest: 5,
    listed_from: 1,
    class: Class::Admin,
    start: handle,
};

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: DescribeLogDirsRequest = call.decode()?;
    // Asking about the file system may wait for the disk.
    let readers = node.readers.clone();
    let node = Arc::clone(node);
    Answer::later(async move {
        let described = readers.run("describe-log-dirs", move || {
            let result = directory(&node, request.topics.as_deref());
            call.reply(&LogDirs(DescribeLogDirsResponse::default().with_results(vec![result])))
        });
        let given_up = || Err(Reply::Close("a description was given up".to_owned()));
        described.await.unwrap_or_else(given_up)
    })
}

fn directory(node: &Node, topics: Option<&[DescribableLogDirTopic]>) -> DescribeLogDirsResult {
    let configured = PathBuf::from(&node.config().node.data_dir);
    let path = std::path::absolute(&configured).unwrap_or(configured);
    let result = DescribeLogDirsResult::default().with_log_dir(text(path.to_string_lossy().into_owned()));
    match space(&path) {
        Ok((total, usable)) => {
            let copies = copies(&node.view(), &node.partitions.lags(), topics);
            result.with_total_bytes(total).with_usable_bytes(usable).with_topics(copies)
        }
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "the data directory cannot be described");
            result.with_error_code(ErrorCode::KafkaStorageError as i16)
        }
    }
}

fn copies(view: &View, lags: &[Lag], topics: Option<&[DescribableLogDirTopic]>) -> Vec<DescribeLogDirsTopic> {
    let wanted: Option<HashSet<(&str, i32)>> = topics.map(|topics| {
        let all = topics.iter().flat_map(|one| one.partitions.iter().map(|index| (&**one.topic, *index)));
        all.collect()
    });
    let mut found: BTreeMap<&str, Vec<DescribeLogDirsPartition>> = BTreeMap::new();
    for lag in lags {
        let id = lag.partition;
        let Some(topic) = view.topic(&id.topic) else { continue };
        if wanted.as_ref().is_none_or(|wanted| wanted.contains(&(&*topic.name, id.index))) {
            let size = i64::try_from(lag.bytes).unwrap_or(i64::MAX);
            // A leader lacks nothing; a follower that does not know says so.
            let lag = if lag.leads { 0 } else { lag.records.unwrap_or(-1) };
            let partition = DescribeLogDirsPartition::default()
                .with_partition_index(id.index)
                .with_partition_size(size)
                .with_offset_lag(lag);
            found.entry(&topic.name).or_default().push(partition);
        }
    }
    found
        .into_iter()
        .map(|(name, partitions)| {
            DescribeLogDirsTopic::default()
                .with_name(TopicName(text(name.to_owned())))
                .with_partitions(partitions)
        })
        .collect()
}

/// Bytes of the file system, and those that are left to us.
fn space(path: &Path) -> std::io::Result<(i64, i64)> {
    let stat = rustix::fs::statvfs(path)?;
    let bytes = |blocks: u64| i64::try_from(blocks.saturating_mul(stat.f_frsize)).unwrap_or(i64::MAX);
    Ok((bytes(stat.f_blocks), bytes(stat.f_bavail)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_has_a_size_and_some_of_it_left() {
        let (total, usable) = space(Path::new("/")).unwrap();
        assert!(total > 0 && usable >= 0 && usable <= total);
        assert!(space(Path::new("/no/such/place")).is_err());
    }
}
