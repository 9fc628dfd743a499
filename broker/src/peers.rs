//! How brokers speak to each other: one connection a pair and direction, for all partitions together.
//!
//! Each broker dials every other that lives and asks on that connection ([`link`]); what is asked of it comes by the
//! connections that others dialled ([`serving`]). Several requests are under way on each, all bounded in number and bytes
//! on both sides. Who speaks is settled in the first words ([`greeting`]), with mutual TLS by the certificate ([`tls`]).
//!
//! | what happens | what follows |
//! |---|---|
//! | a client, or anybody else, connects here | the first byte closes it |
//! | a peer of another cluster, an unknown one, or an ended life of one | refused; it tries again, at lengthening intervals |
//! | a frame of a kind that is not known here | `UnsupportedKind`, for that frame alone |
//! | a frame that is none | the connection ends |
//! | a peer says nothing for [`Timing::dead_after`] | the connection ends: requests on it have no answer |
//! | a peer registers another session, or elsewhere | it is dialled anew, at once |
//! | a peer does not take its answers | no more requests are taken from it |
//!
//! Deliberately absent: what is said ([`felix_protocol::peer`]), and what it means to partitions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use felix_protocol::ids::BrokerId;
use felix_protocol::peer::standing::StandingQuery;
use felix_protocol::peer::{Message, PeerError};
use felix_protocol::time::{Clock, MonoTime};
use parking_lot::{Mutex, RwLock};
use prometheus::{IntCounter, IntCounterVec, IntGauge};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::budget::Receiving;
use crate::chatter::Chatter;
use crate::clock::SystemClock;
use crate::metrics::Metrics;
use crate::tasks;
use directory::Target;
use greeting::Refused;
use link::BackOff;
use wire::{Frames, ReadError, Wire, Writer};

mod directory;
mod greeting;
mod link;
mod serving;
mod tls;
mod wire;

pub use directory::Directory;
pub use link::{Link, Lost, Room, Up};
pub use serving::{Handler, Reply};
pub use tls::Tls;

/// More is no frame. A batch travels whole, so one may be as large as a batch can be; memory is only taken for what
/// arrives.
const MOST_FRAME_BYTES: usize = i32::MAX as usize;

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unanswered {
    /// There is no connection to it.
    #[error("there is no connection to broker {0}")]
    NotConnected(BrokerId),
    /// The connection ended before the answer came. The request may have been carried out.
    #[error("the connection to broker {0} ended")]
    Disconnected(BrokerId),
    /// The answer did not come in time. The request may have been carried out.
    #[error("broker {0} did not answer in time")]
    TimedOut(BrokerId),
    /// The peer, or this broker, does not know that kind of frame.
    #[error("frames of kind {0} are not known to both brokers")]
    Unsupported(u16),
    /// It cannot be written.
    #[error(transparent)]
    Unwritable(#[from] PeerError),
}

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Connecting, and the first words.
    pub greeting: Duration,
    /// First wait after a connection that failed.
    pub first_retry: Duration,
    /// Longest wait between two tries.
    pub longest_retry: Duration,
    /// After so much silence a peer is asked whether it is there.
    pub ping_after: Duration,
    /// After so much silence it is not. On the accepting side: nobody asks any more.
    pub dead_after: Duration,
    /// How often overdue requests are looked for.
    pub look_every: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            greeting: Duration::from_secs(3),
            first_retry: Duration::from_millis(50),
            longest_retry: Duration::from_secs(2),
            ping_after: Duration::from_secs(1),
            dead_after: Duration::from_secs(4),
            look_every: Duration::from_millis(250),
        }
    }
}

/// What the peers are started with.
pub struct Setup {
    /// Who there is.
    pub directory: Arc<dyn Directory>,
    /// How they are known, if not by their word.
    pub tls: Option<Tls>,
    /// The clock.
    pub clock: SystemClock,
    /// How long things may take.
    pub timing: Timing,
    /// Memory for what is received.
    pub memory: Receiving,
    /// Where it is counted.
    pub figures: Figures,
}

/// Where records lay that were read for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// In memory.
    Memory,
    /// On the disk: each batch was compared with its checksum.
    Disk,
    /// There, in a closed segment: they were compared with its seal.
    Sealed,
}

/// The series of this module.
#[derive(Clone)]
pub struct Figures {
    connected: IntGauge,
    accepted: IntGauge,
    sent_bytes: IntCounter,
    received_bytes: IntCounter,
    requests: IntCounterVec,
    refused: IntCounterVec,
    shipped: IntCounterVec,
    read: IntCounterVec,
}

impl Figures {
    /// Those of the broker.
    pub fn of(metrics: &Metrics) -> Figures {
        Figures {
            connected: metrics.peers_connected.clone(),
            accepted: metrics.peers_accepted.clone(),
            sent_bytes: metrics.peer_sent_bytes.clone(),
            received_bytes: metrics.peer_received_bytes.clone(),
            requests: metrics.peer_requests.clone(),
            refused: metrics.peer_connections_refused.clone(),
            shipped: metrics.shipped_bytes.clone(),
            read: metrics.shipping_read_bytes.clone(),
        }
    }

    /// Bytes of records went off to a peer.
    pub(crate) fn shipped(&self, peer: BrokerId, bytes: usize) {
        self.shipped.with_label_values(&[peer.to_string()]).inc_by(bytes as u64);
    }

    /// Bytes of records were read for a peer.
    pub(crate) fn read(&self, source: Source, bytes: usize) {
        let source = match source {
            Source::Memory => "memory",
            Source::Disk => "disk",
            Source::Sealed => "sealed",
        };
        self.read.with_label_values(&[source]).inc_by(bytes as u64);
    }

    fn request(&self) -> impl FnMut(&'static str, &'static str) + '_ {
        |kind, outcome| self.requests.with_label_values(&[kind, outcome]).inc()
    }
}

/// All other brokers, as this one speaks to them.
pub struct Peers {
    directory: Arc<dyn Directory>,
    tls: Option<Tls>,
    clock: SystemClock,
    timing: Timing,
    memory: Receiving,
    figures: Figures,
    closing: CancellationToken,
    chatter: Chatter,
    links: RwLock<BTreeMap<BrokerId, (Arc<Link>, CancellationToken)>>,
    /// Counts new links.
    linked: watch::Sender<u64>,
    /// Accepted connections: one a peer, the newest.
    accepted: Mutex<BTreeMap<BrokerId, (u64, CancellationToken)>>,
    next_accepted: AtomicU64,
}

/// Why a connection ended.
#[derive(Debug, Error)]
enum Ended {
    #[error("it could not be made: {0}")]
    Unreachable(std::io::Error),
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Frame(#[from] PeerError),
    #[error("it could not be written to: {0}")]
    Write(std::io::Error),
    #[error("nothing was heard for too long")]
    Silent,
    #[error("who is to be spoken to has changed")]
    Changed,
}

impl Ended {
    /// Whether the other end closed a connection, or refused one. A peer whose process has died does so at once; a network that
    /// is cut, or a machine without power, is silent.
    fn is_gone(&self) -> bool {
        let is_closed = |error: &ReadError| matches!(error, ReadError::End | ReadError::Socket(_));
        match self {
            Ended::Unreachable(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
            Ended::Refused(Refused::Read(error)) | Ended::Read(error) => is_closed(error),
            Ended::Write(_) => true,
            Ended::Refused(_) | Ended::Frame(_) | Ended::Silent | Ended::Changed => false,
        }
    }
}

impl Peers {
    /// Dials all others, now and whenever there are more. Must be called on the runtime.
    pub fn start(setup: Setup) -> Arc<Peers> {
        let peers = Arc::new(Peers {
            directory: setup.directory,
            tls: setup.tls,
            clock: setup.clock,
            timing: setup.timing,
            memory: setup.memory,
            figures: setup.figures,
            closing: CancellationToken::new(),
            chatter: Chatter::default(),
            links: RwLock::default(),
            linked: watch::Sender::new(0),
            accepted: Mutex::default(),
            next_accepted: AtomicU64::new(0),
        });
        tasks::spawn("peers", Arc::clone(&peers).follow());
        peers
    }

    /// Ends all connections; nobody is let in any more.
    pub fn stop(&self) {
        self.closing.cancel();
    }

    /// The way to a peer; `None` if there is none.
    pub fn link(&self, peer: BrokerId) -> Option<Arc<Link>> {
        self.links.read().get(&peer).map(|(link, _)| Arc::clone(link))
    }

    /// Where it is counted.
    pub(crate) fn figures(&self) -> &Figures {
        &self.figures
    }

    /// All ways.
    pub fn links(&self) -> Vec<Arc<Link>> {
        self.links.read().values().map(|(link, _)| Arc::clone(link)).collect()
    }

    /// The peers to which a connection broke ([`Lost`]).
    pub fn lost(&self) -> Vec<(BrokerId, Lost)> {
        // When this broker goes, it is the one that closes them.
        if self.closing.is_cancelled() {
            return Vec::new();
        }
        self.links.read().iter().filter_map(|(peer, (link, _))| Some((*peer, link.lost()?))).collect()
    }

    /// Tells of new links.
    pub fn linked(&self) -> watch::Receiver<u64> {
        self.linked.subscribe()
    }

    /// Asks what has one answer.
    pub async fn ask(
        &self,
        peer: BrokerId,
        question: Message,
        within: Duration,
    ) -> Result<Message, Unanswered> {
        let link = self.link(peer).ok_or(Unanswered::NotConnected(peer))?;
        let (to, from) = oneshot::channel();
        let mut to = Some(to);
        let answered = move |answer| {
            if let Some(to) = to.take() {
                // Whoever asked may have gone away.
                let _ = to.send(answer);
            }
            true
        };
        let asked = async {
            let bytes = peer_bytes(&question);
            let room = link.room(bytes).await.ok_or(Unanswered::NotConnected(peer))?;
            link.post(&question, room, None, within, Box::new(answered))?;
            from.await.unwrap_or(Err(Unanswered::Disconnected(peer)))
        };
        tokio::time::timeout(within, asked).await.unwrap_or(Err(Unanswered::TimedOut(peer)))
    }

    /// Keeps a link to each peer there is.
    async fn follow(self: Arc<Self>) {
        let mut changed = self.directory.changed();
        loop {
            changed.mark_unchanged();
            let there = self.directory.peers();
            self.links.write().retain(|peer, (_, gone)| {
                let stays = there.contains(peer);
                if !stays {
                    gone.cancel();
                }
                stays
            });
            for peer in there {
                if self.link(peer).is_some() {
                    continue;
                }
                let first = (*self.linked.borrow() + 1) << 32;
                let link = Arc::new(Link::new(peer, self.clock, first));
                let gone = self.closing.child_token();
                self.links.write().insert(peer, (Arc::clone(&link), gone.clone()));
                self.linked.send_modify(|count| *count += 1);
                tasks::spawn("peer link", Arc::clone(&self).keep(link, gone));
            }
            tokio::select! {
                changed = changed.changed() => if changed.is_err() { return },
                () = self.closing.cancelled() => return,
            }
        }
    }

    /// Keeps one link up for as long as its peer lives.
    async fn keep(self: Arc<Self>, link: Arc<Link>, gone: CancellationToken) {
        let mut waits = BackOff::new(self.timing.first_retry, self.timing.longest_retry);
        let mut changed = self.directory.changed();
        let mut is_told = false;
        loop {
            changed.mark_unchanged();
            let target = self.directory.target(link.peer());
            let own = self.directory.hello();
            let is_same = || {
                self.directory.target(link.peer()) == target && self.directory.hello().session == own.session
            };
            let began_at = self.clock.now();
            let work = async {
                let Some(target) = &target else { return std::future::pending().await };
                let mut was_up = false;
                let Err(ended) = self.connect(&link, target, &mut was_up).await;
                (was_up, ended)
            };
            let ended = tokio::select! {
                () = gone.cancelled() => None,
                () = until_different(&mut changed, &is_same) => Some((true, Ended::Changed)),
                ended = work => Some(ended),
            };
            // Whatever was under way on a connection that was dropped has no answer.
            let broke = ended.as_ref().is_some_and(|(_, ended)| ended.is_gone());
            link.end(broke, &mut self.figures.request());
            let Some((was_up, ended)) = ended else { return };
            if matches!(ended, Ended::Changed) {
                waits.reset();
                is_told = false;
                continue;
            }
            if was_up {
                tracing::info!(peer = %link.peer(), reason = %ended, "the connection to a broker ended");
                is_told = false;
                // One that held for a while may be had again at once.
                if self.clock.now().since(began_at) >= self.timing.longest_retry {
                    waits.reset();
                }
            } else if !std::mem::replace(&mut is_told, true) {
                // Once, not at every try.
                tracing::warn!(peer = %link.peer(), reason = %ended, "a broker cannot be connected to; trying again");
            }
            tokio::select! {
                () = tokio::time::sleep(waits.next()) => {}
                () = until_different(&mut changed, &is_same) => waits.reset(),
                () = gone.cancelled() => return,
            }
        }
    }

    /// One connection, until it ends.
    async fn connect(
        &self,
        link: &Link,
        target: &Target,
        was_up: &mut bool,
    ) -> Result<std::convert::Infallible, Ended> {
        let greeted = async {
            let place = (target.host.as_str(), target.port);
            let stream = TcpStream::connect(place).await.map_err(Ended::Unreachable)?;
            serving::prepare(&stream).map_err(Ended::Unreachable)?;
            let wire = match &self.tls {
                Some(tls) => tls.connect(stream, link.peer()).await.map_err(Ended::Unreachable)?,
                None => Wire::from(stream),
            };
            let own = self.directory.hello();
            Ok::<_, Ended>(greeting::dial(wire, &own, link.peer(), target, &self.memory).await?)
        };
        let greeted = tokio::time::timeout(self.timing.greeting, greeted).await;
        let (frames, writer) = greeted.unwrap_or_else(|_| Err(Refused::Silent.into()))?;
        *was_up = true;
        self.figures.connected.inc();
        let _counted = Counted(&self.figures.connected);
        let outgoing = link.begin(target.session);
        tracing::debug!(peer = %link.peer(), session = %target.session, "connected to a broker");
        let heard_at = AtomicU64::new(self.clock.now().0);
        tokio::select! {
            ended = self.hear(link, frames, &heard_at) => ended,
            ended = self.say(writer, outgoing, &heard_at) => ended,
            ended = self.watch(link, &heard_at) => ended,
        }
    }

    /// Takes the answers in.
    async fn hear(
        &self,
        link: &Link,
        mut frames: Frames,
        heard_at: &AtomicU64,
    ) -> Result<std::convert::Infallible, Ended> {
        loop {
            let (frame, paid) = frames.next(MOST_FRAME_BYTES, &self.memory).await?;
            heard_at.store(self.clock.now().0, Ordering::Relaxed);
            self.figures.received_bytes.inc_by(frame.len() as u64);
            let (correlation, received) = felix_protocol::peer::decode(frame)?;
            link.received(correlation, received, &mut self.figures.request());
            drop(paid);
        }
    }

    /// Sends what is asked.
    async fn say(
        &self,
        mut writer: Writer,
        mut outgoing: mpsc::UnboundedReceiver<Vec<bytes::Bytes>>,
        heard_at: &AtomicU64,
    ) -> Result<std::convert::Infallible, Ended> {
        loop {
            let Some(pieces) = outgoing.recv().await else { return std::future::pending().await };
            self.figures.sent_bytes.inc_by(felix_protocol::peer::frame_bytes(&pieces) as u64);
            // A peer that takes a long frame in cannot answer meanwhile.
            let lives = || heard_at.store(self.clock.now().0, Ordering::Relaxed);
            wire::write(&mut writer, pieces, lives).await.map_err(Ended::Write)?;
            if outgoing.is_empty() {
                tokio::io::AsyncWriteExt::flush(&mut writer).await.map_err(Ended::Write)?;
            }
        }
    }

    /// Gives up what is overdue, and the peer when it is silent.
    async fn watch(&self, link: &Link, heard_at: &AtomicU64) -> Result<std::convert::Infallible, Ended> {
        let Timing { ping_after, dead_after, look_every, .. } = self.timing;
        let mut pinged_at = MonoTime(0);
        loop {
            tokio::time::sleep(look_every.min(ping_after)).await;
            link.expire(&mut self.figures.request());
            let now = self.clock.now();
            let silent = now.since(MonoTime(heard_at.load(Ordering::Relaxed)));
            if silent >= dead_after {
                return Err(Ended::Silent);
            }
            // A question about nothing asks whether anybody is there.
            if silent >= ping_after && now.since(pinged_at) >= ping_after {
                pinged_at = now;
                let question = Message::StandingQuery(StandingQuery::default());
                if let Some(room) = link.try_room() {
                    // Nobody there is seen by the silence.
                    let _ = link.post(&question, room, None, dead_after, Box::new(|_| true));
                }
            }
        }
    }
}

/// Bytes that a request weighs: its records, and something for the rest.
fn peer_bytes(message: &Message) -> usize {
    let records = match message {
        Message::Ship(ship) => ship.parts.iter().map(|part| part.record_bytes() + 128).sum(),
        Message::StandingQuery(query) => query.partitions.len() * 24,
        Message::Hello(_)
        | Message::UnsupportedKind(_)
        | Message::Answers(_)
        | Message::Bootstrap(_)
        | Message::Rebuild(_)
        | Message::StandingAnswers(_) => 0,
    };
    records + 128
}

async fn until_different(
    changed: &mut watch::Receiver<felix_cluster::state::Revision>,
    is_same: &impl Fn() -> bool,
) {
    loop {
        if changed.changed().await.is_err() {
            return std::future::pending().await;
        }
        if !is_same() {
            return;
        }
    }
}

/// One less when it is dropped.
struct Counted<'a>(&'a IntGauge);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests;
