//! What the HTTP listener shows: most figures are counted where things happen and gathered when somebody asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use felix_cluster::state::Leader;
use felix_cluster::view::View;
use felix_protocol::ids::{PartitionId, TopicId};
use felix_protocol::time::{Clock, MonoTime};
use felix_storage::DataDir;
use felix_storage::disk::os::OsDisk;

use super::directory;
use crate::http;
use crate::http::status::{Facts, Query};
use crate::node::Node;
use crate::tasks;

/// What the HTTP listener shows.
pub(super) struct Pages {
    pub(super) node: Arc<Node>,
    pub(super) dir: DataDir<OsDisk>,
    pub(super) ready: Arc<AtomicBool>,
}

impl http::Pages for Pages {
    fn ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    fn sick(&self) -> Option<String> {
        let halted = self.node.partitions.halted();
        let halted = (!halted.is_empty()).then(|| format!("{} copies are halted", halted.len()));
        let sick: Vec<String> = halted.into_iter().chain(directory::damage(&self.dir)).collect();
        (!sick.is_empty()).then(|| sick.join("; "))
    }

    fn metrics(&self) -> String {
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.node.metrics.partitions.set(count(self.node.partitions.count()));
        self.node.metrics.halted.set(count(self.node.partitions.halted().len()));
        self.node.metrics.damaged.set(count(self.dir.damage().count()));
        let losses = &self.node.metrics.losses;
        losses.inc_by(self.node.partitions.losses().saturating_sub(losses.get()));
        let lags = tasks::apart(|| self.node.partitions.lags());
        let slowest = lags.iter().filter(|lag| lag.leads).filter_map(|lag| lag.records).max();
        self.node.metrics.lag_records.set(slowest.unwrap_or(0));
        self.node.metrics.reports_per_request.set(self.node.partitions.reports_per_request());
        let reports = &self.node.metrics.reports;
        reports.inc_by(self.node.partitions.reports().saturating_sub(reports.get()));
        let rebuilt = self.node.partitions.rebuilt();
        self.node.metrics.rebuilding.set(count(rebuilt.running));
        for (outcome, counted) in [("completed", rebuilt.completed), ("abandoned", rebuilt.abandoned)] {
            let series = self.node.metrics.rebuilds.with_label_values(&[outcome]);
            series.inc_by(counted.saturating_sub(series.get()));
        }
        let flushes = self.node.partitions.flushes();
        let (passes, logs) = (&self.node.metrics.flushes, &self.node.metrics.flushed_logs);
        // Counted where they happen; the series catch up when they are asked for.
        passes.inc_by(flushes.passes.saturating_sub(passes.get()));
        logs.inc_by(flushes.logs.saturating_sub(logs.get()));
        let answers = self.node.budget.answers();
        self.node.metrics.answer_bytes.set(count(answers.held()));
        self.node.metrics.answer_limit.set(count(answers.limit()));
        self.node.metrics.quota_entries.set(count(self.node.quotas.measured()));
        let scrubbed = self.node.partitions.scrubbed();
        let metrics = &self.node.metrics;
        for (series, counted) in [
            (&metrics.scrubbed_bytes, scrubbed.bytes),
            (&metrics.scrubbed_segments, scrubbed.segments),
            (&metrics.seals_made, scrubbed.seals),
        ] {
            series.inc_by(counted.saturating_sub(series.get()));
        }
        self.set_compaction();
        self.set_lease();
        self.set_cluster();
        self.set_disk();
        self.node.metrics.fetch_sessions.set(count(self.node.sessions.count()));
        let groups = self.node.coordinators.figures();
        self.node.metrics.groups.set(count(groups.groups));
        self.node.metrics.group_partitions_loading.set(count(groups.loading));
        self.node.metrics.group_rebalances.set(i64::try_from(groups.rebalances).unwrap_or(i64::MAX));
        self.node.metrics.group_reloads.set(i64::try_from(groups.reloads).unwrap_or(i64::MAX));
        self.node.metrics.text()
    }

    fn halted(&self) -> String {
        let view = self.node.view();
        let name = |topic: &TopicId| view.topic(topic).map(|topic| &*topic.name);
        http::halted::page(&self.node.partitions.halted(), name)
    }

    fn status(&self, query: &str) -> String {
        let node = &self.node;
        let view = node.view();
        let (lease, partitions) = (node.agent.lease(), &node.partitions);
        let facts = Facts {
            view: &view,
            node: node.id,
            session: lease.session(),
            sessions: node.agent.sessions(),
            lease_ends_at: lease.ends_at(),
            now: node.clock.now(),
            heard: node.agent.heard(),
            ready: self.ready(),
            sick: self.sick(),
            halted: partitions.halted(),
            unknown: self.unknown(&view),
            holds: &|partition: &PartitionId| partitions.copy(partition),
        };
        http::status::page(&facts, &Query::parse(query))
    }
}

impl Pages {
    /// Copies in the directory that the store does not know. Looked for only while they are kept.
    fn unknown(&self, view: &View) -> Vec<PartitionId> {
        if !self.node.agent.is_unverified() {
            return Vec::new();
        }
        // What cannot be listed is told where it is used.
        let copies = self.dir.partitions().unwrap_or_default();
        copies.into_iter().filter(|partition| view.topic(&partition.topic).is_none()).collect()
    }

    fn set_lease(&self) {
        let (ends_at, now) = (self.node.agent.lease().ends_at(), self.node.clock.now());
        let milliseconds = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let left = if ends_at == MonoTime::NEVER {
            0
        } else {
            milliseconds(ends_at.since(now)) - milliseconds(now.since(ends_at))
        };
        self.node.metrics.lease_milliseconds.set(left);
        let sessions = self.node.agent.sessions();
        self.node.metrics.sessions.set(i64::try_from(sessions).unwrap_or(i64::MAX));
    }

    /// What this broker knows of all of them; a tenure of a life that is over is none.
    fn set_cluster(&self) {
        let view = self.node.view();
        let live = view.nodes().filter(|(_, node)| !node.is_fenced()).count();
        let led = |leader: &Leader| view.may_lead(leader.broker, leader.session);
        let leaderless = view.partitions().filter(|partition| !partition.leader().is_some_and(led)).count();
        let metrics = &self.node.metrics;
        metrics.live_brokers.set(i64::try_from(live).unwrap_or(i64::MAX));
        metrics.leaderless.set(i64::try_from(leaderless).unwrap_or(i64::MAX));
    }

    fn set_disk(&self) {
        // A disk that cannot be asked has other ways to be noticed.
        let Ok(stat) = rustix::fs::statvfs(self.dir.path()) else { return };
        let bytes = |blocks: u64| i64::try_from(blocks.saturating_mul(stat.f_frsize)).unwrap_or(i64::MAX);
        self.node.metrics.disk_bytes.set(bytes(stat.f_blocks));
        self.node.metrics.disk_free_bytes.set(bytes(stat.f_bavail));
    }

    fn set_compaction(&self) {
        let figures = self.node.partitions.compaction();
        let metrics = &self.node.metrics;
        let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        metrics.compaction_uncleanable.set(count(figures.uncleanable));
        metrics.compaction_round_milliseconds.set(count(figures.last_round_ms));
        metrics.compaction_dirty_percent.set(count(figures.dirty_percent));
        for (series, now) in [
            (&metrics.compaction_rounds, figures.rounds),
            (&metrics.compaction_read_bytes, figures.read_bytes),
            (&metrics.compaction_freed_bytes, figures.freed_bytes),
        ] {
            series.inc_by(now.saturating_sub(series.get()));
        }
    }
}
