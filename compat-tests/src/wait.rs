//! Waiting for a condition, with a bound. Nothing else in the harness may wait for time to pass.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// The pause between two looks at a condition that nothing announces (a port, a process of somebody else's, a file).
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Looks at `probe` until it gives a value, fails, or `bound` has passed.
pub fn until<T>(what: &str, bound: Duration, mut probe: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + bound;
    loop {
        if let Some(value) = probe()? {
            return Ok(value);
        }
        if Instant::now() >= deadline {
            bail!("{what}: not within {bound:?}");
        }
        #[expect(clippy::disallowed_methods, reason = "the one pause between two looks at a condition")]
        std::thread::sleep(LOOK_AGAIN);
    }
}
