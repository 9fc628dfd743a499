//! The first words of a connection: the magic, and who speaks. Both sides check them before anything else is said.

use bytes::Bytes;
use felix_protocol::ids::BrokerId;
use felix_protocol::peer::hello::{Disagree, Hello};
use felix_protocol::peer::{self, Message, PeerError, Received};
use thiserror::Error;
use tokio::io::AsyncWriteExt;

use super::directory::{Directory, Target};
use super::tls;
use super::wire::{Frames, ReadError, Wire, Writer, write};
use crate::budget::Receiving;

/// More is no hello, of whatever version.
const MOST_HELLO_BYTES: usize = 4 * 1024;

/// Why two brokers do not go on talking.
#[derive(Debug, Error)]
pub enum Refused {
    /// Nothing, or not enough, was received.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// What was received is no frame of ours.
    #[error(transparent)]
    Frame(#[from] PeerError),
    /// It did not begin with a hello.
    #[error("the peer did not say who it is")]
    NoHello,
    /// What only answers say was said without a question.
    #[error("the peer answers what nobody asked")]
    NoRequest,
    /// Another cluster's broker, or another broker, or another language.
    #[error(transparent)]
    Disagree(#[from] Disagree),
    /// The certificate names somebody else.
    #[error("the peer says that it is broker {0}, its certificate does not: it lacks the DNS name {name}", name = tls::name_of(*.0))]
    Certificate(BrokerId),
    /// A broker, or a life of it, that this one does not know or takes for dead.
    #[error("broker {0} does not live under that session, as far as this broker knows")]
    Session(BrokerId),
    /// Nothing was said for too long.
    #[error("the peer took too long to say who it is")]
    Silent,
}

impl Refused {
    /// A metric's label.
    pub fn reason(&self) -> &'static str {
        match self {
            Refused::Read(ReadError::Magic(_)) => "no_broker",
            Refused::Read(_) => "socket",
            Refused::Frame(_) | Refused::NoHello | Refused::NoRequest => "frame",
            Refused::Disagree(Disagree::Version { .. }) => "version",
            Refused::Disagree(Disagree::Cluster { .. }) => "cluster",
            Refused::Disagree(Disagree::Node { .. }) | Refused::Certificate(_) => "identity",
            Refused::Session(_) => "session",
            Refused::Silent => "silent",
        }
    }
}

async fn say(writer: &mut Writer, hello: &Hello) -> Result<(), Refused> {
    let mut pieces = vec![Bytes::from_static(&peer::MAGIC)];
    pieces.extend(peer::encode(0, &Message::Hello(hello.clone()))?);
    write(writer, pieces, || ()).await.map_err(ReadError::from)?;
    writer.flush().await.map_err(ReadError::from)?;
    Ok(())
}

async fn hear(frames: &mut Frames, receiving: &Receiving) -> Result<Hello, Refused> {
    frames.magic().await?;
    let (frame, _) = frames.next(MOST_HELLO_BYTES, receiving).await?;
    match peer::decode(frame)?.1 {
        Received::Message(Message::Hello(hello)) => Ok(hello),
        Received::Message(_) | Received::Unknown(_) => Err(Refused::NoHello),
    }
}

/// The dialling side's: says who this is, and hears whether it is `peer` in the life that was meant.
pub async fn dial(
    wire: Wire,
    own: &Hello,
    peer: BrokerId,
    target: &Target,
    receiving: &Receiving,
) -> Result<(Frames, Writer), Refused> {
    let Wire { reader, mut writer, .. } = wire;
    let mut frames = Frames::new(reader);
    say(&mut writer, own).await?;
    let hello = hear(&mut frames, receiving).await?;
    hello.agree(&own.cluster, Some(peer))?;
    if hello.session != target.session {
        return Err(Refused::Session(peer));
    }
    Ok((frames, writer))
}

/// The accepting side's: hears who it is, and answers if it may be. The view may learn of a session a moment later than
/// the broker that registered it.
pub async fn accept(
    wire: Wire,
    directory: &dyn Directory,
    receiving: &Receiving,
) -> Result<(Hello, Frames, Writer), Refused> {
    let Wire { reader, mut writer, certificate } = wire;
    let mut frames = Frames::new(reader);
    let hello = hear(&mut frames, receiving).await?;
    let own = directory.hello();
    if let Err(disagree) = hello.agree(&own.cluster, None) {
        // The other side is told enough to say the same.
        say(&mut writer, &own).await?;
        return Err(disagree.into());
    }
    if certificate.is_some_and(|shown| !tls::is_for(&shown, hello.node)) {
        return Err(Refused::Certificate(hello.node));
    }
    let mut changed = directory.changed();
    while !directory.lives(hello.node, hello.session) {
        if changed.changed().await.is_err() {
            return Err(Refused::Session(hello.node));
        }
    }
    say(&mut writer, &directory.hello()).await?;
    Ok((hello, frames, writer))
}
