//! The way in: bytes of one socket become frames.
//!
//! Memory follows what has arrived, never what a length claims: room grows with the bytes of the frame that are
//! there, or at once up to the size of a frame that this connection has already sent in full. An idle
//! connection holds no buffer at all. Nothing is copied: a frame is a slice of the buffer it was read into.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use felix_protocol::frame::{self, FrameError, LENGTH_BYTES, Split};
use tokio::net::TcpStream;
use tokio_util::io::poll_read_buf;

use crate::budget::{Paid, PaidLater, Receiving, SMALL_FRAME_BYTES};

/// Room for the first bytes after silence; doubles while reads fill it.
const FIRST_READ_BYTES: usize = 4 * 1024;
/// Room for one read of many small frames.
const MOST_READ_BYTES: usize = 64 * 1024;
/// A connection that has sent a frame of this size is given room for as much at once, not more.
const TRUSTED_BYTES: usize = 4 * 1024 * 1024;
/// Behind a frame's missing part no more than this is read along: it would have to be copied.
const READ_ALONG_BYTES: usize = 16 * 1024;

/// What a read brought.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// So many bytes.
    Bytes(usize),
    /// The peer will send no more.
    End,
}

/// One whole frame.
pub struct Frame {
    /// The frame without its length.
    pub bytes: Bytes,
    /// About how large the buffer is that it is a slice of.
    pub backing: usize,
    /// The memory that it paid for.
    pub paid: Paid,
}

/// The receiving half of one connection.
pub struct Incoming {
    buffer: BytesMut,
    /// Bytes of the frame in the buffer's front that are not there yet, as far as its length is known.
    missing: usize,
    read_bytes: usize,
    largest: usize,
    /// What the frame that is being received has paid.
    paid: Paid,
    waiting: Option<PaidLater>,
}

impl Incoming {
    /// Nothing received yet.
    pub fn new() -> Incoming {
        Incoming {
            buffer: BytesMut::new(),
            missing: LENGTH_BYTES,
            read_bytes: FIRST_READ_BYTES,
            largest: 0,
            paid: Paid::default(),
            waiting: None,
        }
    }

    /// The next whole frame that is already here, with the memory it paid for.
    pub fn frame(&mut self, max: usize) -> Result<Option<Frame>, FrameError> {
        match frame::split(&mut self.buffer, max)? {
            Split::Frame(frame) => {
                self.largest = self.largest.max(frame.len()).min(TRUSTED_BYTES);
                self.missing = LENGTH_BYTES.saturating_sub(self.buffer.len());
                // Small frames share a buffer as large as a read.
                let backing = frame.len().max(self.read_bytes);
                Ok(Some(Frame { bytes: frame, backing, paid: std::mem::take(&mut self.paid) }))
            }
            Split::Missing(missing) => {
                self.missing = missing;
                Ok(None)
            }
        }
    }

    /// Whether a frame has begun.
    #[cfg(test)]
    fn amid_frame(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Whether memory was taken for a frame that is still being received.
    pub fn holds_memory(&self) -> bool {
        self.paid.holds()
    }

    /// Whether the peer is not read from because memory is short.
    pub fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Whether the frame is let through without paying, and others wait for it.
    pub fn is_last(&self) -> bool {
        self.paid.is_last()
    }

    /// Bytes that are here and not yet taken as frames.
    pub fn arrived(&self) -> usize {
        self.buffer.len()
    }

    /// Reads once. To be called when [`frame`](Self::frame) has nothing.
    pub fn poll_receive(
        &mut self,
        stream: &mut TcpStream,
        receiving: &Receiving,
        on_wait: impl FnOnce(),
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<Received>> {
        ready!(self.poll_pay(receiving, on_wait, context));
        if self.buffer.is_empty() && self.buffer.capacity() == 0 {
            // Wait for the first byte without holding a buffer.
            ready!(stream.poll_read_ready(context))?;
        }
        self.make_room();
        let most = if self.missing > READ_ALONG_BYTES { self.missing } else { usize::MAX };
        let spare = (self.buffer.capacity() - self.buffer.len()).min(most);
        let polled = poll_read_buf(Pin::new(stream), context, &mut (&mut self.buffer).limit(spare));
        let count = match polled {
            Poll::Ready(result) => result?,
            Poll::Pending => {
                if self.buffer.is_empty() {
                    self.buffer = BytesMut::new();
                }
                return Poll::Pending;
            }
        };
        if count == 0 {
            return Poll::Ready(Ok(Received::End));
        }
        self.read_bytes = if count == spare {
            (self.read_bytes * 2).min(MOST_READ_BYTES)
        } else if count < self.read_bytes / 4 {
            (self.read_bytes / 2).max(FIRST_READ_BYTES)
        } else {
            self.read_bytes
        };
        Poll::Ready(Ok(Received::Bytes(count)))
    }

    /// A large frame pays for the room that the next read may take, before it is made.
    fn poll_pay(
        &mut self,
        receiving: &Receiving,
        on_wait: impl FnOnce(),
        context: &mut Context<'_>,
    ) -> Poll<()> {
        let due = self.buffer.len() + self.trusted();
        if let Some(waiting) = &mut self.waiting {
            let step = ready!(waiting.as_mut().poll(context));
            self.waiting = None;
            self.paid.add(step);
        }
        if due <= SMALL_FRAME_BYTES || receiving.pay(&mut self.paid, due) {
            return Poll::Ready(());
        }
        on_wait();
        let mut waiting = receiving.wait(due - self.paid.bytes());
        match waiting.as_mut().poll(context) {
            Poll::Ready(step) => {
                self.paid.add(step);
                Poll::Ready(())
            }
            Poll::Pending => {
                self.waiting = Some(waiting);
                Poll::Pending
            }
        }
    }

    /// How much of the frame's missing part there is room for: as much as has arrived, or as this connection has
    /// already sent in one frame.
    fn trusted(&self) -> usize {
        let arrived = self.buffer.len();
        if arrived < LENGTH_BYTES { 0 } else { self.missing.min(arrived.max(self.largest)) }
    }

    /// Makes room for the next read, if there is too little.
    fn make_room(&mut self) {
        let spare = self.buffer.capacity() - self.buffer.len();
        let wanted = self.trusted().max(self.read_bytes);
        if spare == 0 || (spare < wanted && spare < FIRST_READ_BYTES) {
            self.buffer.reserve(wanted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use std::future::poll_fn;
    use std::sync::LazyLock;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, listener.accept().await.unwrap().0)
    }

    /// Receives once, with memory that all tests share.
    async fn receive(incoming: &mut Incoming, stream: &mut TcpStream) -> Received {
        static BUDGET: LazyLock<Budget> = LazyLock::new(|| Budget::new(1 << 30, 0, 0));
        let budget = &*BUDGET;
        poll_fn(|context| incoming.poll_receive(stream, budget.receiving(), || (), context)).await.unwrap()
    }

    fn framed(body: &[u8]) -> Vec<u8> {
        let mut bytes = u32::try_from(body.len()).unwrap().to_be_bytes().to_vec();
        bytes.extend_from_slice(body);
        bytes
    }

    #[tokio::test]
    async fn frames_of_every_size_come_out_as_they_went_in() {
        let (mut client, mut server) = pair().await;
        let sizes = [0, 1, 5, 4091, 4092, 4093, 70_000, 3, 1_000_000, 17, 65_536, 2_000_000];
        let bodies: Vec<Vec<u8>> =
            sizes.iter().map(|size| (0..*size).map(|at| u8::try_from(at % 251).unwrap()).collect()).collect();
        let sent: Vec<u8> = bodies.iter().flat_map(|body| framed(body)).collect();
        let writer = crate::tasks::spawn("test", async move {
            client.write_all(&sent).await.unwrap();
            client
        });
        let mut incoming = Incoming::new();
        for body in &bodies {
            let frame = loop {
                if let Some(frame) = incoming.frame(1 << 27).unwrap() {
                    break frame.bytes;
                }
                assert!(matches!(receive(&mut incoming, &mut server).await, Received::Bytes(_)));
            };
            assert!(frame == body, "a frame of {} bytes", body.len());
        }
        drop(writer.await);
        assert!(!incoming.amid_frame());
        assert_eq!(receive(&mut incoming, &mut server).await, Received::End);
    }

    #[tokio::test]
    async fn a_claimed_length_alone_reserves_next_to_nothing() {
        let (mut client, mut server) = pair().await;
        client.write_all(&100_000_000_u32.to_be_bytes()).await.unwrap();
        client.write_all(b"few").await.unwrap();
        let mut incoming = Incoming::new();
        while incoming.buffer.len() < 7 {
            receive(&mut incoming, &mut server).await;
            assert!(incoming.frame(1 << 27).unwrap().is_none());
        }
        incoming.make_room();
        assert!(incoming.buffer.capacity() <= 2 * MOST_READ_BYTES, "{}", incoming.buffer.capacity());
        assert!(incoming.frame(1 << 20).is_err(), "beyond the limit it is refused by its length");
    }
}
