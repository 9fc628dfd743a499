use std::io::Write;

use super::*;

fn run(arguments: &[&str], environment: &[(&str, &str)]) -> Result<Settings, ArgsError> {
    let matches = command().try_get_matches_from(std::iter::once(&"felix").chain(arguments)).unwrap();
    let lookup =
        |name: &str| environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    match resolve(&matches, lookup)? {
        Action::Serve(settings) => Ok(*settings),
        other @ (Action::CheckConfig(_)
        | Action::Health(_)
        | Action::DumpLog(_)
        | Action::Verify(_)
        | Action::Status(_)
        | Action::Recover(_)) => {
            panic!("asked to {other:?}")
        }
    }
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

#[test]
fn the_command_is_sound() {
    command().debug_assert();
}

#[test]
fn nothing_given_means_the_defaults() {
    let settings = run(&[], &[]).unwrap();
    assert_eq!(settings.node_id, 1);
    assert_eq!(settings.data_dir, PathBuf::from("./felix-data"));
    assert_eq!(settings.listeners[0].to_string(), "PLAINTEXT://127.0.0.1:9092");
    assert_eq!(settings.metrics_bind, ("127.0.0.1".to_owned(), 9644));
    assert_eq!(settings.lease, Duration::from_secs(2));
    let fixed: Vec<_> =
        settings.fixed.values().iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(fixed, ["broker.id=1", "node.id=1"], "and nothing else is described as said at the start");
}

#[test]
fn a_flag_beats_the_environment_which_beats_the_file() {
    let config = file("node-id = 3\nrack = \"c\"\nlease-ms = 700\n");
    let path = config.path().to_str().unwrap();
    let environment = [("FELIX_NODE_ID", "2"), ("FELIX_CONFIG", path), ("FELIX_RACK", "b")];
    let settings = run(&["--node-id", "1"], &environment).unwrap();
    assert_eq!(settings.node_id, 1);
    assert_eq!(settings.rack.as_deref(), Some("b"));
    assert_eq!(settings.lease, Duration::from_millis(700));
}

#[test]
fn etcd_comes_with_all_it_wants_to_see() {
    assert_eq!(run(&[], &[("FELIX_CLUSTER_PREFIX", "/x")]).unwrap().etcd, None);
    let certificate = file("PEM");
    let path = certificate.path().to_str().unwrap();
    let environment = [
        ("FELIX_ETCD_ENDPOINTS", "a:2379, https://b:2379"),
        ("FELIX_ETCD_CERT_FILE", path),
        ("FELIX_ETCD_KEY_FILE", path),
        ("FELIX_ETCD_USER", "felix"),
        ("FELIX_ETCD_PASSWORD", "secret"),
    ];
    let etcd = run(&["--cluster-prefix", "/clusters/one"], &environment).unwrap().etcd.unwrap();
    assert_eq!(etcd.endpoints, ["a:2379", "https://b:2379"]);
    assert_eq!(etcd.prefix, "/clusters/one");
    assert_eq!(etcd.identity, Some((b"PEM".to_vec(), b"PEM".to_vec())));
    assert_eq!(etcd.user, Some(("felix".to_owned(), "secret".to_owned())));
    assert_eq!(etcd.ca, None);
    assert!(!format!("{etcd:?}").contains("secret"));
}

#[test]
fn brokers_find_each_other_only_where_there_can_be_several() {
    let run = |arguments: &[&str]| run(arguments, &[]);
    assert_eq!(run(&["--internal-listener", "127.0.0.1:1"]).unwrap().internal, None);
    let given = run(&["--etcd", "a:1"]).unwrap().internal.unwrap();
    assert_eq!((given.host.as_str(), given.port, given.is_default), ("127.0.0.1", 9192, true));
    let files = file("PEM");
    let path = files.path().to_str().unwrap();
    let secure = ["--internal-tls-cert", path, "--internal-tls-key", path, "--internal-tls-ca", path];
    let secure = secure.as_slice();
    let open = ["--etcd", "a:1", "--listeners", "PLAINTEXT://:9092"].as_slice();
    let there = ["--internal-listener", "10.0.0.1:7", "--internal-advertise", "b:8"].as_slice();
    let given = run(&[open, there, secure].concat()).unwrap().internal.unwrap();
    assert_eq!((given.host.as_str(), given.port, given.is_default), ("10.0.0.1", 7, false));
    assert_eq!(given.advertised, Some(("b".to_owned(), 8)));
    assert!(given.tls.is_some() && !format!("{given:?}").contains("PEM"));
    assert!(run(&[open, there, &["--internal-plaintext", "true"]].concat()).is_ok());
    let say = |arguments: &[&[&str]]| run(&arguments.concat()).unwrap_err().to_string();
    let apart = say(&[open]);
    assert!(apart.starts_with("internal-listener = \"127.0.0.1:9192\" (from the default): "), "{apart}");
    let plain = say(&[open, there]);
    assert!(plain.contains("taken for a broker") && plain.contains("--internal-plaintext"), "{plain}");
    let half = say(&[open, there, &secure[..4]]);
    assert!(half.ends_with("must be given together with --internal-tls-ca"), "{half}");
    assert!(say(&[open, &["--internal-plaintext", "yes"]]).contains("true or false"));
    assert!(say(&[open, &["--internal-advertise", "0.0.0.0:1"]]).contains("cannot connect"));
    assert!(say(&[open, &["--internal-listener", "nowhere"]]).contains("host:port"));
}

#[test]
fn flags_may_stand_on_both_sides_of_serve() {
    let arguments = [
        "--node-id",
        "1",
        "--set",
        "num.partitions=2",
        "serve",
        "--node-id",
        "2",
        "--set",
        "num.partitions=3",
    ];
    let settings = run(&arguments, &[]).unwrap();
    assert_eq!(settings.node_id, 2);
    assert_eq!(settings.fixed.values()["num.partitions"], "3");
    assert_eq!(settings.fixed.values()["node.id"], "2", "tools see the flag as the config");
}

#[test]
fn the_file_holds_broker_configs_too() {
    let config = file("log.retention.ms = 5\n[num]\npartitions = 3\n");
    let path = config.path().to_str().unwrap();
    let settings = run(&["--config", path, "--set", "log.retention.ms=6"], &[]).unwrap();
    assert_eq!(settings.fixed.values()["log.retention.ms"], "6");
    assert_eq!(settings.fixed.values()["num.partitions"], "3");
}

#[test]
fn a_config_stands_in_for_its_flag_and_yields_to_it() {
    let settings = run(&["--set", "node.id=7"], &[]).unwrap();
    assert_eq!(settings.node_id, 7);
    let settings = run(&["--set", "node.id=7"], &[("FELIX_NODE_ID", "8")]).unwrap();
    assert_eq!(settings.node_id, 8);
    assert_eq!(settings.fixed.values()["node.id"], "8");
}

#[test]
fn an_error_names_the_thing_its_source_and_what_is_allowed() {
    let say = |arguments: &[&str], environment: &[(&str, &str)]| {
        run(arguments, environment).unwrap_err().to_string()
    };
    let message = say(&[], &[("FELIX_NODE_ID", "x")]);
    assert!(message.starts_with("node-id = \"x\" (from environment FELIX_NODE_ID): "), "{message}");
    assert_eq!(
        say(&["--lease-ms", "100"], &[]),
        "lease-ms = \"100\" (from flag --lease-ms): must be a whole number of milliseconds from 500 to 60000"
    );
    let allowed = "must be host:port, http://host:port or https://host:port, several separated by commas";
    assert_eq!(say(&["--etcd", "a:1,b"], &[]), format!("etcd = \"a:1,b\" (from flag --etcd): {allowed}"));
    let prefix = say(&["--etcd", "a:1", "--cluster-prefix", "felix"], &[]);
    assert!(
        prefix
            .starts_with("cluster-prefix = \"felix\" (from flag --cluster-prefix): must begin with a slash")
    );
    assert_eq!(
        say(&["--etcd", "a:1"], &[("FELIX_ETCD_PASSWORD", "secret")]),
        "FELIX_ETCD_PASSWORD = \"...\" (from environment FELIX_ETCD_PASSWORD): must be given together with FELIX_ETCD_USER"
    );
    let missing = say(&["--etcd", "a:1"], &[("FELIX_ETCD_CA_FILE", "/nowhere")]);
    assert!(missing.contains("must be a file that can be read"), "{missing}");
    assert!(say(&["--set", "no.such=1"], &[]).starts_with("no.such (from flag --set): unknown"));
    assert!(say(&["--set", "nothing"], &[]).contains("key=value"));
    assert!(say(&["--config", "/does/not/exist"], &[]).contains("cannot use the file"));
    let broken = file("a = 1\nb = \n");
    let message = say(&["--config", broken.path().to_str().unwrap()], &[]);
    assert!(message.contains("line 2"), "{message}");
    assert!(!message.contains('\n'), "one line: {message}");
}

#[test]
fn listeners_are_kafkas_syntax() {
    let listeners = |text: &str| parse_endpoints(text, endpoint::Use::Bind);
    let two = listeners("PLAINTEXT://[::1]:9092, outside://:0").unwrap();
    assert_eq!(two[0].host, "::1");
    assert_eq!(two[0].to_string(), "PLAINTEXT://[::1]:9092");
    assert_eq!(two[1], Endpoint { name: "OUTSIDE".to_owned(), host: String::new(), port: 0 });
    for bad in [
        "",
        "127.0.0.1:9092",
        "A://h",
        "A://h:99999",
        "A://::1:1",
        "A://[x]:1",
        "SSL://h:1",
        "A://h:1,A://h:2",
    ] {
        assert!(listeners(bad).is_err(), "{bad}");
    }
    let wrong = run(&["--advertised-listeners", "OTHER://h:1"], &[]).unwrap_err().to_string();
    assert!(wrong.contains("no listener is named OTHER"), "{wrong}");
    for bad in ["PLAINTEXT://0.0.0.0:1", "PLAINTEXT://h:0", "PLAINTEXT://:1"] {
        assert!(parse_endpoints(bad, endpoint::Use::Advertise).is_err(), "{bad}");
    }
}

#[test]
fn a_path_to_dump_is_taken_as_it_is() {
    let matches = command().try_get_matches_from(["felix", "dump-log", "some/where"]).unwrap();
    let action = resolve(&matches, |_| None).unwrap();
    assert!(matches!(action, Action::DumpLog(path) if path.as_os_str() == "some/where"));
}

#[test]
fn directories_to_check_are_taken_as_they_are() {
    let matches = command().try_get_matches_from(["felix", "verify", "one", "two"]).unwrap();
    let Ok(Action::Verify(dirs)) = resolve(&matches, |_| None) else { panic!("not a check") };
    assert_eq!(dirs, [PathBuf::from("one"), PathBuf::from("two")]);
}

#[test]
fn a_wrong_command_line_is_one_line() {
    let parsed = |line: &[&str]| {
        let words = std::iter::once("felix").chain(line.iter().copied());
        parse(words.map(std::ffi::OsString::from))
    };
    for line in [
        &["--bogus"][..],
        &["--node-id"],
        &["nonsense"],
        &["dump-log"],
        &["verify"],
        &["--rack", "a", "--rack", "b"],
    ] {
        let Err(Unparsed::Wrong(text)) = parsed(line) else { panic!("{line:?} is taken") };
        assert!(!text.contains('\n') && text.contains("--help"), "{text}");
    }
    assert!(matches!(parsed(&["--help"]), Err(Unparsed::Shown(text)) if text.contains("--data-dir")));
    assert!(matches!(parsed(&["--version"]), Err(Unparsed::Shown(_))));
    assert!(parsed(&["--node-id", "-5"]).is_ok(), "refused with its own words later");
}

#[test]
fn the_settings_can_be_asked_about_alone() {
    let asked = |arguments: &[&str]| {
        let matches = command().try_get_matches_from(std::iter::once(&"felix").chain(arguments)).unwrap();
        resolve(&matches, |name| (name == "FELIX_BROKER_METRICS_BIND").then(|| "0.0.0.0:1".to_owned()))
    };
    let on_both_sides = [&["--check-config"][..], &["serve", "--check-config"], &["--check-config", "serve"]];
    for arguments in on_both_sides {
        assert!(matches!(asked(arguments), Ok(Action::CheckConfig(_))), "{arguments:?}");
    }
    assert!(matches!(asked(&["serve"]), Ok(Action::Serve(_))));
    assert!(asked(&["--check-config", "--node-id", "x"]).is_err());
    let bound = |arguments: &[&str]| match asked(arguments) {
        Ok(Action::Health(settings)) => settings.metrics_bind,
        other => panic!("{other:?}"),
    };
    assert_eq!(bound(&["health"]), ("0.0.0.0".to_owned(), 1));
    assert_eq!(bound(&["health", "--metrics-bind", "localhost:2"]), ("localhost".to_owned(), 2));
    assert_eq!(bound(&["--metrics-bind", "localhost:3", "--set", "num.partitions=2", "health"]).1, 3);
}

fn action(arguments: &[&str], environment: &[(&str, &str)]) -> Action {
    let matches = command().try_get_matches_from(std::iter::once(&"felix").chain(arguments)).unwrap();
    let lookup =
        |name: &str| environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    resolve(&matches, lookup).unwrap()
}

#[test]
fn status_asks_the_own_metrics_listener_unless_told_otherwise() {
    let servers = |arguments: &[&str], environment: &[(&str, &str)]| {
        let Action::Status(asked) = action(arguments, environment) else { panic!("not status") };
        asked.servers
    };
    assert_eq!(servers(&["status"], &[]), ["127.0.0.1:9644"]);
    let environment = [("FELIX_BROKER_METRICS_BIND", "0.0.0.0:7000")];
    assert_eq!(servers(&["status"], &environment), ["127.0.0.1:7000"]);
    assert_eq!(servers(&["status", "--server", "a:1", "--server", "b:2"], &environment), ["a:1", "b:2"]);
    let Action::Status(all) = action(&["status", "--json", "--all"], &[]) else { panic!("not status") };
    assert!(all.json && all.all);
}

#[test]
fn recover_finds_the_store_as_a_broker_does_and_writes_only_when_told_to() {
    let recover = |arguments: &[&str], environment: &[(&str, &str)]| {
        let Action::Recover(asked) = action(arguments, environment) else { panic!("not recover") };
        asked
    };
    let store = recover(&["recover", "store", "--etcd", "a:2379"], &[("FELIX_CLUSTER_PREFIX", "/x")]);
    let etcd = store.settings.etcd.as_ref().unwrap();
    assert_eq!((etcd.endpoints.as_slice(), etcd.prefix.as_str()), (&["a:2379".to_owned()][..], "/x"));
    assert!(store.act == Act::Store && !store.yes);
    let confirm = recover(&["recover", "confirm", "--yes", "--data-dir", "/d"], &[]);
    assert!(confirm.act == Act::Confirm && confirm.yes && confirm.settings.etcd.is_none());
    assert_eq!(confirm.settings.data_dir, PathBuf::from("/d"));
    let line = ["--etcd", "a:1", "recover", "partition", "orders-1", "logs", "--to", "3", "--ask", "h:1"];
    let partitions = recover(&line, &[]);
    assert!(partitions.settings.etcd.is_some());
    let names = ["orders-1", "logs"].map(str::to_owned).to_vec();
    assert_eq!(partitions.act, Act::Partitions { names, to: Some(3), ask: vec!["h:1".to_owned()] });
    for wrong in
        [&["recover"][..], &["recover", "partition"], &["recover", "all"], &["recover", "store", "x"]]
    {
        assert!(command().try_get_matches_from(std::iter::once(&"felix").chain(wrong)).is_err(), "{wrong:?}");
    }
}
