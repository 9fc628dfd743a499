//! One thing that somebody wants written: decided from the view, decided again when another write came first.

use std::panic::{AssertUnwindSafe, catch_unwind};

use felix_cluster::decision::Decision;
use felix_cluster::state::Revision;
use felix_cluster::view::View;

use super::ControlError;

/// A limit on every loop: a key that is changed so often in between has a fault behind it.
const ATTEMPTS: u32 = 64;

/// See the module. `decide` may be called several times before a decision is committed, so it has no effects.
pub(crate) trait Job: Send {
    /// What to write now. `is_current`: the view has all that was written before the job was given.
    fn decide(&mut self, view: &View, is_current: bool) -> Decided;
    /// The decision was committed, or lost against another write. Returns whether the job is over.
    fn settled(&mut self, landed: bool, revision: Revision) -> bool;
    /// It will not be tried again.
    fn fail(&mut self, error: ControlError);
}

/// What came of a job.
pub(crate) enum Decided {
    /// Nothing is to be written, and the answer was given.
    Answered,
    /// This is to be written.
    Write(Decision),
    /// The answer would be no, and the view may be behind.
    Doubted,
}

/// What a job's decision function says.
pub(crate) enum Step<R> {
    /// There is nothing to write; this is the answer.
    Done(R),
    /// It cannot be done, by what the view knows. Others may have written what the view has not heard of, and whoever asks may have heard
    /// of it from them: brokers that joined, a topic that another broker has just created. So this is the answer once the view
    /// is current.
    Refused(R),
    /// This is to be written, and that is then the answer, given the revision at which it landed.
    Write(Decision, Box<dyn FnOnce(Revision) -> R + Send>),
}

type Decide<R> = Box<dyn FnMut(&View) -> Step<R> + Send>;
type Reply<R> = Box<dyn FnOnce(Result<R, ControlError>) + Send>;
type Answer<R> = Box<dyn FnOnce(Revision) -> R + Send>;

/// A job made of two functions.
pub(crate) struct Wanted<R> {
    decide: Decide<R>,
    answer: Option<Answer<R>>,
    reply: Option<Reply<R>>,
    attempts: u32,
}

impl<R: Send + 'static> Wanted<R> {
    /// `decide` says what to write; `reply` is called once, on the control thread, and must not wait.
    pub(crate) fn boxed(
        decide: impl FnMut(&View) -> Step<R> + Send + 'static,
        reply: impl FnOnce(Result<R, ControlError>) + Send + 'static,
    ) -> Box<dyn Job> {
        Box::new(Wanted { decide: Box::new(decide), answer: None, reply: Some(Box::new(reply)), attempts: 0 })
    }

    fn reply(&mut self, answer: Result<R, ControlError>) {
        if let Some(reply) = self.reply.take() {
            reply(answer);
        }
    }
}

impl<R: Send + 'static> Job for Wanted<R> {
    fn decide(&mut self, view: &View, is_current: bool) -> Decided {
        match (self.decide)(view) {
            Step::Refused(_) if !is_current => Decided::Doubted,
            Step::Done(answer) | Step::Refused(answer) => {
                self.reply(Ok(answer));
                Decided::Answered
            }
            Step::Write(decision, answer) => {
                self.answer = Some(answer);
                Decided::Write(decision)
            }
        }
    }

    fn settled(&mut self, landed: bool, revision: Revision) -> bool {
        if landed && let Some(answer) = self.answer.take() {
            self.reply(Ok(answer(revision)));
            return true;
        }
        self.attempts += 1;
        if self.attempts == ATTEMPTS {
            self.reply(Err(ControlError::Contended(ATTEMPTS)));
            return true;
        }
        false
    }

    fn fail(&mut self, error: ControlError) {
        self.reply(Err(error));
    }
}

/// Whoever waits is told even when the loop ends without a word.
impl<R> Drop for Wanted<R> {
    fn drop(&mut self) {
        if let Some(reply) = self.reply.take() {
            reply(Err(ControlError::Stopped("its loop is over".to_owned())));
        }
    }
}

/// A job's own code panicked; it was told so.
pub(super) struct Panicked;

/// Runs a job's code: a panic in it ends that job alone. The panic itself is logged where panics are.
pub(super) fn guarded<T>(job: &mut dyn Job, run: impl FnOnce(&mut dyn Job) -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(|| run(job))).map_err(|_| {
        // Whoever waits may panic too.
        let _ = catch_unwind(AssertUnwindSafe(|| job.fail(ControlError::Broken)));
        Panicked
    })
}
