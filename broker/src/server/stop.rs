//! The end of a broker.
//!
//! ```text
//!  draining       where others share the store: what they can lead they are given, and clients are served all the while
//!  closing        nothing new is taken, what is under way is answered
//!  resigning      what nobody else can lead is given up by this broker's own word
//!  flushing       every copy is flushed, and noted as closed properly
//!  fenced         the session is over in the store too, so that neither the others nor the next life wait for it
//! ```
//!
//! A broker alone with its store begins with the second and leaves out the third: there is nobody to be told. Each step has a
//! limit, and all of them together one more.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use felix_cluster::moves;

use super::{End, LISTENING_FILE, Server};
use crate::tasks;

/// How long others have to take over what they can lead.
const HAND_OVER: Duration = Duration::from_secs(12);
/// How long connections have to finish what is under way.
const LAST_ANSWERS: Duration = Duration::from_secs(3);
/// A stop that takes longer is given up: the next start recovers as after a crash.
const LONGEST_STOP: Duration = Duration::from_secs(25);

impl Server {
    /// Ends everything, in bounded time.
    pub(super) async fn stop(self, end: End) -> ExitCode {
        let code = match &end {
            End::Asked => ExitCode::SUCCESS,
            End::Trouble(why) => {
                tracing::error!(%why, "the broker must stop");
                ExitCode::FAILURE
            }
        };
        self.ready.store(false, Ordering::Release);
        // It may not be there yet.
        let _ = std::fs::remove_file(self.dir.path().join(LISTENING_FILE));
        match tokio::time::timeout(LONGEST_STOP, self.wind_down(end)).await {
            Ok(()) => {
                tracing::info!("stopped");
                code
            }
            Err(_) => {
                tracing::error!("stopping took too long and is given up; the next start recovers");
                ExitCode::FAILURE
            }
        }
    }

    async fn wind_down(self, end: End) {
        if matches!(end, End::Asked) {
            self.hand_over().await;
        }
        self.node.closing.cancel();
        self.last_answers().await;
        let Server { node, following, peers, is_shared, .. } = self;
        let is_suspect = node.partitions.fatal().borrow().is_some();
        // What the disk holds is unknown after trouble: then nothing is noted as clean.
        let clean = matches!(end, End::Asked);
        let partitions = Arc::clone(&node.partitions);
        let stopped = tasks::blocking("stop", move || {
            following.stop(|| match (clean, is_shared) {
                (true, true) => partitions.resign_and_stop(),
                (true, false) => partitions.stop(),
                (false, _) => {}
            });
        });
        // A panic was logged and counted where it happened.
        let _ = stopped.await;
        // Until here others may have asked how far the copies are, or what they lack.
        if let Some(peers) = peers {
            peers.stop();
        }
        let ended = if is_suspect { node.agent.stop_suspect().await } else { node.agent.stop().await };
        if let Err(error) = ended {
            tracing::warn!(%error, "the session's end could not be noted");
        }
    }

    /// Says that this broker is going away, and waits until others lead what they can and count on it no more.
    async fn hand_over(&self) {
        let agent = &self.node.agent;
        if let Err(error) = agent.drain().await {
            tracing::warn!(%error, "the planned stop could not be announced");
            return;
        }
        if !self.is_shared {
            return;
        }
        let before = agent.drained();
        let (node, session) = (self.node.id, agent.session());
        let done = agent.wait_for(HAND_OVER, |view| moves::drain(view, node, session).is_done()).await;
        let after = agent.drained();
        if !done {
            let (movable, follows) = (after.movable, after.follows);
            tracing::warn!(
                movable,
                follows,
                "not everything was handed over in time; others wait for this broker's end"
            );
        }
        let handed_over = before.leads.saturating_sub(after.leads);
        tracing::info!(
            handed_over,
            resigning = after.leads,
            "others lead what they can; the rest waits for this broker"
        );
    }

    /// Connections end by themselves once what is under way is answered.
    async fn last_answers(&self) {
        if tokio::time::timeout(LAST_ANSWERS, self.census.empty()).await.is_err() {
            tracing::info!(connections = self.census.count(), "connections that did not end are dropped");
        }
    }
}
