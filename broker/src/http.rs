//! The HTTP listener: `/metrics`, `/status`, `/healthz`, `/readyz`, `/replication/halted`. Only GET, one request a connection,
//! everything bounded.

pub mod halted;
pub mod probe;
pub mod status;

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::tasks;

/// Requests served at one time; more wait in the system's queue.
const MAX_CONNECTIONS: usize = 16;
/// Longest request head.
const MAX_HEAD_BYTES: usize = 8 * 1024;
/// How long one request may take, from its first byte to its last.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// What the pages say.
pub trait Pages: Send + Sync + 'static {
    /// Whether clients are served.
    fn ready(&self) -> bool;
    /// What keeps the process from working, if anything does.
    fn sick(&self) -> Option<String>;
    /// The metrics in text form.
    fn metrics(&self) -> String;
    /// The halted copies as JSON.
    fn halted(&self) -> String;
    /// What is known of the cluster as JSON; `query` says what of it.
    fn status(&self, query: &str) -> String;
}

/// Serves until `closing`.
pub async fn serve(listener: TcpListener, pages: Arc<dyn Pages>, closing: CancellationToken) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = closing.cancelled() => return,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the metrics listener cannot accept");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let pages = Arc::clone(&pages);
        tasks::spawn("http", async move {
            // A peer that is too slow or goes away is its own loss.
            let _ = tokio::time::timeout(TIME_LIMIT, answer(stream, pages.as_ref())).await;
            drop(place);
        });
    }
}

async fn answer(mut stream: TcpStream, pages: &dyn Pages) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        if head.len() >= MAX_HEAD_BYTES {
            return reply(&mut stream, "431 Request Header Fields Too Large", "the request is too long\n")
                .await;
        }
        if stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    if method != "GET" {
        return reply(&mut stream, "405 Method Not Allowed", "only GET\n").await;
    }
    match path {
        "/metrics" => reply(&mut stream, "200 OK", &pages.metrics()).await,
        "/status" => send(&mut stream, "200 OK", JSON, &pages.status(query)).await,
        "/replication/halted" => send(&mut stream, "200 OK", JSON, &pages.halted()).await,
        "/healthz" => match pages.sick() {
            None => reply(&mut stream, "200 OK", "ok\n").await,
            Some(why) => reply(&mut stream, "503 Service Unavailable", &format!("{why}\n")).await,
        },
        "/readyz" if pages.ready() => reply(&mut stream, "200 OK", "ready\n").await,
        "/readyz" => reply(&mut stream, "503 Service Unavailable", "not ready\n").await,
        _ => {
            reply(
                &mut stream,
                "404 Not Found",
                "there is /metrics, /status, /healthz, /readyz and /replication/halted\n",
            )
            .await
        }
    }
}

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const JSON: &str = "application/json";

async fn reply(stream: &mut TcpStream, status: &str, body: &str) -> std::io::Result<()> {
    send(stream, status, TEXT, body).await
}

async fn send(stream: &mut TcpStream, status: &str, kind: &str, body: &str) -> std::io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed;

    impl Pages for Fixed {
        fn ready(&self) -> bool {
            false
        }
        fn sick(&self) -> Option<String> {
            None
        }
        fn metrics(&self) -> String {
            "a 1\n".to_owned()
        }
        fn halted(&self) -> String {
            halted::page(&[], |_| None)
        }
        fn status(&self, query: &str) -> String {
            format!("{{\"asked\": \"{query}\"}}\n")
        }
    }

    async fn ask(request: &str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let closing = CancellationToken::new();
        let server = tasks::spawn("test", serve(listener, Arc::new(Fixed), closing.clone()));
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        closing.cancel();
        server.await.unwrap().unwrap();
        answer
    }

    #[tokio::test]
    async fn the_few_paths_answer_and_nothing_else() {
        assert!(ask("GET /metrics HTTP/1.1\r\n\r\n").await.ends_with("\r\n\r\na 1\n"));
        assert!(ask("GET /healthz?x=1 HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 200"));
        assert!(ask("GET /readyz HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 503"));
        let halted = ask("GET /replication/halted HTTP/1.1\r\n\r\n").await;
        assert!(halted.contains("application/json") && halted.ends_with("\r\n\r\n[]\n"), "{halted}");
        assert!(ask("GET /status?all HTTP/1.1\r\n\r\n").await.ends_with("{\"asked\": \"all\"}\n"));
        assert!(ask("GET / HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 404"));
        assert!(ask("POST /metrics HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 405"));
        let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(2 * MAX_HEAD_BYTES));
        assert!(ask(&long).await.starts_with("HTTP/1.1 431"));
    }
}
