//! Certificates, names and passwords.

use std::path::Path;
use std::process::{Command, Stdio};

use felix_control::store::etcd::{Etcd, EtcdConfig, EtcdError, EtcdTls};
use felix_control::store::{Store, StoreError, Watch};
use serde_json::json;

use crate::server::{Cluster, block_on, free_port};
use crate::suite::{bounded, read, written};

pub fn tls_and_password(server: &Path) -> String {
    password(server);
    tls(server);
    "password, authority and client certificate".to_owned()
}

fn password(server: &Path) {
    let mut cluster = Cluster::start(server, 1);
    let member = &cluster.members[0];
    // "/felix/" to "/felix0".
    let range = json!({ "permType": "READWRITE", "key": "L2ZlbGl4Lw==", "range_end": "L2ZlbGl4MA==" });
    for (path, body) in [
        ("/v3/auth/user/add", json!({ "name": "root", "password": "r" })),
        ("/v3/auth/role/add", json!({ "name": "root" })),
        ("/v3/auth/user/grant", json!({ "user": "root", "role": "root" })),
        ("/v3/auth/user/add", json!({ "name": "felix", "password": "secret" })),
        ("/v3/auth/role/add", json!({ "name": "felix" })),
        ("/v3/auth/role/grant", json!({ "name": "felix", "perm": range })),
        ("/v3/auth/user/grant", json!({ "user": "felix", "role": "felix" })),
        ("/v3/auth/enable", json!({})),
    ] {
        member.ask(path, &body).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
    let plain = cluster.config("/felix");
    let user = |password: &str| EtcdConfig {
        user: Some(("felix".to_owned(), password.to_owned())),
        ..plain.clone()
    };
    block_on(async {
        let refusals = [
            (plain.clone(), "user name is empty"),
            (user("wrong"), "authentication failed"),
            (EtcdConfig { prefix: "/other".to_owned(), ..user("secret") }, "permission denied"),
        ];
        for (config, wanted) in refusals {
            let refused = Etcd::connect(config, None).await;
            let Err(EtcdError::Store(StoreError::Unavailable(what))) = refused else { panic!("{wanted}") };
            assert!(what.contains(wanted) && what.contains("127.0.0.1"), "{what}");
        }
        let mut store = Etcd::connect(user("secret"), None).await.unwrap();
        let first = written(&mut store, 1, "a").await;
        let mut watch = store.watch("/", first).await.unwrap();
        let second = written(&mut store, 1, "b").await;
        assert_eq!(bounded(watch.next()).await.unwrap().revision, second);
        // A server that was started anew does not know our token any more.
        cluster.kill(0);
        cluster.spawn(0);
        let port = cluster.members[0].client_port;
        let again = async {
            while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err()
                || store.get("/cluster").await.is_err()
            {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        bounded(again).await;
        assert_eq!(read(&mut store, 1).await.as_deref(), Some("b"));
        let third = written(&mut store, 1, "c").await;
        match bounded(watch.next()).await {
            Ok(batch) => assert_eq!(batch.revision, third),
            // It may have given up while the server was away.
            Err(error) => assert!(matches!(error, StoreError::Unavailable(_)), "{error}"),
        }
        let mut watch = store.watch("/", second).await.unwrap();
        assert_eq!(bounded(watch.next()).await.unwrap().revision, third);
    });
}

fn tls(server: &Path) {
    let keys = tempfile::tempdir().unwrap();
    let keys = keys.path();
    authority(keys, "ca");
    authority(keys, "stranger");
    signed(keys, "ca", "server", "subjectAltName=IP:127.0.0.1,DNS:localhost");
    signed(keys, "ca", "client", "extendedKeyUsage=clientAuth");
    let file = |name: &str| keys.join(name).display().to_string();
    let port = free_port();
    let url = format!("https://127.0.0.1:{port}");
    let options = [
        "--listen-client-urls",
        &url,
        "--advertise-client-urls",
        &url,
        "--cert-file",
        &file("server.pem"),
        "--key-file",
        &file("server.key"),
        "--client-cert-auth",
        "--trusted-ca-file",
        &file("ca.pem"),
    ]
    .map(str::to_owned);
    let mut cluster = Cluster::make(server, 1, "felix", &options);
    cluster.spawn(0);
    let pem = |name: &str| std::fs::read(keys.join(name)).unwrap();
    let config = |ca: Option<&str>, identity: bool, endpoint: &str| EtcdConfig {
        endpoints: vec![endpoint.to_owned()],
        tls: Some(EtcdTls {
            ca: ca.map(pem),
            identity: identity.then(|| (pem("client.pem"), pem("client.key"))),
        }),
        ..cluster.config("/felix")
    };
    block_on(async {
        let good = config(Some("ca.pem"), true, &url);
        let mut store = bounded(async {
            loop {
                match Etcd::connect(good.clone(), None).await {
                    Ok(store) => break store,
                    Err(EtcdError::Config(error)) => panic!("{error}"),
                    Err(_) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
                }
            }
        })
        .await;
        let first = written(&mut store, 1, "a").await;
        let mut watch = store.watch("/", first).await.unwrap();
        let second = written(&mut store, 1, "b").await;
        assert_eq!(bounded(watch.next()).await.unwrap().revision, second);
        // Without a scheme, and by name.
        let named = config(Some("ca.pem"), true, &format!("localhost:{port}"));
        assert!(Etcd::connect(named, None).await.is_ok());
        let plain =
            EtcdConfig { endpoints: vec![format!("http://127.0.0.1:{port}")], ..cluster.config("/felix") };
        let refusals = [
            config(Some("stranger.pem"), true, &url),
            config(None, true, &url),
            config(Some("ca.pem"), false, &url),
            plain,
        ];
        for (at, config) in refusals.into_iter().enumerate() {
            let refused = Etcd::connect(config, None).await;
            let Err(EtcdError::Store(StoreError::Unavailable(what))) = refused else { panic!("{at}") };
            assert!(what.contains("127.0.0.1"), "{what}");
            eprintln!("refused as wanted: {what}");
        }
        let broken = EtcdTls { ca: Some(b"no certificate".to_vec()), identity: None };
        let broken = EtcdConfig { tls: Some(broken), ..config(None, false, &url) };
        assert!(Etcd::connect(broken, None).await.is_err());
    });
}

/// An authority of one's own.
fn authority(folder: &Path, name: &str) {
    openssl(
        folder,
        &format!(
            "req -x509 -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.pem -days 2 -subj /CN={name}"
        ),
    );
}

/// A key and its certificate, signed by an authority.
fn signed(folder: &Path, authority: &str, name: &str, extension: &str) {
    std::fs::write(folder.join("extensions"), extension).unwrap();
    openssl(
        folder,
        &format!("req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr -subj /CN={name}"),
    );
    openssl(
        folder,
        &format!(
            "x509 -req -in {name}.csr -CA {authority}.pem -CAkey {authority}.key -CAcreateserial -out {name}.pem -days 2 \
             -extfile extensions"
        ),
    );
}

fn openssl(folder: &Path, arguments: &str) {
    let mut command = Command::new("openssl");
    command.args(arguments.split(' ')).current_dir(folder).stdin(Stdio::null()).stderr(Stdio::null());
    assert!(command.stdout(Stdio::null()).status().unwrap().success(), "openssl {arguments}");
}
