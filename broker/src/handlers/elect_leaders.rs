//! ElectLeaders: preferred leaders, or any leader at all where there is none.
//!
//! - 0: preferred elections only. 1 and later say which kind, and have an error for the whole request.
//! - Null partitions mean all of them; those that need no election are left out of the answer then, as in Kafka.
//! - Each partition is answered once it is over: a working leader hands over first, which takes a moment. What takes longer
//!   than the request allows is REQUEST_TIMED_OUT, and goes on.
//! - An unclean election asks all brokers that are there for their copies' word first, and takes the one that reaches furthest, by
//!   generation and then by the log's end. Who is silent ranks last.
//!
//! Differences from Apache Kafka: a preferred leader that drains is not available, though it may be in sync; and a
//! partition that is named again is answered again without another election.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use felix_cluster::elect::{Election, NotElected};
use felix_cluster::promotion::{Standing, StandingsOf};
use felix_cluster::view::View;
use felix_control::agent::ElectError;
use felix_protocol::error_code::ErrorCode;
use felix_protocol::ids::{BrokerId, PartitionId};
use felix_protocol::messages::elect_leaders_request::TopicPartitions;
use felix_protocol::messages::elect_leaders_response::{PartitionResult, ReplicaElectionResult};
use felix_protocol::messages::{ApiKey, ElectLeadersRequest, ElectLeadersResponse, TopicName};

use super::{Answer, Api, Call, Class, Handled, Reply, text};
use crate::admin::patience;
use crate::node::Node;
use crate::wire_code::WireCode;

pub const API: Api = Api {
    key: ApiKey::ElectLeaders,
    oldest: 0,
    newest: 2,
    listed_from: 0,
    class: Class::Admin,
    start: handle,
};

/// Kafka's numbers of elections.
const PREFERRED: i8 = 0;
const UNCLEAN: i8 = 1;

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: ElectLeadersRequest = call.decode()?;
    let election = match request.election_type {
        PREFERRED => Election::Preferred,
        UNCLEAN => Election::Unclean,
        _ => {
            let response = ElectLeadersResponse::default();
            return call.answer(&response.with_error_code(ErrorCode::InvalidRequest as i16));
        }
    };
    let node = Arc::clone(node);
    Answer::later(async move { elect(&node, &call, election, request).await })
}

async fn elect(
    node: &Node,
    call: &Call,
    election: Election,
    request: ElectLeadersRequest,
) -> Result<Reply, Reply> {
    let view = match node.agent.catch_up().await {
        Ok(view) => view,
        Err(error) => {
            // By what is known here it is told per partition: version 0 has no other place for it.
            let asked = Asked::of(&node.view(), request.topic_partitions);
            let failed = |id: &PartitionId| (*id, Err(ElectError::Control(error.clone())));
            let results = asked.ids.iter().map(failed).collect();
            let results = asked.answer(&results);
            return call.reply(&ElectLeadersResponse::default().with_replica_election_results(results));
        }
    };
    let asked = Asked::of(&view, request.topic_partitions);
    let standings = match election {
        Election::Preferred => BTreeMap::new(),
        Election::Unclean => {
            let told = node.agent.standings(&asked.ids).await;
            with_own(told, node.id, &asked.ids, |id| node.partitions.standing(id))
        }
    };
    let ids = asked.ids.clone();
    let wait = patience(request.timeout_ms);
    let results = node.agent.elect_leaders(ids, election, standings, wait).await;
    call.reply(&ElectLeadersResponse::default().with_replica_election_results(asked.answer(&results)))
}

/// What brokers said of their copies, and what this one knows of its own where nobody asked it: a node that is alone has nobody
/// who asks.
fn with_own(
    mut told: StandingsOf,
    own: BrokerId,
    ids: &BTreeSet<PartitionId>,
    standing: impl Fn(&PartitionId) -> Option<Standing>,
) -> StandingsOf {
    for id in ids {
        if let Some(standing) = standing(id) {
            told.entry(*id).or_default().entry(own).or_insert(standing);
        }
    }
    told
}

/// A topic with its partitions, those of one that is not there without ids.
type Named = (TopicName, Vec<(i32, Option<PartitionId>)>);

/// What is asked for, and how that was named.
struct Asked {
    topics: Vec<Named>,
    ids: BTreeSet<PartitionId>,
    /// All partitions, without those that need nothing.
    all: bool,
}

impl Asked {
    fn of(view: &View, named: Option<Vec<TopicPartitions>>) -> Asked {
        let all = named.is_none();
        let topics: Vec<Named> = match named {
            None => view
                .topics()
                .map(|topic| {
                    let ids = view.partitions_of(&topic.id).map(|one| (one.id.index, Some(one.id)));
                    (TopicName(text(topic.name.to_string())), ids.collect())
                })
                .collect(),
            Some(named) => named
                .into_iter()
                .map(|one| {
                    let topic = view.topic_named(&one.topic).map(|topic| topic.id);
                    let id = |index| topic.map(|topic| PartitionId { topic, index });
                    let ids = one.partitions.iter().map(|index| (*index, id(*index)));
                    let ids: Vec<_> = ids.collect();
                    (one.topic, ids)
                })
                .collect(),
        };
        let ids = topics.iter().flat_map(|(_, ids)| ids);
        let ids = ids.filter_map(|(_, id)| *id).collect();
        Asked { topics, ids, all }
    }

    fn answer(self, results: &BTreeMap<PartitionId, Result<(), ElectError>>) -> Vec<ReplicaElectionResult> {
        let not_needed = Err(ElectError::NotElected(NotElected::NotNeeded));
        let unknown = Err(ElectError::NotElected(NotElected::Unknown));
        let mut answer = Vec::with_capacity(self.topics.len());
        for (topic, partitions) in self.topics {
            let mut told = Vec::with_capacity(partitions.len());
            for (index, id) in partitions {
                let result = id.and_then(|id| results.get(&id)).unwrap_or(&unknown);
                if !(self.all && *result == not_needed) {
                    told.push(partition_result(index, result));
                }
            }
            if !told.is_empty() {
                answer.push(ReplicaElectionResult::default().with_topic(topic).with_partition_result(told));
            }
        }
        answer
    }
}

fn partition_result(index: i32, result: &Result<(), ElectError>) -> PartitionResult {
    let answer = PartitionResult::default().with_partition_id(index).with_error_message(None);
    match result {
        Ok(()) => answer,
        Err(error) => {
            let message = Some(text(error.to_string()));
            answer.with_error_code(error.code() as i16).with_error_message(message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::testing;

    fn named(topic: &'static str, partitions: &[i32]) -> TopicPartitions {
        TopicPartitions::default().with_topic(TopicName(text(topic))).with_partitions(partitions.to_vec())
    }

    fn told(answer: &[ReplicaElectionResult]) -> Vec<(String, i32, i16)> {
        let one = |topic: &ReplicaElectionResult| {
            let name = topic.topic.to_string();
            let told = topic.partition_result.iter().map(|one| (one.partition_id, one.error_code));
            told.map(|(id, code)| (name.clone(), id, code)).collect::<Vec<_>>()
        };
        answer.iter().flat_map(one).collect()
    }

    #[test]
    fn each_partition_is_answered_as_it_was_named() {
        let view = testing::view_with(&[("a", 2), ("b", 1)]);
        let topics = vec![named("b", &[0, 7]), named("c", &[0]), named("a", &[1, 1])];
        let asked = Asked::of(&view, Some(topics));
        let id = |topic: &str, index| PartitionId { topic: view.topic_named(topic).unwrap().id, index };
        assert_eq!(asked.ids, [id("b", 0), id("b", 7), id("a", 1)].into());
        let results = BTreeMap::from([
            (id("b", 0), Err(NotElected::NotNeeded.into())),
            (id("b", 7), Err(NotElected::Unknown.into())),
            (id("a", 1), Ok(())),
        ]);
        let named = |topic: &str, index, code: ErrorCode| (topic.to_owned(), index, code as i16);
        let expected = [
            named("b", 0, ErrorCode::ElectionNotNeeded),
            named("b", 7, ErrorCode::UnknownTopicOrPartition),
            named("c", 0, ErrorCode::UnknownTopicOrPartition),
            named("a", 1, ErrorCode::None),
            named("a", 1, ErrorCode::None),
        ];
        assert_eq!(told(&asked.answer(&results)), expected);
    }

    #[test]
    fn what_a_broker_says_itself_is_not_replaced_by_its_table() {
        use felix_protocol::ids::{Generation, LogId, TopicId, Uuid};
        let id = |index| PartitionId { topic: TopicId::NONE, index };
        let standing =
            |end| Standing { log: LogId(Uuid::nil()), accepted: Generation::ZERO, end, doubt: false };
        let told = StandingsOf::from([
            (id(0), [(BrokerId(1), standing(5)), (BrokerId(2), standing(9))].into()),
            (id(1), [(BrokerId(2), standing(9))].into()),
        ]);
        let table = |one: &PartitionId| (one.index < 2).then(|| standing(3));
        let all = with_own(told, BrokerId(1), &[id(0), id(1), id(2)].into(), table);
        let ends = |index| -> Vec<i64> { all[&id(index)].values().map(|one| one.end).collect() };
        assert_eq!((ends(0), ends(1)), (vec![5, 9], vec![3, 9]));
        assert!(!all.contains_key(&id(2)), "nobody has a copy");
    }

    #[test]
    fn of_all_partitions_those_are_answered_that_needed_an_election() {
        let view = testing::view_with(&[("a", 2), ("b", 1)]);
        let asked = Asked::of(&view, None);
        assert_eq!(asked.ids.len(), 3);
        let mut results: BTreeMap<PartitionId, Result<(), ElectError>> =
            asked.ids.iter().map(|id| (*id, Err(NotElected::NotNeeded.into()))).collect();
        let id = PartitionId { topic: view.topic_named("a").unwrap().id, index: 1 };
        results.insert(id, Err(NotElected::PreferredNotAvailable.into()));
        let expected = ("a".to_owned(), 1, ErrorCode::PreferredLeaderNotAvailable as i16);
        assert_eq!(told(&asked.answer(&results)), [expected]);
    }
}
