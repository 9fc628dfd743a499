//! Fetch: records from partitions that this broker leads.
//!
//! - 4–12 name topics, 13 and later give topic ids; 7 and later may use sessions.
//! - A request is answered at once if anything but waiting is due: an error, a diverging epoch, enough bytes, a
//!   partition that has more than its limit lets through, or no time to wait. Otherwise it sleeps on the partitions
//!   it names until their marks have moved over the missing bytes, or its time is up.
//! - The first partition with records gives at least one whole batch, whatever the limits; batches are never cut.
//! - Records stay as they are stored, in the memory or file buffer they were read into; they are not copied.
//! - Memory for an answer is taken before it is read. When it is short, less is read, but always one batch.
//! - While a request sleeps it keeps the partitions that it names and nothing else of its frame.
//! - A client that is over its quota gets an empty answer before anything is read; one that is not never gets more at once than
//!   its quota allows in all windows together. Kafka reads first, and throws away what is over.
//! - Followers of Kafka's kind (a replica id) are refused: brokers here do not fetch from each other.
//!
//! Differences from Apache Kafka: a request that names a partition twice is answered for it once, with the last
//! entry's wishes. There is no preferred read replica yet.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use felix_protocol::error_code::ErrorCode;
use felix_protocol::ids::{BrokerId, Offset, TopicId, Uuid};
use felix_protocol::messages::fetch::{FetchReply, FetchedPartition, FetchedTopic};
use felix_protocol::messages::fetch_request::{FetchTopic, ForgottenTopic};
use felix_protocol::messages::fetch_response::NodeEndpoint;
use felix_protocol::messages::{ApiKey, FetchRequest, StrBytes, TopicName};
use felix_protocol::time::{Clock, MonoTime};
use indexmap::IndexMap;

use super::{Answer, Api, Call, Class, Client, Handled, Reply};
use crate::budget::answers::{Account, Held};
use crate::fetching::read::{How, Look, PartitionAnswer, Reading, WouldBlock};
use crate::fetching::session::{Context, Key, Told, TopicKey, Wanted};
use crate::node::Node;
use crate::partitions::{FetchWait, Isolation, PartitionHandle, Registration};
use crate::quota::{Kind, Reading as Allowed, USER};
use crate::wire_code::WireCode;

pub const API: Api =
    Api { key: ApiKey::Fetch, oldest: 4, newest: 18, listed_from: 4, class: Class::Records, start: handle };

/// What a sleeping request costs for each partition: the wish, the partition's handle, and its place on the
/// partition's list of waits.
const KEPT_BYTES: usize = size_of::<(Key, Wanted)>() + 80;

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: FetchRequest = call.decode()?;
    let allowed = if node.quotas.limits(Kind::Fetch) {
        node.quotas.reading(&node.view(), (USER, call.client_id()), node.clock.now())
    } else {
        Allowed::Free
    };
    let asked = Asked::of(call);
    let version = asked.version;
    if request.replica_id.0 >= 0 || request.replica_state.replica_id.0 >= 0 {
        return asked.failed(ErrorCode::InvalidRequest).map(Answer::Now);
    }
    let by_id = version >= 13;
    let mut changed = wanted(&request.topics, by_id);
    let forgotten = forgotten(&request.forgotten_topics_data, by_id);
    let now = node.clock.now();
    let context = if version < 7 {
        Context::Sessionless
    } else {
        let at = (request.session_id, request.session_epoch);
        match node.sessions.open(at, by_id, &mut changed, &forgotten, now) {
            Ok(context) => context,
            Err(error) => return asked.failed(error.code()).map(Answer::Now),
        }
    };
    if let Context::Incremental(session) = &context {
        changed = session.lock().wanted();
    }
    let config = node.config();
    let most = usize::try_from(request.max_bytes).unwrap_or(0).min(config.net.fetch_max_bytes as usize);
    let most = match allowed {
        Allowed::Free => most,
        Allowed::AtMost(bytes) => most.min(bytes),
        Allowed::Resting => return asked.nothing(&context).map(Answer::Now),
    };
    let isolation = match request.isolation_level {
        1 => Isolation::ReadCommitted,
        _ => Isolation::ReadUncommitted,
    };
    let fetch = Fetch {
        node: Arc::clone(node),
        asked,
        context,
        reading: Arc::new(Reading { wanted: changed, isolation, here: node.id }),
        max_bytes: most,
        min_bytes: usize::try_from(request.min_bytes).unwrap_or(0).min(most),
        until: now.after(Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0))),
    };
    // What is in memory is answered without ever going to sleep.
    match fetch.look() {
        Ok(found) if fetch.is_enough(&found.look) => fetch.answer(found).map(Answer::Now),
        first => Answer::parked(fetch.wait(first)),
    }
}

/// What an answer needs to know of its request.
struct Asked {
    version: i16,
    correlation_id: i32,
    client: Arc<Client>,
    account: Arc<Account>,
}

/// One Fetch under way.
struct Fetch {
    node: Arc<Node>,
    asked: Asked,
    context: Context,
    reading: Arc<Reading>,
    max_bytes: usize,
    min_bytes: usize,
    until: MonoTime,
}

/// What a look found, and its memory.
struct Found {
    look: Look,
    held: Held,
    /// It could have been more, if there were more memory.
    is_short: bool,
}

/// Looks with as much memory as there is.
fn look(node: &Node, reading: &Reading, account: &Arc<Account>, how: How) -> Result<Found, WouldBlock> {
    let mut held = account.take(how.max_bytes);
    let given = How { max_bytes: held.bytes(), ..how };
    let look = reading.look(&node.view(), &node.partitions, given)?;
    held.resize(look.held);
    let is_short = look.is_full && given.max_bytes < how.max_bytes;
    Ok(Found { look, held, is_short })
}

impl Fetch {
    fn look(&self) -> Result<Found, WouldBlock> {
        let how = How { max_bytes: self.max_bytes, may_block: false };
        look(&self.node, &self.reading, &self.asked.account, how)
    }

    fn is_enough(&self, look: &Look) -> bool {
        look.final_answer
            || look.bytes >= self.min_bytes
            || self.node.clock.now() >= self.until
            || self.node.closing.is_cancelled()
    }

    /// Looks again, on a thread that may wait for the disk if need be.
    async fn look_anywhere(&self, first: Result<Found, WouldBlock>) -> Result<Found, Reply> {
        if let Ok(found) = first {
            return Ok(found);
        }
        let (node, reading) = (Arc::clone(&self.node), Arc::clone(&self.reading));
        let account = Arc::clone(&self.asked.account);
        let how = How { max_bytes: self.max_bytes, may_block: true };
        match self.node.readers.run("fetch", move || look(&node, &reading, &account, how)).await {
            Some(Ok(found)) => Ok(found),
            Some(Err(WouldBlock)) | None => Err(Reply::Close("a read was given up".to_owned())),
        }
    }

    async fn wait(self, first: Result<Found, WouldBlock>) -> Result<Reply, Reply> {
        // Given back when this ends.
        let _kept = self.asked.account.count(self.reading.wanted.len() * KEPT_BYTES);
        let mut found = self.look_anywhere(first).await?;
        while !self.is_enough(&found.look) {
            // The records that are there are read again with those that are missing: nothing is held meanwhile.
            let (bytes, led) = (found.look.bytes, std::mem::take(&mut found.look.led));
            drop(found);
            self.sleep(bytes, &led).await;
            found = self.look_anywhere(self.look()).await?;
        }
        self.answer(found)
    }

    /// Sleeps until more is there, the time is up, or the broker stops.
    async fn sleep(&self, bytes: usize, led: &[(PartitionHandle, Offset)]) {
        let isolation = self.reading.isolation;
        let wait = FetchWait::new(u64::try_from(self.min_bytes - bytes).unwrap_or(u64::MAX));
        // A partition that has no place left for one more wait is looked at when the time is up.
        let register = |(partition, _): &(PartitionHandle, Offset)| partition.register(&wait, isolation).ok();
        let _registered: Vec<Registration> = led.iter().filter_map(register).collect();
        let moved = |(partition, end): &(PartitionHandle, Offset)| partition.visible_end(isolation) != *end;
        if led.iter().any(|one| !one.0.may_read() || moved(one)) {
            return;
        }
        let left = self.until.since(self.node.clock.now());
        tokio::select! {
            () = wait.woken() => {}
            () = tokio::time::sleep(left) => {}
            () = self.node.closing.cancelled() => {}
        }
    }

    fn answer(self, found: Found) -> Result<Reply, Reply> {
        let Fetch { node, asked, context, reading, .. } = self;
        if found.is_short {
            node.metrics.answers_shortened.inc();
        }
        let by_id = asked.version >= 13;
        let (session, incremental) = match context {
            Context::Sessionless => (None, false),
            Context::Incremental(session) => (Some(session), true),
            Context::New => {
                let most = node.config().net.fetch_sessions as usize;
                let created = node.sessions.create(by_id, reading.wanted.clone(), most, node.clock.now());
                if let Some((_, evicted)) = &created {
                    node.metrics.fetch_sessions_evicted.inc_by(*evicted as u64);
                }
                (created.map(|(session, _)| session), false)
            }
        };
        let mut session = session.as_ref().map(|session| session.lock());
        let mut reply = FetchReply {
            session_id: session.as_ref().map_or(0, |session| session.id()),
            ..FetchReply::default()
        };
        let mut leaders: Vec<BrokerId> = Vec::new();
        for ((key, _), answer) in reading.wanted.iter().zip(found.look.answers) {
            let told = Told {
                mark: answer.mark,
                log_start: answer.log_start,
                has_records: answer.bytes > 0,
                urgent: answer.diverging.is_some(),
                failed: answer.error != ErrorCode::None,
            };
            let news = session.as_mut().is_none_or(|session| session.tell(key, told));
            if incremental && !news {
                continue;
            }
            if let Some((leader, _)) = answer.leader
                && asked.version >= 16
                && !leaders.contains(&leader)
            {
                leaders.push(leader);
            }
            add(&mut reply, key, answer, reading.isolation, asked.version);
        }
        drop(session);
        let view = node.view();
        for leader in leaders {
            if let Some(place) = Node::endpoint(&view, leader, &asked.client.listener) {
                let endpoint = NodeEndpoint::default()
                    .with_node_id(felix_protocol::messages::BrokerId(leader.0))
                    .with_host(StrBytes::from_string(place.host))
                    .with_port(i32::from(place.port))
                    .with_rack(place.rack.map(StrBytes::from_string));
                reply.node_endpoints.push(endpoint);
            }
        }
        asked.encode(&reply, found.held)
    }
}

/// Adds a partition's answer, into the last topic if it is the same.
fn add(reply: &mut FetchReply, key: &Key, answer: PartitionAnswer, isolation: Isolation, version: i16) {
    let (name, id) = match &key.topic {
        TopicKey::Name(name) => (name.clone(), answer.topic.0),
        TopicKey::Id(id) => (TopicName::default(), id.0),
    };
    let partition = FetchedPartition {
        index: key.partition,
        error_code: answer.error as i16,
        high_watermark: answer.mark,
        last_stable_offset: answer.last_stable,
        log_start_offset: answer.log_start,
        diverging_epoch: answer.diverging,
        current_leader: answer.leader.filter(|_| version >= 16).map(|(leader, epoch)| (leader.0, epoch)),
        // There are no transactions yet, so none was aborted.
        aborted: (isolation == Isolation::ReadCommitted).then(Vec::new),
        records: answer.records,
        ..FetchedPartition::default()
    };
    let same = |last: &FetchedTopic| match &key.topic {
        TopicKey::Name(_) => last.topic == name,
        TopicKey::Id(_) => last.topic_id == id,
    };
    match reply.topics.last_mut().filter(|last| same(last)) {
        Some(last) => last.partitions.push(partition),
        None => {
            reply.topics.push(FetchedTopic { topic: name, topic_id: id, partitions: vec![partition] });
        }
    }
}

impl Asked {
    fn of(call: Call) -> Asked {
        let (version, correlation_id) = (call.version(), call.correlation_id());
        Asked { version, correlation_id, client: call.client, account: call.account }
    }

    /// The answer to a client that is over its quota: it keeps its session and what it waits for, and comes again.
    fn nothing(&self, context: &Context) -> Result<Reply, Reply> {
        let session_id = match context {
            Context::Incremental(session) => session.lock().id(),
            Context::Sessionless | Context::New => 0,
        };
        self.encode(&FetchReply { session_id, ..FetchReply::default() }, self.account.count(0))
    }

    fn failed(&self, code: ErrorCode) -> Result<Reply, Reply> {
        let held = self.account.count(0);
        self.encode(&FetchReply { error_code: code as i16, ..FetchReply::default() }, held)
    }

    fn encode(&self, reply: &FetchReply, mut held: Held) -> Result<Reply, Reply> {
        let pieces = reply.encode(self.version, self.correlation_id).map_err(|error| {
            tracing::error!(%error, "an answer could not be encoded");
            Reply::Close(error.to_string())
        })?;
        held.resize(held.bytes().max(pieces.iter().map(Bytes::len).sum()));
        Ok(Reply::Pieces(pieces, held))
    }
}

/// The partitions of a request, each once.
fn wanted(topics: &[FetchTopic], by_id: bool) -> Vec<(Key, Wanted)> {
    let mut all: IndexMap<Key, Wanted> = IndexMap::new();
    for topic in topics {
        let name = topic_key(by_id, &topic.topic, topic.topic_id);
        for partition in &topic.partitions {
            let wanted = Wanted {
                offset: partition.fetch_offset,
                max_bytes: partition.partition_max_bytes,
                current_epoch: partition.current_leader_epoch,
                last_epoch: partition.last_fetched_epoch,
            };
            all.insert(Key { topic: name.clone(), partition: partition.partition }, wanted);
        }
    }
    all.into_iter().collect()
}

fn forgotten(topics: &[ForgottenTopic], by_id: bool) -> Vec<Key> {
    let keys = topics.iter().flat_map(|topic| {
        let name = topic_key(by_id, &topic.topic, topic.topic_id);
        topic.partitions.iter().map(move |partition| Key { topic: name.clone(), partition: *partition })
    });
    keys.collect()
}

/// A name is copied: it may be remembered for long, and must not keep the whole frame.
fn topic_key(by_id: bool, name: &TopicName, id: Uuid) -> TopicKey {
    if by_id { TopicKey::Id(TopicId(id)) } else { TopicKey::Name(TopicName(super::text(name.as_str()))) }
}
