//! Brings a job back whose ps task was lost. If the task comes back with its variables, the job goes on. If it
//! was started again without them, or the job is deterministic, the job rolls back: all shards are restored from
//! the latest checkpoint, under a later placement epoch, and all workers register again.

use std::time::Duration;

use pushpull_transport::Patience;
use tokio::time::Instant;
use tracing::{info, warn};

use super::launcher::{Begun, Launcher, RETRY_PAUSE, Unfinished, may_come_back};
use super::takeover::{Found, HalfChange, HalfStop, RunningJob};
use crate::checkpoint::{RestoreChoice, SaverCommand};
use crate::coordinator::JobEvent;
use crate::error::ChiefError;

impl Launcher<'_> {
    /// Brings the job back if `error` is the loss of a ps task and the job has checkpoints.
    ///
    /// # Errors
    /// Returns `error` if the job cannot survive it, or the reason why the job does not come back in time.
    pub(super) async fn recover(&self, error: ChiefError) -> Result<Begun, ChiefError> {
        let ChiefError::PsLost { task, step, .. } = &error else { return Err(error) };
        let (task, limit) = (*task, self.config.ps_lost_after);
        // A shard that hangs does not come back, and a job that drains has no time to wait.
        let survives = self.checkpoints.is_some() && self.ps.is_lost(task) && self.drain.get().is_none();
        if limit.is_zero() || !survives {
            return Err(error);
        }
        warn!(%task, %step, seconds = limit.as_secs(), "lost a ps task; waiting for it to come back");
        self.coordinator.do_send(JobEvent::Suspend);
        let _ = self.saver.send(SaverCommand::Suspend);
        let deadline = Instant::now() + limit;
        loop {
            match tokio::time::timeout_at(deadline, self.bring_back(deadline)).await {
                Ok(Ok(unfinished)) => {
                    let deadline = Instant::now() + self.config.start_timeout;
                    return Ok(Begun { deadline, unfinished });
                }
                Ok(Err(error)) if may_come_back(&error) || error.is_store_trouble() => {
                    warn!(%error, "could not bring the job back; trying again");
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                Ok(Err(other)) => return Err(other),
                Err(_) => return Err(error),
            }
        }
    }

    /// Waits until all ps tasks can be reached. Then lets the job go on, or rolls it back.
    async fn bring_back(&self, deadline: Instant) -> Result<Unfinished, ChiefError> {
        // The caller's deadline applies.
        let patience = Patience::of(self.config.ps_lost_after + Duration::from_secs(60));
        self.ps.connect(self.transport, self.identity, patience, self.config.retry).await?;
        self.claim(deadline).await?;
        let placement = self.ps.place(self.job)?;
        let job = match self.find(&placement).await? {
            // Workers may have lost the task, too. What they had pushed to only some shards is missing in the
            // others, so a deterministic job would get other bits.
            Found::Running(job) if job.epoch == placement.epoch && !self.job.deterministic => {
                return Ok(self.resume(job));
            }
            Found::Running(job) | Found::Lost { job, .. } => job,
            // All shards have lost their variables, or have been created and not used yet.
            Found::Unused => RunningJob::default(),
        };
        // The coordinator knows the workers.
        self.roll_back(RunningJob { workers: Vec::new(), ..job }).await
    }

    /// Lets the job go on whose shards all have their variables.
    fn resume(&self, RunningJob { change, stop, .. }: RunningJob) -> Unfinished {
        info!("all ps tasks are back with their variables; the job goes on");
        self.coordinator.do_send(JobEvent::Resume);
        let _ = self.saver.send(SaverCommand::Resume);
        let accepted = self.accepted.borrow();
        let wanted = accepted.factor.map(HalfChange::Unknown);
        Unfinished { change: change.or(wanted), stop: accepted.stop.map(|own| stop.unwrap_or(own)) }
    }

    /// Rolls the job back to its latest checkpoint. `found` is what the remaining shards hold.
    pub(super) async fn roll_back(&self, found: RunningJob) -> Result<Unfinished, ChiefError> {
        self.ps.appoint_after(found.appointed);
        self.coordinator.do_send(JobEvent::RollBack(found.workers));
        self.ps.begin_epoch_after(found.epoch);
        let placement = self.ps.place(self.job)?;
        info!(epoch = %placement.epoch, "rolling the job back to its latest checkpoint");
        self.ps.begin_with_rate(Default::default());
        let initial = self.in_time(self.initializer().run_again(placement, self.life)).await?;
        let stop = self.accepted.borrow().stop.or(found.stop);
        // The shards stop at the step on which they have agreed before, so that this end does not depend on
        // the rollback.
        if let Some(HalfStop { drains, step: Some(step) }) = stop {
            self.ps.stop_at(step, drains).await?;
        }
        self.begin(initial);
        let change = self.accepted.borrow().factor.map(HalfChange::Unknown);
        Ok(Unfinished { change, stop })
    }

    /// Returns whether all newest checkpoints in the store are those of this job, also of its earlier runs.
    pub(super) fn has_own_checkpoints(&self) -> bool {
        let choice = self.checkpoints.as_ref().map(|(_, choice)| choice);
        matches!(choice, Some(RestoreChoice::LatestValid | RestoreChoice::Latest))
    }
}
