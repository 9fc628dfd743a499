//! The accepting side: whoever is let in asks, and is answered in any order.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use felix_protocol::ids::BrokerId;
use felix_protocol::peer::hello::Hello;
use felix_protocol::peer::standing::StandingAnswers;
use felix_protocol::peer::{self, Message, Received};
use parking_lot::Mutex;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::greeting::{self, Refused};
use super::wire::{Frames, Wire, Writer, write};
use super::{Counted, Ended, MOST_FRAME_BYTES, Peers, link};
use crate::budget::Paid;
use crate::tasks;

/// Connections that have not said who they are. One more, and the one that has been silent for longest is closed: a broker says it at
/// once, so those who connect only to keep others out push each other out.
const MOST_GREETINGS: usize = 128;
/// Requests of one peer that are not answered.
const MOST_REQUESTS: usize = 128;
/// Their bytes.
const MOST_BYTES: u32 = 32 * 1024 * 1024;
/// Answers that one write hands to the system.
const MOST_AT_ONCE: usize = 64;

/// What becomes of what peers ask.
pub trait Handler: Send + Sync + 'static {
    /// Takes a request, and answers it by `reply`, now or later. Must not wait.
    fn handle(&self, from: &Hello, request: Message, reply: Reply);
}

/// What a request holds until all of its answers are written.
struct Load {
    _request: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
    _paid: Paid,
}

struct Outgoing {
    pieces: Vec<Bytes>,
    _load: Arc<Load>,
}

/// The way back to whoever asked. The request counts as under way until this is dropped.
#[derive(Clone)]
pub struct Reply {
    correlation: u64,
    outgoing: mpsc::UnboundedSender<Outgoing>,
    load: Arc<Load>,
}

impl Reply {
    /// Sends an answer. A peer that is gone gets none.
    pub fn send(&self, answer: &Message) {
        match peer::encode(self.correlation, answer) {
            Ok(pieces) => {
                let _ = self.outgoing.send(Outgoing { pieces, _load: Arc::clone(&self.load) });
            }
            Err(error) => tracing::error!(%error, "an answer to a broker cannot be written"),
        }
    }
}

/// Nothing waits on either side, and a peer that vanished is noticed even where nobody asks.
pub(super) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive =
        TcpKeepalive::new().with_time(Duration::from_secs(10)).with_interval(Duration::from_secs(5));
    SockRef::from(stream).set_tcp_keepalive(&keepalive.with_retries(3))
}

impl Peers {
    /// Lets peers in until the broker stops.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, handler: Arc<dyn Handler>) {
        let greetings = Arc::new(Mutex::new(BTreeMap::new()));
        let mut number = 0_u64;
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.closing.cancelled() => return,
            };
            let (stream, from) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a broker's connection cannot be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let displaced = CancellationToken::new();
            number += 1;
            let oldest = {
                let mut waiting = greetings.lock();
                waiting.insert(number, displaced.clone());
                if waiting.len() > MOST_GREETINGS { waiting.pop_first() } else { None }
            };
            if let Some((_, oldest)) = oldest {
                self.figures.refused.with_label_values(&["too_many"]).inc();
                oldest.cancel();
            }
            let (peers, handler) = (Arc::clone(&self), Arc::clone(&handler));
            let greetings = Arc::clone(&greetings);
            tasks::spawn("peer", async move {
                let greeted = tokio::select! {
                    greeted = tokio::time::timeout(peers.timing.greeting, peers.greet(stream)) => greeted,
                    () = displaced.cancelled() => return,
                };
                greetings.lock().remove(&number);
                match greeted.unwrap_or(Err(Refused::Silent)) {
                    Ok((hello, frames, writer)) => peers.attend(hello, frames, writer, handler).await,
                    Err(refused) => {
                        peers.figures.refused.with_label_values(&[refused.reason()]).inc();
                        if let Some(withheld) =
                            peers.chatter.may_tell(felix_protocol::time::Clock::now(&peers.clock))
                        {
                            tracing::info!(%from, reason = %refused, withheld, "a connection between brokers was refused");
                        }
                    }
                }
            });
        }
    }

    async fn greet(&self, stream: TcpStream) -> Result<(Hello, Frames, Writer), Refused> {
        let socket = |error: io::Error| Refused::Read(error.into());
        prepare(&stream).map_err(socket)?;
        let wire = match &self.tls {
            Some(tls) => tls.accept(stream).await.map_err(socket)?,
            None => Wire::from(stream),
        };
        greeting::accept(wire, &*self.directory, &self.memory).await
    }

    /// One connection, until it ends, or another one of the same peer takes its place.
    async fn attend(&self, hello: Hello, frames: Frames, writer: Writer, handler: Arc<dyn Handler>) {
        let replaced = self.closing.child_token();
        let number = self.enter(hello.node, replaced.clone());
        self.figures.accepted.inc();
        let counted = Counted(&self.figures.accepted);
        let (outgoing, answers) = mpsc::unbounded_channel();
        let ended = tokio::select! {
            ended = self.listen(&hello, frames, outgoing, &*handler) => ended,
            ended = self.answer(writer, answers) => ended,
            () = replaced.cancelled() => Err(Ended::Changed),
        };
        drop(counted);
        let mut accepted = self.accepted.lock();
        if accepted.get(&hello.node).is_some_and(|(newest, _)| *newest == number) {
            accepted.remove(&hello.node);
        }
        drop(accepted);
        let Err(reason) = ended;
        tracing::debug!(peer = %hello.node, %reason, "a broker's connection ended");
    }

    fn enter(&self, node: BrokerId, replaced: CancellationToken) -> u64 {
        let number = self.next_accepted.fetch_add(1, Ordering::Relaxed);
        // The older one is half open, or will be closed by the peer as well.
        if let Some((_, older)) = self.accepted.lock().insert(node, (number, replaced)) {
            older.cancel();
        }
        number
    }

    async fn listen(
        &self,
        from: &Hello,
        mut frames: Frames,
        outgoing: mpsc::UnboundedSender<Outgoing>,
        handler: &dyn Handler,
    ) -> Result<std::convert::Infallible, Ended> {
        let requests = Arc::new(Semaphore::new(MOST_REQUESTS));
        let bytes = Arc::new(Semaphore::new(MOST_BYTES as usize));
        // Whoever has nothing to ask asks whether we are there.
        frames.patient_for(self.timing.dead_after * 3);
        loop {
            let (frame, paid) = frames.next(MOST_FRAME_BYTES, &self.memory).await?;
            self.figures.received_bytes.inc_by(frame.len() as u64);
            let weight = u32::try_from(frame.len()).unwrap_or(u32::MAX).clamp(1, MOST_BYTES);
            let (correlation, received) = peer::decode(frame)?;
            // Neither is ever closed.
            let (Ok(request), Ok(share)) = (
                Arc::clone(&requests).acquire_owned().await,
                Arc::clone(&bytes).acquire_many_owned(weight).await,
            ) else {
                return Err(Ended::Silent);
            };
            let load = Arc::new(Load { _request: request, _bytes: share, _paid: paid });
            let reply = Reply { correlation, outgoing: outgoing.clone(), load };
            match received {
                Received::Unknown(kind) => reply.send(&Message::UnsupportedKind(kind)),
                Received::Message(Message::StandingQuery(query)) if query.partitions.is_empty() => {
                    reply.send(&Message::StandingAnswers(StandingAnswers::default()));
                }
                Received::Message(
                    request @ (Message::Ship(_)
                    | Message::Bootstrap(_)
                    | Message::Rebuild(_)
                    | Message::StandingQuery(_)),
                ) => {
                    tracing::trace!(peer = %from.node, kind = link::name(&request), correlation, "asked");
                    handler.handle(from, request, reply);
                }
                Received::Message(
                    Message::Hello(_)
                    | Message::UnsupportedKind(_)
                    | Message::Answers(_)
                    | Message::StandingAnswers(_),
                ) => return Err(Refused::NoRequest.into()),
            }
        }
    }

    async fn answer(
        &self,
        mut writer: Writer,
        mut answers: mpsc::UnboundedReceiver<Outgoing>,
    ) -> Result<std::convert::Infallible, Ended> {
        loop {
            let Some(Outgoing { mut pieces, _load: load }) = answers.recv().await else {
                return std::future::pending().await;
            };
            let mut loads = vec![load];
            while loads.len() < MOST_AT_ONCE
                && let Ok(Outgoing { pieces: more, _load: load }) = answers.try_recv()
            {
                pieces.extend(more);
                loads.push(load);
            }
            self.figures.sent_bytes.inc_by(peer::frame_bytes(&pieces) as u64);
            write(&mut writer, pieces, || ()).await.map_err(Ended::Write)?;
            if answers.is_empty() {
                writer.flush().await.map_err(Ended::Write)?;
            }
            drop(loads);
        }
    }
}
