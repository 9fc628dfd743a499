//! What handlers of administration share.

use std::time::Duration;

use felix_control::agent::AdminError;
use felix_protocol::error_code::ErrorCode;
use felix_protocol::time::Clock;

use crate::node::Node;
use crate::quota::USER;
use crate::wire_code::WireCode;

pub mod configs;
pub mod producer_ids;
#[cfg(test)]
pub mod testing;
pub mod topics;

/// Why something was not done, as a client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Kafka's code.
    pub code: ErrorCode,
    /// What else there is to say.
    pub message: Option<String>,
}

impl Refused {
    /// With a text of its own.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Refused {
        Refused { code, message: Some(message.into()) }
    }

    /// What the cluster said no to, or could not write down.
    pub fn from_admin<R: std::error::Error + WireCode>(error: &AdminError<R>) -> Refused {
        Refused::new(error.code(), error.to_string())
    }
}

impl From<ErrorCode> for Refused {
    fn from(code: ErrorCode) -> Refused {
        Refused { code, message: None }
    }
}

/// The longest that an answer is held back, whatever a client asks for.
const LONGEST: Duration = Duration::from_secs(60);

/// How long a client wants to wait for the end of what it asked for.
pub fn patience(timeout_ms: i32) -> Duration {
    Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0)).min(LONGEST)
}

/// Counts partitions that a client makes or removes; refuses that to one who made too many, if it understands (`strict`).
pub fn count_changes(node: &Node, client_id: &str, partitions: usize, strict: bool) -> Result<(), Refused> {
    let (view, now) = (node.view(), node.clock.now());
    if node.quotas.change(&view, (USER, client_id), partitions, strict, now) {
        return Ok(());
    }
    Err(Refused::new(ErrorCode::ThrottlingQuotaExceeded, "The throttling quota has been exceeded."))
}

/// Bits of the operations that everyone may do on a topic, as long as nobody restricts anything: read, write,
/// create, delete, alter, describe, describe and alter configs.
pub const TOPIC_OPERATIONS: i32 = bits(&[3, 4, 5, 6, 7, 8, 10, 11]);
/// The same for the cluster: create, alter, describe, cluster action, describe and alter configs, idempotent write.
pub const CLUSTER_OPERATIONS: i32 = bits(&[5, 7, 8, 9, 10, 11, 12]);

/// Kafka's numbers of operations as a set.
const fn bits(operations: &[u32]) -> i32 {
    let mut set = 0;
    let mut at = 0;
    while at < operations.len() {
        set |= 1 << operations[at];
        at += 1;
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_kafkas_numbers() {
        // What an Apache Kafka node without an authorizer answers.
        assert_eq!(TOPIC_OPERATIONS, 3576);
        assert_eq!(CLUSTER_OPERATIONS, 8096);
    }
}
