//! Lanes to other brokers: what leaders here ship to one peer, all partitions together.
//!
//! Cursors ask for one read at a time each, so a queue in the order of asking is fair between partitions. What is asked for is
//! read here, not on the thread that owns the log. There are two queues a peer: what is in memory goes at once, small parts of many
//! partitions sharing a request; what must come from the disk, for followers that are far behind, is read beside that
//! ([`bulk`]). A peer that takes nothing stops its own queues. What is throttled is held back before it is read (`throttle`), so that it takes
//! neither memory nor a place in front of what is not.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use felix_partition::shipping::{Restarting, Shipment};
use felix_protocol::batch::{BatchHeader, HEADER_BYTES};
use felix_protocol::ids::{BrokerId, Offset, PartitionId};
use felix_protocol::peer::Message as PeerMessage;
use felix_protocol::peer::bootstrap::Bootstrap;
use felix_protocol::peer::rebuild::Rebuild;
use felix_protocol::peer::ship::{Answer, Part, Ship};
use felix_protocol::time::MonoTime;
use felix_replication::cursor::{Event, FrameId, IDLE};
use felix_storage::disk::os::OsDisk;
use felix_storage::{LogReader, Read, ReadError};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::partitions::lane::{LaneSender, Message};
use crate::partitions::throttle::Gate;
use crate::peers::{Figures, Link, Lost, Peers, Room, Source, Unanswered, Up};
use crate::tasks;

mod bulk;

/// Record bytes of one request, unless a single part has more.
const REQUEST_BYTES: usize = 1 << 20;
/// What a word to begin anew takes, generously.
const RESTART_BYTES: usize = 256;
/// What a part takes beside its records, generously.
const PART_BYTES: usize = 128;
/// Parts of one request.
const MOST_PARTS: usize = 512;
/// The bytes of a frame that says only how far the log is.
const NOTHING: usize = 0;
/// An answer that takes longer is none: the follower's disk stands still.
const PATIENCE: Duration = Duration::from_secs(30);

/// One thing to ship, and where the answer goes.
pub(crate) struct Wanted {
    pub(crate) shipment: Shipment,
    pub(crate) reader: LogReader<OsDisk>,
    pub(crate) lane: LaneSender,
}

impl Wanted {
    /// Whether it must be read from the disk.
    fn is_far_behind(&self) -> bool {
        self.shipment.most.is_some() && !self.reader.in_memory(self.shipment.part.from)
    }
}

/// A peer's queues.
struct Queue {
    /// Whose it is: it lasts as long as the link.
    link: Weak<Link>,
    tail: mpsc::UnboundedSender<Wanted>,
    bulk: mpsc::UnboundedSender<Wanted>,
}

/// The queues, one a peer. Bounded by the cursors: each has at most one read under way, and few frames besides.
pub(crate) struct Ships {
    queues: Mutex<BTreeMap<BrokerId, Queue>>,
    peers: OnceLock<Arc<Peers>>,
    gate: Arc<Gate>,
}

impl Ships {
    pub(crate) fn new(gate: Gate) -> Ships {
        Ships { queues: Mutex::default(), peers: OnceLock::new(), gate: Arc::new(gate) }
    }

    /// What is throttled.
    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Queues something. Without a connection it is dropped: the cursor hears of the connection's end by itself.
    pub(crate) fn ship(&self, to: BrokerId, wanted: Wanted) {
        if let Some(queue) = self.queues.lock().get(&to) {
            let _ = if wanted.is_far_behind() { queue.bulk.send(wanted) } else { queue.tail.send(wanted) };
        }
    }

    /// Ships over these connections from now on. Must be called on the runtime.
    pub(crate) fn begin(self: &Arc<Self>, peers: Arc<Peers>, lanes: Vec<LaneSender>) {
        if self.peers.set(Arc::clone(&peers)).is_ok() {
            tasks::spawn("shipping", Arc::clone(self).follow(peers, lanes));
        }
    }

    /// The peers to which a connection broke.
    pub(crate) fn lost(&self) -> Vec<(BrokerId, Lost)> {
        self.peers.get().map(|peers| peers.lost()).unwrap_or_default()
    }

    /// Keeps a queue for each link there is. A link that is gone ends its own.
    async fn follow(self: Arc<Self>, peers: Arc<Peers>, lanes: Vec<LaneSender>) {
        let mut linked = peers.linked();
        loop {
            linked.mark_unchanged();
            for link in peers.links() {
                let mut queues = self.queues.lock();
                let weak = Arc::downgrade(&link);
                if queues.get(&link.peer()).is_some_and(|known| known.link.ptr_eq(&weak)) {
                    continue;
                }
                let (tail, wanted) = mpsc::unbounded_channel();
                let (bulk, far_behind) = mpsc::unbounded_channel();
                queues.insert(link.peer(), Queue { link: weak, tail, bulk });
                drop(queues);
                let toll = Toll { gate: Arc::clone(&self.gate), figures: peers.figures().clone() };
                let run = run(link, wanted, far_behind, lanes.clone(), toll);
                tasks::spawn("shipping to a broker", run);
            }
            if linked.changed().await.is_err() {
                return;
            }
        }
    }
}

/// What bytes for a follower pass: whether they may go, and where they are counted.
#[derive(Clone)]
struct Toll {
    gate: Arc<Gate>,
    figures: Figures,
}

/// Serves one peer until its link is gone.
async fn run(
    link: Arc<Link>,
    mut tail: mpsc::UnboundedReceiver<Wanted>,
    mut far_behind: mpsc::UnboundedReceiver<Wanted>,
    lanes: Vec<LaneSender>,
    toll: Toll,
) {
    let (peer, mut up, mut before) = (link.peer(), link.up(), None);
    let weak = Arc::downgrade(&link);
    // Else the link would never be gone.
    drop(link);
    loop {
        let now = *up.borrow_and_update();
        // What was asked for on an earlier connection is asked for anew.
        while tail.try_recv().is_ok() {}
        while far_behind.try_recv().is_ok() {}
        tell_lanes(peer, &lanes, std::mem::replace(&mut before, now), now);
        let is_over = match (now, weak.upgrade()) {
            (Some(now), Some(link)) => tokio::select! {
                changed = up.changed() => changed.is_err(),
                () = ship_all(&link, now, &mut tail, &toll) => true,
                () = bulk::ship(&link, now, &mut far_behind, &toll) => true,
            },
            (None, Some(link)) => {
                drop(link);
                up.changed().await.is_err()
            }
            (_, None) => true,
        };
        if is_over {
            tell_lanes(peer, &lanes, before, None);
            return;
        }
    }
}

/// Tells every lane of the connection.
fn tell_lanes(broker: BrokerId, lanes: &[LaneSender], before: Option<Up>, up: Option<Up>) {
    if before == up {
        return;
    }
    for lane in lanes {
        lane.send(Message::Connected { broker, before, up });
    }
}

/// Ships what is asked for, and in memory, on this connection.
async fn ship_all(link: &Arc<Link>, up: Up, queue: &mut mpsc::UnboundedReceiver<Wanted>, toll: &Toll) {
    let mut put_off = None;
    let mut held = Held::new(link.peer(), Arc::clone(&toll.gate));
    loop {
        let first = match put_off.take() {
            Some(wanted) => wanted,
            None => match held.next(queue).await {
                Some(wanted) => wanted,
                None => return,
            },
        };
        if let Some(restarting) = first.shipment.restart {
            let Some(room) = link.room(RESTART_BYTES).await else { return };
            let mut waiting = Waiting::default();
            waiting.put(first.lane, first.shipment.part, first.shipment.frame);
            let Restarting { restart, rebuild } = restarting;
            let message = if rebuild {
                PeerMessage::Rebuild(Rebuild(restart))
            } else {
                PeerMessage::Bootstrap(Bootstrap(restart))
            };
            post(link, up, &message, room, waiting, 1);
            continue;
        }
        let mut request = Request::default();
        request.take(link.peer(), first, toll);
        while request.bytes < REQUEST_BYTES
            && request.parts.len() < MOST_PARTS
            && let Ok(next) = queue.try_recv()
        {
            if next.shipment.restart.is_some() {
                put_off = Some(next);
                break;
            }
            if let Some(next) = held.pass(next) {
                request.take(link.peer(), next, toll);
            }
        }
        // The connection's end drops this, and with it what was read.
        let Some(room) = link.room(request.size()).await else { return };
        send(link, up, request, room, &toll.figures);
    }
}

/// Sends what was put together, and tells the cursors, which ask for more then: so what is asked for later is sent later, by whichever
/// queue.
fn send(link: &Arc<Link>, up: Up, request: Request, room: Room, figures: &Figures) {
    let Request { parts, waiting, bytes, sent } = request;
    if !parts.is_empty() {
        let count = parts.len();
        figures.shipped(link.peer(), bytes);
        post(link, up, &PeerMessage::Ship(Ship { parts }), room, waiting, count);
    }
    for (lane, message) in sent {
        lane.send(message);
    }
}

/// Sends a request of which so many answers are waited for.
fn post(link: &Arc<Link>, up: Up, message: &PeerMessage, room: Room, mut waiting: Waiting, mut left: usize) {
    let peer = link.peer();
    {
        let answered = move |answer: Result<PeerMessage, Unanswered>| match answer {
            Ok(PeerMessage::Answers(answers)) => {
                for answer in answers.answers {
                    left -= usize::from(waiting.answered(peer, &answer));
                }
                left == 0
            }
            // The cursors begin anew: by the connection's end, or because they are told so.
            Ok(_) | Err(_) => {
                waiting.given_up(peer);
                true
            }
        };
        let sent = link.post(message, room, Some(up), PATIENCE, Box::new(answered));
        if let Err(error) = sent {
            tracing::debug!(%peer, %error, "a shipment could not be sent");
        }
    }
}

/// What is held back for one follower, in the order in which it was asked for. Bounded like the queue: a cursor whose read is held
/// back asks for nothing else.
struct Held {
    follower: BrokerId,
    gate: Arc<Gate>,
    /// With the time since which it waits.
    waiting: VecDeque<(MonoTime, Wanted)>,
}

impl Held {
    fn new(follower: BrokerId, gate: Arc<Gate>) -> Held {
        Held { follower, gate, waiting: VecDeque::new() }
    }

    /// The next thing to ship: what may go by now, or else what comes; nothing, once nobody asks any more.
    async fn next(&mut self, queue: &mut mpsc::UnboundedReceiver<Wanted>) -> Option<Wanted> {
        loop {
            let mut changes = self.gate.changes();
            if let Some(wanted) = self.released() {
                return Some(wanted);
            }
            let wait = self.wait();
            tokio::select! {
                wanted = queue.recv() => {
                    if let Some(wanted) = self.pass(wanted?) {
                        return Some(wanted);
                    }
                }
                () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => {}
                _ = changes.changed(), if wait.is_some() => {}
            }
        }
    }

    /// Lets through what may go now, and keeps the rest.
    fn pass(&mut self, wanted: Wanted) -> Option<Wanted> {
        match self.most_now(&wanted.shipment) {
            Some(most) => Some(at_most(wanted, most)),
            None => {
                self.waiting.push_back((self.gate.now(), wanted));
                None
            }
        }
    }

    /// Members of the eligible set never wait, nor does what has no records.
    fn throttle(&self, shipment: &Shipment) -> Option<(MonoTime, usize)> {
        let is_free = shipment.most.is_none() || shipment.is_member;
        if is_free { None } else { self.gate.waits(&shipment.part.partition, self.follower) }
    }

    /// How many bytes of records may go now, if any.
    fn most_now(&self, shipment: &Shipment) -> Option<usize> {
        match self.throttle(shipment) {
            None => Some(usize::MAX),
            Some((ready_at, most)) => (ready_at <= self.gate.now()).then_some(most),
        }
    }

    /// The first that may go now; else the one that waits longest, once its follower has heard nothing for long: it is told
    /// how far the log is, without records.
    fn released(&mut self) -> Option<Wanted> {
        let mut all = self.waiting.iter().enumerate();
        let found = all.find_map(|(at, (_, wanted))| Some((at, self.most_now(&wanted.shipment)?)));
        let (at, most) = match found {
            Some(found) => found,
            None => {
                let (since, _) = self.waiting.front()?;
                if self.gate.now().since(*since) < IDLE {
                    return None;
                }
                (0, NOTHING)
            }
        };
        let (_, wanted) = self.waiting.remove(at)?;
        Some(at_most(wanted, most))
    }

    /// How long until something may go.
    fn wait(&self) -> Option<Duration> {
        let told = self.waiting.front().map(|(since, _)| since.after(IDLE))?;
        let ready = self.waiting.iter().filter_map(|(_, wanted)| self.throttle(&wanted.shipment));
        let ready = ready.map(|(ready_at, _)| ready_at).min().unwrap_or(MonoTime::NEVER);
        Some(ready.min(told).since(self.gate.now()))
    }
}

fn at_most(mut wanted: Wanted, most: usize) -> Wanted {
    wanted.shipment.most = wanted.shipment.most.map(|asked| asked.min(most));
    wanted
}

/// A request that is put together.
#[derive(Default)]
struct Request {
    parts: Vec<Part>,
    bytes: usize,
    waiting: Waiting,
    /// What cursors are to be told once it is sent.
    sent: Vec<(LaneSender, Message)>,
}

/// Whose answers are waited for; those of one partition come in order.
#[derive(Default)]
struct Waiting {
    parts: BTreeMap<PartitionId, VecDeque<(LaneSender, Part, FrameId)>>,
    /// Held until all are there.
    place: Option<bulk::Place>,
}

impl Request {
    fn size(&self) -> usize {
        self.bytes + self.parts.len() * PART_BYTES
    }

    fn take(&mut self, peer: BrokerId, wanted: Wanted, toll: &Toll) {
        let Wanted { shipment: Shipment { frame, mut part, most, .. }, reader, lane } = wanted;
        let (partition, generation) = (part.partition, part.generation);
        let told = |event| Message::Shipped { partition, generation, broker: peer, event };
        if most == Some(NOTHING) {
            let event = Event::Sent { frame, next: part.next, bytes: 0 };
            self.sent.push((lane.clone(), told(event)));
        } else if let Some(most) = most {
            let read = records(&reader, &part, most);
            if let Ok((source, read)) = &read {
                toll.figures.read(*source, read.bytes);
            }
            match read.map(|(_, read)| read) {
                Ok(read) if part.from < part.log_start && begins_at(&read) != Some(part.from) => {
                    // The log begins later by now than where this follower is.
                    lane.send(told(Event::Unreadable(frame)));
                    return;
                }
                Ok(read) => {
                    // Where nothing is left up to the end, compaction took it out.
                    part.next = if read.slices.is_empty() { part.log_end } else { read.next };
                    part.records = read.slices;
                    let event = Event::Sent { frame, next: part.next, bytes: read.bytes };
                    self.sent.push((lane.clone(), told(event)));
                    toll.gate.shipped(&partition, peer, read.bytes);
                    self.bytes += read.bytes;
                }
                Err(error) => {
                    tracing::debug!(%partition, from = part.from, %error, "what a follower lacks cannot be read");
                    lane.send(told(Event::Unreadable(frame)));
                    return;
                }
            }
        }
        let head = Part { header: None, records: Vec::new(), ..part.clone() };
        self.waiting.put(lane, head, frame);
        self.parts.push(part);
    }
}

/// The records of a part, and where they lay.
fn records(reader: &LogReader<OsDisk>, part: &Part, most: usize) -> Result<(Source, Read), ReadError> {
    // The log start may lie inside the batch that comes first.
    let from = part.from.max(part.log_start);
    let plain = || reader.read(from, most, part.log_end, true);
    if reader.in_memory(part.from) {
        return Ok((Source::Memory, plain()?));
    }
    tasks::apart(|| match reader.read_sealed(from, most, part.log_end)? {
        Some(read) => Ok((Source::Sealed, read)),
        None => Ok((Source::Disk, plain()?)),
    })
}

fn begins_at(read: &Read) -> Option<Offset> {
    let head: Vec<u8> = read.slices.iter().flatten().copied().take(HEADER_BYTES).collect();
    BatchHeader::parse(&head).ok().map(|header| header.base_offset)
}

impl Waiting {
    fn put(&mut self, lane: LaneSender, part: Part, frame: FrameId) {
        self.parts.entry(part.partition).or_default().push_back((lane, part, frame));
    }

    /// Hands an answer on; whether it was waited for.
    fn answered(&mut self, peer: BrokerId, answer: &Answer) -> bool {
        let Some(queue) = self.parts.get_mut(&answer.partition) else { return false };
        let Some((lane, part, frame)) = queue.pop_front() else { return false };
        let Answer { generation, log, end, said, .. } = *answer;
        let event = Event::Answer { frame, log, generation, end, said };
        lane.send(Message::Shipped {
            partition: part.partition,
            generation: part.generation,
            broker: peer,
            event,
        });
        true
    }

    fn given_up(&mut self, peer: BrokerId) {
        for (partition, queue) in std::mem::take(&mut self.parts) {
            for (lane, part, _) in queue.into_iter().take(1) {
                let generation = part.generation;
                lane.send(Message::ShipAnew { partition, generation, broker: peer });
            }
        }
    }
}

/// Whether there is a connection to a peer, as lanes know it.
pub(crate) type Connections = BTreeMap<BrokerId, Up>;

#[cfg(test)]
mod tests;
