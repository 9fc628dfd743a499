//! Which broker settings stand behind which setting of a topic, a group or a broker, in order of precedence.

/// A broker setting that gives a value to another setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokerName {
    /// The broker setting.
    pub name: &'static str,
    /// What one of its units is in units of the other setting: 3,600,000 for hours behind milliseconds.
    pub unit: i64,
}

const fn same(name: &'static str) -> BrokerName {
    BrokerName { name, unit: 1 }
}

const fn minutes(name: &'static str) -> BrokerName {
    BrokerName { name, unit: 60_000 }
}

const fn hours(name: &'static str) -> BrokerName {
    BrokerName { name, unit: 3_600_000 }
}

const FLUSH_MS: &[BrokerName] = &[same("log.flush.interval.ms"), same("log.flush.scheduler.interval.ms")];
const RETENTION_MS: &[BrokerName] =
    &[same("log.retention.ms"), minutes("log.retention.minutes"), hours("log.retention.hours")];
const ROLL_MS: &[BrokerName] = &[same("log.roll.ms"), hours("log.roll.hours")];
const ROLL_JITTER_MS: &[BrokerName] = &[same("log.roll.jitter.ms"), hours("log.roll.jitter.hours")];

/// Sorted by the topic's name.
const TOPIC: &[(&str, &[BrokerName])] = &[
    ("cleanup.policy", &[same("log.cleanup.policy")]),
    ("compression.gzip.level", &[same("compression.gzip.level")]),
    ("compression.lz4.level", &[same("compression.lz4.level")]),
    ("compression.type", &[same("compression.type")]),
    ("compression.zstd.level", &[same("compression.zstd.level")]),
    ("delete.retention.ms", &[same("log.cleaner.delete.retention.ms")]),
    ("felix.consistency", &[same("felix.consistency")]),
    ("file.delete.delay.ms", &[same("log.segment.delete.delay.ms")]),
    ("flush.messages", &[same("log.flush.interval.messages")]),
    ("flush.ms", FLUSH_MS),
    ("index.interval.bytes", &[same("log.index.interval.bytes")]),
    ("local.retention.bytes", &[same("log.local.retention.bytes")]),
    ("local.retention.ms", &[same("log.local.retention.ms")]),
    ("max.compaction.lag.ms", &[same("log.cleaner.max.compaction.lag.ms")]),
    ("max.decompressed.message.bytes", &[same("max.decompressed.message.bytes")]),
    ("max.message.bytes", &[same("message.max.bytes")]),
    ("message.timestamp.after.max.ms", &[same("log.message.timestamp.after.max.ms")]),
    ("message.timestamp.before.max.ms", &[same("log.message.timestamp.before.max.ms")]),
    ("message.timestamp.type", &[same("log.message.timestamp.type")]),
    ("min.cleanable.dirty.ratio", &[same("log.cleaner.min.cleanable.ratio")]),
    ("min.compaction.lag.ms", &[same("log.cleaner.min.compaction.lag.ms")]),
    ("min.insync.replicas", &[same("min.insync.replicas")]),
    ("preallocate", &[same("log.preallocate")]),
    ("remote.copy.lag.bytes", &[same("log.remote.copy.lag.bytes")]),
    ("remote.copy.lag.ms", &[same("log.remote.copy.lag.ms")]),
    ("retention.bytes", &[same("log.retention.bytes")]),
    ("retention.ms", RETENTION_MS),
    ("segment.bytes", &[same("log.segment.bytes")]),
    ("segment.index.bytes", &[same("log.index.size.max.bytes")]),
    ("segment.jitter.ms", ROLL_JITTER_MS),
    ("segment.ms", ROLL_MS),
    ("unclean.leader.election.enable", &[same("unclean.leader.election.enable")]),
];

/// The broker settings that give a topic setting its value where the topic has none.
pub fn broker_names_of_topic(name: &str) -> &'static [BrokerName] {
    TOPIC.binary_search_by(|(topic, _)| topic.cmp(&name)).map_or(&[], |at| TOPIC[at].1)
}

/// Sorted by the group's name.
const GROUP: &[(&str, &[BrokerName])] = &[
    ("consumer.assignment.interval.ms", &[same("group.consumer.assignment.interval.ms")]),
    ("consumer.assignor.offload.enable", &[same("group.consumer.assignor.offload.enable")]),
    ("consumer.heartbeat.interval.ms", &[same("group.consumer.heartbeat.interval.ms")]),
    ("consumer.session.timeout.ms", &[same("group.consumer.session.timeout.ms")]),
    ("share.assignment.interval.ms", &[same("group.share.assignment.interval.ms")]),
    ("share.assignor.offload.enable", &[same("group.share.assignor.offload.enable")]),
    ("share.delivery.count.limit", &[same("group.share.delivery.count.limit")]),
    ("share.heartbeat.interval.ms", &[same("group.share.heartbeat.interval.ms")]),
    ("share.partition.max.record.locks", &[same("group.share.partition.max.record.locks")]),
    ("share.record.lock.duration.ms", &[same("group.share.record.lock.duration.ms")]),
    ("share.session.timeout.ms", &[same("group.share.session.timeout.ms")]),
    ("streams.acceptable.recovery.lag", &[same("group.streams.acceptable.recovery.lag")]),
    ("streams.assignment.interval.ms", &[same("group.streams.assignment.interval.ms")]),
    ("streams.assignor.name", &[same("group.streams.assignors")]),
    ("streams.assignor.offload.enable", &[same("group.streams.assignor.offload.enable")]),
    ("streams.heartbeat.interval.ms", &[same("group.streams.heartbeat.interval.ms")]),
    ("streams.initial.rebalance.delay.ms", &[same("group.streams.initial.rebalance.delay.ms")]),
    ("streams.num.standby.replicas", &[same("group.streams.num.standby.replicas")]),
    ("streams.num.warmup.replicas", &[same("group.streams.num.warmup.replicas")]),
    ("streams.rack.aware.assignment.tags", &[same("group.streams.rack.aware.assignment.tags")]),
    ("streams.session.timeout.ms", &[same("group.streams.session.timeout.ms")]),
    ("streams.task.offset.interval.ms", &[same("group.streams.task.offset.interval.ms")]),
];

/// The broker settings that give a group setting its value where the group has none.
pub fn broker_names_of_group(name: &str) -> &'static [BrokerName] {
    GROUP.binary_search_by(|(group, _)| group.cmp(&name)).map_or(&[], |at| GROUP[at].1)
}

/// The family of a broker setting that has one: the names that mean the same, in order of precedence.
pub fn broker_names_of_row(name: &str) -> Option<&'static [BrokerName]> {
    // The scheduler's interval gives a default to the other one but is no other name of it.
    if name == "log.flush.interval.ms" {
        return Some(FLUSH_MS);
    }
    [RETENTION_MS, ROLL_MS, ROLL_JITTER_MS]
        .into_iter()
        .find(|family| family.iter().any(|one| one.name == name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::table::Resource;

    #[test]
    fn both_sides_exist_and_agree_in_kind() {
        for (table, resource) in [(TOPIC, Resource::Topic), (GROUP, Resource::Group)] {
            assert!(table.windows(2).all(|pair| pair[0].0 < pair[1].0), "sorted, for the search");
            for (name, brokers) in table {
                let row = resource.row(name).unwrap_or_else(|| panic!("{name}"));
                for broker in *brokers {
                    let other =
                        Resource::Broker.row(broker.name).unwrap_or_else(|| panic!("{}", broker.name));
                    let same_kind =
                        row.kind == other.kind || broker.unit != 1 || *name == "streams.assignor.name";
                    assert!(same_kind, "{name} and {}", broker.name);
                }
            }
        }
    }

    #[test]
    fn times_have_a_family() {
        assert_eq!(broker_names_of_topic("retention.ms"), RETENTION_MS);
        assert_eq!(broker_names_of_topic("preallocate"), [same("log.preallocate")]);
        assert!(broker_names_of_topic("remote.storage.enable").is_empty());
        assert_eq!(broker_names_of_row("log.roll.hours"), Some(ROLL_MS));
        assert_eq!(broker_names_of_row("log.flush.scheduler.interval.ms"), None);
        assert_eq!(broker_names_of_group("streams.assignor.name"), [same("group.streams.assignors")]);
    }
}
