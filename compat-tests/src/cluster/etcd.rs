//! A member of etcd.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::network::{Network, Place};
use super::node::Node;
use crate::{ports, wait};

/// How long a member may take to be ready.
const READY: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(3);

/// See the module.
pub struct Member {
    /// Its process.
    pub node: Node,
    address: SocketAddrV4,
    arguments: Vec<String>,
}

/// Members that form one etcd, not started.
pub fn members(
    network: &mut Network,
    server: &Path,
    count: usize,
    folder: &Path,
    logs: &Path,
) -> Result<Vec<Member>> {
    let mut places = Vec::new();
    for at in 0..count {
        let address = network.add(Place::Etcd(at))?;
        let free = address == Ipv4Addr::LOCALHOST;
        let ports = if free { (ports::free()?, ports::free()?) } else { (2379, 2380) };
        places.push((address, ports));
    }
    let peers: Vec<String> = places
        .iter()
        .enumerate()
        .map(|(at, (host, (_, peer)))| format!("m{at}=http://{host}:{peer}"))
        .collect();
    let member = |at: usize, host: Ipv4Addr, client: u16, peer: u16| -> Result<Member> {
        let name = format!("m{at}");
        let data = folder.join(format!("etcd-{at}"));
        let (client_url, peer_url) = (format!("http://{host}:{client}"), format!("http://{host}:{peer}"));
        let arguments = [
            ("--name", name.as_str()),
            ("--data-dir", &data.to_string_lossy()),
            ("--listen-client-urls", &client_url),
            ("--advertise-client-urls", &client_url),
            ("--listen-peer-urls", &peer_url),
            ("--initial-advertise-peer-urls", &peer_url),
            ("--initial-cluster", &peers.join(",")),
            ("--auto-compaction-mode", "revision"),
            ("--auto-compaction-retention", "10000"),
            ("--logger", "zap"),
            ("--log-level", "warn"),
        ];
        let arguments =
            arguments.iter().flat_map(|(name, value)| [*name, *value]).map(str::to_owned).collect();
        let prefix = network.prefix(Place::Etcd(at))?;
        Ok(Member {
            node: Node::new(&format!("etcd-{at}"), server, prefix, logs),
            address: SocketAddrV4::new(host, client),
            arguments,
        })
    };
    places.iter().enumerate().map(|(at, (host, (client, peer)))| member(at, *host, *client, *peer)).collect()
}

impl Member {
    /// Where clients connect to.
    pub fn address(&self) -> SocketAddrV4 {
        self.address
    }

    /// Starts it and does not wait.
    pub fn spawn(&mut self) -> Result<()> {
        // etcd 3.4 asks to be told so where it is built for ARM.
        let asked: &[(&str, &str)] =
            if cfg!(target_arch = "aarch64") { &[("ETCD_UNSUPPORTED_ARCH", "arm64")] } else { &[] };
        self.node.spawn(&self.arguments, asked)
    }

    /// Waits until it answers a linearizable read.
    pub fn wait_ready(&mut self) -> Result<()> {
        wait::until("a member of etcd", READY, || {
            self.node.must_run()?;
            Ok(self.ask("/v3/kv/range", &json!({ "key": "AA==" })).ok().map(drop))
        })
    }

    /// Starts it again on its data.
    pub fn start(&mut self) -> Result<()> {
        self.spawn()?;
        self.wait_ready()
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.node.kill();
    }

    /// SIGSTOP.
    pub fn pause(&mut self) -> Result<()> {
        self.node.pause()
    }

    /// SIGCONT.
    pub fn resume(&mut self) -> Result<()> {
        self.node.resume()
    }

    /// Asks it something, as JSON.
    pub fn ask(&self, path: &str, body: &Value) -> Result<Value> {
        let mut stream = TcpStream::connect_timeout(&self.address.into(), PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let body = body.to_string();
        write!(stream, "POST {path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
        if !head.lines().next().unwrap_or_default().contains(" 200 ") {
            bail!("{}: {body}", head.lines().next().unwrap_or_default());
        }
        Ok(serde_json::from_str(body)?)
    }

    /// Whether it leads, as it says itself.
    pub fn leads(&self) -> bool {
        self.ask("/v3/maintenance/status", &json!({})).is_ok_and(|status| {
            !status["leader"].is_null() && status["leader"] == status["header"]["member_id"]
        })
    }

    /// The newest revision that it answers.
    pub fn revision(&self) -> Result<u64> {
        let status = self.ask("/v3/kv/range", &json!({ "key": "AA==" }))?;
        let revision = status["header"]["revision"].as_str().context("no revision")?;
        Ok(revision.parse()?)
    }

    /// Forgets all history before a revision, at once.
    pub fn compact(&self, revision: u64) -> Result<()> {
        let body = json!({ "revision": revision.to_string(), "physical": true });
        self.ask("/v3/kv/compaction", &body).map(drop)
    }
}
