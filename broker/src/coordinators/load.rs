//! Reads a partition's groups back from its log.
//!
//! A few threads do it, one partition each at a time: memory is bounded by their number, and a broker that takes
//! over many partitions at once does not read them all together. Reading begins when everything in the log is
//! below the mark, so that nothing is believed that could still be lost.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use crossbeam_channel::{Receiver, Sender};
use felix_coordinator::{Replayed, Settings, Shard};
use felix_protocol::batch::reader::Limits;
use felix_protocol::batch::scan::Batches;
use felix_protocol::time::Clock;
use felix_storage::ReadError;
use tokio::runtime::Handle;

use super::host::Host;
use crate::partitions::{FetchWait, Isolation, PartitionHandle};
use crate::tasks;

/// How many partitions are read at the same time.
const THREADS: usize = 2;
/// How much of a log is read at once.
const CHUNK_BYTES: usize = 1 << 20;
/// A log that cannot be read is tried again after this.
const RETRY: Duration = Duration::from_secs(5);
/// Waiting for the mark is looked after this often where it cannot be waited for.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

type Job = (Arc<Host>, u64);

/// The threads that read, or rather the way to them. They end with the last sender.
pub(super) struct Loader {
    jobs: Sender<Job>,
}

impl Loader {
    /// Starts the threads. Must be called on the runtime: what comes of a load may need a task.
    pub(super) fn start() -> io::Result<Loader> {
        // Bounded by the number of partitions: each has one load at most under way, and a few that are stale.
        let (jobs, queue) = crossbeam_channel::unbounded();
        for number in 0..THREADS {
            let (queue, runtime): (Receiver<Job>, Handle) = (queue.clone(), Handle::current());
            tasks::thread(&format!("felix-groups-{number}"), move || {
                let _entered = runtime.enter();
                for (host, life) in queue {
                    load(&host, life, &Loader::retry);
                }
            })?;
        }
        Ok(Loader { jobs })
    }

    /// Has the machine of `host` read once its log has settled.
    pub(super) fn load(&self, host: &Arc<Host>, life: u64) {
        let (host, jobs) = (Arc::clone(host), self.jobs.clone());
        tasks::spawn("coordinator-load", async move {
            if settled(host.handle()).await {
                // The threads end only with the last sender.
                let _ = jobs.send((host, life));
            }
        });
    }

    fn retry(host: &Arc<Host>, life: u64) {
        let host = Arc::clone(host);
        tasks::spawn("coordinator-load", async move {
            tokio::time::sleep(RETRY).await;
            if host.wants(life) {
                host.shared().loader.load(&host, life);
            }
        });
    }
}

/// Waits until everything in the log is below the mark; false if the tenure ends before.
async fn settled(handle: &PartitionHandle) -> bool {
    use felix_partition::published::Stage;
    loop {
        if !matches!(handle.stage(), Stage::Opening | Stage::Open) {
            return false;
        }
        let wait = FetchWait::new(1);
        let registration = handle.register(&wait, Isolation::ReadUncommitted);
        if handle.mark() >= handle.log_end() {
            return true;
        }
        tokio::select! {
            () = wait.woken(), if registration.is_ok() => {}
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
    }
}

fn load(host: &Arc<Host>, life: u64, retry: &dyn Fn(&Arc<Host>, u64)) {
    if !host.wants(life) {
        return;
    }
    let clock = host.shared().clock;
    let began_at = clock.now();
    let handle = host.handle();
    let partition = handle.id().index;
    let settings = host.shared().settings(&host.shared().agent.view());
    match read(handle, settings) {
        Ok((shard, counts)) => {
            tracing::debug!(
                partition,
                groups = shard.group_count(),
                records = counts.records,
                skipped = counts.skipped,
                milliseconds = clock.now().since(began_at).as_millis(),
                "groups were read from the log"
            );
            host.install(life, shard);
        }
        // The tenure is over; whoever leads now reads its own log.
        Err(ReadError::Gone) => {}
        Err(error) => {
            tracing::error!(partition, %error, "groups cannot be read from the log");
            retry(host, life);
        }
    }
}

#[derive(Default)]
struct Counts {
    records: u64,
    skipped: u64,
}

/// Replays the log up to the mark.
fn read(handle: &PartitionHandle, settings: Settings) -> Result<(Shard, Counts), ReadError> {
    let mut shard = Shard::new(settings);
    let mut counts = Counts::default();
    let (mut at, end) = (handle.log_start(), handle.mark());
    while at < end {
        let read = match handle.reader().read(at, CHUNK_BYTES, end, true) {
            // Compaction or deletion moved the start meanwhile.
            Err(ReadError::BelowStart { start }) if start > at => {
                at = start;
                continue;
            }
            read => read?,
        };
        if read.next <= at {
            break;
        }
        at = read.next;
        replay(&mut shard, joined(read.slices), handle.id().index, &mut counts);
    }
    Ok((shard, counts))
}

/// A batch may be spread over two slices.
fn joined(mut slices: Vec<Bytes>) -> Bytes {
    if slices.len() == 1 {
        return slices.remove(0);
    }
    let mut all = BytesMut::with_capacity(slices.iter().map(Bytes::len).sum());
    slices.iter().for_each(|slice| all.extend_from_slice(slice));
    all.freeze()
}

/// Applies whole batches. What cannot be understood is skipped and said aloud: one bad record must not take all
/// groups of a partition away.
fn replay(shard: &mut Shard, batches: Bytes, partition: i32, counts: &mut Counts) {
    for batch in Batches::new(batches) {
        let batch = match batch {
            Ok(batch) => batch,
            Err(error) => {
                tracing::error!(partition, %error, "a batch of groups is unreadable");
                return;
            }
        };
        // Markers end transactions, in which no offsets are committed yet.
        if batch.header.is_control() {
            continue;
        }
        let offset = batch.header.base_offset;
        let mut records = match batch.records(Limits::NONE) {
            Ok(records) => records,
            Err(error) => {
                tracing::error!(partition, offset, %error, "a batch of groups is unreadable");
                continue;
            }
        };
        while let Some(record) = records.next() {
            let (key, value) = match record {
                Ok(record) => (record.key.unwrap_or_default(), record.value),
                Err(error) => {
                    tracing::error!(partition, offset, %error, "a record of groups is unreadable");
                    break;
                }
            };
            counts.records += 1;
            match shard.replay(key, value) {
                Ok(Replayed::Applied) => {}
                Ok(Replayed::Skipped { .. }) => counts.skipped += 1,
                Err(error) => {
                    counts.skipped += 1;
                    tracing::error!(partition, offset, %error, "a record of groups makes no sense");
                }
            }
        }
    }
}
