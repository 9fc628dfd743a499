//! What brokers say to each other (`docs/replication.md`): the frames of a peer connection.
//!
//! ```text
//!   connection   MAGIC, then frames; the first one each way is a hello
//!   frame        length (4) | kind (2) | correlation (8) | the rest of the body
//!   structure    length (4) | fields in the order of their invention
//! ```
//!
//! Every body begins with the correlation id, so that a frame of an unknown kind can be refused alone
//! ([`Message::UnsupportedKind`]) while the connection goes on. Every structure says its length: what a newer peer
//! has added at its end is passed over, so two brokers one version apart keep their lane. Nothing is
//! allocated before the bytes that it is for are known to be there, and record bytes are slices of the frame both ways.
//!
//! Deliberately absent: what follows from a message (`felix-replication`), and the socket.

use bytes::{Bytes, BytesMut};
use thiserror::Error;

use crate::frame::LENGTH_BYTES;

pub mod bootstrap;
pub mod hello;
pub mod rebuild;
pub mod ship;
pub mod standing;
mod wire;

use bootstrap::Bootstrap;
use hello::Hello;
use rebuild::Rebuild;
use ship::{Answers, Ship};
use standing::{StandingAnswers, StandingQuery};
pub use wire::PeerError;
use wire::{In, Out};

/// The first bytes of a connection, both ways. Anything else closes it: a client, say, that took this port for its own.
pub const MAGIC: [u8; 8] = *b"\xffFELIX\r\n";

/// Bytes of a frame before what its kind says.
const HEAD_BYTES: usize = 2 + 8;

/// Numbers of the kinds of frames. Never used again for another meaning.
mod kind {
    pub const HELLO: u16 = 1;
    pub const UNSUPPORTED: u16 = 2;
    pub const SHIP: u16 = 10;
    pub const ANSWERS: u16 = 11;
    pub const BOOTSTRAP: u16 = 12;
    pub const REBUILD: u16 = 13;
    pub const STANDING_QUERY: u16 = 14;
    pub const STANDING_ANSWERS: u16 = 15;
}

/// One message. Requests are answered under their correlation id; ship, bootstrap and rebuild all by [`Answers`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Who speaks: the first message each way.
    Hello(Hello),
    /// The receiver does not know that kind of frame. Only that frame is refused.
    UnsupportedKind(u16),
    /// The leader's log, and where it stands.
    Ship(Ship),
    /// What followers say to any of the three.
    Answers(Answers),
    /// Begin a log where the leader's begins.
    Bootstrap(Bootstrap),
    /// Give up the copy and begin anew.
    Rebuild(Rebuild),
    /// How far are you, should somebody be promoted?
    StandingQuery(StandingQuery),
    /// So far.
    StandingAnswers(StandingAnswers),
}

impl Message {
    /// The number of its kind.
    pub fn kind(&self) -> u16 {
        match self {
            Message::Hello(_) => kind::HELLO,
            Message::UnsupportedKind(_) => kind::UNSUPPORTED,
            Message::Ship(_) => kind::SHIP,
            Message::Answers(_) => kind::ANSWERS,
            Message::Bootstrap(_) => kind::BOOTSTRAP,
            Message::Rebuild(_) => kind::REBUILD,
            Message::StandingQuery(_) => kind::STANDING_QUERY,
            Message::StandingAnswers(_) => kind::STANDING_ANSWERS,
        }
    }
}

/// A frame that was taken in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// One that is known here.
    Message(Message),
    /// One of another version: to be answered with [`Message::UnsupportedKind`].
    Unknown(u16),
}

/// Reads one whole frame, without its length.
pub fn decode(frame: Bytes) -> Result<(u64, Received), PeerError> {
    let mut input = In::new(frame);
    let number = input.u16("kind")?;
    let correlation = input.u64("correlation id")?;
    let message = match number {
        kind::HELLO => Message::Hello(Hello::take(&mut input)?),
        kind::UNSUPPORTED => Message::UnsupportedKind(input.u16("unsupported kind")?),
        kind::SHIP => Message::Ship(Ship::take(&mut input)?),
        kind::ANSWERS => Message::Answers(Answers::take(&mut input)?),
        kind::BOOTSTRAP => Message::Bootstrap(Bootstrap::take(&mut input)?),
        kind::REBUILD => Message::Rebuild(Rebuild::take(&mut input)?),
        kind::STANDING_QUERY => Message::StandingQuery(StandingQuery::take(&mut input)?),
        kind::STANDING_ANSWERS => Message::StandingAnswers(StandingAnswers::take(&mut input)?),
        unknown => return Ok((correlation, Received::Unknown(unknown))),
    };
    Ok((correlation, Received::Message(message)))
}

/// Writes one frame, its length in front: pieces for a vectored write, the records among them as they were given.
pub fn encode(correlation: u64, message: &Message) -> Result<Vec<Bytes>, PeerError> {
    written(correlation, message, Out::new())
}

fn written(correlation: u64, message: &Message, mut out: Out) -> Result<Vec<Bytes>, PeerError> {
    out.u16(message.kind());
    out.u64(correlation);
    match message {
        Message::Hello(hello) => hello.put(&mut out)?,
        Message::UnsupportedKind(number) => out.u16(*number),
        Message::Ship(ship) => ship.put(&mut out)?,
        Message::Answers(answers) => answers.put(&mut out)?,
        Message::Bootstrap(bootstrap) => bootstrap.put(&mut out)?,
        Message::Rebuild(rebuild) => rebuild.put(&mut out)?,
        Message::StandingQuery(query) => query.put(&mut out)?,
        Message::StandingAnswers(answers) => answers.put(&mut out)?,
    }
    out.finish()
}

/// Looks at the first bytes of a connection: `None` while too few are there, else takes them off.
pub fn take_magic(buffer: &mut BytesMut) -> Option<Result<(), WrongMagic>> {
    let first = *buffer.first_chunk::<{ MAGIC.len() }>()?;
    if first != MAGIC {
        return Some(Err(WrongMagic(first)));
    }
    let _ = buffer.split_to(MAGIC.len());
    Some(Ok(()))
}

/// Whoever connected is no peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the connection begins with {0:02x?}, which no broker sends")]
pub struct WrongMagic([u8; MAGIC.len()]);

/// Bytes that a frame of these pieces takes on the wire.
pub fn frame_bytes(pieces: &[Bytes]) -> usize {
    pieces.iter().map(Bytes::len).sum()
}

/// What a length field and head take: the least that a frame has.
pub const LEAST_FRAME_BYTES: usize = LENGTH_BYTES + HEAD_BYTES;

#[cfg(test)]
mod tests;
