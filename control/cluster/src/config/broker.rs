//! What a broker obeys, as code reads it. Defaults of topics are not here: a topic's config knows them.

use std::net::IpAddr;

use super::resolve::Reader;
use super::value::address_counts;

/// The settings of one broker that count, wherever they were said.
#[derive(Clone, Debug, PartialEq)]
pub struct BrokerConfig {
    /// The node itself.
    pub node: NodeConfig,
    /// Listeners, sockets, requests.
    pub net: NetConfig,
    /// Creating and deleting topics.
    pub topics: TopicsConfig,
    /// Logs on disk, all together.
    pub logs: LogsConfig,
    /// Classic groups.
    pub groups: GroupsConfig,
    /// Committed offsets.
    pub offsets: OffsetsConfig,
    /// Producers and transactions.
    pub producers: ProducersConfig,
    /// Threads.
    pub threads: ThreadsConfig,
    /// How rates of clients are measured.
    pub quotas: QuotasConfig,
}

/// The node itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// `node.id`.
    pub id: i32,
    /// `broker.rack`.
    pub rack: Option<String>,
    /// `listeners`, as text.
    pub listeners: String,
    /// `advertised.listeners`, as text; `None`: the listeners.
    pub advertised_listeners: Option<String>,
    /// `log.dirs`, or `log.dir`: the data directory.
    pub data_dir: String,
}

/// Listeners, sockets, requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetConfig {
    /// `connections.max.idle.ms`; `None`: never.
    pub max_idle_ms: Option<u64>,
    /// `socket.request.max.bytes`.
    pub request_max_bytes: u32,
    /// `queued.max.request.bytes`; `None`: the broker's own choice.
    pub queued_bytes: Option<u64>,
    /// `felix.answer.bytes`; `None`: the broker's own choice.
    pub answer_bytes: Option<u64>,
    /// `max.connections`.
    pub max_connections: u32,
    /// `max.connections.per.ip`.
    pub max_connections_per_ip: u32,
    /// `max.connections.per.ip.overrides`: an address and its limit.
    pub max_connections_per_ip_overrides: Vec<(IpAddr, u32)>,
    /// `socket.listen.backlog.size`.
    pub listen_backlog: u32,
    /// `socket.send.buffer.bytes`; `None`: the system's default.
    pub send_buffer_bytes: Option<u64>,
    /// `socket.receive.buffer.bytes`; `None`: the system's default.
    pub receive_buffer_bytes: Option<u64>,
    /// `fetch.max.bytes`.
    pub fetch_max_bytes: u32,
    /// `max.incremental.fetch.session.cache.slots`.
    pub fetch_sessions: u32,
    /// `max.request.partition.size.limit`.
    pub describe_partitions_max: u32,
}

/// Creating and deleting topics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicsConfig {
    /// `auto.create.topics.enable`.
    pub auto_create: bool,
    /// `delete.topic.enable`.
    pub may_delete: bool,
    /// `num.partitions`.
    pub partitions: i32,
    /// `default.replication.factor`.
    pub replication_factor: i32,
}

/// Logs on disk, all together.
#[derive(Clone, Debug, PartialEq)]
pub struct LogsConfig {
    /// `log.retention.check.interval.ms`.
    pub retention_check_interval_ms: u64,
    /// `felix.flush.mode`.
    pub flush_mode: FlushMode,
    /// `felix.tail.bytes`.
    pub tail_bytes: u64,
    /// `felix.scrub.bytes.per.second`; `None`: there is no scrub.
    pub scrub_bytes_per_second: Option<u64>,
    /// `felix.scrub.interval.ms`.
    pub scrub_interval_ms: i64,
    /// Compaction.
    pub cleaner: CleanerConfig,
    /// Rebuilding of followers' copies.
    pub rebuild: RebuildConfig,
    /// Throttled copies.
    pub throttle: ThrottleConfig,
}

/// How fast throttled copies may catch up, in bytes a second; `None`: no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThrottleConfig {
    /// `leader.replication.throttled.rate`.
    pub sending: Option<u64>,
    /// `follower.replication.throttled.rate`.
    pub receiving: Option<u64>,
}

/// How copies that have stopped are rebuilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RebuildConfig {
    /// `felix.replication.rebuild.max.concurrent`.
    pub most: usize,
    /// `felix.replication.rebuild.bytes.per.sec`; 0: no limit.
    pub bytes_per_second: u64,
}

/// Compaction of all logs together.
#[derive(Clone, Debug, PartialEq)]
pub struct CleanerConfig {
    /// `log.cleaner.enable`.
    pub enabled: bool,
    /// `log.cleaner.threads`.
    pub threads: usize,
    /// `log.cleaner.backoff.ms`.
    pub backoff_ms: u64,
    /// `log.cleaner.dedupe.buffer.size`, for all threads.
    pub dedupe_bytes: u64,
    /// `log.cleaner.io.buffer.load.factor`.
    pub load_factor: f64,
    /// `log.cleaner.io.buffer.size` of one thread.
    pub buffer_bytes: usize,
    /// `log.cleaner.io.max.bytes.per.second`; `None`: no limit.
    pub max_bytes_per_second: Option<f64>,
}

impl CleanerConfig {
    fn read(reader: &mut Reader<'_>) -> CleanerConfig {
        let threads = reader.int("log.cleaner.threads");
        let rate = reader.fraction("log.cleaner.io.max.bytes.per.second");
        let buffers = usize::try_from(reader.size32("log.cleaner.io.buffer.size")).unwrap_or(usize::MAX);
        CleanerConfig {
            enabled: reader.flag("log.cleaner.enable"),
            threads: usize::try_from(threads).unwrap_or(0),
            backoff_ms: reader.size("log.cleaner.backoff.ms"),
            dedupe_bytes: u64::try_from(reader.number("log.cleaner.dedupe.buffer.size")).unwrap_or(0),
            load_factor: reader.fraction("log.cleaner.io.buffer.load.factor"),
            // All threads share it, and each has one buffer to read and one to write.
            buffer_bytes: buffers / 2 / usize::try_from(threads.max(1)).unwrap_or(1),
            max_bytes_per_second: (rate > 0.0 && rate < 1e18).then_some(rate),
        }
    }
}

/// How changed files are made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushMode {
    /// Whichever is quicker.
    Auto,
    /// Each file.
    File,
    /// The whole file system.
    FileSystem,
}

/// Classic groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupsConfig {
    /// `group.min.session.timeout.ms`.
    pub min_session_timeout_ms: i32,
    /// `group.max.session.timeout.ms`.
    pub max_session_timeout_ms: i32,
    /// `group.initial.rebalance.delay.ms`.
    pub initial_rebalance_delay_ms: i32,
    /// `group.max.size`.
    pub max_size: i32,
}

/// Committed offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetsConfig {
    /// `offset.metadata.max.bytes`.
    pub metadata_max_bytes: u32,
    /// `offsets.commit.timeout.ms`.
    pub commit_timeout_ms: u64,
    /// `offsets.retention.minutes`, in milliseconds.
    pub retention_ms: i64,
    /// `offsets.retention.check.interval.ms`.
    pub retention_check_interval_ms: u64,
    /// `offsets.topic.num.partitions`.
    pub topic_partitions: i32,
    /// `offsets.topic.replication.factor`.
    pub topic_replication_factor: i32,
    /// `offsets.topic.segment.bytes`.
    pub topic_segment_bytes: u64,
}

/// Producers and transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducersConfig {
    /// `producer.id.expiration.ms`.
    pub expiration_ms: i64,
    /// `felix.publish.quorum.timeout.ms`.
    pub quorum_timeout_ms: Option<u64>,
    /// `transaction.max.timeout.ms`.
    pub transaction_max_timeout_ms: i32,
    /// `transactional.id.expiration.ms`.
    pub transactional_id_expiration_ms: i32,
}

/// How rates of clients are measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotasConfig {
    /// `quota.window.num` and `quota.window.size.seconds`.
    pub clients: WindowsConfig,
    /// `controller.quota.window.num` and `controller.quota.window.size.seconds`.
    pub controller: WindowsConfig,
}

/// Samples of a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowsConfig {
    /// How many.
    pub count: u32,
    /// What one covers.
    pub seconds: u32,
}

/// Threads; `None`: the broker chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadsConfig {
    /// `felix.lane.threads`.
    pub lanes: Option<usize>,
    /// `felix.flush.threads`.
    pub flushers: Option<usize>,
    /// `felix.read.threads`.
    pub readers: Option<usize>,
}

impl BrokerConfig {
    pub(super) fn read(reader: &mut Reader<'_>) -> BrokerConfig {
        BrokerConfig {
            node: NodeConfig::read(reader),
            net: NetConfig::read(reader),
            topics: TopicsConfig {
                auto_create: reader.flag("auto.create.topics.enable"),
                may_delete: reader.flag("delete.topic.enable"),
                partitions: reader.int("num.partitions"),
                replication_factor: reader.int("default.replication.factor"),
            },
            logs: LogsConfig {
                retention_check_interval_ms: reader.size("log.retention.check.interval.ms"),
                flush_mode: match reader.text("felix.flush.mode").as_str() {
                    "file" => FlushMode::File,
                    "filesystem" => FlushMode::FileSystem,
                    _ => FlushMode::Auto,
                },
                tail_bytes: reader.size("felix.tail.bytes"),
                scrub_bytes_per_second: Some(reader.size("felix.scrub.bytes.per.second"))
                    .filter(|bytes| *bytes > 0),
                scrub_interval_ms: reader.number("felix.scrub.interval.ms"),
                cleaner: CleanerConfig::read(reader),
                rebuild: RebuildConfig {
                    most: usize::try_from(reader.size("felix.replication.rebuild.max.concurrent"))
                        .unwrap_or(usize::MAX),
                    bytes_per_second: reader.size("felix.replication.rebuild.bytes.per.sec"),
                },
                throttle: ThrottleConfig {
                    sending: throttle_rate(reader, "leader.replication.throttled.rate"),
                    receiving: throttle_rate(reader, "follower.replication.throttled.rate"),
                },
            },
            groups: GroupsConfig {
                min_session_timeout_ms: reader.int("group.min.session.timeout.ms"),
                max_session_timeout_ms: reader.int("group.max.session.timeout.ms"),
                initial_rebalance_delay_ms: reader.int("group.initial.rebalance.delay.ms"),
                max_size: reader.int("group.max.size"),
            },
            offsets: OffsetsConfig::read(reader),
            producers: ProducersConfig {
                expiration_ms: reader.number("producer.id.expiration.ms"),
                quorum_timeout_ms: reader.limit("felix.publish.quorum.timeout.ms"),
                transaction_max_timeout_ms: reader.int("transaction.max.timeout.ms"),
                transactional_id_expiration_ms: reader.int("transactional.id.expiration.ms"),
            },
            threads: ThreadsConfig {
                lanes: chosen(reader.size32("felix.lane.threads")),
                flushers: chosen(reader.size32("felix.flush.threads")),
                readers: chosen(reader.size32("felix.read.threads")),
            },
            quotas: QuotasConfig {
                clients: WindowsConfig {
                    count: reader.size32("quota.window.num"),
                    seconds: reader.size32("quota.window.size.seconds"),
                },
                controller: WindowsConfig {
                    count: reader.size32("controller.quota.window.num"),
                    seconds: reader.size32("controller.quota.window.size.seconds"),
                },
            },
        }
    }
}

impl NodeConfig {
    fn read(reader: &mut Reader<'_>) -> NodeConfig {
        let dirs = reader.list("log.dirs");
        NodeConfig {
            id: reader.int("node.id"),
            rack: given(reader.text("broker.rack")),
            listeners: reader.text("listeners"),
            advertised_listeners: given(reader.text("advertised.listeners")),
            data_dir: if dirs.is_empty() { reader.text("log.dir") } else { dirs.join(",") },
        }
    }
}

impl NetConfig {
    fn read(reader: &mut Reader<'_>) -> NetConfig {
        NetConfig {
            max_idle_ms: reader.limit("connections.max.idle.ms"),
            request_max_bytes: reader.size32("socket.request.max.bytes"),
            queued_bytes: reader.limit("queued.max.request.bytes").filter(|bytes| *bytes > 0),
            answer_bytes: Some(reader.size("felix.answer.bytes")).filter(|bytes| *bytes > 0),
            max_connections: reader.size32("max.connections"),
            max_connections_per_ip: reader.size32("max.connections.per.ip"),
            max_connections_per_ip_overrides: address_counts(
                &reader.text("max.connections.per.ip.overrides"),
            )
            .unwrap_or_default(),
            listen_backlog: reader.size32("socket.listen.backlog.size"),
            send_buffer_bytes: reader.limit("socket.send.buffer.bytes"),
            receive_buffer_bytes: reader.limit("socket.receive.buffer.bytes"),
            fetch_max_bytes: reader.size32("fetch.max.bytes"),
            fetch_sessions: reader.size32("max.incremental.fetch.session.cache.slots"),
            describe_partitions_max: reader.size32("max.request.partition.size.limit"),
        }
    }
}

impl OffsetsConfig {
    fn read(reader: &mut Reader<'_>) -> OffsetsConfig {
        OffsetsConfig {
            metadata_max_bytes: reader.size32("offset.metadata.max.bytes"),
            commit_timeout_ms: reader.size("offsets.commit.timeout.ms"),
            retention_ms: reader.number("offsets.retention.minutes").saturating_mul(60_000),
            retention_check_interval_ms: reader.size("offsets.retention.check.interval.ms"),
            topic_partitions: reader.int("offsets.topic.num.partitions"),
            topic_replication_factor: reader.int("offsets.topic.replication.factor"),
            topic_segment_bytes: reader.size("offsets.topic.segment.bytes"),
        }
    }
}

/// Kafka's defaults, with the listener and the directory of our command line.
impl Default for BrokerConfig {
    fn default() -> Self {
        super::resolve::broker(&super::Layers::DEFAULTS).config
    }
}

/// 0 leaves the choice to the broker.
fn chosen(count: u32) -> Option<usize> {
    usize::try_from(count).ok().filter(|count| *count > 0)
}

fn given(text: String) -> Option<String> {
    if text.is_empty() { None } else { Some(text) }
}

/// Kafka's largest number means that there is no limit.
fn throttle_rate(reader: &mut Reader<'_>, name: &'static str) -> Option<u64> {
    Some(reader.number(name)).filter(|rate| *rate < i64::MAX).and_then(|rate| u64::try_from(rate).ok())
}
