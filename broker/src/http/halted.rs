//! `/replication/halted`: the copies on this broker that have stopped for good, each with why and what to do about it.
//! Where nothing is wrong it is `[]`.

use felix_protocol::ids::TopicId;
use felix_replication::halted::Halted;
use serde::Serialize;

/// One copy.
#[derive(Serialize)]
struct Row<'a> {
    partition: Partition<'a>,
    node: i32,
    generation: u32,
    /// How far its log reaches.
    position: i64,
    reason: String,
    remedy: &'static str,
}

/// Which partition.
#[derive(Serialize)]
struct Partition<'a> {
    /// The topic's name; null where the topic is gone.
    topic: Option<&'a str>,
    topic_id: String,
    index: i32,
}

/// The page. `name` tells a topic's name, as far as it is known.
pub fn page<'a>(halted: &[Halted], name: impl Fn(&TopicId) -> Option<&'a str>) -> String {
    let row = |one: &Halted| Row {
        partition: Partition {
            topic: name(&one.partition.topic),
            topic_id: one.partition.topic.to_string(),
            index: one.partition.index,
        },
        node: one.node.0,
        generation: one.generation.number(),
        position: one.position,
        reason: one.reason.to_string(),
        remedy: one.reason.remedy(),
    };
    let rows: Vec<Row<'_>> = halted.iter().map(row).collect();
    // Numbers and texts only: there is nothing that could not be written.
    let mut page = serde_json::to_string_pretty(&rows).unwrap_or_default();
    page.push('\n');
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use felix_protocol::ids::{BrokerId, Generation, PartitionId};
    use felix_replication::halted::HaltReason;
    use serde_json::{Value, json};

    #[test]
    fn a_healthy_broker_has_an_empty_list() {
        assert_eq!(page(&[], |_| None), "[]\n");
    }

    #[test]
    fn every_row_says_where_why_and_what_to_do() {
        let known = TopicId::random();
        let halted = |topic, index, reason| Halted {
            partition: PartitionId { topic, index },
            node: BrokerId(3),
            generation: Generation::new(7).unwrap(),
            position: 1234,
            reason,
        };
        let rows =
            [halted(known, 2, HaltReason::Storage), halted(TopicId::random(), 0, HaltReason::NeedsBootstrap)];
        let page = page(&rows, |topic| (*topic == known).then_some("orders"));
        let page: Value = serde_json::from_str(&page).unwrap();
        assert_eq!(
            page[0],
            json!({
                "partition": { "topic": "orders", "topic_id": known.to_string(), "index": 2 },
                "node": 3,
                "generation": 7,
                "position": 1234,
                "reason": "storage",
                "remedy": HaltReason::Storage.remedy(),
            })
        );
        assert_eq!(page[1]["partition"]["topic"], Value::Null);
        assert_eq!(page[1]["reason"], "needs_bootstrap");
        assert_eq!(page.as_array().map(Vec::len), Some(2));
    }
}
