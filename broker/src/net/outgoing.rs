//! The way out: answers wait in order and leave in vectored writes.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;

use crate::budget::answers::Held;

/// Pieces that one write hands to the system.
const MOST_PIECES: usize = 64;

/// The sending half of one connection.
#[derive(Default)]
pub struct Outgoing {
    pieces: VecDeque<Piece>,
    /// The memory of all pieces.
    held: Option<Held>,
}

/// A part of an answer.
struct Piece {
    bytes: Bytes,
    /// What is given back when all of it is sent.
    held: usize,
}

impl Outgoing {
    /// Appends an answer, which holds that memory. Each piece gives its own bytes back, the last one the rest.
    pub fn push(&mut self, answer: impl IntoIterator<Item = Bytes>, held: Held) {
        let mut rest = held.bytes();
        for bytes in answer {
            if !bytes.is_empty() {
                let held = bytes.len().min(rest);
                rest -= held;
                self.pieces.push_back(Piece { bytes, held });
            }
        }
        if let Some(last) = self.pieces.back_mut() {
            last.held += rest;
            match &mut self.held {
                Some(all) => all.absorb(held),
                None => self.held = Some(held),
            }
        }
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
            *slice = IoSlice::new(&piece.bytes);
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
        let mut freed = 0;
        while let Some(front) = self.pieces.front_mut() {
            if sent < front.bytes.len() {
                front.bytes.advance(sent);
                break;
            }
            sent -= front.bytes.len();
            freed += front.held;
            self.pieces.pop_front();
        }
        if let Some(held) = &mut self.held {
            held.give_back(freed);
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
    use crate::budget::answers::Answers;

    #[test]
    fn partial_writes_leave_the_rest_in_order_and_give_back_what_has_left() {
        let account = Answers::new(1 << 20).account();
        let mut outgoing = Outgoing::default();
        let pieces = |texts: &[&'static str]| -> Vec<Bytes> {
            texts.iter().map(|text| Bytes::from_static(text.as_bytes())).collect()
        };
        outgoing.push(pieces(&["abc", "", "de"]), account.count(5));
        // The last piece pins four bytes more than it has.
        outgoing.push(pieces(&["f", "g"]), account.count(6));
        assert_eq!(account.held(), 11);
        outgoing.advance(4);
        let left: Vec<_> = outgoing.pieces.iter().map(|piece| piece.bytes.clone()).collect();
        assert_eq!(left, pieces(&["e", "f", "g"]));
        assert_eq!(account.held(), 8);
        outgoing.advance(2);
        assert_eq!(account.held(), 5);
        outgoing.advance(1);
        assert!(outgoing.is_empty());
        assert_eq!(account.held(), 0);
        outgoing.push(pieces(&[""]), account.count(7));
        assert_eq!(account.held(), 0, "nothing will be sent");
    }
}
