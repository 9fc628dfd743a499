//! A way to the broker on which answers get lost: every seventh answer to a Produce is swallowed and its connection closed, so that a client
//! does not know whether the broker appended what it sent (known fault B015).
//!
//! The way understands frames as far as it must: lengths, and correlation ids to know which answers belong to Produce. A client that
//! bootstraps here is told this address by the broker (a listener of its own that advertises it), so it never goes another way.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::spawn;

use anyhow::{Context, Result, bail};

/// Which answers are lost.
const EVERY: u64 = 7;

/// The longest frame that is carried.
const FRAME_LIMIT: usize = 100 << 20;

/// Connections at once: more than that is a client gone wild.
const CONNECTIONS: u64 = 1_000;

/// What connections share.
#[derive(Default)]
struct Shared {
    produced: AtomicU64,
    lost: AtomicU64,
    open: AtomicU64,
    closed: AtomicBool,
}

/// The way; it ends when this is dropped.
pub struct Lossy {
    address: SocketAddrV4,
    shared: Arc<Shared>,
}

impl Lossy {
    /// Opens it at an address; port 0 stands for any that is free.
    pub fn open(at: SocketAddrV4, target: SocketAddrV4) -> Result<Self> {
        let listener = TcpListener::bind(at).with_context(|| at.to_string())?;
        let address = SocketAddrV4::new(*at.ip(), listener.local_addr()?.port());
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        spawn(move || {
            for client in listener.incoming() {
                if own.closed.load(Ordering::SeqCst) {
                    return;
                }
                // A connection that does not come about is the client's to open again, as is one while the broker is down.
                let Ok(client) = client else { continue };
                let Ok(broker) = TcpStream::connect(target) else { continue };
                if own.open.fetch_add(1, Ordering::SeqCst) < CONNECTIONS {
                    carry(&client, &broker, &own);
                }
            }
        });
        Ok(Self { address, shared })
    }

    /// Where clients come in.
    pub fn address(&self) -> SocketAddrV4 {
        self.address
    }

    /// How many answers were lost.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::SeqCst)
    }
}

impl Drop for Lossy {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts; if nobody listens any more, it has ended already.
        let _ = TcpStream::connect(self.address);
    }
}

/// The requests of one connection that are Produce and not answered yet, by correlation id.
type Pending = Arc<Mutex<BTreeSet<i32>>>;

/// Carries frames both ways on threads of their own until one side ends.
fn carry(client: &TcpStream, broker: &TcpStream, shared: &Arc<Shared>) {
    let pending = Pending::default();
    let ways = [(client, broker, true), (broker, client, false)];
    for (from, to, requests) in ways {
        let (Ok(mut from), Ok(mut to)) = (from.try_clone(), to.try_clone()) else { continue };
        let (pending, shared) = (Arc::clone(&pending), Arc::clone(shared));
        spawn(move || {
            // However it ends, the other side must see an end, too; it may have seen it already.
            let _ = if requests {
                carry_requests(&mut from, &mut to, &pending)
            } else {
                carry_answers(&mut from, &mut to, &pending, &shared)
            };
            let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
            if requests {
                shared.open.fetch_sub(1, Ordering::SeqCst);
            }
        });
    }
}

fn carry_requests(from: &mut TcpStream, to: &mut TcpStream, pending: &Pending) -> Result<()> {
    loop {
        let frame = frame(from)?;
        // Length, key, version, correlation id. Produce with acks=0 has no answer; no case sends that here.
        if frame[4..6] == [0, 0] {
            let correlation = i32::from_be_bytes(frame[8..12].try_into()?);
            pending.lock().unwrap_or_else(PoisonError::into_inner).insert(correlation);
        }
        to.write_all(&frame)?;
    }
}

fn carry_answers(from: &mut TcpStream, to: &mut TcpStream, pending: &Pending, shared: &Shared) -> Result<()> {
    loop {
        let frame = frame(from)?;
        let correlation = i32::from_be_bytes(frame[4..8].try_into()?);
        if pending.lock().unwrap_or_else(PoisonError::into_inner).remove(&correlation)
            && (shared.produced.fetch_add(1, Ordering::SeqCst) + 1).is_multiple_of(EVERY)
        {
            shared.lost.fetch_add(1, Ordering::SeqCst);
            return Ok(());
        }
        to.write_all(&frame)?;
    }
}

/// The next frame with its length in front.
fn frame(from: &mut TcpStream) -> Result<Vec<u8>> {
    let mut size = [0; 4];
    from.read_exact(&mut size)?;
    let length = usize::try_from(i32::from_be_bytes(size))?;
    if !(8..=FRAME_LIMIT).contains(&length) && length != 4 {
        bail!("a frame of {length} bytes");
    }
    let mut frame = size.to_vec();
    frame.resize(4 + length, 0);
    from.read_exact(&mut frame[4..])?;
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// A broker that answers each request with its correlation id and nothing else.
    fn echo() -> SocketAddrV4 {
        crate::ports::served_by(|mut client| {
            while let Ok(request) = frame(&mut client) {
                if client.write_all(&[&[0, 0, 0, 4], &request[8..12]].concat()).is_err() {
                    return;
                }
            }
        })
    }

    fn ask(to: &mut TcpStream, key: u8, correlation: u8) -> bool {
        to.write_all(&[0, 0, 0, 8, 0, key, 0, 0, 0, 0, 0, correlation]).unwrap();
        frame(to).is_ok_and(|answer| answer[7] == correlation)
    }

    #[test]
    fn every_seventh_answer_to_a_produce_is_lost_with_its_connection() {
        let lossy = Lossy::open(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0), echo()).unwrap();
        let mut answered = Vec::new();
        let mut to = TcpStream::connect(lossy.address()).unwrap();
        for number in 1..=15 {
            // Other requests are neither lost nor counted.
            assert!(ask(&mut to, 3, 100 + number));
            let got = ask(&mut to, 0, number);
            answered.push(got);
            if !got {
                to = TcpStream::connect(lossy.address()).unwrap();
            }
        }
        let lost: Vec<usize> = (1..=15).filter(|number| !answered[number - 1]).collect();
        assert_eq!((lost, lossy.lost()), (vec![7, 14], 2));
    }
}
