//! Listeners: binding, accepting, and the limits on how many connections there are.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use felix_cluster::config::BrokerConfig;
use felix_protocol::time::Clock;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::connection::{Connection, Ended};
use super::{Census, Place};
use crate::handlers::Client;
use crate::node::Node;
use crate::quota::{Kind, LONGEST_CONNECT};
use crate::tasks;

/// A peer that vanished without a word is noticed within two minutes of silence.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 4;

/// A listener that is bound.
pub struct Bound {
    /// The name by which its clients are told where to connect.
    pub name: Arc<str>,
    /// Where it really listens.
    pub address: SocketAddr,
    listener: TcpListener,
}

/// Why an address cannot be listened on.
#[derive(Debug, Error)]
#[error("{host}:{port} cannot be listened on: {error}")]
pub struct BindError {
    host: String,
    port: u16,
    error: io::Error,
}

impl BindError {
    /// Whether somebody else listens there.
    pub fn is_in_use(&self) -> bool {
        self.error.kind() == io::ErrorKind::AddrInUse
    }
}

/// How a listener's socket is set up. What is `None` is left to the system.
#[derive(Clone, Copy, Debug)]
pub struct SocketSetup {
    /// `socket.listen.backlog.size`: connections that the system keeps until they are accepted.
    pub backlog: i32,
    /// `socket.send.buffer.bytes`
    pub send_buffer: Option<usize>,
    /// `socket.receive.buffer.bytes`
    pub receive_buffer: Option<usize>,
}

impl SocketSetup {
    /// What a config says of sockets.
    pub fn of(config: &BrokerConfig) -> SocketSetup {
        let bytes = |size: Option<u64>| {
            // Kafka's "leave it to the system" is -1; nobody means a buffer of nothing.
            size.filter(|size| *size > 0).map(|size| usize::try_from(size).unwrap_or(usize::MAX))
        };
        SocketSetup {
            backlog: i32::try_from(config.net.listen_backlog).unwrap_or(i32::MAX),
            send_buffer: bytes(config.net.send_buffer_bytes),
            receive_buffer: bytes(config.net.receive_buffer_bytes),
        }
    }
}

/// Binds `host:port`; an empty host is every address of the machine.
pub fn bind(name: &str, host: &str, port: u16, setup: SocketSetup) -> Result<Bound, BindError> {
    let listen = |address| listen(address, setup);
    let fail = |error| BindError { host: host.to_owned(), port, error };
    let listener = if host.is_empty() {
        // One socket serves both families where the machine has IPv6.
        listen(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))
            .or_else(|error| {
                if error.kind() == io::ErrorKind::AddrInUse {
                    return Err(error);
                }
                listen(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))
            })
            .map_err(fail)?
    } else {
        let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "the name has no address");
        let mut found = None;
        for address in (host, port).to_socket_addrs().map_err(fail)? {
            match listen(address) {
                Ok(listener) => {
                    found = Some(listener);
                    break;
                }
                Err(error) => last = error,
            }
        }
        found.ok_or_else(|| fail(last))?
    };
    let address = listener.local_addr().map_err(fail)?;
    Ok(Bound { name: Arc::from(name), address, listener })
}

fn listen(address: SocketAddr, setup: SocketSetup) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    // Accepted connections inherit these, and the window's scale is settled before they are accepted.
    if let Some(size) = setup.send_buffer {
        socket.set_send_buffer_size(size)?;
    }
    if let Some(size) = setup.receive_buffer {
        socket.set_recv_buffer_size(size)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(setup.backlog)?;
    TcpListener::from_std(socket.into())
}

impl Bound {
    /// The listener for another protocol than Kafka's.
    pub fn into_listener(self) -> TcpListener {
        self.listener
    }
}

/// Accepts until the broker stops.
pub async fn serve(bound: Bound, node: Arc<Node>, census: Arc<Census>) {
    loop {
        let accepted = tokio::select! {
            accepted = bound.listener.accept() => accepted,
            () = node.closing.cancelled() => return,
        };
        match accepted {
            Ok((stream, peer)) => admit(stream, peer, &bound.name, &node, &census),
            Err(error) => {
                // Out of file descriptors, mostly: those who are connected go on, new ones wait in the
                // system's queue.
                tracing::warn!(listener = %bound.name, %error, "a connection cannot be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

fn admit(stream: TcpStream, peer: SocketAddr, name: &Arc<str>, node: &Arc<Node>, census: &Arc<Census>) {
    // A client on a socket of both families is known by its IPv4 address.
    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    let limits = node.limits();
    let from_one = limits.max_connections_from(peer.ip());
    let place = match census.enter(peer.ip(), limits.max_connections, from_one) {
        Ok(place) => place,
        Err(refused) => {
            node.metrics.connections_refused.with_label_values(&[refused.reason()]).inc();
            tracing::debug!(%peer, reason = refused.reason(), "a connection was turned away");
            return;
        }
    };
    let wait = turn(peer, node);
    if wait > LONGEST_CONNECT {
        node.metrics.connections_refused.with_label_values(&[Kind::Connection.name()]).inc();
        tracing::debug!(%peer, ?wait, "a connection was turned away: there are too many in a short time");
        return;
    }
    if let Err(error) = prepare(&stream) {
        tracing::debug!(%peer, %error, "a connection was gone before it began");
        return;
    }
    node.metrics.connections_accepted.inc();
    let client = Client { listener: Arc::clone(name), peer, asks: Notify::new() };
    tasks::spawn("connection", attend(stream, client, Arc::clone(node), place, wait));
}

/// How long a connection waits for its turn, if its address has more of them than it may.
fn turn(peer: SocketAddr, node: &Node) -> Duration {
    if !node.quotas.limits(Kind::Connection) {
        return Duration::ZERO;
    }
    let wait = node.quotas.connect(&node.view(), peer.ip(), node.clock.now());
    if !wait.is_zero() {
        node.metrics.throttled.with_label_values(&[Kind::Connection.name()]).inc();
    }
    wait
}

async fn attend(stream: TcpStream, client: Client, node: Arc<Node>, place: Place, wait: Duration) {
    let peer = client.peer;
    node.metrics.connections.inc();
    // Counted down even if a handler panics and unwinds through here.
    let open = OpenConnection(&node, place);
    if !wait.is_zero() {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = node.closing.cancelled() => return,
        }
    }
    let ended = Connection::new(stream, Arc::clone(&node), client).run().await;
    node.metrics.connections_closed.with_label_values(&[ended.reason()]).inc();
    match ended {
        Ended::Refused(reason) => {
            if let Some(withheld) = open.1.census.refused.may_tell(node.clock.now()) {
                tracing::info!(%peer, %reason, withheld, "closed a connection");
            }
        }
        Ended::Socket(error) => tracing::debug!(%peer, %error, "a connection failed"),
        Ended::Peer | Ended::Idle | Ended::Stopping => {
            tracing::debug!(%peer, reason = ended.reason(), "a connection ended");
        }
    }
}

struct OpenConnection<'a>(&'a Node, Place);

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.metrics.connections.dec();
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_AFTER)
        .with_interval(KEEPALIVE_EVERY)
        .with_retries(KEEPALIVE_PROBES);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}
