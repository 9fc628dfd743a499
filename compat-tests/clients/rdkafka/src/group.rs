//! Members of a group, each on a thread of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, anyhow};
use rdkafka::consumer::{CommitMode, Consumer, StreamConsumer};
use rdkafka::topic_partition_list::Offset;
use rdkafka::{ClientConfig, Message, TopicPartitionList};

use crate::client::{Client, Record};

/// What the members of a group did, in order.
#[derive(Default)]
pub struct Journal {
    pub read: Vec<Record>,
    /// Partition and offset of every commit that the broker took.
    pub commits: Vec<(i32, i64)>,
}

/// A member that reads, notes and commits until it leaves.
pub struct Member {
    leaving: Arc<AtomicBool>,
    assigned: Arc<Mutex<BTreeSet<i32>>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Member {
    /// Joins. A member that `stops` leaves by itself when it has read that many records.
    pub fn join(
        client: &Client,
        group: &str,
        topic: &str,
        journal: &Arc<Mutex<Journal>>,
        stops: Option<usize>,
    ) -> Result<Self> {
        let settings = [
            ("group.id", group),
            ("enable.auto.commit", "false"),
            ("auto.offset.reset", "earliest"),
            ("session.timeout.ms", "10000"),
            ("heartbeat.interval.ms", "500"),
        ];
        let config = client.config(&settings);
        let leaving = Arc::new(AtomicBool::new(false));
        let assigned = Arc::new(Mutex::new(BTreeSet::new()));
        let life = Life {
            topic: topic.to_owned(),
            leaving: Arc::clone(&leaving),
            assigned: Arc::clone(&assigned),
            journal: Arc::clone(journal),
        };
        let thread = std::thread::spawn(move || life.run(&config, stops));
        Ok(Self { leaving, assigned, thread: Some(thread) })
    }

    pub fn assigned(&self) -> BTreeSet<i32> {
        lock(&self.assigned).clone()
    }

    /// Leaves, after a last commit; answers what went wrong in the member's life.
    pub fn leave(mut self) -> Result<()> {
        self.leaving.store(true, Ordering::Relaxed);
        self.wait()
    }

    /// Waits until the member has left by itself.
    pub fn wait(&mut self) -> Result<()> {
        let thread = self.thread.take().ok_or_else(|| anyhow!("the member is gone"))?;
        thread.join().map_err(|_| anyhow!("the member panicked"))?
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.leaving.store(true, Ordering::Relaxed);
    }
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Life {
    topic: String,
    leaving: Arc<AtomicBool>,
    assigned: Arc<Mutex<BTreeSet<i32>>>,
    journal: Arc<Mutex<Journal>>,
}

impl Life {
    fn run(self, config: &ClientConfig, stops: Option<usize>) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        // A stream consumer has a task of its own on the runtime that it is made in.
        let consumer: StreamConsumer = {
            let _inside = runtime.enter();
            config.create()?
        };
        consumer.subscribe(&[&self.topic])?;
        let mut read = 0;
        let mut pending = BTreeMap::new();
        while !self.leaving.load(Ordering::Relaxed) && stops.is_none_or(|stops| read < stops) {
            let next = async { tokio::time::timeout(Duration::from_millis(100), consumer.recv()).await };
            match runtime.block_on(next) {
                Ok(Ok(message)) => {
                    read += 1;
                    pending.insert(message.partition(), message.offset() + 1);
                    lock(&self.journal).read.push(Record::of(&message));
                }
                // While the broker restarts there are errors to read past; what is not read in the end tells.
                Ok(Err(error)) => eprintln!("member: {error}"),
                Err(_elapsed) => {}
            }
            let assignment = consumer.assignment()?;
            *lock(&self.assigned) = assignment.elements().iter().map(|place| place.partition()).collect();
            self.commit(&consumer, &mut pending)?;
        }
        Ok(())
    }

    /// Commits what was read of partitions still held; what the broker does not take now is tried again with the next record.
    fn commit(&self, consumer: &StreamConsumer, pending: &mut BTreeMap<i32, i64>) -> Result<()> {
        pending.retain(|partition, _| lock(&self.assigned).contains(partition));
        if pending.is_empty() {
            return Ok(());
        }
        let mut places = TopicPartitionList::new();
        for (partition, offset) in &*pending {
            places.add_partition_offset(&self.topic, *partition, Offset::Offset(*offset))?;
        }
        // Under the lock, so that commits of a partition are noted in the order that the broker took them.
        let mut journal = lock(&self.journal);
        match consumer.commit(&places, CommitMode::Sync) {
            Ok(()) => journal.commits.extend(std::mem::take(pending)),
            Err(error) => eprintln!("member: commit: {error}"),
        }
        Ok(())
    }
}
