//! What must be read from the disk, for followers that are far behind: beside the tail, never in front of it.
//!
//! It is read on a thread that may wait for the disk, one part at a time, when there is a place for it; whatever is in memory is sent
//! meanwhile. How many places there are follows from how long answers take ([`Window`]): what is on its way waits for the peer's disk, and
//! with it what others are sent. No more than half of what a link holds is on its way for it, so that there is always room for the tail,
//! however slow the peer's disk is. What stands in closed segments is read in large pieces and compared with the seal before it goes off
//! (`LogReader::read_sealed`), the rest with each batch's checksum; the follower compares each batch again.

use std::sync::Arc;

use felix_protocol::time::MonoTime;
use felix_replication::bulk::Window;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use super::{Held, PART_BYTES, Request, Toll, Wanted, send};
use crate::partitions::throttle::Gate;
use crate::peers::{Link, Up};
use crate::tasks;

/// Requests without an answer; each has one part, of at most so many bytes as a cursor asks for at once (1 MiB), or one batch.
pub(super) const MOST: usize = 8;

/// Ships what is asked for on this connection.
pub(super) async fn ship(link: &Arc<Link>, up: Up, queue: &mut mpsc::UnboundedReceiver<Wanted>, toll: &Toll) {
    let places = Places::new(Arc::clone(&toll.gate));
    let mut held = Held::new(link.peer(), Arc::clone(&toll.gate));
    while let Some(wanted) = held.next(queue).await {
        let mut place = Places::take(&places).await;
        let most = wanted.shipment.most.unwrap_or(0);
        let Some(mut room) = link.room(most + PART_BYTES).await else { return };
        let (peer, passed) = (link.peer(), toll.clone());
        let read = move || {
            let mut request = Request::default();
            request.take(peer, wanted, &passed);
            request
        };
        // The connection's end drops what comes of it.
        let Ok(Ok(mut request)) = tasks::blocking("reading for a follower", read).await else { return };
        if request.bytes > most {
            // One batch may be larger.
            drop(room);
            let Some(more) = link.room(request.size()).await else { return };
            room = more;
        }
        if request.bytes > 0 {
            place.sent = Some((toll.gate.now(), request.bytes));
        }
        request.waiting.place = Some(place);
        send(link, up, request, room, &toll.figures);
    }
}

/// Places for requests without an answer.
struct Places {
    gate: Arc<Gate>,
    taken: Mutex<Taken>,
    given_back: Notify,
}

struct Taken {
    window: Window,
    count: usize,
}

impl Places {
    fn new(gate: Arc<Gate>) -> Arc<Places> {
        let window = Window::new(MOST, gate.now());
        Arc::new(Places { gate, taken: Mutex::new(Taken { window, count: 0 }), given_back: Notify::new() })
    }

    /// Waits for one.
    async fn take(self: &Arc<Places>) -> Place {
        loop {
            {
                let mut taken = self.taken.lock();
                if taken.count < taken.window.size() {
                    taken.count += 1;
                    return Place { places: Arc::clone(self), was_alone: taken.count == 1, sent: None };
                }
            }
            // One that was given back in between has left word.
            self.given_back.notified().await;
        }
    }
}

/// One of them; dropped with the answer.
pub(super) struct Place {
    places: Arc<Places>,
    was_alone: bool,
    /// When, and how many bytes; `None`: nothing was.
    sent: Option<(MonoTime, usize)>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let now = self.places.gate.now();
        let mut taken = self.places.taken.lock();
        taken.count -= 1;
        if let Some((sent_at, bytes)) = self.sent {
            taken.window.answered(sent_at, self.was_alone, bytes, now);
        }
        drop(taken);
        self.places.given_back.notify_one();
    }
}
