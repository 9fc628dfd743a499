//! Turns for large requests that are not about records: lists of thousands of topics, groups or configs.
//!
//! Such a request keeps a processor for long, and its answer may be a hundred times as large as it. Few of them are
//! under way at one time, and none begins while memory for answers is short: those who do not read theirs lose it
//! within seconds. So what all of them hold stays below the limit of all answers and a few answers more, however
//! many connections ask.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::answers::Answers;

/// Large requests under way at one time.
const PLACES: usize = 4;

/// See the module.
#[derive(Clone)]
pub struct Turns {
    places: Arc<Semaphore>,
    answers: Answers,
}

/// A place, given back when dropped.
pub type Turn = Option<OwnedSemaphorePermit>;

impl Turns {
    pub(super) fn new(answers: Answers) -> Turns {
        Turns { places: Arc::new(Semaphore::new(PLACES)), answers }
    }

    /// Waits for a place, and for memory. First come first served.
    pub async fn take(&self) -> Turn {
        // The semaphore is never closed.
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        self.answers.enough().await;
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll<F: Future>(future: &mut std::pin::Pin<Box<F>>) -> Option<F::Output> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        }
    }

    #[test]
    fn few_go_at_one_time_and_none_while_answers_are_not_read() {
        let answers = Answers::new(1000);
        let turns = Turns::new(answers.clone());
        let mut taken: Vec<Turn> = (0..PLACES).map(|_| poll(&mut Box::pin(turns.take())).unwrap()).collect();
        let mut next = Box::pin(turns.take());
        assert!(poll(&mut next).is_none(), "all places are taken");
        let deaf = answers.account().count(900);
        drop(taken.pop());
        assert!(poll(&mut next).is_none(), "nobody reads");
        let other = answers.account().count(10);
        drop(other);
        assert!(poll(&mut next).is_none(), "still nobody");
        drop(deaf);
        assert!(poll(&mut next).is_some());
    }
}
