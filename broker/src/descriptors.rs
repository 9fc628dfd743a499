//! How the process's file descriptors are shared out, so that neither connections nor cold logs can take what the
//! others need: a flush that finds no descriptor would end the broker.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open log files are not worth more than this, however many there may be.
const MOST_FILES: u64 = 2048;
/// Fewer would be opened and closed all the time.
const LEAST_FILES: u64 = 16;
/// For everything that is neither: the control store, the table of copies, listeners, threads' own, the libraries'.
const BESIDE: u64 = 64;
/// A broker that can be asked nothing is of no use.
const LEAST_CONNECTIONS: u64 = 16;

/// Who may have how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    /// Log files kept open. As many again may be open because they have bytes that are not flushed.
    pub files: usize,
    /// Connections.
    pub connections: usize,
}

impl Descriptors {
    /// Lets the process have as many as it may, and shares them out.
    pub fn claim() -> Descriptors {
        let limit = getrlimit(Resource::Nofile);
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        let current = match setrlimit(Resource::Nofile, raised) {
            Ok(()) => limit.maximum,
            Err(error) => {
                tracing::warn!(%error, "the limit on open files could not be raised");
                limit.current
            }
        };
        Descriptors::of(current.unwrap_or(u64::MAX))
    }

    /// The shares of `limit`.
    fn of(limit: u64) -> Descriptors {
        let files = (limit / 8).clamp(LEAST_FILES, MOST_FILES);
        let connections = limit.saturating_sub(2 * files + BESIDE).max(LEAST_CONNECTIONS);
        let count = |share: u64| usize::try_from(share).unwrap_or(usize::MAX);
        Descriptors { files: count(files), connections: count(connections) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_fit_the_limit() {
        for limit in [200_u64, 256, 1024, 4096, 20_000, 1 << 20] {
            let shares = Descriptors::of(limit);
            let sum = 2 * shares.files as u64 + BESIDE + shares.connections as u64;
            assert!(sum <= limit, "{limit}: {shares:?}");
            assert!(shares.connections as u64 >= limit / 4, "{limit}: {shares:?}");
        }
        assert_eq!(Descriptors::of(u64::MAX).files, 2048);
        assert_eq!(Descriptors::of(10), Descriptors { files: 16, connections: 16 });
    }
}
