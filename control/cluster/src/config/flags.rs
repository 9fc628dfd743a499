//! The command line and the environment, as a table: one place for the broker's arguments and the documentation.

use super::row::State;

/// One thing that a node can be told at its start.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// The flag, without its dashes, and the key in the file; `None`: by the environment only.
    pub flag: Option<&'static str>,
    /// What stands for the value in the help.
    pub value_name: &'static str,
    /// The environment variable; `None`: there is none.
    pub environment: Option<&'static str>,
    /// The default; `None`: see the help.
    pub default: Option<&'static str>,
    /// The broker config that means the same. The flag, the environment and the file's key for the flag win over it.
    pub config: Option<&'static str>,
    /// What it does here.
    pub state: State,
    /// One sentence, without a full stop, for the help and the documentation.
    pub help: &'static str,
}

const PEERS: &str = "a node without etcd has no other brokers to talk to";
const LOCK: &str = "a node without etcd has its lease by the lock on its directory, and a cluster keeps what its first \
                    node wrote";

/// Everything, in the order of the help.
pub const FLAGS: &[Flag] = &[
    Flag {
        flag: Some("node-id"),
        value_name: "NUMBER",
        environment: Some("FELIX_NODE_ID"),
        default: Some("1"),
        config: Some("node.id"),
        state: State::Honoured,
        help: "Broker id, stable over restarts",
    },
    Flag {
        flag: Some("data-dir"),
        value_name: "DIR",
        environment: Some("FELIX_DATA_DIR"),
        default: Some("./felix-data"),
        config: Some("log.dirs"),
        state: State::Honoured,
        help: "Where everything is kept; created if missing, locked while in use",
    },
    Flag {
        flag: Some("listeners"),
        value_name: "LIST",
        environment: Some("FELIX_LISTENERS"),
        default: Some("PLAINTEXT://127.0.0.1:9092"),
        config: Some("listeners"),
        state: State::Honoured,
        help: "Where clients connect, in Kafka's syntax; several are separated by commas",
    },
    Flag {
        flag: Some("advertised-listeners"),
        value_name: "LIST",
        environment: Some("FELIX_ADVERTISED_LISTENERS"),
        default: None,
        config: Some("advertised.listeners"),
        state: State::Honoured,
        help: "What clients are told to connect to [default: the listeners]",
    },
    Flag {
        flag: Some("internal-listener"),
        value_name: "HOST:PORT",
        environment: Some("FELIX_INTERNAL_BIND"),
        default: None,
        config: None,
        state: State::Partly(PEERS),
        help: "Where other brokers connect, and nobody else; port 0 takes a free one [default: none on a single node, 127.0.0.1:9192 with etcd, or a free port where that one is taken]",
    },
    Flag {
        flag: Some("internal-advertise"),
        value_name: "HOST:PORT",
        environment: Some("FELIX_INTERNAL_ADVERTISE"),
        default: None,
        config: None,
        state: State::Partly(PEERS),
        help: "What other brokers dial [default: the internal listener]",
    },
    Flag {
        flag: Some("internal-tls-cert"),
        value_name: "FILE",
        environment: Some("FELIX_INTERNAL_TLS_CERT"),
        default: None,
        config: None,
        state: State::Partly(PEERS),
        help: "Certificate to show to other brokers, PEM, with the DNS name node-N of node N; the key and the authority go with it",
    },
    Flag {
        flag: Some("internal-tls-key"),
        value_name: "FILE",
        environment: Some("FELIX_INTERNAL_TLS_KEY"),
        default: None,
        config: None,
        state: State::Partly(PEERS),
        help: "Private key of that certificate, PEM",
    },
    Flag {
        flag: Some("internal-tls-ca"),
        value_name: "FILE",
        environment: Some("FELIX_INTERNAL_TLS_CA"),
        default: None,
        config: None,
        state: State::Partly(PEERS),
        help: "Authority that all brokers' certificates are signed by, PEM",
    },
    Flag {
        flag: Some("internal-plaintext"),
        value_name: "BOOLEAN",
        environment: Some("FELIX_INTERNAL_PLAINTEXT"),
        default: Some("false"),
        config: None,
        state: State::Partly(PEERS),
        help: "Lets brokers talk without TLS where the internal listener is not on the loopback: everyone who reaches it is believed",
    },
    Flag {
        flag: Some("etcd"),
        value_name: "LIST",
        environment: Some("FELIX_ETCD_ENDPOINTS"),
        default: None,
        config: None,
        state: State::Honoured,
        help: "etcd endpoints, host:port or a URL, separated by commas [default: none, a control store in the data directory]",
    },
    Flag {
        flag: Some("cluster-prefix"),
        value_name: "PREFIX",
        environment: Some("FELIX_CLUSTER_PREFIX"),
        default: Some("/felix"),
        config: None,
        state: State::Honoured,
        help: "Key prefix in etcd, so that clusters can share one",
    },
    Flag {
        flag: Some("rack"),
        value_name: "NAME",
        environment: Some("FELIX_RACK"),
        default: None,
        config: Some("broker.rack"),
        state: State::Honoured,
        help: "Rack of this node: replicas are spread over racks [default: none]",
    },
    Flag {
        flag: Some("metrics-bind"),
        value_name: "HOST:PORT",
        environment: Some("FELIX_BROKER_METRICS_BIND"),
        default: Some("127.0.0.1:9644"),
        config: None,
        state: State::Honoured,
        help: "HTTP with /metrics, /healthz and /readyz",
    },
    Flag {
        flag: Some("lease-ms"),
        value_name: "MS",
        environment: Some("FELIX_LEASE_MS"),
        default: Some("2000"),
        config: None,
        state: State::Partly(LOCK),
        help: "Lease length, 500 to 60000; cluster-wide, the first node writes it",
    },
    Flag {
        flag: Some("config"),
        value_name: "FILE",
        environment: Some("FELIX_CONFIG"),
        default: None,
        config: None,
        state: State::Honoured,
        help: "TOML file with any of these settings and any broker config",
    },
    Flag {
        flag: Some("set"),
        value_name: "KEY=VALUE",
        environment: None,
        default: None,
        config: None,
        state: State::Honoured,
        help: "Any broker config by Kafka's name, e.g. log.retention.ms=600000; repeatable",
    },
    Flag {
        flag: None,
        value_name: "FILE",
        environment: Some("FELIX_ETCD_CA_FILE"),
        default: None,
        config: None,
        state: State::Honoured,
        help: "Authority that etcd's certificates are signed by, PEM [default: the system's]",
    },
    Flag {
        flag: None,
        value_name: "FILE",
        environment: Some("FELIX_ETCD_CERT_FILE"),
        default: None,
        config: None,
        state: State::Honoured,
        help: "Certificate to show to etcd, PEM; FELIX_ETCD_KEY_FILE goes with it",
    },
    Flag {
        flag: None,
        value_name: "FILE",
        environment: Some("FELIX_ETCD_KEY_FILE"),
        default: None,
        config: None,
        state: State::Honoured,
        help: "Private key of that certificate, PEM",
    },
    Flag {
        flag: None,
        value_name: "NAME",
        environment: Some("FELIX_ETCD_USER"),
        default: None,
        config: None,
        state: State::Honoured,
        help: "User to be at etcd; FELIX_ETCD_PASSWORD goes with it",
    },
    Flag {
        flag: None,
        value_name: "TEXT",
        environment: Some("FELIX_ETCD_PASSWORD"),
        default: None,
        config: None,
        state: State::Honoured,
        help: "Password of that user",
    },
    Flag {
        flag: None,
        value_name: "MS",
        environment: Some("FELIX_PUBLISH_QUORUM_TIMEOUT_MS"),
        default: None,
        config: Some("felix.publish.quorum.timeout.ms"),
        state: State::Honoured,
        help: "Most milliseconds that an acks=all write waits for its acknowledgement",
    },
    Flag {
        flag: None,
        value_name: "NUMBER",
        environment: Some("FELIX_REPLICATION_REBUILD_MAX_CONCURRENT"),
        default: Some("1"),
        config: Some("felix.replication.rebuild.max.concurrent"),
        state: State::Honoured,
        help: "How many halted copies are rebuilt at one time; 0 leaves it to the operator",
    },
    Flag {
        flag: None,
        value_name: "BYTES",
        environment: Some("FELIX_REPLICATION_REBUILD_BYTES_PER_SEC"),
        default: Some("0"),
        config: Some("felix.replication.rebuild.bytes.per.sec"),
        state: State::Honoured,
        help: "Bytes per second sent to each copy that is being rebuilt; 0 means no limit",
    },
    Flag {
        flag: None,
        value_name: "FILTER",
        environment: Some("FELIX_LOG"),
        default: Some("info"),
        config: None,
        state: State::Honoured,
        help: "Level of the log on stderr: error, warn, info, debug, trace, or a filter such as felix=debug",
    },
    Flag {
        flag: None,
        value_name: "FORM",
        environment: Some("FELIX_LOG_FORMAT"),
        default: Some("text"),
        config: None,
        state: State::Honoured,
        help: "Form of the log: text for people, json for machines",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::table::Resource;

    #[test]
    fn a_flag_and_its_broker_config_agree() {
        for flag in FLAGS {
            assert!(flag.flag.is_some() || flag.environment.is_some());
            let Some(config) = flag.config else { continue };
            let row = Resource::Broker.row(config).unwrap_or_else(|| panic!("{config}"));
            if let (Some(default), Some(other)) = (flag.default, row.default) {
                assert_eq!(default, other, "{config}");
            }
        }
    }
}
