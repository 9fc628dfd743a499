//! Free ports that stay ours while a broker is down.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, bail};

/// Below the kernel's ephemeral range: the outgoing connection of some client must not take the port of a broker that is being
/// restarted.
const FIRST: u32 = 20_000;
const COUNT: u32 = 10_000;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A port on which nothing listens, not handed out before by this process.
pub fn free() -> Result<u16> {
    // Two harnesses at once start at different places, so they hardly ever look at the same port.
    let start = std::process::id().wrapping_mul(97) % COUNT;
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = u16::try_from(FIRST + (start + step) % COUNT)?;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port between {FIRST} and {}", FIRST + COUNT)
}

/// A server on a free port that has each connection served on a thread of its own, for as long as the test runs.
#[cfg(test)]
pub fn served_by(serve: fn(std::net::TcpStream)) -> std::net::SocketAddrV4 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.unwrap();
            std::thread::spawn(move || serve(client));
        }
    });
    std::net::SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)
}
