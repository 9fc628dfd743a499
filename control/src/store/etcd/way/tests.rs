use super::*;

fn config(endpoints: &[&str], tls: bool) -> EtcdConfig {
    EtcdConfig {
        endpoints: endpoints.iter().map(|given| (*given).to_owned()).collect(),
        prefix: "/felix".to_owned(),
        timeout: Duration::from_secs(1),
        tls: tls.then_some(super::super::EtcdTls { ca: None, identity: None }),
        user: None,
    }
}

fn uris(endpoints: &[&str], tls: bool) -> Result<Vec<String>, String> {
    let way = Way::new(config(endpoints, tls)).map_err(|error| error.to_string())?;
    Ok(way.endpoints.iter().map(|endpoint| endpoint.uri().to_string()).collect())
}

#[test]
fn endpoints_are_spelled_with_or_without_a_scheme() {
    assert_eq!(uris(&["a:1", "http://b:2"], false).unwrap(), ["http://a:1/", "http://b:2/"]);
    assert_eq!(uris(&["a:1", "https://[::1]:2"], true).unwrap(), ["https://a:1/", "https://[::1]:2/"]);
    for (given, tls) in [
        ("a", false),
        ("http://a", false),
        ("ftp://a:1", false),
        ("http://a:1/path", false),
        ("http://a:1", true),
        ("a b:1", false),
        ("", false),
    ] {
        let refused = uris(&[given], tls).unwrap_err();
        assert!(refused.contains(given), "{refused}");
    }
    assert_eq!(uris(&[], false).unwrap_err(), EtcdConfigError::NoEndpoint.to_string());
}

#[test]
fn only_what_etcd_itself_says_proves_that_nothing_happened() {
    let of = |code, message: &str| classify(&Error::GRpcStatus(Status::new(code, message)));
    let refused = [
        (Code::InvalidArgument, "etcdserver: too many operations in txn request"),
        (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"),
        (Code::PermissionDenied, "etcdserver: permission denied"),
    ];
    for (code, message) in refused {
        assert!(matches!(of(code, message), Failure::Refused(_)), "{message}");
    }
    let open = [
        (Code::Unavailable, "etcdserver: request timed out"),
        (Code::Unavailable, "etcdserver: leader changed"),
        (Code::Unknown, "raft proposal dropped"),
        (Code::ResourceExhausted, "grpc: received message larger than max"),
        (Code::InvalidArgument, "a proxy's opinion"),
        (Code::Cancelled, ""),
    ];
    for (code, message) in open {
        assert!(matches!(of(code, message), Failure::Open(_)), "{message}");
    }
    assert!(matches!(of(Code::Unavailable, "etcdserver: no leader"), Failure::Elsewhere(_)));
    assert!(matches!(of(Code::Unauthenticated, "etcdserver: invalid auth token"), Failure::Token(_)));
    let compacted = of(Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted");
    assert!(matches!(compacted, Failure::Compacted));
    let large =
        of(Code::OutOfRange, "Error, decoded message length too large: found 5 bytes, the limit is: 4");
    assert!(matches!(large, Failure::TooLarge(_)));
}

#[test]
fn no_secret_is_shown() {
    let tls = super::super::EtcdTls { ca: None, identity: Some((b"cert".to_vec(), b"hidden".to_vec())) };
    let user = Some(("felix".to_owned(), "hidden".to_owned()));
    let shown = format!("{:?}", EtcdConfig { tls: Some(tls), user, ..config(&["a:1"], false) });
    assert!(shown.contains("felix") && !shown.contains("hidden") && !shown.contains("104"), "{shown}");
}
