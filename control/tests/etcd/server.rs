//! etcd servers as processes of ours: started, killed, frozen, and spoken to by JSON over HTTP where the store's own
//! client has no business.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use felix_control::store::etcd::{Etcd, EtcdConfig};
use serde_json::{Value, json};
use tempfile::TempDir;

/// How long a server may take to be ready.
const READY: Duration = Duration::from_secs(30);
/// What our temporary folders are called; the process follows.
const FOLDERS: &str = "felix-etcd-";
/// A request's bound in these tests; short, so that failing over is quick.
pub const TIMEOUT: Duration = Duration::from_secs(1);

/// The first line of what the server says of itself.
pub fn version(server: &Path) -> String {
    let output = Command::new(server).arg("--version").output().expect("the server starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().next().unwrap_or_default().replace("etcd Version: ", "")
}

/// In memory, where there is such a place: what is lost when a machine loses power is none of these tests' business.
fn place() -> PathBuf {
    let shared = PathBuf::from("/dev/shm");
    if shared.is_dir() { shared } else { std::env::temp_dir() }
}

/// Removes what a run left that was killed: the folders of processes that are no more.
pub fn sweep() {
    for entry in std::fs::read_dir(place()).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(rest) = name.strip_prefix(FOLDERS) else { continue };
        let process = rest.split('-').next().unwrap_or_default();
        if !process.is_empty() && !Path::new("/proc").join(process).exists() {
            // Another run may be sweeping too.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Runs a test on a runtime like the one that the store has in a broker.
pub fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// One server.
pub struct Member {
    pub name: String,
    pub client_port: u16,
    peer_port: u16,
    /// Its data.
    pub data: PathBuf,
    process: Option<Child>,
    command: Vec<String>,
}

/// Servers that form one etcd. They end when it is dropped.
pub struct Cluster {
    server: PathBuf,
    pub members: Vec<Member>,
    pub folder: TempDir,
}

impl Cluster {
    /// Starts so many servers and waits until they answer.
    pub fn start(server: &Path, count: usize) -> Cluster {
        Cluster::start_with(server, count, "felix", &[])
    }

    /// The same with a token of the cluster and more options.
    pub fn start_with(server: &Path, count: usize, token: &str, options: &[String]) -> Cluster {
        let mut cluster = Cluster::make(server, count, token, options);
        for at in 0..count {
            cluster.spawn(at);
        }
        for at in 0..count {
            cluster.await_ready(at);
        }
        cluster
    }

    /// Prepares servers and starts none.
    pub fn make(server: &Path, count: usize, token: &str, options: &[String]) -> Cluster {
        let prefix = format!("{FOLDERS}{}-", std::process::id());
        let folder = tempfile::Builder::new().prefix(&prefix).tempdir_in(place()).unwrap();
        let mut members: Vec<Member> = (0..count)
            .map(|at| {
                let name = format!("m{at}");
                let data = folder.path().join(&name);
                Member {
                    name,
                    client_port: free_port(),
                    peer_port: free_port(),
                    data,
                    process: None,
                    command: Vec::new(),
                }
            })
            .collect();
        let peers: Vec<String> = members
            .iter()
            .map(|member| format!("{}=http://127.0.0.1:{}", member.name, member.peer_port))
            .collect();
        for member in &mut members {
            let (client, peer) = (member.client_port, member.peer_port);
            let data = member.data.display().to_string();
            let mut command: Vec<String> = [
                "--name",
                &member.name,
                "--data-dir",
                &data,
                "--listen-client-urls",
                &format!("http://127.0.0.1:{client}"),
                "--advertise-client-urls",
                &format!("http://127.0.0.1:{client}"),
                "--listen-peer-urls",
                &format!("http://127.0.0.1:{peer}"),
                "--initial-advertise-peer-urls",
                &format!("http://127.0.0.1:{peer}"),
                "--initial-cluster",
                &peers.join(","),
                "--initial-cluster-token",
                token,
                "--logger",
                "zap",
                "--log-level",
                "warn",
            ]
            .map(str::to_owned)
            .to_vec();
            command.extend(options.iter().cloned());
            member.command = command;
        }
        Cluster { server: server.to_owned(), members, folder }
    }

    /// Starts one server without waiting for it.
    pub fn spawn(&mut self, at: usize) {
        let log = self.folder.path().join(format!("{}.log", self.members[at].name));
        let log = File::options().create(true).append(true).open(log).unwrap();
        let member = &mut self.members[at];
        let mut command = Command::new(&self.server);
        command.args(&member.command).env("ETCD_UNSUPPORTED_ARCH", "arm64");
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        member.process = Some(command.spawn().unwrap());
    }

    /// Waits until a server answers a linearizable read.
    pub fn await_ready(&mut self, at: usize) {
        let began = Instant::now();
        loop {
            let asked = self.members[at].ask("/v3/kv/range", &json!({ "key": "AA==" }));
            if asked.is_ok() {
                return;
            }
            let process = self.members[at].process.as_mut().unwrap();
            let ended = process.try_wait().unwrap();
            if ended.is_some() || began.elapsed() > READY {
                let log = self.folder.path().join(format!("{}.log", self.members[at].name));
                let log = std::fs::read_to_string(log).unwrap_or_default();
                let tail: Vec<&str> = log.lines().rev().take(5).collect();
                panic!("etcd is not ready ({ended:?}, {asked:?}): {tail:#?}");
            }
            pause();
        }
    }

    /// Makes a snapshot as an operator does, by etcd's own tool beside the server.
    pub fn save(&self, snapshot: &Path) {
        let endpoint = format!("http://127.0.0.1:{}", self.members[0].client_port);
        self.tool(
            "etcdctl",
            &["--endpoints", &endpoint, "snapshot", "save", &snapshot.display().to_string()],
        );
    }

    /// Ends all servers, throws away what they have, and starts them with a snapshot, as an operator does.
    pub fn restore(&mut self, snapshot: &Path) {
        // Newer ones have a tool of their own for it.
        let is_new = self.server.with_file_name("etcdutl").exists();
        let tool = if is_new { "etcdutl" } else { "etcdctl" };
        for at in 0..self.members.len() {
            self.kill(at);
            std::fs::remove_dir_all(&self.members[at].data).unwrap();
        }
        let snapshot = snapshot.display().to_string();
        for member in &self.members {
            let mut line = vec!["snapshot", "restore", &snapshot];
            for option in [
                "--name",
                "--data-dir",
                "--initial-advertise-peer-urls",
                "--initial-cluster",
                "--initial-cluster-token",
            ] {
                let place = member.command.iter().position(|given| given == option).unwrap();
                line.extend([option, &member.command[place + 1]]);
            }
            self.tool(tool, &line);
        }
        for at in 0..self.members.len() {
            self.spawn(at);
        }
        for at in 0..self.members.len() {
            self.await_ready(at);
        }
    }

    fn tool(&self, name: &str, line: &[&str]) {
        let mut command = Command::new(self.server.with_file_name(name));
        let output = command.args(line).env("ETCDCTL_API", "3").output().unwrap();
        assert!(output.status.success(), "{name} {line:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// As a machine that goes: nothing is said to anybody.
    pub fn kill(&mut self, at: usize) {
        if let Some(mut process) = self.members[at].process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Stops or continues a server without ending it.
    pub fn freeze(&self, at: usize, frozen: bool) {
        let pid = self.members[at].process.as_ref().unwrap().id();
        let signal = if frozen { "-STOP" } else { "-CONT" };
        assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
    }

    /// Where to connect to, all of them.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| format!("http://127.0.0.1:{}", member.client_port)).collect()
    }

    pub fn config(&self, prefix: &str) -> EtcdConfig {
        EtcdConfig {
            endpoints: self.endpoints(),
            prefix: prefix.to_owned(),
            timeout: TIMEOUT,
            tls: None,
            user: None,
        }
    }

    pub async fn connect(&self, prefix: &str) -> Etcd {
        Etcd::connect(self.config(prefix), None).await.unwrap()
    }

    /// Which member leads, once one does.
    pub fn leader(&self) -> usize {
        let began = Instant::now();
        loop {
            for (at, member) in self.members.iter().enumerate() {
                let Ok(status) = member.ask("/v3/maintenance/status", &json!({})) else { continue };
                if status["leader"] == status["header"]["member_id"] && !status["leader"].is_null() {
                    return at;
                }
            }
            assert!(began.elapsed() < READY, "no member leads");
            pause();
        }
    }

    /// Hands the lead to another member.
    pub fn move_leader(&self, to: usize) {
        let id = self.members[to].ask("/v3/maintenance/status", &json!({})).unwrap()["header"]["member_id"]
            .clone();
        let leader = &self.members[self.leader()];
        leader.ask("/v3/maintenance/transfer-leadership", &json!({ "targetID": id })).unwrap();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for at in 0..self.members.len() {
            self.kill(at);
        }
    }
}

impl Member {
    /// Asks the server something, as JSON.
    pub fn ask(&self, path: &str, body: &Value) -> Result<Value, String> {
        let told = |error: std::io::Error| error.to_string();
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.client_port)).map_err(told)?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).map_err(told)?;
        let body = body.to_string();
        write!(stream, "POST {path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len())
            .map_err(told)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(told)?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
        if !head.lines().next().unwrap_or_default().contains(" 200 ") {
            return Err(format!("{}: {body}", head.lines().next().unwrap_or_default()));
        }
        serde_json::from_str(body).map_err(|error| error.to_string())
    }

    /// Forgets all history before a revision, at once.
    pub fn compact(&self, revision: u64) {
        self.ask("/v3/kv/compaction", &json!({ "revision": revision.to_string(), "physical": true }))
            .unwrap();
    }

    /// Writes a key that is none of ours; the revision moves.
    pub fn write_elsewhere(&self) {
        self.ask("/v3/kv/put", &json!({ "key": "ZWxzZXdoZXJl", "value": "eA==" })).unwrap();
    }
}

/// Between two looks at a condition that nothing announces.
#[expect(clippy::disallowed_methods, reason = "the one pause between two looks at a condition")]
fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}

/// A port on which nothing listens; below those that outgoing connections are given, so that it stays free.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(89) % 2000;
    for _ in 0..2000 {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = u16::try_from(30_000 + (start + step) % 2000).unwrap();
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free");
}
