//! What a raw case works with: the broker, connections to it, names that no other case uses.

use std::time::Duration;

use anyhow::Result;

use super::conn::Connection;
use crate::target::{Broker, Origin};

/// The patience of a case's connections.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a case does not apply; returned as an error, reported as a skip.
#[derive(Debug)]
pub struct Skipped(pub String);

impl std::fmt::Display for Skipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skipped {}

/// What a case works with.
pub struct Stage {
    /// The broker; runs when a case begins.
    pub broker: Broker,
    /// For cases that need a broker of their own.
    pub origin: Origin,
    /// Long cases in full.
    pub full: bool,
    prefix: String,
    scratch: tempfile::TempDir,
}

impl Stage {
    /// A stage on a running broker.
    pub fn new(broker: Broker, origin: Origin, full: bool) -> Result<Self> {
        let scratch = crate::guard::temporary("stage-")?;
        Ok(Self { broker, origin, full, prefix: String::new(), scratch })
    }

    /// Called before each case.
    pub fn begin(&mut self, case: &str) {
        self.prefix = case.to_owned();
    }

    /// A name for a topic or group of this case.
    pub fn name(&self, what: &str) -> String {
        format!("{}-{what}", self.prefix)
    }

    /// A topic id as Kafka writes it: base 64 for URLs, without padding.
    pub fn text_id(&self, id: [u8; 16]) -> String {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let mut text = String::new();
        for three in id.chunks(3) {
            let bits = three.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte))
                << (8 * (3 - three.len()));
            for at in 0..=three.len() {
                text.push(char::from(DIGITS[(bits >> (18 - 6 * at) & 63) as usize]));
            }
        }
        text
    }

    /// A folder for files of this case, removed with the stage.
    pub fn scratch(&self) -> Result<std::path::PathBuf> {
        let folder = self.scratch.path().join(&self.prefix);
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// A new connection.
    pub fn connect(&self) -> Result<Connection> {
        Connection::open(self.broker.address(), PATIENCE)
    }
}

/// Milliseconds since 1970.
pub fn now_ms() -> i64 {
    let age = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(age.as_millis()).unwrap_or(i64::MAX)
}

/// Ends a case as skipped.
pub fn skip<T>(reason: &str) -> Result<T> {
    Err(Skipped(reason.to_owned()).into())
}

/// The timestamp that most records of cases bear: one for a whole run, and recent, so that neither retention nor the expiry of producers
/// comes into play.
pub fn time() -> i64 {
    static TIME: std::sync::OnceLock<i64> = std::sync::OnceLock::new();
    *TIME.get_or_init(now_ms)
}
