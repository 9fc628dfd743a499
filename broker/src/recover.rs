//! `felix recover`: what an operator decides because Felix may not. Everything is shown first; only with `--yes` is it
//! done.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use felix_cluster::promotion::{Standing, Standings};
use felix_cluster::recovery::unclean::{Candidate, Loss, Plan};
use felix_cluster::state::NodeState;
use felix_cluster::view::View;
use felix_control::recovery::Recovery;
use felix_control::store::embedded::{self, Embedded};
use felix_control::store::{Connect, Store};
use felix_protocol::ids::{BrokerId, Generation, LogId, PartitionId, TopicId};
use felix_storage::disk::os::OsDisk;
use felix_storage::{DataDir, Limits, StorageError};

use crate::args::{Act, RecoverAction};
use crate::http::status::{name, partition_named};
use crate::{server, status};

/// Not everything could be done.
const PARTLY: u8 = 1;
/// How long one attempt at one endpoint of etcd may take.
const ATTEMPT: Duration = Duration::from_secs(3);
/// Partitions of a list that are shown.
const SHOWN: usize = 20;

/// Does what was asked.
pub fn run(action: &RecoverAction) -> Result<ExitCode, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let told = |error: String| format!("recover: {error}");
    runtime.map_err(|error| error.to_string())?.block_on(opened(action)).map_err(told)
}

/// Opens the store, whichever it is.
async fn opened(action: &RecoverAction) -> Result<ExitCode, String> {
    let told = |error: &dyn std::fmt::Display| error.to_string();
    if let Some(etcd) = &action.settings.etcd {
        let ways = server::etcd_ways(etcd).map_err(|error| told(&error))?;
        let store = ways.connect(ATTEMPT).await.map_err(|error| told(&error))?;
        let place = format!("etcd {}, prefix {}", etcd.endpoints.join(","), etcd.prefix);
        return act(action, Recovery::open(store, true).await.map_err(|error| told(&error))?, &place).await;
    }
    let path = &action.settings.data_dir;
    let shown = path.display();
    if !path.join(embedded::FILE_NAME).is_file() {
        return Err(format!(
            "{shown} holds no control store ({}): say where it is, by --etcd or --data-dir",
            embedded::FILE_NAME
        ));
    }
    // Held to the end: the store is ours by it.
    let _dir = DataDir::open(OsDisk, path, Limits::default()).map_err(|error| {
        if matches!(error, StorageError::Locked(_)) {
            return format!("{shown} is in use: stop the broker first");
        }
        format!("{shown}: {error}")
    })?;
    let store = Embedded::open(OsDisk, path).map_err(|error| told(&error))?;
    let place = format!("{shown}/{}", embedded::FILE_NAME);
    act(action, Recovery::open(store, false).await.map_err(|error| told(&error))?, &place).await
}

async fn act<S: Store>(
    action: &RecoverAction,
    mut recovery: Recovery<S>,
    place: &str,
) -> Result<ExitCode, String> {
    let position = recovery.position();
    let view = recovery.view();
    say(&format!(
        "control store: {place}: {position}\ncluster {}: control epoch {}, {} nodes, {} topics, {} partitions\n",
        view.cluster_id(),
        view.control_epoch(),
        view.nodes().count(),
        view.topic_count(),
        view.partition_count()
    ));
    let done = match &action.act {
        Act::Store => store(&mut recovery, action.yes).await,
        Act::Confirm => confirm(&mut recovery, action.yes).await,
        Act::Partitions { names, to, ask } => {
            let found = named(&recovery, names);
            let standings = standings(ask, recovery.view(), &found.0)?;
            partitions(&mut recovery, found, to.map(BrokerId), &standings, action.yes).await
        }
    };
    recovery.close().await.map_err(|error| error.to_string())?;
    if !action.yes && done.is_ok() {
        say("\nNothing was written. Add --yes to do it.");
    }
    done
}

/// For whoever reads; a closed pipe is no reason to stop half-way.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

async fn store<S: Store>(recovery: &mut Recovery<S>, yes: bool) -> Result<ExitCode, String> {
    let told = |error: felix_control::recovery::RecoverError| error.to_string();
    recovery.check_unused().await.map_err(told)?;
    let now_s = now_s();
    let plan = recovery.plan_acknowledge(now_s).map_err(told)?;
    let fenced: Vec<String> = plan.fenced.iter().map(ToString::to_string).collect();
    let fenced = if fenced.is_empty() { "none".to_owned() } else { fenced.join(", ") };
    say(&format!(
        "No broker uses it. Taking it for good means:\n\
         - control epoch {}: every broker takes the store as it is now, and refuses it no longer\n\
         - what was decided after the backup was made stays lost: topics, partitions, settings, moves. Copies of which this\n  \
           store knows nothing are kept until `felix recover confirm`; `felix status` lists them\n\
         - sessions that are ended: {fenced}\n\
         - new tenures begin above generation {}, new producer ids far above those handed out\n\
         - whatever the backup says of who holds everything is not believed: each broker gives its copies new identities,\n  \
           and once all that the backup names have come back, the one that reaches furthest leads. That counts as a loss\n  \
           event in each partition, because records may be missing",
        plan.epoch, plan.floor
    ));
    if !plan.open.is_empty() {
        let names = some(recovery.view(), &plan.open);
        say(&format!(
            "- {} partitions were empty when the backup was made, so nothing tells whose copy is the right one: they get\n  \
               a leader by `felix recover partition` only: {names}",
            plan.open.len()
        ));
    }
    if !yes {
        return Ok(ExitCode::SUCCESS);
    }
    let done = recovery.acknowledge(now_s).await.map_err(told)?;
    say(&format!(
        "\nDone: control epoch {}. Start all brokers, look at `felix status`, and when nothing is missing any more run\n\
         `felix recover confirm`.",
        done.epoch
    ));
    Ok(ExitCode::SUCCESS)
}

async fn confirm<S: Store>(recovery: &mut Recovery<S>, yes: bool) -> Result<ExitCode, String> {
    if recovery.view().is_confirmed() {
        say("There is nothing to confirm: the store was never recovered, or that was confirmed.");
        return Ok(ExitCode::SUCCESS);
    }
    say(
        "From here on brokers may remove copies that this store does not know, each when it starts next. `felix status\n\
         --server HOST:PORT` lists them for each broker: look there first.",
    );
    if yes {
        recovery.confirm().await.map_err(|error| error.to_string())?;
        say("\nDone.");
    }
    Ok(ExitCode::SUCCESS)
}

/// What was asked for, and which names mean nothing.
type Named = (BTreeSet<PartitionId>, Vec<String>);

fn named<S: Store>(recovery: &Recovery<S>, names: &[String]) -> Named {
    let (mut found, mut unknown) = (BTreeSet::new(), Vec::new());
    let leaderless = recovery.leaderless();
    for name in names {
        if let Some(id) = partition_named(recovery.view(), name) {
            found.insert(id);
        } else if let Some(topic) = recovery.view().topic_named(name) {
            found.extend(leaderless.iter().filter(|id| id.topic == topic.id));
        } else {
            unknown.push(name.clone());
        }
    }
    (found, unknown)
}

/// What brokers say of their copies, by partition.
type Told = std::collections::BTreeMap<PartitionId, Standings>;

fn standings(servers: &[String], view: &View, ids: &BTreeSet<PartitionId>) -> Result<Told, String> {
    // As many as a page answers at once.
    const AT_ONCE: usize = 100;
    let mut told = Told::new();
    let ids: Vec<PartitionId> = ids.iter().copied().collect();
    for server in servers {
        for some in ids.chunks(AT_ONCE) {
            let names: Vec<String> = some.iter().map(|id| name(view, id)).collect();
            let answer = status::ask(server, &format!("/status?copies={}", names.join(",")));
            let answer = answer.map_err(|why| format!("{server}: {why}"))?;
            if answer.cluster.id != view.cluster_id() {
                return Err(format!("{server} is a broker of another cluster, {}", answer.cluster.id));
            }
            for copy in answer.copies {
                let log = copy.log.and_then(|log| TopicId::parse(&log)).map(|id| LogId(id.0));
                let (Some(id), Some(log)) = (partition_named(view, &copy.partition), log) else { continue };
                let Some(accepted) = Generation::new(copy.accepted) else { continue };
                let standing = Standing { log, accepted, end: copy.end, doubt: false };
                told.entry(id).or_default().insert(BrokerId(answer.asked.node), standing);
            }
        }
    }
    Ok(told)
}

async fn partitions<S: Store>(
    recovery: &mut Recovery<S>,
    (found, unknown): Named,
    to: Option<BrokerId>,
    told: &Told,
    yes: bool,
) -> Result<ExitCode, String> {
    let silent = Standings::new();
    let mut refused = unknown.len();
    for name in unknown {
        say(&format!("{name}: there is no such partition or topic"));
    }
    let mut done = 0;
    for id in found {
        let shown = name(recovery.view(), &id);
        let plan = match recovery.plan(id, to, told.get(&id).unwrap_or(&silent)) {
            Ok(plan) => plan,
            Err(error) => {
                say(&format!("{shown}: {error}"));
                refused += 1;
                continue;
            }
        };
        say(&text(&shown, &plan));
        if yes {
            match recovery.promote(&plan).await {
                Ok(()) => done += 1,
                Err(error) => {
                    say(&format!("  not done: {error}"));
                    refused += 1;
                }
            }
        }
    }
    if yes {
        say(&format!(
            "\n{done} partitions have a leader; its broker counts a loss event when it opens each."
        ));
    }
    Ok(if refused == 0 { ExitCode::SUCCESS } else { ExitCode::from(PARTLY) })
}

fn text(shown: &str, plan: &Plan) -> String {
    let mut text = format!("{shown}:\n");
    for candidate in &plan.candidates {
        let chosen = if candidate.broker == plan.leader.broker { "-> " } else { "   " };
        let _ = writeln!(text, "  {chosen}broker {}: {}", candidate.broker, told(candidate));
    }
    let (leader, generation) = (plan.leader.broker, plan.generation);
    let _ = writeln!(
        text,
        "  broker {leader} leads at generation {generation}; what any other copy holds is given up."
    );
    let lost = match plan.loss {
        Loss::NothingKnown => {
            "no copy that is known of reaches further. What those held that are not there, nobody knows"
                .to_owned()
        }
        Loss::Records(count) => format!("at least {count} records that another copy holds"),
        Loss::NewerGeneration => {
            "everything that was written under a later leader, whose copy is known of".to_owned()
        }
        Loss::Everything => {
            "perhaps everything: nothing is known of what it holds (`--ask` asks its broker)".to_owned()
        }
    };
    let _ = write!(text, "  LOST: {lost}");
    text
}

fn told(candidate: &Candidate) -> String {
    let state = match candidate.state {
        None => "not registered",
        Some(NodeState::Live) => "live",
        Some(NodeState::Draining) => "draining",
        Some(NodeState::Fenced) => "down",
    };
    let mut text = state.to_owned();
    if candidate.vouched.is_some() {
        text.push_str(", its copy is known to hold everything");
    }
    if let Some(why) = candidate.declined {
        let _ = write!(text, ", declined to lead ({why:?})");
    }
    match candidate.holding {
        Some(holding) => {
            let when = if holding.fresh { "holds" } else { "held when it declined" };
            let (end, accepted) = (holding.end, holding.accepted);
            let _ = write!(text, ", {when} records up to offset {end}, generation {accepted}");
        }
        None => text.push_str(", what it holds is not known"),
    }
    text
}

fn some(view: &View, ids: &[PartitionId]) -> String {
    let mut names: Vec<String> = ids.iter().take(SHOWN).map(|id| name(view, id)).collect();
    if ids.len() > SHOWN {
        names.push(format!("{} more", ids.len() - SHOWN));
    }
    names.join(", ")
}

/// The time of day, in seconds since 1970.
#[expect(clippy::disallowed_methods, reason = "a command that runs for a moment has no clock of its own")]
fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
