//! Bytes of one connection between brokers: frames in, pieces out.
//!
//! Memory follows what has arrived, never what a length claims, and is paid for. Records are slices of the buffer that they
//! were received into, and leave as the slices that they are.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use felix_protocol::frame::{self, FrameError, Split};
use felix_protocol::peer::{self, WrongMagic};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::rustls::pki_types::CertificateDer;

use crate::budget::{Paid, Receiving, SMALL_FRAME_BYTES};

/// Room for one read of small frames.
const READ_BYTES: usize = 64 * 1024;
/// A connection that has brought a frame of this size is given room for as much at once, not more.
const TRUSTED_BYTES: usize = 4 * 1024 * 1024;
/// Behind a frame's missing part no more than this is read along: it would have to be copied.
const READ_ALONG_BYTES: usize = 16 * 1024;
/// A frame with more than this behind it is a long one: that it goes on is a sign of life.
const LONG_FRAME_BYTES: usize = 1 << 20;
/// Pieces that one write hands to the system.
const MOST_PIECES: usize = 64;

/// The way in.
pub type Reader = Box<dyn AsyncRead + Send + Unpin>;
/// The way out.
pub type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// A connection, whatever it is made of.
pub struct Wire {
    /// In.
    pub reader: Reader,
    /// Out.
    pub writer: Writer,
    /// What the dialling side showed, with TLS.
    pub certificate: Option<CertificateDer<'static>>,
}

impl From<TcpStream> for Wire {
    fn from(stream: TcpStream) -> Wire {
        let (reader, writer) = stream.into_split();
        Wire { reader: Box::new(reader), writer: Box::new(writer), certificate: None }
    }
}

/// Why nothing more is read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The peer has closed it.
    #[error("the peer closed the connection")]
    End,
    /// The socket failed.
    #[error(transparent)]
    Socket(#[from] io::Error),
    /// Nothing came for too long.
    #[error("nothing was heard for too long")]
    Silent,
    /// No broker speaks.
    #[error(transparent)]
    Magic(#[from] WrongMagic),
    /// A length that none of our frames has.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// Cuts what is received into frames.
pub struct Frames {
    reader: Reader,
    buffer: BytesMut,
    largest: usize,
    paid: Paid,
    /// How long nothing may come.
    patience: Duration,
}

impl Frames {
    /// Nothing received yet.
    pub fn new(reader: Reader) -> Frames {
        let patience = Duration::from_secs(3600);
        Frames { reader, buffer: BytesMut::new(), largest: 0, paid: Paid::default(), patience }
    }

    /// Whoever sends nothing for so long, be it amid a frame, is gone.
    pub fn patient_for(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// The first bytes of a connection.
    pub async fn magic(&mut self) -> Result<(), ReadError> {
        loop {
            if let Some(magic) = peer::take_magic(&mut self.buffer) {
                return Ok(magic?);
            }
            // What cannot become it is not waited for.
            let differs = self.buffer.iter().zip(peer::MAGIC).any(|(got, wanted)| *got != wanted);
            if differs {
                self.buffer.resize(peer::MAGIC.len(), 0);
                continue;
            }
            self.read(usize::MAX).await?;
        }
    }

    /// The next frame, without its length, and the memory that it holds. Dropped half-way, nothing is lost.
    pub async fn next(&mut self, most: usize, receiving: &Receiving) -> Result<(Bytes, Paid), ReadError> {
        loop {
            let missing = match frame::split(&mut self.buffer, most)? {
                Split::Frame(frame) => {
                    self.largest = self.largest.max(frame.len()).min(TRUSTED_BYTES);
                    return Ok((frame, std::mem::take(&mut self.paid)));
                }
                Split::Missing(missing) => missing,
            };
            let arrived = self.buffer.len();
            let trusted =
                if arrived < frame::LENGTH_BYTES { 0 } else { missing.min(arrived.max(self.largest)) };
            let due = arrived + trusted;
            if due > SMALL_FRAME_BYTES && !receiving.pay(&mut self.paid, due) {
                let more = receiving.wait(due - self.paid.bytes()).await;
                self.paid.add(more);
            }
            let wanted = trusted.max(READ_BYTES);
            if self.buffer.capacity() - arrived < wanted.min(READ_ALONG_BYTES) {
                self.buffer.reserve(wanted);
            }
            self.read(if missing > READ_ALONG_BYTES { missing } else { usize::MAX }).await?;
        }
    }

    async fn read(&mut self, most: usize) -> Result<(), ReadError> {
        if self.buffer.capacity() == self.buffer.len() {
            self.buffer.reserve(READ_BYTES);
        }
        let spare = (self.buffer.capacity() - self.buffer.len()).min(most);
        let mut room = (&mut self.buffer).limit(spare);
        let read = tokio::time::timeout(self.patience, self.reader.read_buf(&mut room)).await;
        let count = read.map_err(|_| ReadError::Silent)??;
        if count == 0 { Err(ReadError::End) } else { Ok(()) }
    }
}

/// Writes all of it. `lives` is called whenever more of a long frame was taken.
pub async fn write(writer: &mut Writer, pieces: Vec<Bytes>, lives: impl Fn()) -> io::Result<()> {
    let mut done = 0;
    let mut pieces: VecDeque<Bytes> = pieces.into_iter().filter(|piece| !piece.is_empty()).collect();
    while !pieces.is_empty() {
        let slices: Vec<IoSlice<'_>> =
            pieces.iter().take(MOST_PIECES).map(|piece| IoSlice::new(piece)).collect();
        let mut sent = writer.write_vectored(&slices).await?;
        if sent == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        done += sent;
        if done > LONG_FRAME_BYTES {
            lives();
        }
        while sent > 0
            && let Some(front) = pieces.front_mut()
        {
            let taken = sent.min(front.len());
            front.advance(taken);
            sent -= taken;
            if front.is_empty() {
                pieces.pop_front();
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(bytes: &[u8]) -> Frames {
        let (mut ours, theirs) = tokio::io::duplex(1 << 20);
        let sent = bytes.to_vec();
        crate::tasks::spawn("test", async move {
            ours.write_all(&sent).await.unwrap();
        });
        Frames::new(Box::new(theirs))
    }

    #[tokio::test]
    async fn a_client_is_told_from_a_peer_by_its_first_byte() {
        let mut client = frames(&[0, 0, 0, 9]);
        assert!(matches!(client.magic().await, Err(ReadError::Magic(_))));
        let mut half = frames(&peer::MAGIC[..5]);
        assert!(matches!(half.magic().await, Err(ReadError::End)));
        let mut whole = frames(&peer::MAGIC);
        assert!(whole.magic().await.is_ok());
    }

    #[tokio::test]
    async fn a_claimed_length_reserves_next_to_nothing_and_a_whole_frame_gives_its_memory_back() {
        let mut bytes = 1_000_000_i32.to_be_bytes().to_vec();
        bytes.extend(vec![7; 100_000]);
        let receiving = Receiving::new(1 << 20);
        let mut half = frames(&bytes);
        assert!(matches!(half.next(1 << 27, &receiving).await, Err(ReadError::End)));
        assert!(half.buffer.capacity() < 500_000, "{}", half.buffer.capacity());
        drop(half);
        bytes.extend(vec![7; 900_000]);
        bytes.extend([0, 0, 0, 1, 9]);
        let mut whole = frames(&bytes);
        let (frame, paid) = whole.next(1 << 27, &receiving).await.unwrap();
        assert!(frame.len() == 1_000_000 && paid.holds());
        drop((frame, paid));
        assert_eq!(whole.next(1 << 27, &receiving).await.unwrap().0, Bytes::from_static(&[9]));
        assert!(!receiving.is_short());
        let mut giant = frames(&[0x7f, 0, 0, 0]);
        assert!(matches!(giant.next(1 << 27, &receiving).await, Err(ReadError::Frame(_))));
    }

    #[tokio::test]
    async fn pieces_arrive_in_order_through_a_narrow_pipe() {
        let (ours, mut theirs) = tokio::io::duplex(7);
        let mut writer: Writer = Box::new(ours);
        let pieces: Vec<Bytes> = (0..200_u8).map(|at| Bytes::from(vec![at; usize::from(at % 5)])).collect();
        let whole: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
        let sent = crate::tasks::spawn("test", async move { write(&mut writer, pieces, || ()).await });
        let mut got = vec![0; whole.len()];
        theirs.read_exact(&mut got).await.unwrap();
        assert!(got == whole && sent.await.unwrap().unwrap().is_ok());
    }
}
