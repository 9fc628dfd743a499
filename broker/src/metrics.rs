//! Every metric, in one table: name, kind, labels, help, and the question it answers. The table registers them
//! and writes `docs/metrics.md`.

use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts,
    Registry, TextEncoder,
};

/// Kinds of metrics, each with how it is made and registered.
trait Kind: Sized {
    const NAME: &'static str;
    fn register(registry: &Registry, row: &Row) -> Result<Self, prometheus::Error>;
}

/// Upper bounds of the buckets of every duration, in seconds.
const SECONDS: &[f64] = &[0.000_1, 0.000_3, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0];

macro_rules! kind {
    ($kind:ty, $name:literal, |$row:ident| $make:expr) => {
        impl Kind for $kind {
            const NAME: &'static str = $name;
            fn register(registry: &Registry, $row: &Row) -> Result<Self, prometheus::Error> {
                let metric = $make?;
                registry.register(Box::new(metric.clone()))?;
                Ok(metric)
            }
        }
    };
}

kind!(IntCounter, "counter", |row| IntCounter::new(row.name, row.help));
kind!(IntGauge, "gauge", |row| IntGauge::new(row.name, row.help));
kind!(Gauge, "gauge", |row| Gauge::new(row.name, row.help));
kind!(IntCounterVec, "counter", |row| IntCounterVec::new(Opts::new(row.name, row.help), row.labels));
kind!(Histogram, "histogram", |row| {
    Histogram::with_opts(HistogramOpts::new(row.name, row.help).buckets(SECONDS.to_vec()))
});
kind!(HistogramVec, "histogram", |row| {
    HistogramVec::new(HistogramOpts::new(row.name, row.help).buckets(SECONDS.to_vec()), row.labels)
});

/// One line of the table.
#[cfg_attr(not(test), expect(dead_code, reason = "kind and question are for the page alone"))]
struct Row {
    name: &'static str,
    kind: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
    question: &'static str,
}

macro_rules! table {
    ($($field:ident: $kind:ty = $name:literal [$($label:literal),*] $help:literal ? $question:literal;)*) => {
        const ROWS: &[Row] = &[$(Row {
            name: $name,
            kind: <$kind as Kind>::NAME,
            labels: &[$($label),*],
            help: $help,
            question: $question,
        }),*];

        /// The metrics of one broker.
        pub struct Metrics {
            registry: Registry,
            $(#[doc = $help] pub $field: $kind,)*
        }

        impl Metrics {
            /// Registers the whole table.
            pub fn new() -> Result<Metrics, prometheus::Error> {
                let registry = Registry::new();
                let mut rows = ROWS.iter();
                // The struct's fields are initialised in the order of the rows.
                $(let $field = <$kind as Kind>::register(&registry, rows.next().ok_or(prometheus::Error::AlreadyReg)?)?;)*
                Ok(Metrics { registry, $($field,)* })
            }
        }
    };
}

table! {
    requests: IntCounterVec = "felix_requests_total" ["api", "class"]
        "Requests answered, by API and what it is about"
        ? "What do clients ask for, and how often?";
    request_seconds: HistogramVec = "felix_request_seconds" ["api"]
        "Time from the last byte of a request to its answer, by API; waiting for data or disk is part of it"
        ? "Which requests are slow?";
    received_bytes: IntCounter = "felix_received_bytes_total" []
        "Bytes read from clients"
        ? "How much comes in?";
    sent_bytes: IntCounter = "felix_sent_bytes_total" []
        "Bytes written to clients"
        ? "How much goes out?";
    connections: IntGauge = "felix_connections" []
        "Client connections open now"
        ? "How many clients are connected?";
    connections_accepted: IntCounter = "felix_connections_accepted_total" []
        "Client connections accepted"
        ? "Do clients reconnect all the time?";
    connections_closed: IntCounterVec = "felix_connections_closed_total" ["reason"]
        "Client connections ended, by reason"
        ? "Who ends connections, and why?";
    connections_refused: IntCounterVec = "felix_connections_refused_total" ["reason"]
        "Client connections closed at once because a limit was reached, by reason"
        ? "Is a connection limit too low?";
    memory_waits: IntCounter = "felix_request_memory_waits_total" []
        "Requests that waited for request memory before they were read or started"
        ? "Is the request memory too small for the load?";
    answer_bytes: IntGauge = "felix_answer_bytes" []
        "Memory of answers that are being made or that clients have not taken yet"
        ? "Do slow clients hold the broker's memory?";
    answer_limit: IntGauge = "felix_answer_limit_bytes" []
        "The limit of that memory (`felix.answer.bytes`); the less is left, the less one answer may take"
        ? "How much may slow clients hold?";
    answers_shortened: IntCounter = "felix_answers_shortened_total" []
        "Fetches that were answered with fewer records because memory for answers was short"
        ? "Is the memory for answers too small for the load?";
    fetch_sessions: IntGauge = "felix_fetch_sessions" []
        "Fetch sessions kept now"
        ? "How many consumers use incremental fetches?";
    fetch_sessions_evicted: IntCounter = "felix_fetch_sessions_evicted_total" []
        "Fetch sessions dropped to make room for others"
        ? "Are there more consumers than fetch sessions?";
    throttled: IntCounterVec = "felix_throttled_total" ["quota"]
        "Answers whose clients were told to rest, and connections that waited or were turned away, by quota"
        ? "Do clients go over their quotas?";
    quota_entries: IntGauge = "felix_quota_entries" []
        "Users, clients and addresses whose use is measured now because a quota binds them"
        ? "How many clients are held to a quota?";
    partitions: IntGauge = "felix_partitions" []
        "Partitions that this broker leads"
        ? "How many partitions does this broker lead?";
    leaderless: IntGauge = "felix_leaderless_partitions" []
        "Partitions of the whole cluster that no live broker leads, as this broker knows: their clients wait"
        ? "Is a part of the cluster out of service?";
    live_brokers: IntGauge = "felix_live_brokers" []
        "Brokers of the cluster whose session is not over, as this broker knows"
        ? "Are all brokers there?";
    halted: IntGauge = "felix_broker_replication_halted" []
        "Copies on this broker that have stopped for good; `/replication/halted` lists them"
        ? "Does a copy need an operator?";
    lag_records: IntGauge = "felix_broker_replication_lag_records" []
        "Records that the slowest follower of any partition led here lacks, of followers that have not stopped: what acks=1 risks"
        ? "How much would be lost with this broker's disk?";
    reports_per_request: Gauge = "felix_broker_replica_reports_per_request" []
        "Reports about who may lead that shared a request to the control store, on average since the start"
        ? "Does the control store keep up with changes of replicas?";
    reports: IntCounter = "felix_broker_replica_reports_total" []
        "Reports about who may lead that leaders here made to the control store, those of opening included"
        ? "Do sets of replicas change all the time? In the steady state none is made.";
    rebuilds: IntCounterVec = "felix_broker_replication_rebuilds_total" ["outcome"]
        "Copies of other brokers that leaders here had begun anew, by outcome: `completed` when level, or `abandoned`"
        ? "Do followers lose touch with their leaders' logs?";
    rebuilding: IntGauge = "felix_broker_replication_rebuilding" []
        "Copies of other brokers that leaders here rebuild now"
        ? "Is a rebuild under way?";
    damaged: IntGauge = "felix_damaged_places" []
        "Places in logs that are damaged, as opening, reading or the scrub found since the start: reads of them fail; the broker's log names file and position"
        ? "Has a disk changed or lost what was written?";
    losses: IntCounter = "felix_broker_loss_events_total" []
        "Times that a copy in doubt was promoted here because nobody held more: acknowledged records may be missing"
        ? "Were acknowledged records lost?";
    scrubbed_bytes: IntCounter = "felix_scrubbed_bytes_total" []
        "Bytes of closed segments that the scrub has read"
        ? "How fast does the scrub go, and is it running?";
    scrubbed_segments: IntCounter = "felix_scrubbed_segments_total" []
        "Closed segments that the scrub has looked through"
        ? "Are old segments looked at?";
    seals_made: IntCounter = "felix_seals_made_total" []
        "Seals that the scrub made for closed segments without one, or with a bad one"
        ? "Do crashes or the disk cost seals?";
    flushes: IntCounter = "felix_flushes_total" []
        "Times that the disk was waited for to make records durable"
        ? "How many writers share a flush?";
    flushed_logs: IntCounter = "felix_flushed_logs_total" []
        "Logs made durable, counted at each flush"
        ? "How many partitions share a flush?";
    flush_seconds: Histogram = "felix_flush_seconds" []
        "How long the disk was waited for, each time"
        ? "How slow is the disk?";
    compaction_rounds: IntCounter = "felix_compaction_rounds_total" []
        "Rounds of compaction made, each over one log"
        ? "Does compaction run?";
    compaction_read_bytes: IntCounter = "felix_compaction_read_bytes_total" []
        "Bytes that compaction read"
        ? "How much work is compaction?";
    compaction_freed_bytes: IntCounter = "felix_compaction_freed_bytes_total" []
        "Bytes that compaction took out of logs"
        ? "Is compaction worth its work?";
    compaction_round_milliseconds: IntGauge = "felix_compaction_last_round_milliseconds" []
        "How long the last round of compaction took"
        ? "Can compaction keep up?";
    compaction_dirty_percent: IntGauge = "felix_compaction_max_dirty_percent" []
        "Share of the dirtiest compacted log that no round has been through"
        ? "Does compaction keep up?";
    compaction_uncleanable: IntGauge = "felix_compaction_uncleanable_partitions" []
        "Partitions that compaction leaves alone because their log cannot be read; the log says why"
        ? "Does a compacted log only grow?";
    groups: IntGauge = "felix_groups" []
        "Groups that this broker coordinates"
        ? "How many groups does this broker coordinate?";
    group_partitions_loading: IntGauge = "felix_group_partitions_loading" []
        "Partitions whose groups are being read from the log, and are not answered for meanwhile"
        ? "Are groups waiting for this broker to read its log?";
    group_rebalances: IntGauge = "felix_group_rebalances" []
        "Rebalances of groups begun since the start"
        ? "Do groups rebalance all the time?";
    group_reloads: IntGauge = "felix_group_reloads" []
        "Partitions whose groups were read anew because a write failed; anything but 0 is a fault of the disk or of Felix"
        ? "Do writes of group state fail?";
    lease_milliseconds: IntGauge = "felix_lease_milliseconds" []
        "Milliseconds that this broker's lease still runs, negative since it expired; 0 where the lock on the data directory is the lease"
        ? "May this broker take writes, or has it lost touch with the control store?";
    sessions: IntGauge = "felix_sessions" []
        "Sessions of this process; each after the first because the other brokers ended the one before"
        ? "Was this broker paused or cut off for longer than its lease?";
    peers_connected: IntGauge = "felix_peers_connected" []
        "Other brokers that this one has a connection to"
        ? "Does this broker reach all others?";
    peers_accepted: IntGauge = "felix_peers_accepted" []
        "Other brokers that have a connection to this one"
        ? "Do all others reach this broker?";
    peer_sent_bytes: IntCounter = "felix_peer_sent_bytes_total" []
        "Bytes sent to other brokers"
        ? "How much does replication send?";
    peer_received_bytes: IntCounter = "felix_peer_received_bytes_total" []
        "Bytes received from other brokers"
        ? "How much does replication receive?";
    shipped_bytes: IntCounterVec = "felix_peer_shipped_bytes_total" ["peer"]
        "Bytes of records that were handed over to be sent to another broker's copies, by broker"
        ? "Who is sent records, and how many?";
    shipping_read_bytes: IntCounterVec = "felix_peer_shipping_read_bytes_total" ["source"]
        "Bytes of records that were read in order to be shipped, by where they lay: memory, disk, or sealed (on the disk, compared with the segment's seal)"
        ? "Do followers cost reads of the disk?";
    peer_requests: IntCounterVec = "felix_peer_requests_total" ["kind", "outcome"]
        "Requests to other brokers that are over, by kind of frame and by what came of them"
        ? "Do other brokers answer?";
    peer_connections_refused: IntCounterVec = "felix_peer_connections_refused_total" ["reason"]
        "Connections to the internal listener that were closed before a broker was known to speak, by reason"
        ? "Does somebody else connect to the brokers' own port, or a broker with a wrong certificate?";
    panics: IntGauge = "felix_task_panics" []
        "Tasks and threads that ended in a panic since the start; anything but 0 is a fault of Felix"
        ? "Did a part of the broker break?";
    disk_bytes: IntGauge = "felix_disk_bytes" []
        "Size of the file system of the data directory"
        ? "How large is the disk?";
    disk_free_bytes: IntGauge = "felix_disk_free_bytes" []
        "Bytes of it that the broker may still write"
        ? "When is the disk full?";
    resident_bytes: IntGauge = "process_resident_memory_bytes" []
        "Resident memory of the process"
        ? "How much memory does the broker take?";
    cpu_milliseconds: IntGauge = "felix_process_cpu_milliseconds" []
        "Processor time used since the start, user and system"
        ? "How much processor does the broker take?";
    open_files: IntGauge = "process_open_fds" []
        "Open file descriptors of the process"
        ? "How close is the limit on open files?";
}

/// The two series of one API, looked up once.
#[derive(Clone)]
pub struct ApiMetrics {
    /// Requests answered.
    pub requests: IntCounter,
    /// How long they took.
    pub seconds: Histogram,
}

impl Metrics {
    /// The series of one API.
    pub fn api(&self, name: &str, class: &str) -> ApiMetrics {
        ApiMetrics {
            requests: self.requests.with_label_values(&[name, class]),
            seconds: self.request_seconds.with_label_values(&[name]),
        }
    }

    /// All series in Prometheus' text form.
    pub fn text(&self) -> String {
        self.refresh();
        let mut text = Vec::new();
        // Writing to memory cannot fail; a metric that cannot be encoded would be a mistake in the table.
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::error!(%error, "metrics could not be encoded");
        }
        String::from_utf8(text).unwrap_or_default()
    }

    /// What is read from elsewhere at the time of asking.
    fn refresh(&self) {
        self.panics.set(i64::try_from(crate::tasks::panics()).unwrap_or(i64::MAX));
        let page = i64::try_from(rustix::param::page_size()).unwrap_or(4096);
        let field = |file: &str, at: usize| {
            let text = std::fs::read_to_string(file).ok()?;
            // In /proc/self/stat the second field, the name, may hold spaces: count behind it.
            let behind = text.rsplit_once(')').map_or(text.as_str(), |(_, rest)| rest);
            behind.split_ascii_whitespace().nth(at)?.parse::<i64>().ok()
        };
        if let Some(pages) = field("/proc/self/statm", 1) {
            self.resident_bytes.set(pages * page);
        }
        if let (Some(user), Some(system)) = (field("/proc/self/stat", 11), field("/proc/self/stat", 12)) {
            let tick = i64::try_from(rustix::param::clock_ticks_per_second()).unwrap_or(100).max(1);
            self.cpu_milliseconds.set((user + system) * 1000 / tick);
        }
        if let Ok(entries) = std::fs::read_dir("/proc/self/fd") {
            self.open_files.set(i64::try_from(entries.count()).unwrap_or(i64::MAX));
        }
    }
}

/// The page `docs/metrics.md`.
#[cfg(test)]
fn page() -> String {
    use std::fmt::Write as _;
    let mut page = String::from(
        "# Metrics\n\nServed in Prometheus' text form at `/metrics` of `--metrics-bind`. Generated from the table in \
         `broker/src/metrics.rs`.\n\n| metric | kind | labels | what it is | the question it answers |\n|---|---|---|---|---|\n",
    );
    for row in ROWS {
        let labels = row.labels.join(", ");
        let _ =
            writeln!(page, "| `{}` | {} | {labels} | {} | {} |", row.name, row.kind, row.help, row.question);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_registers_and_is_served() {
        let metrics = Metrics::new().unwrap();
        metrics.api("Produce", "records").requests.inc();
        let text = metrics.text();
        assert!(text.contains("felix_requests_total{api=\"Produce\",class=\"records\"} 1"), "{text}");
        assert!(metrics.resident_bytes.get() > 0);
        assert!(metrics.open_files.get() > 0);
    }

    #[test]
    fn the_page_is_current() {
        crate::pages::check("metrics.md", &page());
    }
}
