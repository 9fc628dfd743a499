//! What may be stored.

use super::*;

fn change(current: &[(&str, &str)], edits: &[Edit]) -> Result<Overrides, String> {
    topic(&overrides(current), edits, &Layers::DEFAULTS).map_err(|error| error.to_string())
}

#[test]
fn set_and_delete() {
    let after = change(&[("flush.ms", "1")], &[set("retention.ms", " 5 "), edit("flush.ms", Op::Delete, "")]);
    assert_eq!(after, Ok(overrides(&[("retention.ms", "5")])));
    assert_eq!(change(&[], &[edit("nosuch", Op::Delete, "")]), Ok(Overrides::new()));
    let stale = change(&[("gone", "1"), ("retention.ms", "x")], &[edit("gone", Op::Delete, "")]);
    assert_eq!(stale, Ok(overrides(&[("retention.ms", "x")])), "only what is edited is checked");
}

#[test]
fn lists_grow_and_shrink_from_what_is_in_force() {
    let policy = |current: &[(&str, &str)], op, value| {
        change(current, &[edit("cleanup.policy", op, value)]).map(|after| after["cleanup.policy"].clone())
    };
    assert_eq!(policy(&[], Op::Append, "compact").as_deref(), Ok("delete,compact"));
    assert_eq!(policy(&[], Op::Append, "delete").as_deref(), Ok("delete"));
    assert_eq!(
        policy(&[("cleanup.policy", "delete,compact")], Op::Subtract, "delete").as_deref(),
        Ok("compact")
    );
    assert_eq!(policy(&[("cleanup.policy", "compact")], Op::Subtract, "compact").as_deref(), Ok(""));
    assert_eq!(
        policy(&[("cleanup.policy", "")], Op::Append, "compact, delete").as_deref(),
        Ok("compact,delete")
    );
    assert!(policy(&[], Op::Append, "bogus").is_err());
    let cluster = overrides(&[("log.cleanup.policy", "compact")]);
    let layers = Layers { cluster: &cluster, ..Layers::DEFAULTS };
    let after = topic(&Overrides::new(), &[edit("cleanup.policy", Op::Append, "delete")], &layers).unwrap();
    assert_eq!(after["cleanup.policy"], "compact,delete");
}

/// known-faults.md B005: such a request once took a whole broker down.
#[test]
fn only_lists_can_be_appended_to() {
    for op in [Op::Append, Op::Subtract] {
        let error =
            topic(&Overrides::new(), &[edit("retention.ms", op, "5")], &Layers::DEFAULTS).unwrap_err();
        assert!(matches!(error, EditError::NotAList { .. }), "{error}");
    }
}

#[test]
fn all_edits_are_made_or_none() {
    assert_eq!(
        change(&[], &[set("retention.ms", "1"), set("foo", "x")]),
        Err("Unknown topic config name: foo".into())
    );
    assert_eq!(
        change(&[], &[set("retention.ms", "x"), set("foo", "x")]),
        Err("Unknown topic config name: foo".into()),
        "names before values"
    );
    assert_eq!(
        change(&[], &[set("retention.ms", "abc")]),
        Err("Invalid value abc for configuration retention.ms: must be a whole number, -1 or more".into())
    );
    assert_eq!(
        change(&[], &[set("retention.ms", "1"), set("retention.ms", "2")]),
        Err("retention.ms is named more than once".into())
    );
    let null = Edit { name: "retention.ms".to_owned(), op: Op::Set, value: None };
    assert_eq!(change(&[], &[null]), Err("Null value not supported for: retention.ms".into()));
}

#[test]
fn the_lags_of_compaction_go_together() {
    let both = [set("min.compaction.lag.ms", "10"), set("max.compaction.lag.ms", "5")];
    assert!(change(&[], &both).unwrap_err().contains("must not exceed"));
    assert!(change(&[("max.compaction.lag.ms", "5")], &both[..1]).is_err());
    let cluster = overrides(&[("log.cleaner.max.compaction.lag.ms", "5")]);
    let layers = Layers { cluster: &cluster, ..Layers::DEFAULTS };
    assert!(topic(&Overrides::new(), &both[..1], &layers).is_err());
    let log_min = [set("log.cleaner.min.compaction.lag.ms", "10")];
    assert!(broker(Scope::Broker, &Overrides::new(), &log_min, &layers).is_err());
}

#[test]
fn a_whole_config_replaces_everything() {
    let pairs = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), Some((*value).to_owned()))).collect::<Vec<_>>()
    };
    let after =
        whole_topic(&pairs(&[("retention.ms", "1"), ("cleanup.policy", "compact")]), &Layers::DEFAULTS);
    assert_eq!(after, Ok(overrides(&[("cleanup.policy", "compact"), ("retention.ms", "1")])));
    assert_eq!(whole_topic(&[], &Layers::DEFAULTS), Ok(Overrides::new()));
    // A client that reads all configs and writes them back changes nothing it did not mean to.
    let all: Vec<_> = describe_topic(&Overrides::new(), &Layers::DEFAULTS)
        .into_iter()
        .map(|entry| (entry.row.name.to_owned(), entry.value))
        .collect();
    let after = whole_topic(&all, &Layers::DEFAULTS).unwrap();
    let expected = TopicConfig { min_insync_replicas: Some(1), ..TopicConfig::default() };
    assert_eq!(resolve::topic(&after, &Layers::DEFAULTS).config, expected);
    assert!(whole_topic(&[("retention.ms".to_owned(), None)], &Layers::DEFAULTS).is_err());
    let error =
        whole_broker(Scope::Broker, &pairs(&[("num.partitions", "2")]), &Layers::DEFAULTS).unwrap_err();
    assert!(matches!(error, EditError::ReadOnly { .. }));
}

#[test]
fn brokers_keep_to_their_scopes() {
    let none = Overrides::new();
    let change = |scope, edits: &[Edit]| broker(scope, &none, edits, &Layers::DEFAULTS);
    assert!(change(Scope::Broker, &[set("log.retention.ms", "1")]).is_ok());
    assert!(change(Scope::Cluster, &[set("log.retention.ms", "1")]).is_ok());
    let error = change(Scope::Broker, &[set("num.partitions", "1"), set("log.retention.hours", "1")]);
    let names = "num.partitions, log.retention.hours".to_owned();
    assert_eq!(error, Err(EditError::ReadOnly { names }));
    let error = change(Scope::Cluster, &[set("cordoned.log.dirs", "/d")]);
    assert!(matches!(error, Err(EditError::OneBroker { .. })));
    assert!(matches!(change(Scope::Cluster, &[set("foo", "1")]), Err(EditError::Unknown { .. })));
    let error = change(Scope::Broker, &[set("ssl.keystore.password", "secret")]).unwrap_err();
    assert!(error.to_string().contains("unprotected") && !error.to_string().contains("secret"), "{error}");
    let after = change(Scope::Cluster, &[edit("log.cleanup.policy", Op::Append, "compact")]).unwrap();
    assert_eq!(after["log.cleanup.policy"], "delete,compact");
    assert!(change(Scope::Cluster, &[set("leader.replication.throttled.rate", "5")]).is_ok());
}

#[test]
fn groups_stay_within_the_brokers_bounds() {
    let none = Overrides::new();
    let change = |name, value| group(&none, &[set(name, value)], &Layers::DEFAULTS);
    assert!(change("consumer.session.timeout.ms", "46000").is_ok());
    let error = change("consumer.session.timeout.ms", "1").unwrap_err();
    assert!(error.to_string().contains("must be from 45000 to 60000"), "{error}");
    assert!(matches!(change("foo", "1"), Err(EditError::Unknown { resource: Resource::Group, .. })));
    assert!(change("share.auto.offset.reset", "earliest").is_ok());
    assert!(client_metrics(&none, &[set("interval.ms", "50000"), set("match", "client_id=x")]).is_ok());
    assert!(client_metrics(&none, &[set("interval.ms", "1")]).is_err());
}
