//! The other side of the listener: how a page is asked for ([`fetch`]), and how `felix health` asks a broker, from a container
//! that has neither shell nor curl.
//!
//! Ready counts, not health: a halted copy needs a person and not a restart, and everything else is served meanwhile.
//! So what `/healthz` complains of is said, and changes nothing.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// How long each step may take: connecting, sending, each part of the answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// Longest answer that is read.
const MAX_ANSWER_BYTES: u64 = 64 * 1024;

/// What the broker that listens there says of itself; an error is the reason why clients are not served.
pub fn ask(host: &str, port: u16) -> Result<String, String> {
    let host = dialled(host);
    let unreachable = |error: io::Error| format!("nothing answers at {host}:{port}: {error}");
    let (ready, said) = get(host, port, "/readyz").map_err(unreachable)?;
    if !ready {
        return Err(said);
    }
    let (healthy, why) = get(host, port, "/healthz").map_err(unreachable)?;
    Ok(if healthy { said } else { format!("{said}, but {why}") })
}

/// Every address of the machine is none to dial; the loopback is among them.
fn dialled(host: &str) -> &str {
    match host {
        "" | "0.0.0.0" => "127.0.0.1",
        "::" => "::1",
        other => other,
    }
}

/// Whether the page is fine, and its first line.
fn get(host: &str, port: u16, path: &str) -> io::Result<(bool, String)> {
    let answer = fetch((host, port), host, path, PATIENCE, MAX_ANSWER_BYTES)?;
    parse(&answer).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "that is not a Felix broker"))
}

/// One page with its head, at most `limit` bytes of both. Each step (connecting, sending, each part of the answer) may take as
/// long as `patience`.
pub fn fetch(
    server: impl ToSocketAddrs,
    name: &str,
    path: &str,
    patience: Duration,
    limit: u64,
) -> io::Result<String> {
    let mut stream = connect(server, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(limit).read_to_string(&mut answer)?;
    Ok(answer)
}

/// The first of the server's addresses that takes a connection.
fn connect(server: impl ToSocketAddrs, patience: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in server.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, patience) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn parse(answer: &str) -> Option<(bool, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?;
    let line = body.lines().next().unwrap_or_default().to_owned();
    match status {
        "200" => Some((true, line)),
        "503" => Some((false, line)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_apart() {
        let page = |status: &str, body: &str| parse(&format!("HTTP/1.1 {status}\r\nX: y\r\n\r\n{body}"));
        assert_eq!(page("200 OK", "ready\n"), Some((true, "ready".to_owned())));
        let sick = page("503 Service Unavailable", "2 copies are halted\n");
        assert_eq!(sick, Some((false, "2 copies are halted".to_owned())));
        assert_eq!(page("404 Not Found", "there is nothing\n"), None);
        assert_eq!(parse("SSH-2.0"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn every_address_is_dialled_at_the_loopback() {
        assert_eq!(
            ["", "0.0.0.0", "::", "felix-1"].map(dialled),
            ["127.0.0.1", "127.0.0.1", "::1", "felix-1"]
        );
    }
}
