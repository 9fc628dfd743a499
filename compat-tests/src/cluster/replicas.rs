//! Topics with replicas: who is in sync, who leads, and what `felix verify` finds when it holds all copies against each other.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::broker::Broker;
use super::plan::{AGREE, Cluster};
use super::stage::Stage;
use super::topics::Journal;
use crate::process::{Process, tail};
use crate::raw::ask::cluster::PartitionDescribed;
use crate::wait;

/// How long a copy may take to be filled and to get into the set of those that may lead: it waits for longer each time it flaps.
pub const IN_SYNC: Duration = Duration::from_secs(200);
/// How long looking through all data may take for each broker.
const VERIFY: Duration = Duration::from_secs(60);

impl Cluster {
    /// Creates a topic with these replicas of each partition, and waits until all of them are in sync.
    pub fn create_placed(&mut self, at: i32, topic: &str, placed: &[Vec<i32>]) -> Result<()> {
        let (error, message) = self.broker(at)?.connect()?.create_on(topic, -1, -1, placed)?;
        ensure!(error == 0, "creating {topic}: error {error}: {message:?}");
        self.wait_led(at, topic)?;
        let all: Vec<i32> = self.ids();
        self.wait_in_sync(at, topic, &all)
    }

    /// The same on these brokers alone: others may be away.
    pub fn create_placed_at_some(
        &mut self,
        at: i32,
        topic: &str,
        placed: &[Vec<i32>],
        ids: &[i32],
    ) -> Result<()> {
        let (error, message) = self.broker(at)?.connect()?.create_on(topic, -1, -1, placed)?;
        ensure!(error == 0, "creating {topic}: error {error}: {message:?}");
        self.wait_in_sync(at, topic, ids)
    }

    /// The partitions of a topic, in order, as a broker describes them.
    pub fn described(&mut self, at: i32, topic: &str) -> Result<Vec<PartitionDescribed>> {
        let mut all = self.broker(at)?.connect()?.describe_partitions(topic)?;
        all.sort_by_key(|partition| partition.index);
        Ok(all)
    }

    /// Waits until exactly these replicas of every partition are in sync, as a broker says, and the leaders serve.
    pub fn wait_in_sync(&mut self, at: i32, topic: &str, ids: &[i32]) -> Result<()> {
        let mut last = Vec::new();
        let waited = wait::until(&format!("{ids:?} to be in sync for {topic}"), IN_SYNC, || {
            last = self.described(at, topic)?;
            let mut good = !last.is_empty();
            for partition in &last {
                let mut isr = partition.isr.clone();
                isr.sort_unstable();
                good &= isr == ids && ids.contains(&partition.leader);
            }
            for partition in last.iter().take(if good { usize::MAX } else { 0 }) {
                good &= self.serves(partition.leader, topic, partition.index)?;
            }
            Ok(good.then_some(()))
        });
        waited.with_context(|| format!("{last:?}"))
    }

    /// The leader of a partition and its generation, as a broker says, once there is one that is not `gone` and says so itself. It need
    /// not know where the log ends for readers: too few copies may be left for that.
    pub fn wait_leader(
        &mut self,
        at: i32,
        topic: &str,
        partition: usize,
        gone: Option<i32>,
    ) -> Result<(i32, i32)> {
        let mut last = String::new();
        let led =
            wait::until(&format!("a leader of {topic}/{partition} that is not {gone:?}"), AGREE, || {
                let all = self.described(at, topic)?;
                let seen = all.get(partition).context("no such partition")?;
                last = format!("{seen:?}");
                let good = seen.leader >= 0 && Some(seen.leader) != gone;
                if !good {
                    return Ok(None);
                }
                let start = self
                    .broker(seen.leader)?
                    .connect()
                    .and_then(|mut to| to.offset_at(topic, seen.index, -2));
                Ok(start.is_ok_and(|start| start.error == 0).then_some((seen.leader, seen.epoch)))
            });
        led.context(last)
    }

    /// Waits until a broker says that nobody leads a partition.
    pub fn wait_leader_none(&mut self, at: i32, topic: &str, partition: usize) -> Result<()> {
        let mut last = String::new();
        let waited = wait::until(&format!("{topic}/{partition} to be without a leader"), AGREE, || {
            let seen = self.described(at, topic)?;
            let seen = seen.get(partition).context("no such partition")?;
            last = format!("{seen:?}");
            Ok((seen.leader < 0).then_some(()))
        });
        waited.context(last)
    }

    /// Appends a record to each partition with acks=all. The frame that brings it to the followers tells them the mark before it: whoever
    /// of them leads next, alone, serves all that was acknowledged until now.
    pub fn tell_marks(&mut self, at: i32, topic: &str) -> Result<()> {
        let mut journal = Journal::new(topic);
        for partition in self.described(at, topic)? {
            journal.append_to_leader(self, at, partition.index)?;
        }
        Ok(())
    }

    /// The sum of a metric over some brokers.
    pub fn sum(&self, ids: &[i32], metric: &str) -> Result<f64> {
        self.brokers().filter(|broker| ids.contains(&broker.id())).map(|broker| broker.metric(metric)).sum()
    }

    /// All of them but one.
    pub fn others(&self, gone: i32) -> Vec<i32> {
        self.ids().into_iter().filter(|id| *id != gone).collect()
    }
}

/// What `felix verify` says that it has compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Compared {
    /// Partitions with several copies.
    pub partitions: u64,
    /// Their copies.
    pub copies: u64,
    /// Batches below the marks of two copies that are the same.
    pub batches: u64,
    /// Batches above a copy's mark.
    pub above: u64,
}

impl std::fmt::Display for Compared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { partitions, copies, batches, above } = self;
        write!(
            f,
            "verified: {copies} copies of {partitions} partitions are the same in {batches} pairs of batches"
        )?;
        if *above > 0 {
            write!(f, " ({above} above a mark)")?;
        }
        Ok(())
    }
}

impl Compared {
    /// Reads the last line of the output: "compared: 3 partitions in 9 copies, 40 batches and 900 bytes below the marks of 9 pairs: 0
    /// pairs differ; 0 batches lie above a mark".
    fn read(output: &str) -> Result<Self> {
        let line = output.lines().find_map(|line| line.strip_prefix("compared: "));
        let line = line.context("felix verify compared nothing")?;
        let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        match numbers[..] {
            [partitions, copies, batches, _bytes, _pairs, 0, above] => {
                Ok(Self { partitions, copies, batches, above })
            }
            _ => bail!("copies differ, or this is not understood: {line}"),
        }
    }
}

impl Stage {
    /// Stops all brokers that run, in order, and has `felix verify` hold their directories against each other: no copies may
    /// differ below their marks, and of so many partitions at least three copies must have been compared.
    pub fn verify_copies(&self, cluster: &mut Cluster, partitions: u64) -> Result<Compared> {
        for id in cluster.ids() {
            if cluster.broker(id)?.node.runs() {
                cluster.broker(id)?.stop()?;
            }
        }
        let log = self.log("verify.log");
        drop(std::fs::File::create(&log)?);
        let mut command = self.felix_command();
        command.arg("verify").args(cluster.brokers().map(Broker::data_dir));
        let bound = VERIFY * u32::try_from(cluster.ids().len())?;
        let status = finished(&mut command, &log, bound)?;
        ensure!(status, "felix verify finds something:\n{}", tail(&log, 20));
        let compared = Compared::read(&std::fs::read_to_string(&log)?)?;
        ensure!(
            compared.partitions >= partitions && compared.copies >= 3 * partitions && compared.batches > 0,
            "too little was compared: {compared:?} of {partitions} partitions"
        );
        Ok(compared)
    }
}

fn finished(command: &mut Command, log: &std::path::Path, bound: Duration) -> Result<bool> {
    let mut process = Process::spawn_logged(command, log)?;
    let status = process.wait(bound).with_context(|| format!("{command:?} does not come to an end"))?;
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_verify_is_read_and_a_difference_is_a_failure() {
        let line = |differ: u64| {
            format!(
                "/a: 2 partitions, 2 segments, 3 batches, 4 bytes: 0 damaged, 0 wrong, 0 notes\ncompared: 3 partitions in 9 copies, 40 batches \
                 and 900 bytes below the marks of 9 pairs: {differ} pairs differ; 7 batches lie above a mark\n"
            )
        };
        let expected = Compared { partitions: 3, copies: 9, batches: 40, above: 7 };
        assert_eq!(Compared::read(&line(0)).ok(), Some(expected));
        assert!(Compared::read(&line(1)).is_err());
        assert!(Compared::read("/a: 2 partitions").is_err());
    }
}
