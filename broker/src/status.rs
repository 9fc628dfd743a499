//! `felix status`: asks running brokers over their metrics listeners and prints what they know.

use std::fmt::Write as _;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use felix_cluster::state::NodeState;

use crate::args::StatusAction;
use crate::http::probe::fetch;
use crate::http::status::{List, Row, Status};

/// Something is wrong.
const WRONG: u8 = 1;
/// Nobody could be asked.
const UNASKED: u8 = 2;
/// How long one broker may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest answer that is taken in.
const ANSWER_BYTES: u64 = 256 << 20;

/// Asks and prints. The first broker that answers tells of the cluster, each of its own copies.
pub fn run(action: &StatusAction) -> Result<ExitCode, String> {
    let path = if action.all { "/status?all" } else { "/status" };
    let mut text = String::new();
    let (mut answers, mut silent) = (0, Vec::new());
    let mut healthy = true;
    for server in &action.servers {
        let status = match ask(server, path) {
            Ok(status) => status,
            Err(why) => {
                silent.push(format!("{server}: {why}"));
                continue;
            }
        };
        healthy &= status.healthy;
        if action.json {
            let _ = writeln!(text, "{}", serde_json::to_string_pretty(&status).unwrap_or_default());
        } else {
            if answers == 0 {
                cluster(&mut text, &status);
            }
            own(&mut text, &status);
        }
        answers += 1;
    }
    // Whoever reads has seen enough when writing fails; the exit code still says how it went.
    let _ = std::io::stdout().write_all(text.as_bytes());
    for silent in &silent {
        let _ = writeln!(std::io::stderr(), "felix: status: {silent}");
    }
    Ok(match (answers, healthy && silent.is_empty()) {
        (0, _) => ExitCode::from(UNASKED),
        (_, true) => ExitCode::SUCCESS,
        (_, false) => ExitCode::from(WRONG),
    })
}

/// One broker's page.
pub fn ask(server: &str, path: &str) -> Result<Status, String> {
    let page = get(server, path).map_err(|error| error.to_string())?;
    serde_json::from_str(&page)
        .map_err(|error| format!("this is no answer of a broker of this version: {error}"))
}

fn get(server: &str, path: &str) -> std::io::Result<String> {
    let answer = fetch(server, server, path, PATIENCE, ANSWER_BYTES)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let line = head.lines().next().unwrap_or_default();
    if line.split(' ').nth(1) != Some("200") {
        return Err(std::io::Error::other(format!("it answered \"{line}\"; is it a metrics listener?")));
    }
    Ok(body.to_owned())
}

fn cluster(text: &mut String, status: &Status) {
    let cluster = &status.cluster;
    let epoch = if cluster.control_epoch == 0 {
        String::new()
    } else {
        format!(", control epoch {}", cluster.control_epoch)
    };
    let _ = writeln!(
        text,
        "cluster {}: {} topics, {} partitions, lease {} ms, control store at revision {}{epoch}",
        cluster.id, status.partitions.topics, status.partitions.total, cluster.lease_ms, cluster.revision
    );
    let _ = writeln!(
        text,
        "\n{:>6}  {:<9} {:<17} {:>10}  {:<12} {:>6} {:>9} {:>8}  {:<22} version",
        "node", "state", "session", "last beat", "rack", "leads", "replicas", "to give", "address"
    );
    for node in &status.nodes {
        let state = match node.state {
            NodeState::Live => "live",
            NodeState::Draining => "draining",
            NodeState::Fenced => "fenced",
        };
        let heard = node.heard_ms_ago.map_or("-".to_owned(), |ms| format!("{ms} ms ago"));
        let suspect = if node.suspect { "  DISK SUSPECT" } else { "" };
        let _ = writeln!(
            text,
            "{:>6}  {state:<9} {:<17} {heard:>10}  {:<12} {:>6} {:>9} {:>8}  {:<22} {}{suspect}",
            node.id,
            node.session,
            node.rack.as_deref().unwrap_or("-"),
            node.leads,
            node.replicas,
            node.to_give_up,
            node.address,
            node.version
        );
    }
    rows(text, "partitions without a leader", &status.leaderless);
    rows(text, "partitions whose leader has not opened yet", &status.opening);
    rows(text, "partitions with too few copies that hold everything", &status.under_replicated);
    rows(text, "partitions whose replicas are being changed", &status.moving);
}

fn rows(text: &mut String, what: &str, list: &List<Row>) {
    if list.count == 0 {
        return;
    }
    let _ = writeln!(text, "\n{} {what}:", list.count);
    for row in &list.first {
        let leader = row.leader.map_or("none".to_owned(), |leader| leader.to_string());
        let declined: Vec<String> = row.declined.iter().map(|(id, why)| format!("{id} ({why:?})")).collect();
        let declined =
            if declined.is_empty() { String::new() } else { format!(", declined {}", declined.join(", ")) };
        let _ = writeln!(
            text,
            "  {}: leader {leader} at generation {}, replicas {:?}, holding everything {:?}{declined}",
            row.partition, row.generation, row.replicas, row.eligible
        );
    }
    more(text, list);
}

fn more<T>(text: &mut String, list: &List<T>) {
    if list.count > list.first.len() {
        let _ = writeln!(text, "  ... and {} more (--all)", list.count - list.first.len());
    }
}

fn own(text: &mut String, status: &Status) {
    let asked = &status.asked;
    let lease = match asked.lease_left_ms {
        None => "its lease is the lock on its directory".to_owned(),
        Some(left) => format!("{left} ms of its lease left"),
    };
    let _ = writeln!(text, "\nbroker {} ({}), session {}: {lease}", asked.node, asked.version, asked.session);
    if status.halted.count > 0 {
        let _ = writeln!(text, "  {} copies here are halted:", status.halted.count);
        for halted in &status.halted.first {
            let _ = writeln!(text, "    {}: {}; {}", halted.partition, halted.reason, halted.remedy);
        }
        more(text, &status.halted);
    }
    if status.unknown_copies.count > 0 {
        let _ = writeln!(
            text,
            "  {} copies here are unknown to the control store, and kept:",
            status.unknown_copies.count
        );
        for copy in &status.unknown_copies.first {
            let _ = writeln!(text, "    {copy}");
        }
        more(text, &status.unknown_copies);
    }
    if status.healthy {
        let _ = writeln!(text, "  nothing is wrong");
    }
    for problem in &status.problems {
        let _ = writeln!(text, "  ! {problem}");
    }
}
