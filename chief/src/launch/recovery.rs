//! Brings a job back after a ps task was lost. If the task comes back with its variables, the job goes on. If
//! the task was started again without its variables, or the job is deterministic and not evaluated yet, the
//! job rolls back: all shards are restored from the latest checkpoint, under a later placement epoch, and all
//! workers register again.

use std::time::Duration;

use pushpull_messages::id::{GlobalStep, Version};
use pushpull_messages::optimizer::RateSpec;
use pushpull_messages::placement::Placement;
use pushpull_messages::sync::LeaveSpec;
use pushpull_transport::Patience;
use tokio::time::{Instant, timeout_at};
use tracing::{info, warn};

use super::launcher::{Begun, Launcher, RETRY_PAUSE, Unfinished, may_come_back};
use super::takeover::{Found, HalfChange, HalfStop, HeldWorker, RunningJob};
use crate::checkpoint::{InitialState, RestoreChoice, SaverCommand};
use crate::coordinator::JobEvent;
use crate::error::ChiefError;

/// The number of times in a row that a job may roll back to one step. A ps task that is lost again and again
/// before the next checkpoint would otherwise keep the job busy for ever.
const ROLLBACKS_MAX: u32 = 10;

impl Launcher<'_> {
    /// Brings the job back if `error` is the loss of a ps task and the job has checkpoints.
    ///
    /// # Errors
    /// Returns `error` if the job cannot survive it, or the reason why the job does not come back in time.
    pub(super) async fn recover(&self, error: ChiefError) -> Result<Begun, ChiefError> {
        let ChiefError::PsLost { task, step, .. } = &error else { return Err(error) };
        let (task, limit) = (*task, self.config.ps_lost_after);
        if self.drain.get().is_some() {
            // A job that drains has no time to wait.
            self.end_if_trained();
            return Err(error);
        }
        // A shard that hangs does not come back.
        let survives = (self.checkpoints.is_some() || self.memory.is_some()) && self.ps.is_lost(task);
        if limit.is_zero() || !survives {
            return Err(error);
        }
        warn!(%task, %step, seconds = limit.as_secs(), "lost a ps task; waiting for it to come back");
        self.coordinator.do_send(JobEvent::Suspend);
        self.saver.send(SaverCommand::Suspend);
        let mut deadline = Instant::now() + limit;
        loop {
            let Ok(placement) = timeout_at(deadline, self.reach_all(deadline)).await else {
                if !self.leave_out_lost() {
                    return Err(error);
                }
                deadline = Instant::now() + limit;
                continue;
            };
            let back = match placement {
                Ok(placement) => self.bring_back(placement).await,
                Err(error) => Err(error),
            };
            match back {
                Ok(unfinished) => {
                    let deadline = Instant::now() + self.config.start_timeout;
                    return Ok(Begun { deadline, unfinished });
                }
                // After the deadline, this error is returned as the reason why the job did not come back; an
                // example is a store that does not respond.
                Err(error)
                    if (may_come_back(&error) || error.is_store_trouble())
                        && Instant::now() + RETRY_PAUSE < deadline =>
                {
                    warn!(%error, "could not bring the job back; trying again");
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                Err(other) => return Err(other),
            }
        }
    }

    /// Leaves out the ps tasks that have not come back, if the job goes on without workers that leave: in a
    /// cluster that lists no ps tasks, a lost worker takes its ps task with it. Returns whether the job can
    /// go on with the remaining tasks.
    fn leave_out_lost(&self) -> bool {
        let lost = self.ps.lost();
        let goes_on = self.job.when_worker_leaves == LeaveSpec::Continue && !self.identity.cluster.has_ps();
        if !goes_on || lost.is_empty() || lost.len() == self.ps.tasks().len() {
            return false;
        }
        for task in lost {
            warn!(%task, "the task did not come back; the others take over its variables");
            self.ps.leave_out(task);
            self.shard_monitor.forget(task);
            self.coordinator.do_send(JobEvent::HostLost(task.index));
        }
        self.moves.set(true);
        true
    }

    /// Waits until all ps tasks can be reached, and claims them. Returns a placement on their shards.
    async fn reach_all(&self, deadline: Instant) -> Result<Placement, ChiefError> {
        // The patience is longer than the caller's limit, so that the caller's deadline applies to all tasks
        // together.
        let patience = Patience::of(self.config.ps_lost_after + Duration::from_secs(60));
        self.ps.connect(self.transport, self.identity, patience, self.config.retry).await?;
        self.claim(deadline).await?;
        self.place()
    }

    /// Lets the job go on if all shards have their variables, or rolls it back.
    async fn bring_back(&self, placement: Placement) -> Result<Unfinished, ChiefError> {
        if self.moves.get() {
            // The remaining shards hold a job with another placement. What they know is known here, too.
            return self.roll_back(RunningJob::default(), Vec::new()).await;
        }
        let job = match self.find(&placement).await? {
            // Workers may have lost the task, too. What they had pushed to only some shards is missing on the
            // others, so the result of a deterministic job would change.
            Found::Running(job) if job.epoch == placement.epoch && self.may_resume() => {
                return Ok(self.resume(&job));
            }
            Found::Running(job) | Found::Lost { job, .. } => job,
            // All shards have lost their variables, or have been created and not used yet.
            Found::Unused => RunningJob::default(),
        };
        // No workers are passed, because the coordinator already knows them.
        self.roll_back(job, Vec::new()).await
    }

    /// Returns whether the job may go on with the variables that the shards have. A deterministic job may do
    /// so only if it was evaluated: its workers then push nothing more.
    fn may_resume(&self) -> bool {
        (!self.job.deterministic || self.settles()) && !self.rolls_back.get()
    }

    /// Lets the job go on, because all its shards have their variables.
    fn resume(&self, RunningJob { rate, change, stop, appointed, .. }: &RunningJob) -> Unfinished {
        info!("all ps tasks are back with their variables; the job goes on");
        self.ps.appoint_after(*appointed);
        self.coordinator.do_send(JobEvent::Resume);
        self.saver.send(SaverCommand::Resume);
        let accepted = self.accepted.borrow();
        let last = change.map_or(rate.next.map_or(rate.factor, |next| next.factor), HalfChange::factor);
        let factor = accepted.factor.filter(|&factor| factor != last);
        Unfinished { change: *change, stop: accepted.stop.map(|own| stop.unwrap_or(own)), factor }
    }

    /// Rolls the job back to its latest checkpoint. `found` is what the remaining shards hold. If an earlier
    /// run of the chief has begun the job, `workers` are those that these shards know; otherwise it is empty.
    ///
    /// # Errors
    /// Returns an error if the variables cannot be restored, or if the job makes no progress.
    pub(super) async fn roll_back(
        &self,
        found: RunningJob,
        workers: Vec<HeldWorker>,
    ) -> Result<Unfinished, ChiefError> {
        self.rolls_back.set(true);
        self.save_by.set(None);
        {
            let accepted = &mut *self.accepted.borrow_mut();
            accepted.stop = accepted.stop.or(found.stop);
            accepted.factor = accepted.factor.or(found.change.map(HalfChange::factor));
        }
        self.ps.appoint_after(found.appointed);
        self.coordinator.do_send(JobEvent::RollBack(workers));
        self.ps.begin_epoch_after(found.epoch);
        let placement = self.place()?;
        info!(epoch = %placement.epoch, "rolling the job back to its latest checkpoint");
        self.ps.begin_with_rate(RateSpec::default());
        let initial =
            self.in_time(self.initializer().run_again(placement, self.life, self.may_begin_anew())).await?;
        self.count_rollback(&initial)?;
        let (stop, factor) = {
            let accepted = self.accepted.borrow();
            (accepted.stop, accepted.factor)
        };
        // The shards must stop at the step on which they agreed before, so that the rollback does not change
        // where the job ends.
        if let Some(HalfStop { drains, step: Some(step) }) = stop {
            self.ps.stop_at(step, drains).await?;
        }
        self.begin(initial).await;
        let restored = self.ps.rate_at(Version(u64::MAX)).factor;
        Ok(Unfinished { change: None, stop, factor: factor.filter(|&factor| factor != restored) })
    }

    /// Counts the rollbacks in a row that begin with the same step.
    ///
    /// # Errors
    /// Returns an error if there are more than [`ROLLBACKS_MAX`].
    fn count_rollback(&self, InitialState { start, .. }: &InitialState) -> Result<(), ChiefError> {
        let step = GlobalStep(start.version.0);
        let (last, count) = self.rollbacks.get();
        let count = if last == step { count + 1 } else { 1 };
        self.rollbacks.set((step, count));
        match count > ROLLBACKS_MAX {
            true => Err(ChiefError::NoProgress { rollbacks: ROLLBACKS_MAX, step }),
            false => Ok(()),
        }
    }

    /// Returns whether a job without any checkpoint may roll back to its beginning. It may not if its steps
    /// since then are known to have been in a checkpoint, or may have been.
    fn may_begin_anew(&self) -> bool {
        match (&self.checkpoints, &self.memory) {
            (Some(_), _) => !self.continues.get() || self.continues_newest(),
            (None, Some(memory)) => !self.continues.get() && memory.status.borrow().last.is_none(),
            (None, None) => true,
        }
    }

    /// Returns whether a chief that has just started may roll the running job back to the newest checkpoint.
    /// It may do so only if the job was set to begin with the newest checkpoint. Otherwise that checkpoint
    /// may belong to another job.
    pub(super) fn continues_newest(&self) -> bool {
        let choice = self.checkpoints.as_ref().map(|(_, choice)| choice);
        matches!(choice, Some(RestoreChoice::LatestValid | RestoreChoice::Latest))
    }
}
