//! Listener lists in Kafka's syntax: `NAME://host:port`, several separated by commas.

use std::fmt;

/// One listener, to bind or to advertise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The listener's name, in capitals.
    pub name: String,
    /// Host or address without brackets; empty: every address of the machine.
    pub host: String,
    /// Port; 0 asks the system for a free one.
    pub port: u16,
}

/// An IPv6 address needs brackets beside a port.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "{}://[{}]:{}", self.name, self.host, self.port)
        } else {
            write!(f, "{}://{}:{}", self.name, self.host, self.port)
        }
    }
}

/// What a list is for: an advertised address must be one that a client can dial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Binding.
    Bind,
    /// Telling clients.
    Advertise,
}

const SYNTAX: &str = "must be NAME://host:port, several separated by commas, e.g. PLAINTEXT://127.0.0.1:9092";

/// Parses a list; the error says what is allowed.
pub fn parse_endpoints(text: &str, wanted: Use) -> Result<Vec<Endpoint>, String> {
    let mut all: Vec<Endpoint> = Vec::new();
    for part in text.split(',') {
        let endpoint = parse_endpoint(part.trim(), wanted)?;
        if all.iter().any(|other| other.name == endpoint.name) {
            return Err(format!("the name {} appears twice; each listener needs its own", endpoint.name));
        }
        if wanted == Use::Bind
            && endpoint.port != 0
            && all.iter().any(|other| other.port == endpoint.port && other.host == endpoint.host)
        {
            return Err(format!("{} is the address of two listeners; each needs its own", endpoint.port));
        }
        all.push(endpoint);
    }
    Ok(all)
}

fn parse_endpoint(text: &str, wanted: Use) -> Result<Endpoint, String> {
    let (name, address) = text.split_once("://").ok_or(SYNTAX)?;
    let name = name.to_ascii_uppercase();
    if name.is_empty() || !name.bytes().all(|letter| letter.is_ascii_alphanumeric() || letter == b'_') {
        return Err(SYNTAX.to_owned());
    }
    if name.starts_with("SASL_") || name == "SSL" {
        return Err(format!("{name} is not supported by this version; use PLAINTEXT or a name of your own"));
    }
    let (host, port) = split_host_port(address).ok_or(SYNTAX)?;
    if wanted == Use::Advertise {
        if host.is_empty() || host == "0.0.0.0" || host == "::" {
            return Err(format!("clients cannot connect to \"{host}\"; advertise a host they can reach"));
        }
        if port == 0 {
            return Err("clients cannot connect to port 0; advertise a real port".to_owned());
        }
    }
    Ok(Endpoint { name, host: host.to_owned(), port })
}

/// Splits `host:port` or `[v6]:port`.
fn split_host_port(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok()?;
    if let Some(inner) = host.strip_prefix('[') {
        let inner = inner.strip_suffix(']')?;
        inner.parse::<std::net::Ipv6Addr>().ok()?;
        return Some((inner, port));
    }
    if host.contains([':', '/', ' ']) { None } else { Some((host, port)) }
}

/// Splits a plain `host:port`.
pub fn split_plain(text: &str) -> Result<(&str, u16), String> {
    match split_host_port(text) {
        Some((host, port)) if !host.is_empty() => Ok((host, port)),
        Some(_) | None => Err("must be host:port, e.g. 127.0.0.1:9644".to_owned()),
    }
}

/// Whether only this machine can connect to that host. A name other than the usual one may be anybody's.
pub fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}
