//! A way for one link that can be made slow, deaf in one direction, or half-open, connection by connection; cuts of the network do that to
//! whole nodes.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::spawn;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Pieces on their way in one direction of a connection; more wait in the sender's socket.
const ON_THE_WAY: usize = 256;
/// Connections at once: more than that is somebody gone wild.
const CONNECTIONS: usize = 2_000;
/// How long the target may take to accept.
const PATIENCE: Duration = Duration::from_secs(10);

/// A direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From whoever connects to the target.
    There,
    /// Back.
    Back,
}

#[derive(Default)]
struct Way {
    delay_us: AtomicU64,
    lost: AtomicBool,
}

/// A connection and whether its client has been left alone with it.
struct Carried {
    client: TcpStream,
    target: TcpStream,
    orphan: Arc<AtomicBool>,
}

#[derive(Default)]
struct Shared {
    there: Way,
    back: Way,
    refusing: AtomicBool,
    closed: AtomicBool,
    carried: Mutex<Vec<Carried>>,
}

impl Shared {
    fn way(&self, direction: Direction) -> &Way {
        match direction {
            Direction::There => &self.there,
            Direction::Back => &self.back,
        }
    }

    fn carried(&self) -> MutexGuard<'_, Vec<Carried>> {
        self.carried.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The way; ends with all its connections when it is dropped.
pub struct Proxy {
    address: SocketAddrV4,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Opens it at an address of the harness's own.
    pub fn open(at: Ipv4Addr, target: SocketAddrV4) -> Result<Self> {
        let listener = TcpListener::bind((at, 0)).with_context(|| at.to_string())?;
        let address = SocketAddrV4::new(at, listener.local_addr()?.port());
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        spawn(move || {
            for client in listener.incoming() {
                if own.closed.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(client) = client else { continue };
                let own = Arc::clone(&own);
                // Connecting may take long; the next one does not wait for that.
                spawn(move || accept(client, target, &own));
            }
        });
        Ok(Self { address, shared })
    }

    /// Where to connect to.
    pub fn address(&self) -> SocketAddrV4 {
        self.address
    }

    /// What goes in this direction arrives so much later, from now on.
    pub fn delay(&self, direction: Direction, by: Duration) {
        let us = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        self.shared.way(direction).delay_us.store(us, Ordering::SeqCst);
    }

    /// What goes in this direction is lost, and nobody is told. A connection that has lost something carries nothing more in that
    /// direction, even afterwards: TCP never leaves a hole.
    pub fn lose(&self, direction: Direction, lost: bool) {
        self.shared.way(direction).lost.store(lost, Ordering::SeqCst);
    }

    /// The target's side of every connection ends; the clients are not told and may go on sending to nobody.
    pub fn half_open(&self) {
        for carried in self.shared.carried().iter() {
            carried.orphan.store(true, Ordering::SeqCst);
            // It may have ended by itself.
            let _ = carried.target.shutdown(Shutdown::Both);
        }
    }

    /// Ends every connection, for both sides.
    pub fn end_all(&self) {
        for carried in self.shared.carried().drain(..) {
            // They may have ended by themselves.
            let _ = (carried.client.shutdown(Shutdown::Both), carried.target.shutdown(Shutdown::Both));
        }
    }

    /// New connections are ended at once, as long as this lasts.
    pub fn refuse(&self, refusing: bool) {
        self.shared.refusing.store(refusing, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        self.end_all();
        // Wakes the thread that accepts; if nobody listens any more, it has ended already.
        let _ = TcpStream::connect(self.address);
    }
}

fn accept(client: TcpStream, target: SocketAddrV4, shared: &Arc<Shared>) {
    if shared.refusing.load(Ordering::SeqCst) || shared.carried().len() >= CONNECTIONS {
        return;
    }
    let Ok(target) = TcpStream::connect_timeout(&target.into(), PATIENCE) else { return };
    // Delays are ours to make, not the kernel's; where it cannot be said they are only less exact.
    let _ = (client.set_nodelay(true), target.set_nodelay(true));
    let orphan = Arc::new(AtomicBool::new(false));
    for direction in [Direction::There, Direction::Back] {
        let (Ok(client), Ok(target)) = (client.try_clone(), target.try_clone()) else { return };
        let (from, to) = match direction {
            Direction::There => (client, target),
            Direction::Back => (target, client),
        };
        let (shared, orphan) = (Arc::clone(shared), Arc::clone(&orphan));
        spawn(move || carry(from, to, direction, &shared, &orphan));
    }
    let mut all = shared.carried();
    all.retain(|carried| carried.client.peer_addr().is_ok());
    all.push(Carried { client, target, orphan });
    drop(all);
    if shared.closed.load(Ordering::SeqCst) {
        shared.carried().clear();
    }
}

/// Carries one direction of a connection until it ends.
fn carry(
    mut from: TcpStream,
    mut to: TcpStream,
    direction: Direction,
    shared: &Shared,
    orphan: &Arc<AtomicBool>,
) {
    let (sender, pieces) = sync_channel::<(Instant, Vec<u8>)>(ON_THE_WAY);
    let (Ok(other_from), Ok(other_to)) = (from.try_clone(), to.try_clone()) else { return };
    let left_alone = Arc::clone(orphan);
    spawn(move || {
        for (due, piece) in pieces {
            let wait = due.saturating_duration_since(Instant::now());
            #[expect(clippy::disallowed_methods, reason = "a delay is what was asked for")]
            std::thread::sleep(wait);
            if to.write_all(&piece).is_err() && !left_alone.load(Ordering::SeqCst) {
                break;
            }
        }
        if !left_alone.load(Ordering::SeqCst) {
            // However it ended, both sides must see an end; they may have seen it already.
            let _ = (other_from.shutdown(Shutdown::Both), other_to.shutdown(Shutdown::Both));
        }
    });
    let way = shared.way(direction);
    let mut buffer = vec![0; 64 << 10];
    let mut lost = false;
    loop {
        let count = match from.read(&mut buffer) {
            Ok(count) if count > 0 => count,
            Ok(_) | Err(_) => return,
        };
        lost |= way.lost.load(Ordering::SeqCst) || orphan.load(Ordering::SeqCst);
        let due = Instant::now() + Duration::from_micros(way.delay_us.load(Ordering::SeqCst));
        if !lost && sender.send((due, buffer[..count].to_vec())).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends back what it gets.
    fn echo() -> SocketAddrV4 {
        crate::ports::served_by(|mut client| {
            let mut byte = [0];
            while client.read(&mut byte).is_ok_and(|count| count == 1) && client.write_all(&byte).is_ok() {}
        })
    }

    fn connect(proxy: &Proxy) -> TcpStream {
        let stream = TcpStream::connect(proxy.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        stream
    }

    /// Whether a byte comes back; an error is an end of the connection.
    fn answered(stream: &mut TcpStream) -> std::io::Result<bool> {
        stream.write_all(&[7])?;
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(0) => Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(byte == [7]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    #[test]
    fn it_carries_delays_and_loses() {
        let proxy = Proxy::open(Ipv4Addr::LOCALHOST, echo()).unwrap();
        let mut to = connect(&proxy);
        assert!(answered(&mut to).unwrap());
        for direction in [Direction::There, Direction::Back] {
            proxy.delay(direction, Duration::from_millis(60));
            let began = Instant::now();
            assert!(answered(&mut to).unwrap());
            assert!(began.elapsed() >= Duration::from_millis(60), "{direction:?}");
            proxy.delay(direction, Duration::ZERO);
        }
        for direction in [Direction::There, Direction::Back] {
            let mut to = connect(&proxy);
            assert!(answered(&mut to).unwrap());
            proxy.lose(direction, true);
            assert!(!answered(&mut to).unwrap(), "{direction:?}");
            proxy.lose(direction, false);
            assert!(!answered(&mut to).unwrap(), "{direction:?}: what is lost leaves no hole");
            assert!(answered(&mut connect(&proxy)).unwrap());
        }
    }

    #[test]
    fn a_half_open_connection_is_silent_and_an_ended_one_is_not() {
        let proxy = Proxy::open(Ipv4Addr::LOCALHOST, echo()).unwrap();
        let mut to = connect(&proxy);
        assert!(answered(&mut to).unwrap());
        proxy.half_open();
        assert!(!answered(&mut to).unwrap());
        assert!(answered(&mut connect(&proxy)).unwrap(), "a new one is whole");
        let mut to = connect(&proxy);
        assert!(answered(&mut to).unwrap());
        proxy.end_all();
        assert!(answered(&mut to).is_err());
        proxy.refuse(true);
        assert!(answered(&mut connect(&proxy)).is_err());
    }
}
