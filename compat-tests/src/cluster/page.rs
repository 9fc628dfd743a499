//! The pages of a broker's HTTP listener.

use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};

/// Status and text of a page.
pub fn get(address: SocketAddrV4, path: &str, patience: Duration) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address.into(), patience)?;
    stream.set_read_timeout(Some(patience))?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no page")?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).context("no status")?;
    Ok((status, body.to_owned()))
}

/// A number on a metrics page: the sum over all labels.
pub fn metric(page: &str, name: &str) -> Option<f64> {
    let mut found = page.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let value = match rest.strip_prefix('{') {
            Some(labelled) => labelled.split_once("} ")?.1,
            None => rest.strip_prefix(' ')?,
        };
        value.trim().parse::<f64>().ok()
    });
    let first = found.next()?;
    Some(found.fold(first, |sum, value| sum + value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_found_by_their_whole_name() {
        let page = "# HELP a b\nab 7\na 1\nb{x=\"1\"} 2\nb{x=\"2\"} 3.5\n";
        assert_eq!(metric(page, "a"), Some(1.0));
        assert_eq!(metric(page, "b"), Some(5.5));
        assert_eq!(metric(page, "c"), None);
    }
}
