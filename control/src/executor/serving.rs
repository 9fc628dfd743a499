//! The executor's loop: settles what is decided, keeps the session, waits for what comes next, and stops in order.

use std::sync::Arc;
use std::time::Duration;

use felix_cluster::heartbeat::Lost;
use tokio::sync::mpsc;

use super::{Command, ControlError, Executor, Last, Over, told};
use crate::membership::EnterError;
use crate::store::{Batch, Position, Store, StoreError, Watch};

/// How long to wait before looking at a store again that did not answer.
const RETRY: Duration = Duration::from_millis(500);
/// Jobs taken in before the next transaction; they are answered together.
const JOBS_AT_ONCE: usize = 16_384;

impl<S: Store> Executor<S> {
    /// Serves until told to stop, or until nobody is left to tell it, or until the store fails for good.
    pub(crate) async fn serve(mut self, mut commands: mpsc::UnboundedReceiver<Command>) -> Result<(), Over> {
        let mut is_silent = false;
        loop {
            let mut settled = self.settle().await;
            if self.is_recovered() {
                return Err(Over::Recovered);
            }
            if settled.is_ok() {
                settled = self.keep_session().await?;
            }
            match settled {
                Ok(()) if is_silent => {
                    is_silent = false;
                    tracing::info!("the control store answers again");
                }
                Ok(()) => {}
                Err(ref error @ (StoreError::Unavailable(ref what) | StoreError::Unknown(ref what))) => {
                    // Once an outage, not once a try.
                    if !std::mem::replace(&mut is_silent, true) {
                        tracing::warn!(%what, "the control store does not answer");
                    }
                    for mut job in self.jobs.drain(..) {
                        job.fail(told(error));
                    }
                }
                Err(StoreError::Compacted(_)) => {}
                Err(
                    error @ (StoreError::Failed(_) | StoreError::Damaged(_) | StoreError::WentBack { .. }),
                ) => {
                    return Err(error.into());
                }
            }
            let mut next = match self.woken(&mut commands, settled.is_ok()).await {
                Woken::Command(command) => command,
                Woken::Told(told) => {
                    self.told(told);
                    continue;
                }
                Woken::Later => continue,
            };
            loop {
                match next {
                    None => return Ok(()),
                    Some(Command::Stop(last, reply)) => {
                        let done = self.stop(last).await;
                        // Nobody waiting is no problem: the store is closed either way.
                        let _ = reply.send(done);
                        return Ok(());
                    }
                    Some(Command::Job(job)) => self.jobs.push(job),
                }
                next = match commands.try_recv() {
                    Ok(command) if self.jobs.len() < JOBS_AT_ONCE => Some(command),
                    Ok(Command::Job(job)) => {
                        self.jobs.push(job);
                        break;
                    }
                    Ok(stop @ Command::Stop(..)) => Some(stop),
                    Err(_) => break,
                };
            }
        }
    }

    /// Waits for something to do.
    async fn woken(&mut self, commands: &mut mpsc::UnboundedReceiver<Command>, is_settled: bool) -> Woken {
        let Executor { watch, sessions, view, controller, .. } = self;
        let told = async {
            match watch {
                Some(watch) if is_settled => watch.next().await,
                Some(_) | None => std::future::pending().await,
            }
        };
        let sessions = async {
            match sessions {
                Some(sessions) => sessions.woken(view, controller.next_tick()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            command = commands.recv() => Woken::Command(command),
            told = told => Woken::Told(told),
            () = sessions, if is_settled => Woken::Later,
            () = tokio::time::sleep(RETRY), if !is_settled => Woken::Later,
        }
    }

    /// Something was written by another process, or the watch has to begin anew.
    fn told(&mut self, told: Result<Arc<Batch>, StoreError>) {
        match told {
            Ok(batch) => self.apply(&batch),
            Err(error) => {
                tracing::debug!(%error, "the control watch begins anew");
                self.watch = None;
            }
        }
    }

    /// Registers anew where the own session is over, and reads everything anew from time to time.
    async fn keep_session(&mut self) -> Result<Result<(), StoreError>, Over> {
        let Some(sessions) = &mut self.sessions else { return Ok(Ok(())) };
        let current = self.published.lease().session();
        let lost = sessions.lost.take().filter(|lost| lost.session == current);
        if sessions.is_relist_due() {
            self.watch = None;
            if let Some(membership) = &mut self.membership {
                membership.remember_revision(self.view.revision());
            }
        }
        let Some(lost) = lost else { return Ok(Ok(())) };
        let Some(membership) = self.membership.take() else { return Ok(Ok(())) };
        if let Lost::Superseded(session) = lost.why {
            return Err(Over::Superseded { node: membership.id, session });
        }
        tracing::warn!(
            session = %lost.session, why = ?lost.why,
            "this node's session was ended by others; it gives up all it led and registers anew"
        );
        match self.enter(membership).await {
            Ok(()) => Ok(Ok(())),
            Err(EnterError::Store(error @ (StoreError::Unavailable(_) | StoreError::Unknown(_)))) => {
                // It is tried again, unless the registration has landed before that.
                if let Some(sessions) = self.sessions.as_mut().filter(|_| self.published.lease().is_over()) {
                    sessions.lost = Some(lost);
                }
                Ok(Err(error))
            }
            Err(EnterError::Store(error)) => Err(error.into()),
            Err(error) => Err(Over::Refused(error.to_string())),
        }
    }

    /// Makes the last decision and closes the store. What follows from it is for others to decide.
    async fn stop(&mut self, last: Last) -> Result<Position, StoreError> {
        for job in &mut self.jobs {
            job.fail(ControlError::Stopped("the broker stops".to_owned()));
        }
        self.jobs.clear();
        if let Some(decision) = last(&self.view) {
            self.commit(std::slice::from_ref(&decision)).await?;
        }
        let position = Position { revision: self.view.revision(), ..self.store.position() };
        self.store.close().await?;
        Ok(position)
    }
}

/// What there is to do.
enum Woken {
    Command(Option<Command>),
    Told(Result<Arc<Batch>, StoreError>),
    /// Look again.
    Later,
}
