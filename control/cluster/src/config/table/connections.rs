//! Listeners, sockets, requests.

use super::rows;
use crate::config::row::{Area, Row, reason};

pub(super) const ROWS: &[Row] = rows! { Area::Connections;
    List "advertised.listeners" = null, Any, ReadOnly, Honoured =>
        "What clients are told to connect to, in Kafka's syntax; the same as the flag \
         `--advertised-listeners`, which wins. Unset means the listeners themselves.";
    Int "connection.failed.authentication.delay.ms" = "100",
        AtLeast(0), ReadOnly, NoEffect(reason::NO_LOGIN) =>
        "Milliseconds by which the answer to a failed login is held back.";
    Long "connections.max.idle.ms" = "600000", Any, ReadOnly, Honoured =>
        "Milliseconds without traffic after which a connection is closed; negative means never.";
    Int "delete.records.purgatory.purge.interval.requests" = "1",
        Any, ReadOnly,
        NoEffect(reason::NO_PURGATORY) =>
        "After how many requests the list of waiting record deletions is tidied.";
    List "early.start.listeners" = null, Any, ReadOnly, NoEffect(reason::NO_LOGIN) =>
        "Listeners that open before authorisation is ready.";
    Int "fetch.max.bytes" = "57671680", AtLeast(1024), ReadOnly, Honoured =>
        "Most bytes of records in one answer to a fetch, whatever the client asks for; the first batch is \
         always sent whole.";
    Int "fetch.purgatory.purge.interval.requests" = "1000", Any, ReadOnly, NoEffect(reason::NO_PURGATORY) =>
        "After how many requests the list of waiting fetches is tidied.";
    String "listener.security.protocol.map" = "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        ProtocolMap, ReadOnly,
        Partly("every listener speaks PLAINTEXT; a map that names another protocol for a listener in use is refused") =>
        "Which security protocol each listener name stands for.";
    List "listeners" = "PLAINTEXT://127.0.0.1:9092", Any, ReadOnly, Honoured =>
        "Where clients connect, in Kafka's syntax; the same as the flag `--listeners`, which wins.";
    Int "max.connection.creation.rate" = "2147483647", AtLeast(0), ClusterWide, NoEffect(reason::PER_ADDRESS) =>
        "New connections per second that the broker takes.";
    Int "max.connections" = "2147483647", AtLeast(0), ClusterWide, Honoured =>
        "Most connections that the broker keeps open; more are closed at once.";
    Int "max.connections.per.ip" = "2147483647", AtLeast(0), ClusterWide, Honoured =>
        "Most connections from one address; more are closed at once.";
    String "max.connections.per.ip.overrides" = "",
        AddressCounts, ClusterWide,
        Partly("addresses only; host names are refused") =>
        "Other limits for single addresses: a list of `address:count`.";
    Int "max.incremental.fetch.session.cache.slots" = "1000", AtLeast(0), ReadOnly, Honoured =>
        "How many fetch sessions the broker remembers; further consumers fetch without one.";
    Int "num.io.threads" = "8", AtLeast(1), ClusterWide, NoEffect(reason::THREADS) =>
        "Threads that work on requests.";
    Int "num.network.threads" = "3", AtLeast(1), ClusterWide, NoEffect(reason::THREADS) =>
        "Threads that read and write sockets.";
    Int "producer.purgatory.purge.interval.requests" = "1000",
        Any, ReadOnly, NoEffect(reason::NO_PURGATORY) =>
        "After how many requests the list of waiting produce requests is tidied.";
    Long "queued.max.request.bytes" = "-1", Any, ReadOnly,
        Partly("counted are requests of more than 64 KiB, from their arrival to their answer; smaller ones are \
                bounded by each connection's own limits; without a limit the broker chooses one") =>
        "Bytes of waiting requests at which sockets are no longer read; 0 or less leaves it to the broker, which \
         takes an eighth of the machine's memory.";
    Int "queued.max.requests" = "500", AtLeast(1), ReadOnly, NoEffect(reason::PIPELINE) =>
        "Waiting requests at which sockets are no longer read.";
    Int "request.timeout.ms" = "30000", Any, ReadOnly, NoEffect(reason::OWN_PACE) =>
        "Milliseconds that a broker waits for the answer to a request of its own.";
    Int "share.fetch.purgatory.purge.interval.requests" = "1000",
        Any, ReadOnly,
        NoEffect(reason::NO_PURGATORY) =>
        "After how many requests the list of waiting share fetches is tidied.";
    Long "socket.connection.setup.timeout.max.ms" = "30000", Any, ReadOnly, NoEffect(reason::OWN_PACE) =>
        "Longest wait in milliseconds for a connection between brokers, after repeated failures.";
    Long "socket.connection.setup.timeout.ms" = "10000", Any, ReadOnly, NoEffect(reason::OWN_PACE) =>
        "First wait in milliseconds for a connection between brokers.";
    Int "socket.listen.backlog.size" = "1024", AtLeast(1), ReadOnly, Honoured =>
        "Connections that the operating system holds until they are accepted.";
    Int "socket.receive.buffer.bytes" = "-1", Any, ReadOnly, Honoured =>
        "Size in bytes of a connection's receive buffer in the operating system; -1 leaves it to the \
         system, which fits it to each connection's speed.";
    Int "socket.request.max.bytes" = "104857600", AtLeast(1), ReadOnly, Honoured =>
        "Largest request in bytes; a larger one closes the connection.";
    Int "socket.send.buffer.bytes" = "-1", Any, ReadOnly, Honoured =>
        "Size in bytes of a connection's send buffer in the operating system; -1 leaves it to the system, \
         which fits it to each connection's speed.";
    #internal Boolean "unstable.api.versions.enable" = "false", Any, ReadOnly, NoEffect(reason::UNSTABLE) =>
        "Whether versions of requests that are still being designed are served.";
};
