//! Logins.

use super::rows;
use crate::config::row::{Area, Row, reason};

pub(super) const ROWS: &[Row] = rows! { Area::Sasl;
    Class "sasl.client.callback.handler.class" = null, Any, ReadOnly, NoEffect(reason::PLUGIN) =>
        "Class that answers the questions of a SASL client.";
    List "sasl.enabled.mechanisms" = "GSSAPI", Any, PerBroker, Refused(reason::SASL) =>
        "Ways in which clients may log in.";
    Password "sasl.jaas.config" = null, Any, PerBroker, Refused(reason::SASL) =>
        "How logins are checked, in JAAS syntax.";
    String "sasl.kerberos.kinit.cmd" = "/usr/bin/kinit", Any, PerBroker, NoEffect(reason::SASL_DETAIL) =>
        "Path of the `kinit` command.";
    Long "sasl.kerberos.min.time.before.relogin" = "60000", Any, PerBroker, NoEffect(reason::SASL_DETAIL) =>
        "Least milliseconds between two Kerberos logins.";
    List "sasl.kerberos.principal.to.local.rules" = "DEFAULT",
        Any, PerBroker, NoEffect(reason::SASL_DETAIL) =>
        "Rules that turn a Kerberos principal into a user's name.";
    String "sasl.kerberos.service.name" = null, Any, PerBroker, NoEffect(reason::SASL_DETAIL) =>
        "Kerberos name of the service.";
    Double "sasl.kerberos.ticket.renew.jitter" = "0.05", Any, PerBroker, NoEffect(reason::SASL_DETAIL) =>
        "Share of randomness in the renewal time of a Kerberos ticket.";
    Double "sasl.kerberos.ticket.renew.window.factor" = "0.8",
        Any, PerBroker, NoEffect(reason::SASL_DETAIL) =>
        "Share of a Kerberos ticket's life after which it is renewed.";
    Class "sasl.login.callback.handler.class" = null, Any, ReadOnly, NoEffect(reason::PLUGIN) =>
        "Class that answers the questions of a login.";
    Class "sasl.login.class" = null, Any, ReadOnly, NoEffect(reason::PLUGIN) =>
        "Class that logs in.";
    Int "sasl.login.connect.timeout.ms" = null, Any, ReadOnly, NoEffect(reason::SASL_DETAIL) =>
        "Milliseconds that a connection to the login provider may take.";
    Int "sasl.login.read.timeout.ms" = null, Any, ReadOnly, NoEffect(reason::SASL_DETAIL) =>
        "Milliseconds that an answer of the login provider may take.";
    Short "sasl.login.refresh.buffer.seconds" = "300", Any, PerBroker, NoEffect(reason::SASL_DETAIL) =>
        "Seconds before its end at which a login is refreshed at the latest.";
    Short "sasl.login.refresh.min.period.seconds" = "60", Any, PerBroker, NoEffect(reason::SASL_DETAIL) =>
        "Least seconds between two refreshes of a login.";
    Double "sasl.login.refresh.window.factor" = "0.8", Any, PerBroker, NoEffect(reason::SASL_DETAIL) =>
        "Share of a login's life after which it is refreshed.";
    Double "sasl.login.refresh.window.jitter" = "0.05", Any, PerBroker, NoEffect(reason::SASL_DETAIL) =>
        "Share of randomness in the refresh time of a login.";
    Long "sasl.login.retry.backoff.max.ms" = "10000", Any, ReadOnly, NoEffect(reason::SASL_DETAIL) =>
        "Longest pause in milliseconds between tries to log in.";
    Long "sasl.login.retry.backoff.ms" = "100", Any, ReadOnly, NoEffect(reason::SASL_DETAIL) =>
        "First pause in milliseconds between tries to log in.";
    String "sasl.mechanism.controller.protocol" = "GSSAPI", Any, ReadOnly, NoEffect(reason::SASL_DETAIL) =>
        "How brokers log in at controllers.";
    String "sasl.mechanism.inter.broker.protocol" = "GSSAPI", Any, PerBroker, NoEffect(reason::SASL_DETAIL) =>
        "How brokers log in at each other.";
    Boolean "sasl.oauthbearer.allow.unverified.audience" = "false",
        Any, ReadOnly,
        NoEffect(reason::OAUTH_DETAIL) =>
        "Whether a token without the expected audience is taken.";
    Boolean "sasl.oauthbearer.allow.unverified.issuer" = "false",
        Any, ReadOnly,
        NoEffect(reason::OAUTH_DETAIL) =>
        "Whether a token without the expected issuer is taken.";
    String "sasl.oauthbearer.assertion.algorithm" = "RS256",
        AnyCase(&["ES256", "RS256"]), ReadOnly,
        NoEffect(reason::OAUTH_DETAIL) =>
        "Algorithm by which assertions are signed.";
    String "sasl.oauthbearer.assertion.claim.aud" = null, Any, ReadOnly, NoEffect(reason::OAUTH_DETAIL) =>
        "Audience named in assertions.";
    Int "sasl.oauthbearer.assertion.claim.exp.seconds" = "300",
        Between(0, 86_400), ReadOnly,
        NoEffect(reason::OAUTH_DETAIL) =>
        "Seconds for which an assertion is good.";
    String "sasl.oauthbearer.assertion.claim.iss" = null, Any, ReadOnly, NoEffect(reason::OAUTH_DETAIL) =>
        "Issuer named in assertions.";
    Boolean "sasl.oauthbearer.assertion.claim.jti.include" = "false",
        Any, ReadOnly,
        NoEffect(reason::OAUTH_DETAIL) =>
        "Whether assertions carry a number of their own.";
    Int "sasl.oauthbearer.assertion.claim.nbf.seconds" = "60",
        Between(0, 3600), ReadOnly,
        NoEffect(reason::OAUTH_DETAIL) =>
        "Seconds in the past from which an assertion is good.";
    String "sasl.oauthbearer.assertion.claim.sub" = null, Any, ReadOnly, NoEffect(reason::OAUTH_DETAIL) =>
        "Subject named in assertions.";
    String "sasl.oauthbearer.assertion.file" = null, Any, ReadOnly, NoEffect(reason::OAUTH_DETAIL) =>
        "File with a ready-made assertion.";
    String "sasl.oauthbearer.assertion.private.key.file" = null,
        Any, ReadOnly,
        NoEffect(reason::OAUTH_DETAIL) =>
        "File with the key that signs assertions.";
    Password "sasl.oauthbearer.assertion.private.key.passphrase" = null,
        Any, ReadOnly, Refused(reason::SASL) =>
        "Passphrase of the key that signs assertions.";
    String "sasl.oauthbearer.assertion.template.file" = null, Any, ReadOnly, NoEffect(reason::OAUTH_DETAIL) =>
        "File with the frame of assertions.";
    String "sasl.oauthbearer.client.credentials.client.id" = null,
        Any, ReadOnly,
        NoEffect(reason::OAUTH_DETAIL) =>
        "Name under which the broker asks for tokens.";
    Password "sasl.oauthbearer.client.credentials.client.secret" = null,
        Any, ReadOnly, Refused(reason::SASL) =>
        "Secret with which the broker asks for tokens.";
    Int "sasl.oauthbearer.clock.skew.seconds" = "30", Any, ReadOnly, NoEffect(reason::OAUTH_DETAIL) =>
        "Seconds by which clocks may differ when a token's times are checked.";
    List "sasl.oauthbearer.expected.audience" = "", Any, ReadOnly, Refused(reason::SASL) =>
        "Audiences that a token must name.";
    String "sasl.oauthbearer.expected.issuer" = null, Any, ReadOnly, Refused(reason::SASL) =>
        "Issuer that a token must name.";
    Long "sasl.oauthbearer.jwks.endpoint.refresh.ms" = "3600000",
        Any, ReadOnly,
        NoEffect(reason::OAUTH_DETAIL) =>
        "Milliseconds between two fetches of the issuer's keys.";
    Long "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms" = "10000",
        Any, ReadOnly,
        NoEffect(reason::OAUTH_DETAIL) =>
        "Longest pause in milliseconds between tries to fetch the issuer's keys.";
    Long "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms" = "100",
        Any, ReadOnly,
        NoEffect(reason::OAUTH_DETAIL) =>
        "First pause in milliseconds between tries to fetch the issuer's keys.";
    String "sasl.oauthbearer.jwks.endpoint.url" = null, Any, ReadOnly, Refused(reason::SASL) =>
        "Where the issuer's keys are fetched.";
    Class "sasl.oauthbearer.jwt.retriever.class" = "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
        Any, ReadOnly,
        NoEffect(reason::PLUGIN) =>
        "Class that gets tokens.";
    Class "sasl.oauthbearer.jwt.validator.class" = "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
        Any, ReadOnly,
        NoEffect(reason::PLUGIN) =>
        "Class that checks tokens.";
    String "sasl.oauthbearer.scope" = null, Any, ReadOnly, NoEffect(reason::OAUTH_DETAIL) =>
        "Scope that is asked for.";
    String "sasl.oauthbearer.scope.claim.name" = "scope", Any, ReadOnly, NoEffect(reason::OAUTH_DETAIL) =>
        "Claim that holds the scope.";
    String "sasl.oauthbearer.sub.claim.name" = "sub", Any, ReadOnly, NoEffect(reason::OAUTH_DETAIL) =>
        "Claim that holds the subject.";
    String "sasl.oauthbearer.token.endpoint.url" = null, Any, ReadOnly, NoEffect(reason::OAUTH_DETAIL) =>
        "Where tokens are got.";
    Class "sasl.server.callback.handler.class" = null, Any, ReadOnly, Refused(reason::SASL) =>
        "Class that checks logins.";
    Int "sasl.server.max.receive.size" = "524288", Any, ReadOnly, NoEffect(reason::SASL_DETAIL) =>
        "Most bytes in one step of a login.";
};
