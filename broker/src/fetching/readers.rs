//! Threads that wait for the disk in place of a connection: few, so that a storm of cold reads cannot fill memory
//! with threads, and only alive while there is work.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::tasks;

/// The threads.
#[derive(Clone)]
pub struct Readers {
    places: Arc<Semaphore>,
}

impl Readers {
    /// At most so many at one time.
    pub fn new(threads: usize) -> Readers {
        Readers { places: Arc::new(Semaphore::new(threads.max(1))) }
    }

    /// Runs `read` on one of them; `None` if it panicked or the broker stops.
    pub async fn run<T: Send + 'static>(
        &self,
        name: &'static str,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let place = Arc::clone(&self.places).acquire_owned().await.ok()?;
        tasks::blocking(name, move || {
            let result = read();
            drop(place);
            result
        })
        .await
        .ok()?
        .ok()
    }
}
