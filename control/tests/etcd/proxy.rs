//! A way to a server that falls silent: requests arrive, answers do not.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// See the module. Ends when it is dropped.
pub struct Proxy {
    pub address: SocketAddr,
    silent: Arc<AtomicBool>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    pub async fn to(port: u16) -> Proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let silent = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        let mute = Arc::clone(&silent);
        tasks.spawn(async move {
            let mut ways = JoinSet::new();
            while let Ok((here, _)) = listener.accept().await {
                let Ok(there) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await else { continue };
                let (from_client, to_client) = here.into_split();
                let (from_server, to_server) = there.into_split();
                ways.spawn(pump(from_client, to_server, None));
                ways.spawn(pump(from_server, to_client, Some(Arc::clone(&mute))));
            }
        });
        Proxy { address, silent, _tasks: tasks }
    }

    /// Whether answers are swallowed from now on. A connection on which some were is of no use any more.
    pub fn set_silent(&self, silent: bool) {
        self.silent.store(silent, Ordering::SeqCst);
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, silent: Option<Arc<AtomicBool>>) {
    let mut buffer = vec![0; 64 << 10];
    let mut swallowed = false;
    while let Ok(count) = from.read(&mut buffer).await {
        swallowed |= silent.as_ref().is_some_and(|silent| silent.load(Ordering::SeqCst));
        if count == 0 || (!swallowed && to.write_all(&buffer[..count]).await.is_err()) {
            return;
        }
    }
}
