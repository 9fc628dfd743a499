//! The control store of a cluster: etcd, by its v3 API.
//!
//! etcd is used as a linearizable register and nothing else: no leases, no elections, no locks of its own. All keys
//! lie below the cluster's prefix, so that clusters can share one etcd, and so that others may write to it: a
//! revision may move without anything of ours changing.
//!
//! One call of [`Store::commit`] is one transaction; of several decisions it is one of nested ones, a decision each. etcd evaluates all compares, of all
//! levels, before it writes anything, and refuses two puts of one key before it does anything; both are what
//! [`Store::commit`] promises.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use etcd_client::proto::{PbKeyValue, PbTxnOpResponse};
use etcd_client::{CompareOp, GetOptions, GetResponse, KeyValue, ResponseHeader, Txn, TxnOp, TxnResponse};
use felix_cluster::decision::{Change, Compare, Decision, Write};
use felix_cluster::state::Revision;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::watch;

use super::judge::firsts;
use super::{After, BatchLimit, Committed, Connect, Entry, Exchanged, Page, Position, Store, StoreError};

mod feed;
mod way;

pub use feed::EtcdWatch;

use way::{ANSWER_BYTES, Failure, Way};

/// etcd's own limit (`--max-txn-ops`): operations of one level, together with those of the levels above it.
const MAX_OPERATIONS: usize = 128;
/// Decisions in one transaction; what is left of the limit is for each decision's own compares and writes.
const DECISIONS: usize = 96;
/// What each decision may have, compares and writes counted apart, where it shares a transaction.
const OPERATIONS_EACH: usize = MAX_OPERATIONS - DECISIONS;
/// etcd takes 1.5 MiB at once (`--max-request-bytes`); we stay below it with everything around the values.
const REQUEST_BYTES: usize = 1_400 << 10;

/// What one transaction may carry.
pub(super) const LIMIT: BatchLimit = BatchLimit { decisions: DECISIONS, operations: 1_024, bytes: 1 << 20 };

/// Below the prefix: written when a watch has to learn of a revision at which nothing of ours changed. It sorts last.
const NUDGE: &str = "/~nudge";

/// Where etcd is, and how to speak to it.
#[derive(Clone)]
pub struct EtcdConfig {
    /// `http://host:port`, `https://host:port` or `host:port` (then by `tls`); used in turn when one fails.
    pub endpoints: Vec<String>,
    /// All keys of the cluster begin with it: a slash, then any text.
    pub prefix: String,
    /// How long one attempt at one endpoint may take.
    pub timeout: Duration,
    /// Certificates. Without them `https` endpoints are checked against the system's authorities.
    pub tls: Option<EtcdTls>,
    /// Name and password, where etcd asks for them.
    pub user: Option<(String, String)>,
}

/// Neither the password nor the key is shown.
impl fmt::Debug for EtcdConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdConfig")
            .field("endpoints", &self.endpoints)
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .field("tls", &self.tls.is_some())
            .field("user", &self.user.as_ref().map(|(name, _)| name))
            .finish()
    }
}

/// Certificates, as PEM text.
#[derive(Clone)]
pub struct EtcdTls {
    /// The authority that servers must be signed by; `None`: the system's.
    pub ca: Option<Vec<u8>>,
    /// Our own certificate and its key, where etcd asks for one.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// A setting that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EtcdConfigError {
    /// There is nothing to connect to.
    #[error("no etcd endpoint is given")]
    NoEndpoint,
    /// An endpoint is spelled wrongly.
    #[error("etcd endpoint {given}: {why}; wanted is http://host:port or https://host:port")]
    Endpoint {
        /// As it was given.
        given: String,
        /// What is wrong with it.
        why: String,
    },
    /// The prefix is spelled wrongly.
    #[error(
        "cluster prefix {0:?}: it must begin with a slash, must not end with one, and have something behind it"
    )]
    Prefix(String),
    /// The certificates cannot be used.
    #[error("the certificates for etcd: {0}")]
    Tls(String),
}

/// Why etcd is not there to be used.
#[derive(Debug, Error)]
pub enum EtcdError {
    /// A setting is wrong.
    #[error(transparent)]
    Config(#[from] EtcdConfigError),
    /// It does not answer, or may not be believed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// See the module.
pub struct Etcd {
    way: Way,
    prefix: String,
    shared: Arc<Shared>,
    /// Keys to a page, by how large they have been.
    page: usize,
}

/// What the handles of one process have in common.
struct Shared {
    seen: Mutex<Position>,
    expected: watch::Sender<Expected>,
}

/// What watches have to be told of, because an answer has told it already.
#[derive(Clone, Copy, Debug, Default)]
struct Expected {
    /// Something below the prefix was written at this revision.
    written: Revision,
    /// The store was at this revision; whether anything of ours has changed at it is not known.
    reached: Revision,
}

impl Shared {
    /// Takes in an answer to a request that was sent when `floor` was seen.
    fn follow(&self, floor: Position, header: Option<&ResponseHeader>) -> Result<Revision, StoreError> {
        // Every answer of etcd's has one; of a transaction without it nothing can be said.
        let header = header.ok_or_else(|| StoreError::Unknown("an answer has no header".to_owned()))?;
        let found = position(header);
        let mut floor = floor;
        floor.follow(found)?;
        let mut seen = self.seen.lock();
        seen.revision = seen.revision.max(found.revision);
        Ok(found.revision)
    }

    fn expect_written(&self, revision: Revision) {
        self.expected.send_modify(|expected| expected.written = expected.written.max(revision));
    }

    fn expect_reached(&self, revision: Revision) {
        self.expected.send_modify(|expected| expected.reached = expected.reached.max(revision));
    }
}

fn position(header: &ResponseHeader) -> Position {
    Position { store: header.cluster_id(), revision: revision(header.revision()) }
}

/// Revisions are signed on the wire and never negative.
fn revision(number: i64) -> Revision {
    Revision(u64::try_from(number).unwrap_or(0))
}

fn number(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

/// The ways of one process to etcd. Its handles share what they have seen and heard of, so that a store that goes back
/// under one is refused by all, and what any of them has written is expected by the watches of all.
pub struct EtcdWays {
    way: Way,
    prefix: String,
    /// Known since the first answer.
    shared: OnceLock<Arc<Shared>>,
}

impl EtcdWays {
    /// Checks the settings; nothing is connected yet.
    pub fn new(config: EtcdConfig) -> Result<EtcdWays, EtcdConfigError> {
        let prefix = config.prefix.clone();
        if !prefix.starts_with('/') || prefix.ends_with('/') {
            return Err(EtcdConfigError::Prefix(prefix));
        }
        Ok(EtcdWays { way: Way::new(config)?, prefix, shared: OnceLock::new() })
    }
}

impl Connect for EtcdWays {
    type Store = Etcd;

    /// Connects on the present runtime, and asks how far the store has come.
    async fn connect(&self, attempt: Duration) -> Result<Etcd, StoreError> {
        let mut way = self.way.twin(attempt);
        let floor = self.shared.get().map(|shared| *shared.seen.lock());
        let key = format!("{}{NUDGE}", self.prefix).into_bytes();
        let answer = way.read(&key, &GetOptions::new()).await.map_err(not_read)?;
        let unheard = || StoreError::Unavailable("an answer has no header".to_owned());
        let found = position(answer.header().ok_or_else(unheard)?);
        let fresh = || Arc::new(Shared { seen: Mutex::new(found), expected: watch::Sender::default() });
        let shared = Arc::clone(self.shared.get_or_init(fresh));
        let store = shared.seen.lock().store;
        shared.follow(floor.unwrap_or(Position { store, ..found }), answer.header())?;
        Ok(Etcd { way, prefix: self.prefix.clone(), shared, page: usize::MAX })
    }
}

impl Etcd {
    /// The only handle of a process. `seen` is what was seen of the store before this process; one that is behind it, or
    /// another one, is refused.
    pub async fn connect(config: EtcdConfig, seen: Option<Position>) -> Result<Etcd, EtcdError> {
        let attempt = config.timeout;
        let store = EtcdWays::new(config)?.connect(attempt).await?;
        let found = store.position();
        seen.unwrap_or(found).follow(found)?;
        Ok(store)
    }

    fn spelled(&self, key: &str) -> Vec<u8> {
        format!("{}{key}", self.prefix).into_bytes()
    }

    fn compare(&self, compare: &Compare) -> etcd_client::Compare {
        let key = self.spelled(&compare.key().to_string());
        match compare {
            // A key that is not there compares as one of revision 0.
            Compare::Revision(_, revision) => {
                etcd_client::Compare::mod_revision(key, CompareOp::Equal, number(*revision))
            }
            Compare::Value(_, value) => etcd_client::Compare::value(key, CompareOp::Equal, value.clone()),
        }
    }

    fn write(&self, write: &Write) -> TxnOp {
        let key = self.spelled(&write.key().to_string());
        match write {
            Write::Put(_, value) => TxnOp::put(key, value.clone(), None),
            Write::Delete(_) => TxnOp::delete(key, None),
        }
    }

    /// A decision as a transaction, which reads a few keys besides.
    fn transaction(&self, decision: &Decision, reads: &[&str]) -> Txn {
        let compares: Vec<_> = decision.compares().iter().map(|compare| self.compare(compare)).collect();
        let reads = || reads.iter().map(|key| TxnOp::get(self.spelled(key), None));
        let writes = decision.writes().iter().map(|write| self.write(write));
        let (then, otherwise): (Vec<_>, Vec<_>) = (writes.chain(reads()).collect(), reads().collect());
        Txn::new().when(compares).and_then(then).or_else(otherwise)
    }

    /// What a transaction takes on the wire, at most.
    fn weight(&self, decision: &Decision) -> usize {
        // Tags, lengths and numbers of one operation and what is around it.
        const AROUND: usize = 64;
        let compared = decision.compares().iter().map(|compare| match compare {
            Compare::Revision(key, _) => key.to_string().len(),
            Compare::Value(key, value) => key.to_string().len() + value.len(),
        });
        let written = decision.writes().iter().map(|write| match write {
            Write::Put(key, value) => key.to_string().len() + value.len(),
            Write::Delete(key) => key.to_string().len(),
        });
        compared.chain(written).map(|bytes| bytes + self.prefix.len() + AROUND).sum()
    }

    async fn transact(&mut self, bytes: usize, request: &Txn) -> Result<(Revision, TxnResponse), StoreError> {
        if bytes > REQUEST_BYTES {
            let what =
                format!("a transaction of {bytes} bytes is larger than the {REQUEST_BYTES} that etcd takes");
            return Err(StoreError::Unavailable(what));
        }
        let floor = *self.shared.seen.lock();
        let answer = self.way.write(request).await.map_err(not_written)?;
        let revision = self.shared.follow(floor, answer.header())?;
        Ok((revision, answer))
    }

    /// What is told of a transaction to the watches of this process.
    fn expect(&self, revision: Revision, decisions: &[Decision], landed: &[bool]) {
        let mut winners = decisions.iter().zip(landed).filter(|(_, landed)| **landed);
        let puts =
            |decision: &Decision| decision.writes().iter().any(|write| matches!(write, Write::Put(..)));
        // Deleting what is not there is no revision.
        if winners.any(|(decision, _)| puts(decision)) {
            self.shared.expect_written(revision);
        } else {
            self.shared.expect_reached(revision);
        }
    }

    /// What a key of etcd's is called here; `None` for the key that is ours alone.
    fn named(&self, key: Vec<u8>) -> Option<String> {
        named(&self.prefix, key)
    }
}

fn named(prefix: &str, key: Vec<u8>) -> Option<String> {
    let key = match String::from_utf8(key) {
        Ok(key) => key,
        Err(error) => {
            tracing::error!(key = ?error.as_bytes(), "a key of the control store that is no text was passed over");
            return None;
        }
    };
    key.strip_prefix(prefix).filter(|key| *key != NUDGE).map(str::to_owned)
}

/// The end of the range of keys that begin with a prefix; a prefix is text, which has no byte of 255.
fn behind(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    end
}

fn not_read(failure: Failure) -> StoreError {
    StoreError::Unavailable(failure.what())
}

fn not_written(failure: Failure) -> StoreError {
    match failure {
        Failure::Open(what) | Failure::TooLarge(what) => StoreError::Unknown(what),
        Failure::Elsewhere(_) | Failure::Refused(_) | Failure::Token(_) | Failure::Compacted => {
            StoreError::Unavailable(failure.what())
        }
    }
}

fn entry(kv: KeyValue) -> Entry {
    let revision = revision(kv.mod_revision());
    Entry { value: kv.into_key_value().1, revision }
}

/// What an answer took on the wire, about.
fn weight(answer: &GetResponse) -> usize {
    answer.kvs().iter().map(|kv| kv.key().len() + kv.value().len() + 32).sum()
}

fn malformed() -> StoreError {
    StoreError::Unknown("the answer to a transaction has another form than the transaction".to_owned())
}

impl Store for Etcd {
    type Watch = EtcdWatch;

    async fn get(&mut self, key: &str) -> Result<Option<Entry>, StoreError> {
        let floor = *self.shared.seen.lock();
        let mut answer = self.way.read(&self.spelled(key), &GetOptions::new()).await.map_err(not_read)?;
        self.shared.follow(floor, answer.header())?;
        Ok(answer.take_kvs().into_iter().next().map(entry))
    }

    async fn list(&mut self, prefix: &str, after: Option<&After>, limit: usize) -> Result<Page, StoreError> {
        let mut key = match after {
            // The next possible key.
            Some(after) => [self.spelled(&after.key), vec![0]].concat(),
            None => self.spelled(prefix),
        };
        let range_end = behind(&self.spelled(prefix));
        let wanted = after.map(|after| after.revision);
        let mut at = wanted.unwrap_or(Revision::ABSENT);
        loop {
            let floor = *self.shared.seen.lock();
            let keys = self.page.min(limit).max(1);
            let options = GetOptions::new()
                .with_range(range_end.clone())
                .with_limit(i64::try_from(keys).unwrap_or(i64::MAX))
                .with_revision(number(at));
            let mut answer = match self.way.read(&key, &options).await {
                Ok(answer) => answer,
                Err(Failure::TooLarge(_)) if keys > 1 => {
                    self.page = keys / 2;
                    continue;
                }
                Err(Failure::Compacted) => return Err(StoreError::Compacted(at)),
                Err(failure) => return Err(not_read(failure)),
            };
            let newest = self.shared.follow(floor, answer.header())?;
            if at == Revision::ABSENT {
                at = newest;
            }
            if weight(&answer) < ANSWER_BYTES / 4 && keys < limit {
                self.page = keys.saturating_mul(2);
            }
            let kvs = answer.take_kvs();
            let last = kvs.last().map(|kv| kv.key().to_vec());
            let mut entries = Vec::with_capacity(kvs.len());
            for kv in kvs {
                let revision = revision(kv.mod_revision());
                let (key, value) = kv.into_key_value();
                if let Some(key) = self.named(key) {
                    entries.push(Change { key, value: Some(value), revision });
                }
            }
            match last {
                // A page of nothing that is told would not say where the next one begins.
                Some(last) if entries.is_empty() && answer.more() => key = [last, vec![0]].concat(),
                _ => return Ok(Page { entries, revision: at, more: answer.more() }),
            }
        }
    }

    async fn watch(&mut self, prefix: &str, after: Revision) -> Result<EtcdWatch, StoreError> {
        Ok(EtcdWatch::start(self, prefix, after))
    }

    async fn commit(&mut self, decisions: &[Decision]) -> Result<Committed, StoreError> {
        debug_assert!(
            decisions.len() <= 1
                || decisions.len() <= DECISIONS
                    && decisions.iter().all(|decision| decision.operations() <= OPERATIONS_EACH),
            "{} decisions at once",
            decisions.len()
        );
        // One alone needs no nesting, and older servers count only what is not nested against their quota.
        if let [decision] = decisions {
            let request = self.transaction(decision, &[]);
            let (revision, answer) = self.transact(self.weight(decision), &request).await?;
            self.expect(revision, decisions, &[answer.succeeded()]);
            return Ok(Committed { revision, landed: vec![answer.succeeded()] });
        }
        // etcd refuses the whole transaction where a key is written twice.
        let sent = firsts(decisions);
        let nested = decisions.iter().zip(&sent).filter(|(_, sent)| **sent);
        let bytes = nested.clone().map(|(decision, _)| self.weight(decision)).sum();
        let nested: Vec<_> =
            nested.map(|(decision, _)| TxnOp::txn(self.transaction(decision, &[]))).collect();
        let (revision, answer) = self.transact(bytes, &Txn::new().and_then(nested)).await?;
        let mut outcomes = answer.0.responses.into_iter().map(|outcome| outcome.response);
        let mut landed = Vec::with_capacity(decisions.len());
        for sent in sent {
            landed.push(match sent.then(|| outcomes.next()) {
                None => false,
                Some(Some(Some(PbTxnOpResponse::ResponseTxn(nested)))) => nested.succeeded,
                Some(_) => return Err(malformed()),
            });
        }
        self.expect(revision, decisions, &landed);
        Ok(Committed { revision, landed })
    }

    async fn exchange(&mut self, decision: &Decision, reads: &[&str]) -> Result<Exchanged, StoreError> {
        let request = self.transaction(decision, reads);
        let (revision, answer) = self.transact(self.weight(decision), &request).await?;
        let landed = answer.succeeded();
        let behind_writes = if landed { decision.writes().len() } else { 0 };
        let mut found = Vec::with_capacity(reads.len());
        for outcome in answer.0.responses.into_iter().skip(behind_writes) {
            let Some(PbTxnOpResponse::ResponseRange(read)) = outcome.response else {
                return Err(malformed());
            };
            let entry = |kv: PbKeyValue| Entry { value: kv.value, revision: self::revision(kv.mod_revision) };
            found.push(read.kvs.into_iter().next().map(entry));
        }
        if found.len() != reads.len() {
            return Err(malformed());
        }
        self.expect(revision, std::slice::from_ref(decision), &[landed]);
        Ok(Exchanged { committed: Committed { revision, landed: vec![landed] }, found })
    }

    fn batch_limit(&self) -> BatchLimit {
        LIMIT
    }

    fn position(&self) -> Position {
        *self.shared.seen.lock()
    }

    async fn close(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
}
