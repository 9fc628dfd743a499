//! Layouts of what administrators send about topics, configuration and the cluster.

use super::{
    Layout, boolean, float64, int8, int8s, int16, int32, int32s, int64, int64s, layout, list, text, texts,
    uint16, uuid,
};
use crate::messages::ApiKey;

pub(super) static ADMIN: &[Layout] = &[
    layout(
        ApiKey::CreateTopics,
        2,
        7,
        5,
        &[
            list(
                "topics",
                &[
                    text("name"),
                    int32("num_partitions"),
                    int16("replication_factor"),
                    list("assignments", &[int32("partition_index"), int32s("broker_ids")]),
                    list("configs", &[text("name"), text("value").or_null()]),
                ],
            ),
            int32("timeout_ms"),
            boolean("validate_only"),
        ],
    ),
    layout(
        ApiKey::DeleteTopics,
        1,
        6,
        4,
        &[
            list("topics", &[text("name").or_null(), uuid("topic_id")]).since(6),
            texts("topic_names").until(5),
            int32("timeout_ms"),
        ],
    ),
    layout(
        ApiKey::DeleteRecords,
        0,
        2,
        2,
        &[
            list("topics", &[text("name"), list("partitions", &[int32("partition_index"), int64("offset")])]),
            int32("timeout_ms"),
        ],
    ),
    layout(
        ApiKey::DescribeConfigs,
        1,
        4,
        4,
        &[
            list(
                "resources",
                &[int8("resource_type"), text("resource_name"), texts("configuration_keys").or_null()],
            ),
            boolean("include_synonyms"),
            boolean("include_documentation").since(3),
        ],
    ),
    layout(
        ApiKey::AlterConfigs,
        0,
        2,
        2,
        &[
            list(
                "resources",
                &[
                    int8("resource_type"),
                    text("resource_name"),
                    list("configs", &[text("name"), text("value").or_null()]),
                ],
            ),
            boolean("validate_only"),
        ],
    ),
    layout(
        ApiKey::IncrementalAlterConfigs,
        0,
        1,
        1,
        &[
            list(
                "resources",
                &[
                    int8("resource_type"),
                    text("resource_name"),
                    list("configs", &[text("name"), int8("config_operation"), text("value").or_null()]),
                ],
            ),
            boolean("validate_only"),
        ],
    ),
    layout(
        ApiKey::AlterReplicaLogDirs,
        1,
        2,
        2,
        &[list("dirs", &[text("path"), list("topics", &[text("name"), int32s("partitions")])])],
    ),
    layout(
        ApiKey::DescribeLogDirs,
        1,
        5,
        2,
        &[list("topics", &[text("topic"), int32s("partitions")]).or_null()],
    ),
    layout(
        ApiKey::CreatePartitions,
        0,
        3,
        2,
        &[
            list(
                "topics",
                &[text("name"), int32("count"), list("assignments", &[int32s("broker_ids")]).or_null()],
            ),
            int32("timeout_ms"),
            boolean("validate_only"),
        ],
    ),
    layout(
        ApiKey::ElectLeaders,
        0,
        2,
        2,
        &[
            int8("election_type").since(1),
            list("topic_partitions", &[text("topic"), int32s("partitions")]).or_null(),
            int32("timeout_ms"),
        ],
    ),
    layout(
        ApiKey::AlterPartitionReassignments,
        0,
        1,
        0,
        &[
            int32("timeout_ms"),
            boolean("allow_replication_factor_change").since(1),
            list(
                "topics",
                &[
                    text("name"),
                    list("partitions", &[int32("partition_index"), int32s("replicas").or_null()]),
                ],
            ),
        ],
    ),
    layout(
        ApiKey::ListPartitionReassignments,
        0,
        0,
        0,
        &[int32("timeout_ms"), list("topics", &[text("name"), int32s("partition_indexes")]).or_null()],
    ),
    layout(
        ApiKey::DescribeClientQuotas,
        0,
        1,
        1,
        &[
            list("components", &[text("entity_type"), int8("match_type"), text("match").or_null()]),
            boolean("strict"),
        ],
    ),
    layout(
        ApiKey::AlterClientQuotas,
        0,
        1,
        1,
        &[
            list(
                "entries",
                &[
                    list("entity", &[text("entity_type"), text("entity_name").or_null()]),
                    list("ops", &[text("key"), float64("value"), boolean("remove")]),
                ],
            ),
            boolean("validate_only"),
        ],
    ),
    layout(
        ApiKey::DescribeQuorum,
        0,
        2,
        0,
        &[list("topics", &[text("topic_name"), list("partitions", &[int32("partition_index")])])],
    ),
    layout(
        ApiKey::UpdateFeatures,
        0,
        2,
        0,
        &[
            int32("timeout_ms"),
            list(
                "feature_updates",
                &[
                    text("feature"),
                    int16("max_version_level"),
                    int8("upgrade_type").since(1),
                    boolean("allow_downgrade").until(0),
                ],
            ),
            boolean("validate_only").since(1),
        ],
    ),
    layout(
        ApiKey::DescribeCluster,
        0,
        2,
        0,
        &[
            boolean("include_cluster_authorized_operations"),
            int8("endpoint_type").since(1),
            boolean("include_fenced_brokers").since(2),
        ],
    ),
    layout(
        ApiKey::DescribeProducers,
        0,
        0,
        0,
        &[list("topics", &[text("name"), int32s("partition_indexes")])],
    ),
    layout(ApiKey::UnregisterBroker, 0, 0, 0, &[int32("broker_id")]),
    layout(ApiKey::DescribeTransactions, 0, 0, 0, &[texts("transactional_ids")]),
    layout(
        ApiKey::ListTransactions,
        0,
        2,
        0,
        &[
            texts("state_filters"),
            int64s("producer_id_filters"),
            int64("duration_filter").since(1),
            text("transactional_id_pattern").since(2).or_null(),
        ],
    ),
    layout(ApiKey::ListConfigResources, 0, 1, 0, &[int8s("resource_types").since(1)]),
    layout(
        ApiKey::AddRaftVoter,
        0,
        0,
        0,
        &[
            text("cluster_id").or_null(),
            int32("timeout_ms"),
            int32("voter_id"),
            uuid("voter_directory_id"),
            list("listeners", &[text("name"), text("host"), uint16("port")]),
        ],
    ),
    layout(
        ApiKey::RemoveRaftVoter,
        0,
        0,
        0,
        &[text("cluster_id").or_null(), int32("voter_id"), uuid("voter_directory_id")],
    ),
];
