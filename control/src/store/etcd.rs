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

use felix_cluster::decision::{Change, Compare, Decision, Write};
use felix_cluster::state::Revision;
use parking_lot::Mutex;
use prost::Message;
use thiserror::Error;
use tokio::sync::watch;

use super::judge::firsts;
use super::{After, BatchLimit, Committed, Connect, Entry, Exchanged, Page, Position, Store, StoreError};

mod feed;
mod way;
mod wire;

pub use feed::EtcdWatch;

use way::{ANSWER_BYTES, Failure, Way};
use wire::{
    Header, RANGE, RangeRequest, RangeResponse, Request, RequestOp, Response, TXN, TxnRequest, TxnResponse,
};

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
    fn follow(&self, floor: Position, header: Option<Header>) -> Result<Revision, StoreError> {
        // Every answer of etcd's has one; of a transaction without it nothing can be said.
        let header = header.ok_or_else(|| StoreError::Unknown("an answer has no header".to_owned()))?;
        let found = position(&header);
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

fn position(header: &Header) -> Position {
    Position { store: header.cluster_id, revision: revision(header.revision) }
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
        let probe = RangeRequest { key, ..RangeRequest::default() };
        let answer: RangeResponse = way.read(RANGE, &probe).await.map_err(not_read)?;
        let unheard = || StoreError::Unavailable("an answer has no header".to_owned());
        let found = position(&answer.header.ok_or_else(unheard)?);
        let fresh = || Arc::new(Shared { seen: Mutex::new(found), expected: watch::Sender::default() });
        let shared = Arc::clone(self.shared.get_or_init(fresh));
        let store = shared.seen.lock().store;
        shared.follow(floor.unwrap_or(Position { store, ..found }), answer.header)?;
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

    fn compare(&self, compare: &Compare) -> wire::Compare {
        let key = self.spelled(&compare.key().to_string());
        let (target, wanted) = match compare {
            // A key that is not there compares as one of revision 0.
            Compare::Revision(_, revision) => {
                (wire::Target::Mod, wire::Wanted::ModRevision(number(*revision)))
            }
            Compare::Value(_, value) => (wire::Target::Value, wire::Wanted::Value(value.clone())),
        };
        wire::Compare { target: target.into(), key, wanted: Some(wanted) }
    }

    /// A decision as a transaction.
    fn transaction(&self, decision: &Decision) -> TxnRequest {
        let write = |write: &Write| -> RequestOp {
            let key = self.spelled(&write.key().to_string());
            match write {
                Write::Put(_, value) => Request::Put(wire::PutRequest { key, value: value.clone() }).into(),
                Write::Delete(_) => Request::Delete(wire::DeleteRequest { key }).into(),
            }
        };
        TxnRequest {
            compare: decision.compares().iter().map(|compare| self.compare(compare)).collect(),
            success: decision.writes().iter().map(write).collect(),
            failure: Vec::new(),
        }
    }

    async fn transact(&mut self, request: &TxnRequest) -> Result<(Revision, TxnResponse), StoreError> {
        let bytes = request.encoded_len();
        if bytes > REQUEST_BYTES {
            let what =
                format!("a transaction of {bytes} bytes is larger than the {REQUEST_BYTES} that etcd takes");
            return Err(StoreError::Unavailable(what));
        }
        let floor = *self.shared.seen.lock();
        let answer: TxnResponse = self.way.write(TXN, request).await.map_err(not_written)?;
        let revision = self.shared.follow(floor, answer.header)?;
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

fn entry(kv: wire::KeyValue) -> Entry {
    Entry { value: kv.value, revision: revision(kv.mod_revision) }
}

fn malformed() -> StoreError {
    StoreError::Unknown("the answer to a transaction has another form than the transaction".to_owned())
}

impl Store for Etcd {
    type Watch = EtcdWatch;

    async fn get(&mut self, key: &str) -> Result<Option<Entry>, StoreError> {
        let floor = *self.shared.seen.lock();
        let request = RangeRequest { key: self.spelled(key), ..RangeRequest::default() };
        let answer: RangeResponse = self.way.read(RANGE, &request).await.map_err(not_read)?;
        self.shared.follow(floor, answer.header)?;
        Ok(answer.kvs.into_iter().next().map(entry))
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
            let request = RangeRequest {
                key: key.clone(),
                range_end: range_end.clone(),
                limit: i64::try_from(keys).unwrap_or(i64::MAX),
                revision: number(at),
            };
            let answer: RangeResponse = match self.way.read(RANGE, &request).await {
                Ok(answer) => answer,
                Err(Failure::TooLarge(_)) if keys > 1 => {
                    self.page = keys / 2;
                    continue;
                }
                Err(Failure::Compacted) => return Err(StoreError::Compacted(at)),
                Err(failure) => return Err(not_read(failure)),
            };
            let newest = self.shared.follow(floor, answer.header)?;
            if at == Revision::ABSENT {
                at = newest;
            }
            if answer.encoded_len() < ANSWER_BYTES / 4 && keys < limit {
                self.page = keys.saturating_mul(2);
            }
            let last = answer.kvs.last().map(|kv| kv.key.clone());
            let mut entries = Vec::with_capacity(answer.kvs.len());
            for kv in answer.kvs {
                let revision = revision(kv.mod_revision);
                if let Some(key) = self.named(kv.key) {
                    entries.push(Change { key, value: Some(kv.value), revision });
                }
            }
            match last {
                // A page of nothing that is told would not say where the next one begins.
                Some(last) if entries.is_empty() && answer.more => key = [last, vec![0]].concat(),
                _ => return Ok(Page { entries, revision: at, more: answer.more }),
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
            let (revision, answer) = self.transact(&self.transaction(decision)).await?;
            self.expect(revision, decisions, &[answer.succeeded]);
            return Ok(Committed { revision, landed: vec![answer.succeeded] });
        }
        // etcd refuses the whole transaction where a key is written twice.
        let sent = firsts(decisions);
        let nested = decisions.iter().zip(&sent).filter(|(_, sent)| **sent);
        let nested = nested.map(|(decision, _)| Request::Txn(self.transaction(decision)).into());
        let request = TxnRequest { success: nested.collect(), ..TxnRequest::default() };
        let (revision, answer) = self.transact(&request).await?;
        let mut outcomes = answer.responses.into_iter();
        let mut landed = Vec::with_capacity(decisions.len());
        for sent in sent {
            landed.push(match sent.then(|| outcomes.next()) {
                None => false,
                Some(Some(wire::ResponseOp { response: Some(Response::Txn(nested)) })) => nested.succeeded,
                Some(_) => return Err(malformed()),
            });
        }
        self.expect(revision, decisions, &landed);
        Ok(Committed { revision, landed })
    }

    async fn exchange(&mut self, decision: &Decision, reads: &[&str]) -> Result<Exchanged, StoreError> {
        let mut request = self.transaction(decision);
        for key in reads {
            let read = Request::Range(RangeRequest { key: self.spelled(key), ..RangeRequest::default() });
            request.success.push(read.clone().into());
            request.failure.push(read.into());
        }
        let (revision, answer) = self.transact(&request).await?;
        let landed = answer.succeeded;
        let behind_writes = if landed { decision.writes().len() } else { 0 };
        let mut found = Vec::with_capacity(reads.len());
        for response in answer.responses.into_iter().skip(behind_writes) {
            let Some(Response::Range(read)) = response.response else { return Err(malformed()) };
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
