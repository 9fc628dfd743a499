//! The stores that need no other process, held to the suite. etcd is held to it by `compat-tests`, which starts one.

#![expect(clippy::unwrap_used, reason = "it is a test")]

use std::path::PathBuf;

use felix_control::store::embedded::Embedded;
use felix_control::store::memory::Server;
use felix_storage::disk::mem::MemDisk;
use felix_storage::disk::os::OsDisk;

#[path = "store/suite.rs"]
mod suite;

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

#[test]
fn the_embedded_store_on_a_disk_in_memory() {
    block_on(suite::all(async || Embedded::open(MemDisk::new(), "/".as_ref()).unwrap()));
}

#[test]
fn the_embedded_store_on_a_real_disk() {
    let folder = tempfile::tempdir().unwrap();
    let made = std::cell::Cell::new(0);
    block_on(suite::all(async || {
        made.set(made.get() + 1);
        let directory: PathBuf = folder.path().join(made.get().to_string());
        std::fs::create_dir(&directory).unwrap();
        Embedded::open(OsDisk, &directory).unwrap()
    }));
}

#[test]
fn the_store_in_memory() {
    block_on(suite::all(async || Server::new().connect()));
}

/// As with etcd, others write to the same store all the time.
#[test]
fn the_store_in_memory_with_others_writing() {
    block_on(suite::all(async || {
        let server = Server::new();
        for _ in 0..10 {
            server.write_elsewhere();
        }
        let store = server.connect();
        store.link().set_page(7);
        store
    }));
}
