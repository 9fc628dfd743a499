//! The APIs: one file each, and one list of them that yields dispatch, ApiVersions, metric labels and
//! `docs/api-versions.md`.
//!
//! A request is looked up by its key, its version is compared with the list, and its body is walked by the guard
//! before anything is decoded. Whatever fails there cannot be answered (Kafka has no frame for it), so the
//! connection is closed; only ApiVersions of an unknown version has an answer. Wire messages stop in these files.

use std::collections::HashSet;
use std::future::{Future, poll_fn};
use std::hash::Hash;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use felix_protocol::frame::{self, CheckedRequest, FrameError, Request, RequestBody, ResponseBody};
use felix_protocol::messages::{ApiKey, StrBytes};
use thiserror::Error;
use tokio::sync::Notify;

use crate::budget::answers::{Account, Held};
use crate::node::Node;
use crate::tasks;

mod alter_client_quotas;
mod alter_configs;
mod alter_partition_reassignments;
mod api_versions;
mod create_partitions;
mod create_topics;
mod delete_groups;
mod delete_records;
mod delete_topics;
mod describe_acls;
mod describe_client_quotas;
mod describe_cluster;
mod describe_configs;
mod describe_groups;
mod describe_log_dirs;
mod describe_producers;
mod describe_quorum;
mod describe_topic_partitions;
mod describe_user_scram_credentials;
mod elect_leaders;
mod fetch;
mod find_coordinator;
mod heartbeat;
mod incremental_alter_configs;
mod init_producer_id;
mod join_group;
mod leave_group;
mod list_config_resources;
mod list_groups;
mod list_offsets;
mod list_partition_reassignments;
pub mod metadata;
mod offset_commit;
mod offset_delete;
mod offset_fetch;
mod offset_for_leader_epoch;
pub mod peer;
mod produce;
mod sync_group;
mod unregister_broker;
mod update_features;

/// The list. The order is that of `docs/api-versions.md`; adding an API is one file, one `mod` line and one line
/// here.
pub static APIS: &[Api] = &[
    produce::API,
    fetch::API,
    list_offsets::API,
    api_versions::API,
    metadata::API,
    describe_cluster::API,
    describe_topic_partitions::API,
    init_producer_id::API,
    offset_for_leader_epoch::API,
    find_coordinator::API,
    join_group::API,
    sync_group::API,
    heartbeat::API,
    leave_group::API,
    offset_commit::API,
    offset_fetch::API,
    offset_delete::API,
    describe_groups::API,
    list_groups::API,
    delete_groups::API,
    delete_records::API,
    create_topics::API,
    delete_topics::API,
    create_partitions::API,
    describe_configs::API,
    alter_configs::API,
    incremental_alter_configs::API,
    list_config_resources::API,
    describe_log_dirs::API,
    describe_producers::API,
    describe_quorum::API,
    elect_leaders::API,
    alter_partition_reassignments::API,
    list_partition_reassignments::API,
    unregister_broker::API,
    describe_acls::API,
    describe_client_quotas::API,
    alter_client_quotas::API,
    describe_user_scram_credentials::API,
    update_features::API,
];

/// What an API is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Records.
    Records,
    /// Who and where.
    Discovery,
    /// Consumer groups and their offsets.
    Groups,
    /// Topics, configs, and looking inside.
    Admin,
}

impl Class {
    /// The word for it, in the page and as a label.
    pub fn name(self) -> &'static str {
        match self {
            Class::Records => "records",
            Class::Discovery => "discovery",
            Class::Groups => "groups",
            Class::Admin => "administration",
        }
    }
}

/// One API as it is served.
pub struct Api {
    /// Its key.
    pub key: ApiKey,
    /// The oldest version that is answered.
    pub oldest: i16,
    /// The newest.
    pub newest: i16,
    /// The oldest version that ApiVersions lists: below `oldest` where old clients take the absence of a version
    /// for the absence of a feature.
    pub listed_from: i16,
    /// What it is about.
    pub class: Class,
    /// Starts one request. What must happen in the order of the requests happens before this returns.
    pub start: fn(&Arc<Node>, Call) -> Handled,
}

/// An answer, or the end of the connection.
pub type Handled = Result<Answer, Reply>;

/// The answer to a request: at once, or when it has waited for disk, data or others.
pub enum Answer {
    /// At once.
    Now(Reply),
    /// Later; started by the first poll.
    Later(Waiting),
    /// Later, and perhaps much later: it has let go of its request, and counts itself what memory it keeps.
    Parked(Waiting),
}

/// A request that waits.
pub type Waiting = Pin<Box<dyn Future<Output = Reply> + Send>>;

impl Answer {
    /// An answer that takes a while. An error closes the connection like any other.
    pub fn later(answer: impl Future<Output = Result<Reply, Reply>> + Send + 'static) -> Handled {
        Ok(Answer::Later(waiting(answer)))
    }

    /// The same for one that has let go of its request.
    pub fn parked(answer: impl Future<Output = Result<Reply, Reply>> + Send + 'static) -> Handled {
        Ok(Answer::Parked(waiting(answer)))
    }
}

fn waiting(answer: impl Future<Output = Result<Reply, Reply>> + Send + 'static) -> Waiting {
    Box::pin(async move { answer.await.unwrap_or_else(|reply| reply) })
}

/// What goes back to the client.
#[derive(Debug)]
pub enum Reply {
    /// A whole frame.
    Frame(Bytes),
    /// A frame in pieces, so that records need no copy, with the memory that was taken for it before it was made.
    Pieces(Vec<Bytes>, Held),
    /// Nothing: the client expects no answer.
    None,
    /// No answer can be given: the connection is closed, for this reason.
    Close(String),
}

/// Who asks.
#[derive(Debug)]
pub struct Client {
    /// Name of the listener that it connected to: it is told the endpoints of the same name.
    pub listener: Arc<str>,
    /// Where it connects from.
    pub peer: SocketAddr,
    /// Tells of each request, for those that would rather not keep it waiting behind their own answer.
    pub asks: Notify,
}

/// One request on its way through its handler.
pub struct Call {
    request: CheckedRequest,
    /// About how large the buffer is that the request's bytes are slices of.
    pub backing: usize,
    /// Who asks.
    pub client: Arc<Client>,
    /// Memory of the connection's answers.
    pub account: Arc<Account>,
}

impl Call {
    /// The version of the request, and of its answer.
    pub fn version(&self) -> i16 {
        self.request.header().version
    }

    /// What the client calls itself.
    pub fn client_id(&self) -> &str {
        self.request.header().client_id.as_deref().unwrap_or_default()
    }

    /// The client's number for the request.
    pub fn correlation_id(&self) -> i32 {
        self.request.header().correlation_id
    }

    /// The message. Its strings and records are slices of the frame.
    pub fn decode<T: RequestBody>(&self) -> Result<T, Reply> {
        // The guard has walked the body, so this can only be a mistake of ours.
        self.request.decode().map_err(|error| Reply::Close(error.to_string()))
    }

    /// The answer as a frame.
    pub fn reply<T: ResponseBody>(&self, response: &T) -> Result<Reply, Reply> {
        let header = self.request.header();
        match frame::encode_response(header.api, header.version, header.correlation_id, response) {
            Ok(frame) => Ok(Reply::Frame(frame)),
            Err(error) => {
                tracing::error!(%error, "an answer could not be encoded");
                Err(Reply::Close(error.to_string()))
            }
        }
    }

    /// The answer as a frame, at once.
    pub fn answer<T: ResponseBody>(&self, response: &T) -> Handled {
        self.reply(response).map(Answer::Now)
    }

    /// The answer from an encoded message that many connections share: it is in memory only once.
    pub fn reply_shared(&self, body: Bytes) -> Result<Reply, Reply> {
        let held = self.account.count(body.len().min(SHARED_BYTES));
        self.reply_pieces(vec![body], held)
    }

    /// The answer in pieces, with the memory that was taken for it: `body` is the encoded message.
    pub fn reply_pieces(&self, body: Vec<Bytes>, held: Held) -> Result<Reply, Reply> {
        let header = self.request.header();
        let size = body.iter().map(Bytes::len).sum();
        match frame::response_head(header.api, header.version, header.correlation_id, size, 0) {
            Ok(head) => {
                let mut pieces = Vec::with_capacity(body.len() + 1);
                pieces.push(head.freeze());
                pieces.extend(body);
                Ok(Reply::Pieces(pieces, held))
            }
            Err(error) => {
                tracing::error!(%error, "an answer could not be framed");
                Err(Reply::Close(error.to_string()))
            }
        }
    }
}

/// A request that may be started: known, in a version that is served, and walked by the guard.
pub struct Checked {
    request: CheckedRequest,
    backing: usize,
    index: usize,
}

impl Checked {
    /// The API's place in [`APIS`].
    pub fn index(&self) -> usize {
        self.index
    }

    /// Which API.
    pub fn api(&self) -> ApiKey {
        self.request.header().api
    }

    /// The version of the request, and of its answer.
    pub fn version(&self) -> i16 {
        self.request.header().version
    }

    /// What the client calls itself.
    pub fn client_id(&self) -> &str {
        self.request.header().client_id.as_deref().unwrap_or_default()
    }

    /// Bytes of the body.
    pub fn bytes(&self) -> usize {
        self.request.body().len()
    }

    /// Bytes that decoding takes besides the frame.
    pub fn memory(&self) -> usize {
        self.request.weight().memory
    }
}

/// What became of a frame.
pub enum Arrival {
    /// A request to start.
    Request(Checked),
    /// Answered without decoding anything.
    Answer {
        /// The API's place in [`APIS`].
        api: usize,
        /// The answer.
        reply: Reply,
    },
}

/// Why a frame ends its connection.
#[derive(Debug, Error)]
pub enum Refusal {
    /// Not a request.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A version, or a whole API, that is not served.
    #[error("{api:?} version {version} is not served")]
    Unserved {
        /// Which API.
        api: ApiKey,
        /// Which version.
        version: i16,
    },
}

/// What a shared answer counts at most: a connection must not pile them up, either.
const SHARED_BYTES: usize = 16 * 1024;

/// The metric's place for what never became a request of a known API.
pub const UNKNOWN_API: usize = usize::MAX;

/// Reads a frame's header, looks the API up and walks the body. `backing` is about how large the buffer is that
/// the frame is a slice of.
pub fn check(frame: Bytes, backing: usize) -> Result<Arrival, Refusal> {
    let request = Request::parse(frame)?;
    let (api, version) = (request.header.api, request.header.version);
    let Some(index) = APIS.iter().position(|one| one.key == api) else {
        return Err(Refusal::Unserved { api, version });
    };
    if !(APIS[index].oldest..=APIS[index].newest).contains(&version) {
        if api == ApiKey::ApiVersions {
            let reply = api_versions::unsupported_version(version, request.header.correlation_id);
            return Ok(Arrival::Answer { api: index, reply });
        }
        return Err(Refusal::Unserved { api, version });
    }
    Ok(Arrival::Request(Checked { request: request.check()?, backing, index }))
}

/// A request of so many bytes that is not about records may take long, or ask for an answer that is many times as large.
const LARGE_BYTES: usize = 16 * 1024;

/// Whether a request takes a turn, on a thread of its own. Those whose order among each other counts never do.
fn takes_turn(node: &Node, checked: &Checked) -> bool {
    let api = &APIS[checked.index];
    let large = checked.bytes() > LARGE_BYTES;
    match api.class {
        Class::Admin => large || node.budget.answers().is_short(),
        Class::Discovery => large,
        Class::Groups => large && matches!(api.key, ApiKey::DescribeGroups | ApiKey::OffsetFetch),
        Class::Records => false,
    }
}

/// Starts a request.
pub fn start(node: &Arc<Node>, client: &Arc<Client>, account: &Arc<Account>, checked: Checked) -> Answer {
    if !takes_turn(node, &checked) {
        return begin(node, client, account, checked);
    }
    let (node, client, account) = (Arc::clone(node), Arc::clone(client), Arc::clone(account));
    Answer::Later(Box::pin(async move {
        let _turn = node.budget.turns().take().await;
        match tasks::apart(|| begin(&node, &client, &account, checked)) {
            Answer::Now(reply) => reply,
            Answer::Later(mut waiting) | Answer::Parked(mut waiting) => {
                poll_fn(|context| tasks::apart(|| waiting.as_mut().poll(context))).await
            }
        }
    }))
}

fn begin(node: &Arc<Node>, client: &Arc<Client>, account: &Arc<Account>, checked: Checked) -> Answer {
    let call = Call {
        request: checked.request,
        backing: checked.backing,
        client: Arc::clone(client),
        account: Arc::clone(account),
    };
    (APIS[checked.index].start)(node, call).unwrap_or_else(Answer::Now)
}

/// A text as the wire's strings are kept.
fn text(text: impl Into<String>) -> StrBytes {
    StrBytes::from_string(text.into())
}

/// What appears more than once.
fn named_twice<T: Eq + Hash + Clone>(names: impl Iterator<Item = T>) -> HashSet<T> {
    let mut seen = HashSet::new();
    names.filter(|name| !seen.insert(name.clone())).collect()
}

/// An API's name as Kafka writes it.
pub fn name(key: ApiKey) -> String {
    format!("{key:?}")
}

/// The page `docs/api-versions.md`.
#[cfg(test)]
fn page() -> String {
    use std::fmt::Write as _;
    let mut page = String::from(
        "# APIs and versions\n\nWhat a client is told by ApiVersions. Generated from the list in \
         `broker/src/handlers.rs`; how each API differs from Apache Kafka stands at the top of its file.\n\n\
         | key | API | versions | about |\n|---|---|---|---|\n",
    );
    for api in APIS {
        let note = if api.listed_from < api.oldest {
            format!(" (listed from {}: old clients look for it)", api.listed_from)
        } else {
            String::new()
        };
        let _ = writeln!(
            page,
            "| {} | {} | {}–{}{note} | {} |",
            api.key as i16,
            name(api.key),
            api.oldest,
            api.newest,
            api.class.name()
        );
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_current() {
        crate::pages::check("api-versions.md", &page());
    }

    #[test]
    fn every_handler_file_is_in_the_list() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/handlers");
        let source = include_str!("handlers.rs");
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            // What other brokers ask is in a table of its own.
            if path.is_dir() || path.ends_with("peer.rs") {
                continue;
            }
            let module = path.file_stem().unwrap().to_str().unwrap();
            let line = format!("mod {module};");
            assert!(source.lines().any(|one| one.trim_start_matches("pub ") == line), "no `{line}`");
            assert!(source.contains(&format!("    {module}::API,")), "{module}::API is not in the list");
        }
    }

    #[test]
    fn every_api_is_listed_once_within_what_the_protocol_can_read() {
        for (at, api) in APIS.iter().enumerate() {
            assert!(APIS[..at].iter().all(|other| other.key != api.key), "{:?} twice", api.key);
            let (oldest, newest) = frame::versions(api.key).unwrap();
            assert!(
                oldest <= api.oldest && api.oldest <= api.newest && api.newest <= newest,
                "{:?}",
                api.key
            );
            assert!(api.listed_from <= api.oldest, "{:?}", api.key);
        }
    }
}
