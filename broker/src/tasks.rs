//! The only place that starts tasks and threads: each has a name, and none dies unnoticed.
//!
//! A panic ends its own task or thread, is logged with the name and counted; the caller decides what it
//! means (a connection closes, a lane halts one partition).

use std::future::Future;
use std::io;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::task::JoinHandle;

static PANICS: AtomicU64 = AtomicU64::new(0);

/// How many tasks and threads ended in a panic since the process began.
pub fn panics() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

/// What a task that panicked leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panicked;

/// What a panic said, as far as it said it in words.
fn words(payload: &(dyn std::any::Any + Send)) -> &str {
    payload
        .downcast_ref::<&'static str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no message)")
}

/// Counts and logs a panic that was caught in `name`.
pub fn report_panic(name: &str, payload: &(dyn std::any::Any + Send)) {
    PANICS.fetch_add(1, Ordering::Relaxed);
    tracing::error!(task = name, panic = words(payload), "a task panicked");
}

/// A future whose panic becomes an error.
struct Caught<F> {
    name: &'static str,
    // Boxed once here, so that no pin projection (and no unsafe code) is needed.
    inner: Pin<Box<F>>,
}

impl<F: Future> Future for Caught<F> {
    type Output = Result<F::Output, Panicked>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let name = self.name;
        // After a panic the future is never polled again: the task ends here.
        match std::panic::catch_unwind(AssertUnwindSafe(|| self.inner.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(payload) => {
                report_panic(name, payload.as_ref());
                Poll::Ready(Err(Panicked))
            }
        }
    }
}

/// Starts a task on the runtime that calls this. Dropping the handle leaves it running.
pub fn spawn<F>(name: &'static str, future: F) -> JoinHandle<Result<F::Output, Panicked>>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let caught = Caught { name, inner: Box::pin(future) };
    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    tokio::spawn(caught)
}

/// Runs `body` on a thread of the runtime that may block. The caller bounds how many there are.
pub fn blocking<T, F>(name: &'static str, body: F) -> JoinHandle<Result<T, Panicked>>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    tokio::task::spawn_blocking(move || {
        std::panic::catch_unwind(AssertUnwindSafe(body)).map_err(|payload| {
            report_panic(name, payload.as_ref());
            Panicked
        })
    })
}

/// Runs `body` here, where it may take long: the other tasks of this thread go on elsewhere meanwhile. The caller bounds
/// how many there are. Only on a runtime of several threads.
pub fn apart<T>(body: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(body)
}

/// Starts a plain thread. A panic in `body` is logged and counted; `join` then returns `Err`.
pub fn thread<T, F>(name: &str, body: F) -> io::Result<std::thread::JoinHandle<Result<T, Panicked>>>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let named = name.to_owned();
    std::thread::Builder::new().name(named.clone()).stack_size(THREAD_STACK_BYTES).spawn(move || {
        std::panic::catch_unwind(AssertUnwindSafe(body)).map_err(|payload| {
            report_panic(&named, payload.as_ref());
            Panicked
        })
    })
}

/// Stack of every thread. Only what is touched becomes resident, so this bounds depth, not memory.
pub const THREAD_STACK_BYTES: usize = 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panicking_task_is_counted_and_hurts_nobody_else() {
        let before = panics();
        let bad = spawn("bad", async { panic!("on purpose") });
        let good = spawn("good", async { 7 });
        assert_eq!(bad.await.unwrap(), Err::<(), _>(Panicked));
        assert_eq!(good.await.unwrap(), Ok(7));
        assert!(panics() > before);
    }

    #[test]
    fn a_panicking_thread_is_counted() {
        let before = panics();
        let handle = thread("bad-thread", || -> () { panic!("on purpose") }).unwrap();
        assert_eq!(handle.join().unwrap(), Err(Panicked));
        assert!(panics() > before);
    }
}
