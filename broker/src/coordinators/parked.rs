//! Who waits for an answer of a partition's groups.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use felix_coordinator::{Reply, Token};
use tokio::sync::oneshot;

use super::Unavailable;
use super::host::Host;

type Sender = oneshot::Sender<Result<Reply, Unavailable>>;

/// The clients that wait, by token. Bounded by what connections may have under way.
#[derive(Default)]
pub(super) struct Parked {
    next: u64,
    waiting: BTreeMap<Token, Sender>,
}

impl Parked {
    /// A new client. Tokens are never used twice.
    pub(super) fn register(&mut self, host: &Arc<Host>, group: &Arc<str>) -> (Token, Asked) {
        self.next += 1;
        let token = Token(self.next);
        let (sender, receiver) = oneshot::channel();
        self.waiting.insert(token, sender);
        (token, Asked { receiver, place: Some((Arc::clone(host), Arc::clone(group), token)) })
    }

    /// Answers a client, if it is still there.
    pub(super) fn answer(&mut self, token: Token, answer: Result<Reply, Unavailable>) {
        if let Some(sender) = self.waiting.remove(&token) {
            // Its connection may end at this very moment.
            let _ = sender.send(answer);
        }
    }

    /// Whether the client still waited.
    pub(super) fn forget(&mut self, token: Token) -> bool {
        self.waiting.remove(&token).is_some()
    }

    /// Answers everybody who waits, but for those whose answer is on its way.
    pub(super) fn refuse_all(&mut self, error: Unavailable, on_their_way: &BTreeSet<Token>) {
        let (keep, refused): (BTreeMap<Token, Sender>, BTreeMap<Token, Sender>) =
            std::mem::take(&mut self.waiting)
                .into_iter()
                .partition(|(token, _)| on_their_way.contains(token));
        self.waiting = keep;
        for sender in refused.into_values() {
            let _ = sender.send(Err(error));
        }
    }

    /// Whether anybody waits.
    pub(super) fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}

/// The answer to come. Dropping it before tells the group that the client is gone.
#[must_use = "dropping it gives the request up"]
pub struct Asked {
    receiver: oneshot::Receiver<Result<Reply, Unavailable>>,
    /// Where the client waits; empty once it was answered.
    place: Option<(Arc<Host>, Arc<str>, Token)>,
}

impl Future for Asked {
    type Output = Result<Reply, Unavailable>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let poll = Pin::new(&mut self.receiver).poll(context);
        // A host that vanishes without an answer leads no more.
        poll.map(|answer| {
            self.place = None;
            answer.unwrap_or(Err(Unavailable::NotCoordinator))
        })
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some((host, group, token)) = self.place.take() {
            host.gone(&group, token);
        }
    }
}
