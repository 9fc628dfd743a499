//! The real binary on a free port, and a client that speaks raw frames. Shared by the test programs here.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A running broker; killed when dropped.
pub struct Broker {
    child: Child,
    pub directory: tempfile::TempDir,
    pub address: SocketAddr,
    pub http: SocketAddr,
    /// The newest lines of its log, for whoever has to find out what went wrong.
    log: Arc<Mutex<VecDeque<String>>>,
}

/// Lines of the log that are kept.
const LOG_LINES: usize = 200;

/// The binary with a directory of its own, ports that the system chooses, and no settings of the caller's.
pub fn command(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_felix"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FELIX_")) {
        command.env_remove(name);
    }
    command
        .arg("--data-dir")
        .arg(directory.join("data"))
        .args(["--listeners", "PLAINTEXT://127.0.0.1:0", "--metrics-bind", "127.0.0.1:0"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

impl Broker {
    pub fn start(arguments: &[&str]) -> Broker {
        Broker::start_in(tempfile::tempdir().unwrap(), arguments)
    }

    pub fn start_in(directory: tempfile::TempDir, arguments: &[&str]) -> Broker {
        match Broker::try_start(directory, arguments) {
            Ok((broker, _)) => broker,
            Err(log) => panic!("the broker ended: {log}"),
        }
    }

    /// Starts it and returns what it logged until it was ready; or what it said when it refused.
    pub fn try_start(directory: tempfile::TempDir, arguments: &[&str]) -> Result<(Broker, String), String> {
        let mut child = command(directory.path()).args(arguments).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            if log.read_line(&mut line).unwrap() == 0 {
                let status = child.wait().unwrap();
                seen.push_str(&format!("exit code {:?}", status.code()));
                return Err(seen);
            }
            seen.push_str(&line);
            if line.contains(" ready ") {
                break;
            }
        }
        // Nobody may block on a full pipe.
        let kept = Arc::new(Mutex::new(VecDeque::new()));
        let newest = Arc::clone(&kept);
        std::thread::spawn(move || {
            for line in log.lines().map_while(Result::ok) {
                let mut newest = newest.lock().unwrap();
                newest.push_back(line);
                if newest.len() > LOG_LINES {
                    newest.pop_front();
                }
            }
        });
        let listening = std::fs::read_to_string(directory.path().join("data/listening")).unwrap();
        let find = |name: &str| {
            let line = listening.lines().find_map(|line| line.strip_prefix(&format!("{name} "))).unwrap();
            line.parse().unwrap()
        };
        Ok((Broker { child, address: find("PLAINTEXT"), http: find("metrics"), directory, log: kept }, seen))
    }

    pub fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    pub fn terminate(&mut self) -> ExitStatus {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        self.child.wait().unwrap()
    }

    pub fn kill(mut self) -> tempfile::TempDir {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::mem::replace(&mut self.directory, tempfile::tempdir().unwrap())
    }

    /// Resident memory in bytes.
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// The value of a metric without labels.
    pub fn metric(&self, name: &str) -> i64 {
        let page = self.page("/metrics");
        let line = page.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("{name} in {page}")).parse().unwrap()
    }

    pub fn page(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.http).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        page
    }

    /// Looks again and again until `true`, for at most ten seconds: some ends of things are announced nowhere.
    pub fn eventually(&self, what: &str, test: impl Fn(&Broker) -> bool) {
        for _ in 0..200 {
            if test(self) {
                return;
            }
            std::thread::park_timeout(Duration::from_millis(50));
        }
        let log: Vec<String> = self.log.lock().unwrap().iter().cloned().collect();
        panic!("never: {what}\n{}", log.join("\n"));
    }

    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A raw connection.
pub struct Client {
    pub stream: TcpStream,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_nodelay(true).unwrap();
        Client { stream }
    }

    /// Sends one request of an old, inflexible version.
    pub fn send(&mut self, key: i16, version: i16, correlation_id: i32, body: &[u8]) {
        self.stream.write_all(&request(key, version, correlation_id, body)).unwrap();
    }

    /// The next answer: its correlation id and the rest.
    pub fn receive(&mut self) -> (i32, Vec<u8>) {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).unwrap();
        let mut frame = vec![0; usize::try_from(i32::from_be_bytes(length)).unwrap()];
        self.stream.read_exact(&mut frame).unwrap();
        let id = i32::from_be_bytes(frame[..4].try_into().unwrap());
        (id, frame.split_off(4))
    }

    pub fn ask(&mut self, key: i16, version: i16, correlation_id: i32, body: &[u8]) -> Vec<u8> {
        self.send(key, version, correlation_id, body);
        let (id, answer) = self.receive();
        assert_eq!(id, correlation_id);
        answer
    }

    /// Whether the broker has closed the connection (waits for that, or for something to read).
    pub fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0; 1]) {
            Ok(0) => true,
            Ok(_) => false,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

pub fn request(key: i16, version: i16, correlation_id: i32, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend_from_slice(&i32::try_from(8 + 6 + body.len()).unwrap().to_be_bytes());
    frame.extend_from_slice(&key.to_be_bytes());
    frame.extend_from_slice(&version.to_be_bytes());
    frame.extend_from_slice(&correlation_id.to_be_bytes());
    frame.extend_from_slice(&[0, 4]);
    frame.extend_from_slice(b"test");
    frame.extend_from_slice(body);
    frame
}

pub const PRODUCE: i16 = 0;
pub const FETCH: i16 = 1;
pub const METADATA: i16 = 3;
pub const API_VERSIONS: i16 = 18;
pub const DESCRIBE_CONFIGS: i16 = 32;

fn string(text: &str) -> Vec<u8> {
    let mut bytes = i16::try_from(text.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// Metadata version 1 about one topic, which is created if missing.
pub fn metadata(topic: &str) -> Vec<u8> {
    [&1_i32.to_be_bytes()[..], &string(topic)].concat()
}

/// Fetch version 4 of partition 0, up to 1 MiB.
pub fn fetch(topic: &str, offset: i64, max_wait_ms: i32, min_bytes: i32) -> Vec<u8> {
    fetch_upto(topic, offset, max_wait_ms, min_bytes, 1 << 20)
}

/// The same, up to so many bytes.
pub fn fetch_upto(topic: &str, offset: i64, max_wait_ms: i32, min_bytes: i32, max_bytes: i32) -> Vec<u8> {
    [
        &(-1_i32).to_be_bytes()[..],
        &max_wait_ms.to_be_bytes(),
        &min_bytes.to_be_bytes(),
        &max_bytes.to_be_bytes(),
        &[0],
        &1_i32.to_be_bytes(),
        &string(topic),
        &1_i32.to_be_bytes(),
        &0_i32.to_be_bytes(),
        &offset.to_be_bytes(),
        &max_bytes.to_be_bytes(),
    ]
    .concat()
}

/// Produce version 3 of one record into partition 0.
pub fn produce(topic: &str, acks: i16, value: &[u8]) -> Vec<u8> {
    let batch = batch(value);
    [
        &(-1_i16).to_be_bytes()[..],
        &acks.to_be_bytes(),
        &5_000_i32.to_be_bytes(),
        &1_i32.to_be_bytes(),
        &string(topic),
        &1_i32.to_be_bytes(),
        &0_i32.to_be_bytes(),
        &i32::try_from(batch.len()).unwrap().to_be_bytes(),
        &batch,
    ]
    .concat()
}

fn varint(value: i64, out: &mut Vec<u8>) {
    let mut bits = ((value << 1) ^ (value >> 63)).cast_unsigned();
    while bits >= 0x80 {
        out.push(u8::try_from(bits & 0x7f).unwrap() | 0x80);
        bits >>= 7;
    }
    out.push(u8::try_from(bits).unwrap());
}

/// A batch with one record.
pub fn batch(value: &[u8]) -> Vec<u8> {
    let mut record = vec![0, 0, 0];
    varint(-1, &mut record);
    varint(i64::try_from(value.len()).unwrap(), &mut record);
    record.extend_from_slice(value);
    record.push(0);
    let mut records = Vec::new();
    varint(i64::try_from(record.len()).unwrap(), &mut records);
    records.extend_from_slice(&record);
    let now = i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
    let checked = [
        &0_i16.to_be_bytes()[..],
        &0_i32.to_be_bytes(),
        &now.to_be_bytes(),
        &now.to_be_bytes(),
        &(-1_i64).to_be_bytes(),
        &(-1_i16).to_be_bytes(),
        &(-1_i32).to_be_bytes(),
        &1_i32.to_be_bytes(),
        &records,
    ]
    .concat();
    let length = i32::try_from(4 + 1 + 4 + checked.len()).unwrap();
    [
        &0_i64.to_be_bytes()[..],
        &length.to_be_bytes(),
        &(-1_i32).to_be_bytes(),
        &[2],
        &crc32c(&checked).to_be_bytes(),
        &checked,
    ]
    .concat()
}

/// Written down here so that the tests do not share the broker's.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 & 0_u32.wrapping_sub(crc & 1));
        }
    }
    !crc
}
