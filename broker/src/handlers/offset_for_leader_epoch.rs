//! OffsetForLeaderEpoch: where a generation of a partition's log ends. Consumers ask it after a change of leader, to
//! find out whether what they have read is still there.
//!
//! - The newest generation ends at the log end; an older one where the next one begins, under the number of the
//!   newest that is not newer than asked; one older than all known answers itself and the first known offset; a
//!   newer one, and -1, are answered by -1 and -1.
//! - 3: from a replica, which asks like anybody else: replicas of ours do not use this.

use std::sync::Arc;

use felix_cluster::view::View;
use felix_protocol::error_code::ErrorCode;
use felix_protocol::generation_map::GenerationMap;
use felix_protocol::ids::{Generation, Offset};
use felix_protocol::messages::offset_for_leader_epoch_request::OffsetForLeaderPartition;
use felix_protocol::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderTopicResult,
};
use felix_protocol::messages::{ApiKey, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse};

use super::list_offsets::{check_epoch, lead};
use super::{Api, Call, Class, Handled};
use crate::node::Node;

pub const API: Api = Api {
    key: ApiKey::OffsetForLeaderEpoch,
    oldest: 2,
    newest: 4,
    listed_from: 2,
    class: Class::Records,
    start: handle,
};

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: OffsetForLeaderEpochRequest = call.decode()?;
    let view = node.view();
    let topics = request.topics.into_iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|wanted| {
            let response = EpochEndOffset::default().with_partition(wanted.partition);
            match find(node, &view, &topic.topic, wanted) {
                Ok((epoch, end)) => response.with_leader_epoch(epoch).with_end_offset(end),
                Err(code) => response.with_error_code(code as i16).with_leader_epoch(-1).with_end_offset(-1),
            }
        });
        let partitions = partitions.collect();
        OffsetForLeaderTopicResult::default().with_topic(topic.topic).with_partitions(partitions)
    });
    call.answer(&OffsetForLeaderEpochResponse::default().with_topics(topics.collect()))
}

fn find(
    node: &Node,
    view: &View,
    topic: &str,
    wanted: &OffsetForLeaderPartition,
) -> Result<(i32, Offset), ErrorCode> {
    let handle = lead(node, view, topic, wanted.partition)?;
    check_epoch(&handle, wanted.current_leader_epoch)?;
    let reader = handle.reader();
    Ok(answer(&reader.generations(), handle.generation(), handle.log_end(), wanted.leader_epoch))
}

/// Where the generation asked for ends, in a log that its leader of generation `current` has written up to `end`.
/// The map knows only generations that have written something; the current one counts from `end` on if it has not.
fn answer(map: &GenerationMap, current: Generation, end: Offset, asked: i32) -> (i32, Offset) {
    const NOTHING: (i32, Offset) = (-1, -1);
    let Some(asked) = u32::try_from(asked).ok().and_then(Generation::new) else { return NOTHING };
    if asked > current {
        return NOTHING;
    }
    let mut map = map.clone();
    if map.latest().is_none_or(|(latest, _)| latest < current) {
        map.begin(current, end);
    }
    match map.end_of(asked, end) {
        Some(found) => (found.generation.unwrap_or(asked).leader_epoch(), found.end),
        None => NOTHING,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generation(number: u32) -> Generation {
        Generation::new(number).unwrap()
    }

    fn map(entries: &[(u32, Offset)]) -> GenerationMap {
        let mut map = GenerationMap::default();
        for (number, first) in entries {
            map.begin(generation(*number), *first);
        }
        map
    }

    #[test]
    fn three_tenures_of_which_one_wrote_nothing() {
        let map = map(&[(1, 5), (2, 10), (4, 20)]);
        let ask = |asked| answer(&map, generation(4), 30, asked);
        assert_eq!(ask(-1), (-1, -1));
        assert_eq!(ask(0), (0, 5), "older than all known");
        assert_eq!(ask(1), (1, 10));
        assert_eq!(ask(2), (2, 20));
        assert_eq!(ask(3), (2, 20), "the newest that is not newer");
        assert_eq!(ask(4), (4, 30));
        assert_eq!(ask(5), (-1, -1));
    }

    #[test]
    fn a_tenure_that_has_not_written_yet_ends_at_the_log_end() {
        let map = map(&[(1, 0), (2, 10)]);
        let ask = |asked| answer(&map, generation(5), 30, asked);
        assert_eq!(ask(5), (5, 30));
        assert_eq!(ask(3), (2, 30));
        assert_eq!(ask(2), (2, 30));
        assert_eq!(ask(1), (1, 10));
        assert_eq!(ask(6), (-1, -1));
    }

    #[test]
    fn an_empty_log() {
        let ask = |asked| answer(&GenerationMap::default(), generation(2), 0, asked);
        assert_eq!(ask(2), (2, 0));
        assert_eq!(ask(1), (1, 0), "nothing of it can be left");
        assert_eq!(ask(3), (-1, -1));
    }
}
