//! The way out: answers wait in order and leave in vectored writes.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;

/// Pieces that one write hands to the system.
const MOST_PIECES: usize = 64;

/// The sending half of one connection.
#[derive(Default)]
pub struct Outgoing {
    pieces: VecDeque<Bytes>,
    bytes: usize,
}

impl Outgoing {
    /// Appends a piece.
    pub fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.bytes += piece.len();
            self.pieces.push_back(piece);
        }
    }

    /// Bytes that the peer has not taken yet.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether all is sent.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Writes once; ready with the number of bytes taken. To be called when there is something to send.
    pub fn poll_send(
        &mut self,
        stream: &mut TcpStream,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<usize>> {
        let mut slices = [IoSlice::new(&[]); MOST_PIECES];
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
            *slice = IoSlice::new(piece);
            count += 1;
        }
        let sent = ready!(Pin::new(stream).poll_write_vectored(context, &slices[..count]))?;
        if sent == 0 {
            return Poll::Ready(Err(std::io::ErrorKind::WriteZero.into()));
        }
        self.advance(sent);
        Poll::Ready(Ok(sent))
    }

    fn advance(&mut self, mut sent: usize) {
        self.bytes -= sent;
        while let Some(front) = self.pieces.front_mut() {
            if sent < front.len() {
                front.advance(sent);
                return;
            }
            sent -= front.len();
            self.pieces.pop_front();
        }
    }

    /// Gives memory back that a burst of answers has left.
    pub fn shrink(&mut self) {
        if self.pieces.is_empty() && self.pieces.capacity() > 0 {
            self.pieces = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_writes_leave_the_rest_in_order() {
        let mut outgoing = Outgoing::default();
        for piece in ["abc", "", "de", "f"] {
            outgoing.push(Bytes::from_static(piece.as_bytes()));
        }
        assert_eq!(outgoing.bytes(), 6);
        outgoing.advance(4);
        assert_eq!(outgoing.pieces, [&b"e"[..], b"f"].map(Bytes::from_static));
        outgoing.advance(2);
        assert!(outgoing.is_empty());
        assert_eq!(outgoing.bytes(), 0);
    }
}
