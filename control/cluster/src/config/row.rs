//! A row of the table: everything that is known about one setting.

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its name: Kafka's own where Kafka has one, otherwise beginning with `felix.`.
    pub name: &'static str,
    /// What kind of value it takes.
    pub kind: Kind,
    /// The default as text; `None` where the setting has no value until it is given one.
    pub default: Option<&'static str>,
    /// Which values of the kind are allowed.
    pub check: Check,
    /// Whether and where it can be changed while the broker runs. Means nothing for topics and groups, whose
    /// settings can always be changed.
    pub dynamic: Dynamic,
    /// What it does here.
    pub state: State,
    /// Where the documentation lists it.
    pub area: Area,
    /// For tests and experiments: settable, but not described, as in Kafka.
    pub internal: bool,
    /// One or two sentences for the operator, with the unit.
    pub doc: &'static str,
}

impl Row {
    /// Whether the value must never be shown.
    pub fn sensitive(&self) -> bool {
        self.kind == Kind::Password
    }
}

/// The kind of a value. The numbers are those of DescribeConfigs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
pub enum Kind {
    /// `true` or `false`.
    Boolean = 1,
    /// Any text.
    String = 2,
    /// A whole number of 32 bits.
    Int = 3,
    /// A whole number of 16 bits.
    Short = 4,
    /// A whole number of 64 bits.
    Long = 5,
    /// A fraction.
    Double = 6,
    /// Texts separated by commas.
    List = 7,
    /// The name of a Java class.
    Class = 8,
    /// A text that is never shown.
    Password = 9,
}

impl Kind {
    /// The kind's number in an answer to DescribeConfigs.
    pub fn code(self) -> i8 {
        self as i8
    }

    /// The kind's name in documentation.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Boolean => "boolean",
            Kind::String => "string",
            Kind::Int => "int",
            Kind::Short => "short",
            Kind::Long => "long",
            Kind::Double => "double",
            Kind::List => "list",
            Kind::Class => "class",
            Kind::Password => "password",
        }
    }
}

/// Which values of a kind are allowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Check {
    /// All.
    Any,
    /// Numbers from this one.
    AtLeast(i64),
    /// Numbers from the first to the last, both included.
    Between(i64, i64),
    /// -1, or numbers from the first to the last.
    MinusOneOr(i64, i64),
    /// Fractions from the first to the last, both included.
    Share(f64, f64),
    /// Any text but the empty one.
    NotEmpty,
    /// One of these.
    OneOf(&'static [&'static str]),
    /// One of these, in capitals or not.
    AnyCase(&'static [&'static str]),
    /// A list of these; the empty list too.
    EachOf(&'static [&'static str]),
    /// `partition:broker` pairs, or `*` alone.
    Replicas,
    /// `address:count` pairs.
    AddressCounts,
    /// `NAME:PROTOCOL` pairs.
    ProtocolMap,
    /// `earliest`, `latest` or `by_duration:` with an ISO duration.
    OffsetReset,
    /// `selector=pattern` pairs.
    ClientMatch,
}

/// Where a broker setting can be changed while brokers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dynamic {
    /// Only before the start.
    ReadOnly,
    /// For one broker at a time.
    PerBroker,
    /// For one broker or for the whole cluster.
    ClusterWide,
}

impl Dynamic {
    /// The scope's name in documentation.
    pub fn name(self) -> &'static str {
        match self {
            Dynamic::ReadOnly => "read-only",
            Dynamic::PerBroker => "per-broker",
            Dynamic::ClusterWide => "cluster-wide",
        }
    }
}

/// What a setting does here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// What Kafka's documentation and ours promise.
    Honoured,
    /// A part of it; the text says which.
    Partly(&'static str),
    /// Accepted, checked, described, and without effect; the text says why.
    NoEffect(&'static str),
    /// Refused unless it is the default; the text says why.
    Refused(&'static str),
}

/// Where the documentation lists a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Area {
    /// What single topics can be told.
    Topic,
    /// Our own broker settings.
    Felix,
    /// Logs on disk.
    Logs,
    /// Creating and deleting topics.
    Topics,
    /// Listeners, sockets, requests.
    Connections,
    /// Groups and their offsets.
    Groups,
    /// Producers and transactions.
    Transactions,
    /// The node and its cluster.
    Cluster,
    /// Copies on several brokers.
    Replication,
    /// Who may do what.
    Access,
    /// Encrypted connections.
    Tls,
    /// Logins.
    Sasl,
    /// Metrics and quotas.
    Observe,
    /// Groups of the consumer protocol.
    ConsumerGroups,
    /// Streams groups.
    StreamsGroups,
    /// Share groups.
    ShareGroups,
    /// Remote storage.
    Remote,
    /// What single groups can be told.
    Group,
    /// What a subscription to client metrics can be told.
    ClientMetrics,
}

/// Why settings have no effect or are refused; each reads on from "accepted without effect: " or "refused: ".
pub(super) mod reason {
    pub const ACLS: &str = "access control is not enforced yet; the broker would be open to everybody";
    pub const HANDOVER: &str = "a stopping broker always hands over what it leads";
    pub const JOIN: &str = "there is no KRaft quorum to join; nodes find each other through etcd (--etcd)";
    pub const KRAFT: &str = "there is no KRaft quorum; the control store keeps the cluster's state";
    pub const LEASE: &str = "the lease decides which broker is alive (--lease-ms)";
    pub const METRICS: &str = "metrics are served for Prometheus on the metrics listener (--metrics-bind)";
    pub const NEXT_GEN: &str = "the consumer group protocol of KIP-848 is not served yet";
    pub const NO_LOGIN: &str = "clients cannot log in yet";
    pub const NO_PURGATORY: &str = "waiting requests are woken by what they wait for and need no tidying";
    pub const OAUTH_DETAIL: &str = "a detail of OAuth logins, which are not served yet";
    pub const ONE_DIR: &str = "a node has one data directory";
    pub const ONE_NODE: &str = "needs more than one node";
    pub const OWN_PACE: &str = "the broker keeps its own pace here";
    pub const OWN_PORT: &str = "brokers talk to each other on a port of their own (--internal-listener)";
    pub const OWN_TABLE: &str = "kept in one durable table, written when it changes";
    pub const PER_ADDRESS: &str =
        "new connections are limited in rate by quotas of addresses (connection_creation_rate)";
    pub const PIPELINE: &str = "each connection has its own bound on requests in progress";
    pub const PLUGIN: &str = "Java classes cannot be loaded";
    pub const POLICY: &str = "Java classes cannot be loaded, and without it nothing would be checked";
    pub const PUSH: &str = "leaders push their log; followers do not fetch";
    pub const SASL: &str = "logins are not served yet; the broker would be open to everybody";
    pub const SASL_DETAIL: &str = "a detail of logins, which are not served yet";
    pub const SHARE: &str = "share groups are not served yet";
    pub const STREAMS: &str = "the streams group protocol is not served yet";
    pub const TELEMETRY: &str = "clients are not asked for metrics yet";
    pub const THREADS: &str = "the broker sizes its own threads and buffers";
    pub const THROTTLE: &str =
        "replication is throttled by a bucket that holds one second's bytes, not by samples";
    pub const TIERED: &str = "there is no remote storage";
    pub const TLS: &str = "TLS is not served yet; connections would be unprotected";
    pub const TLS_DETAIL: &str = "a detail of TLS, which is not served yet";
    pub const TOKENS: &str = "delegation tokens are not served";
    pub const TXN: &str = "transactions are not served yet";
    pub const UNCLEAN: &str = "a single node has no other copy to choose";
    pub const UNSTABLE: &str = "versions that are still being designed are never served";
}
