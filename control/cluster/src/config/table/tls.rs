//! Encrypted connections.

use super::rows;
use crate::config::row::{Area, Row, reason};

pub(super) const ROWS: &[Row] = rows! { Area::Tls;
    Boolean "ssl.allow.dn.changes" = "false", Any, ReadOnly, NoEffect(reason::TLS_DETAIL) =>
        "Whether a new certificate may carry another name.";
    Boolean "ssl.allow.san.changes" = "false", Any, ReadOnly, NoEffect(reason::TLS_DETAIL) =>
        "Whether a new certificate may drop alternative names.";
    List "ssl.cipher.suites" = "", Any, PerBroker, NoEffect(reason::TLS_DETAIL) =>
        "Cipher suites that are offered; empty means all good ones.";
    String "ssl.client.auth" = "none",
        OneOf(&["required", "requested", "none"]), PerBroker,
        Refused(reason::TLS) =>
        "Whether clients must show a certificate.";
    List "ssl.enabled.protocols" = "TLSv1.2,TLSv1.3", Any, PerBroker, NoEffect(reason::TLS_DETAIL) =>
        "TLS versions that are offered.";
    String "ssl.endpoint.identification.algorithm" = "https", Any, PerBroker, NoEffect(reason::TLS_DETAIL) =>
        "How the name in a server's certificate is checked.";
    Class "ssl.engine.factory.class" = null, Any, PerBroker, Refused(reason::TLS) =>
        "Class that makes TLS engines.";
    Password "ssl.key.password" = null, Any, PerBroker, Refused(reason::TLS) =>
        "Password of the private key.";
    String "ssl.keymanager.algorithm" = "SunX509", Any, PerBroker, NoEffect(reason::TLS_DETAIL) =>
        "Algorithm of the Java key manager.";
    Password "ssl.keystore.certificate.chain" = null, Any, PerBroker, Refused(reason::TLS) =>
        "The broker's certificates as PEM text.";
    Password "ssl.keystore.key" = null, Any, PerBroker, Refused(reason::TLS) =>
        "The broker's private key as PEM text.";
    String "ssl.keystore.location" = null, Any, PerBroker, Refused(reason::TLS) =>
        "File with the broker's key and certificates.";
    Password "ssl.keystore.password" = null, Any, PerBroker, Refused(reason::TLS) =>
        "Password of the key file.";
    String "ssl.keystore.type" = "JKS", Any, PerBroker, NoEffect(reason::TLS_DETAIL) =>
        "Format of the key file.";
    String "ssl.principal.mapping.rules" = "DEFAULT", Any, ReadOnly, NoEffect(reason::TLS_DETAIL) =>
        "Rules that turn a certificate's name into a user's name.";
    String "ssl.protocol" = "TLSv1.3", Any, PerBroker, NoEffect(reason::TLS_DETAIL) =>
        "TLS version that is tried first.";
    String "ssl.provider" = null, Any, PerBroker, NoEffect(reason::TLS_DETAIL) =>
        "Java security provider of TLS.";
    String "ssl.secure.random.implementation" = null, Any, PerBroker, NoEffect(reason::TLS_DETAIL) =>
        "Java source of randomness for TLS.";
    String "ssl.trustmanager.algorithm" = "PKIX", Any, PerBroker, NoEffect(reason::TLS_DETAIL) =>
        "Algorithm of the Java trust manager.";
    Password "ssl.truststore.certificates" = null, Any, PerBroker, Refused(reason::TLS) =>
        "Certificates that are trusted, as PEM text.";
    String "ssl.truststore.location" = null, Any, PerBroker, Refused(reason::TLS) =>
        "File with the certificates that are trusted.";
    Password "ssl.truststore.password" = null, Any, PerBroker, Refused(reason::TLS) =>
        "Password of the file with trusted certificates.";
    String "ssl.truststore.type" = "JKS", Any, PerBroker, NoEffect(reason::TLS_DETAIL) =>
        "Format of the file with trusted certificates.";
};
