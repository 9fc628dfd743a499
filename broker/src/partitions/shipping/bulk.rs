//! What must be read from the disk, for followers that are far behind: beside the tail, never in front of it.
//!
//! It is read on a thread that may wait for the disk, one part at a time, when there is a place for it; whatever is in memory is sent
//! meanwhile. No more than half of what a link holds is on its way for it, so that there is always room for the tail, however slow
//! the peer's disk is. What stands in closed segments is read in large pieces and compared with the seal before it goes off
//! (`LogReader::read_sealed`), the rest with each batch's checksum; the follower compares each batch again.

use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc};

use super::{Held, PART_BYTES, Request, Toll, Wanted, send};
use crate::peers::{Link, Up};
use crate::tasks;

/// Requests without an answer; each has one part, of at most so many bytes as a cursor asks for at once (1 MiB), or one batch.
pub(super) const MOST: usize = 8;

/// Ships what is asked for on this connection.
pub(super) async fn ship(link: &Arc<Link>, up: Up, queue: &mut mpsc::UnboundedReceiver<Wanted>, toll: &Toll) {
    let slots = Arc::new(Semaphore::new(MOST));
    let mut held = Held::new(link.peer(), Arc::clone(&toll.gate));
    while let Some(wanted) = held.next(queue).await {
        // Never closed.
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
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
        request.waiting.slot = Some(slot);
        send(link, up, request, room, &toll.figures);
    }
}
