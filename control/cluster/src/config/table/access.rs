//! Who may do what.

use super::rows;
use crate::config::row::{Area, Row, reason};

pub(super) const ROWS: &[Row] = rows! { Area::Access;
    String "authorizer.class.name" = "", Any, ReadOnly, Refused(reason::ACLS) =>
        "Class that decides who may do what.";
    Class "client.quota.callback.class" = null, Any, ReadOnly, Refused(reason::PLUGIN) =>
        "Class that decides quotas.";
    List "config.providers" = "", Any, ClusterWide, Refused(reason::PLUGIN) =>
        "Sources from which values like passwords are read at start.";
    Long "connections.max.reauth.ms" = "0", Any, ReadOnly, NoEffect(reason::NO_LOGIN) =>
        "Milliseconds after which a client must log in again; 0 means never.";
    Long "delegation.token.expiry.check.interval.ms" = "3600000",
        AtLeast(1), ReadOnly,
        NoEffect(reason::TOKENS) =>
        "Milliseconds between two looks for expired delegation tokens.";
    Long "delegation.token.expiry.time.ms" = "86400000", AtLeast(1), ReadOnly, NoEffect(reason::TOKENS) =>
        "Milliseconds for which a delegation token is good unless renewed.";
    Long "delegation.token.max.lifetime.ms" = "604800000", AtLeast(1), ReadOnly, NoEffect(reason::TOKENS) =>
        "Milliseconds beyond which a delegation token cannot be renewed.";
    Password "delegation.token.secret.key" = null, Any, ReadOnly, Refused(reason::TOKENS) =>
        "Secret by which delegation tokens are made.";
    Class "principal.builder.class" = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        Any, PerBroker,
        Refused(reason::PLUGIN) =>
        "Class that turns a connection into the name of its user.";
    String "security.inter.broker.protocol" = "PLAINTEXT",
        OneOf(&["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]), ReadOnly,
        Refused(reason::TLS) =>
        "Security protocol between brokers.";
    String "security.providers" = null, Any, ReadOnly, NoEffect(reason::PLUGIN) =>
        "Java security providers.";
};
