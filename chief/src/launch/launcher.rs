//! Starts the cluster, supervises it, and carries out commands on the ps tasks. The coordinator, which knows
//! the workers, is told of each command.

use std::cell::{Cell, OnceCell, RefCell};
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use pushpull_messages::id::{GlobalStep, Incarnation, JobName, ShardId, TaskId, Version};
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::{Resume, ShardSnapshot};
use pushpull_messages::optimizer::RateChange;
use pushpull_messages::placement::Placement;
use pushpull_storage::Catalog;
use pushpull_transport::{CallError, Identity, Patience, Transport};
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::agreement::StepAgreement;
use super::ps_tasks::PsTasks;
use super::takeover::{Found, HalfChange, HalfStop, RunningJob};
use crate::checkpoint::{
    DrainShares, InitialState, RestoreChoice, SaveStatus, SaverCommand, SaverCommands, ShardInitializer,
    StartingPoint, newest,
};
use crate::command::{Command, CommandQueue};
use crate::config::ChiefConfig;
use crate::coordinator::{Coordinator, JobEvent};
use crate::error::ChiefError;
use crate::job::{JobStart, Settled};
use crate::monitor::ShardMonitor;
use crate::placement::table;
use crate::report::JobProgress;

/// The time over which the training speed of the shards is measured.
const PACE: Duration = Duration::from_millis(50);
/// The time limit for finding the newest checkpoint when the chief continues a running job.
const NEWEST_WITHIN: Duration = Duration::from_secs(10);
/// The time within which the workers of a running job dial a chief that was started again.
const REJOIN_WITHIN: Duration = Duration::from_secs(2);
/// The time between two attempts to claim the ps tasks.
const CLAIM_PAUSE: Duration = Duration::from_millis(200);
/// The time between two attempts to start a job, or to bring it back after the loss of a ps task.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// The time between two log lines about missing tasks.
const MISSING_LOG_INTERVAL: Duration = Duration::from_secs(3);

/// The launcher of one job.
pub(crate) struct Launcher<'a> {
    pub config: &'a ChiefConfig,
    pub identity: &'a Identity,
    pub transport: &'a Arc<dyn Transport>,
    pub job: &'a JobSpec,
    pub progress: watch::Receiver<JobProgress>,
    pub interrupt: &'a CancellationToken,
    /// The reason for which the program stops the job before its last step; `None` until it does so.
    pub stop: &'a watch::Receiver<Option<String>>,
    pub coordinator: &'a Addr<Coordinator>,
    pub ps: &'a PsTasks,
    pub shard_monitor: &'a ShardMonitor,
    /// The channels for commands to the savers. If the job makes no checkpoints, the commands have no effect.
    pub saver: SaverCommands,
    pub saves: watch::Receiver<SaveStatus>,
    /// The job's own checkpoints, and the choice of the checkpoint that the job resumes from.
    pub checkpoints: Option<(Catalog, RestoreChoice)>,
    /// The job's checkpoints in the memory of the ps tasks; `None` if it keeps none.
    pub memory: Option<MemoryLevel>,
    /// The reason and the deadline of a drain; set when the job is told to drain.
    pub drain: Rc<OnceCell<Drain>>,
    /// The number of a worker's steps between two plots of the graph's summaries; `None` if no hook needs
    /// them.
    pub summary_every: Option<u64>,
    /// The smallest incarnation number of this chief's checkpoints. Checkpoints after a rollback have greater
    /// numbers.
    pub life: Incarnation,
    /// Whether an earlier run of the chief has begun the job.
    pub continues: Cell<bool>,
    /// Whether the job rolls back, and its variables have not been restored yet.
    pub rolls_back: Cell<bool>,
    /// Whether a ps task was left out since the shards were last created, so that the remaining shards do not
    /// match the placement.
    pub moves: Cell<bool>,
    /// The step to which the job has rolled back last, and the number of rollbacks in a row to this step.
    pub rollbacks: Cell<(GlobalStep, u32)>,
    /// The time by which the last step of the evaluated job must be saved; `None` before the evaluation.
    pub save_by: Cell<Option<Instant>>,
    /// What the accepted commands have requested.
    pub accepted: RefCell<Accepted>,
}

/// The checkpoints in the memory of the ps tasks.
#[derive(Clone, Debug)]
pub(crate) struct MemoryLevel {
    pub catalog: Catalog,
    /// The status of the saves of this chief.
    pub status: watch::Receiver<SaveStatus>,
}

/// The stop and the learning rate that the accepted commands request. They hold even if the job rolls back.
#[derive(Debug, Default)]
pub(crate) struct Accepted {
    /// The stop before the job's last step, with the step on which the shards have agreed.
    pub stop: Option<HalfStop>,
    /// The newest requested factor of the learning rate; kept even after the shards have set it.
    pub factor: Option<f32>,
}

/// An early end of a job, after which another job can resume from the last checkpoint.
#[derive(Debug)]
pub(crate) struct Drain {
    pub reason: String,
    /// The time by which the last checkpoint must be saved.
    pub deadline: Instant,
}

/// A job that has begun.
#[derive(Debug)]
pub(super) struct Begun {
    /// The time by which all workers must be present.
    pub deadline: Instant,
    pub unfinished: Unfinished,
}

/// The stop and the change of the learning rate that were left incomplete when an earlier run of the chief
/// ended, or when a ps task was lost.
#[derive(Debug, Default)]
pub(super) struct Unfinished {
    pub change: Option<HalfChange>,
    pub stop: Option<HalfStop>,
    /// The factor of the learning rate to set after `change`.
    pub factor: Option<f32>,
}

/// The unfinished work of accepted commands.
struct Pending<F> {
    /// The agreement with the shards on the step to stop at, while it is being made. There is at most one.
    agreement: FuturesUnordered<F>,
    /// Whether the job was told to stop.
    stopping: bool,
    /// The most recently requested factor of the learning rate. It waits here while an earlier change is
    /// made.
    factor: Option<f32>,
    /// The time by which the workers must finish if the job drains.
    workers_deadline: Option<Instant>,
}

/// Returns whether an attempt failed because a ps task was lost, so that another attempt may succeed.
pub(super) const fn may_come_back(error: &ChiefError) -> bool {
    matches!(error, ChiefError::Call(CallError::Lost { .. }))
}

/// Waits until a stop is requested, and returns its reason.
async fn requested(mut stop: watch::Receiver<Option<String>>) -> String {
    let reason = stop.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
    match reason {
        Some(reason) => reason,
        // The program has dropped the sender, so no request can follow.
        None => std::future::pending().await,
    }
}

impl Launcher<'_> {
    /// Starts the cluster, supervises it and carries out commands. Never returns: the coordinator decides
    /// when the job has ended.
    pub(crate) async fn run(&self, commands: &mut CommandQueue) -> Infallible {
        let started = tokio::select! {
            biased;
            started = Box::pin(self.start()) => started,
            () = self.interrupt.cancelled() => {
                warn!("interrupted before the job began");
                self.coordinator.do_send(JobEvent::Interrupt);
                return std::future::pending().await;
            }
        };
        let ended = match started {
            Ok(begun) => self.lead(commands, begun).await,
            Err(error) => Err(error),
        };
        let Err(error) = ended;
        self.coordinator.do_send(JobEvent::Fail(error));
        std::future::pending().await
    }

    /// Supervises the job and carries out commands. If a ps task is lost and the job can survive that, brings
    /// the job back and goes on.
    async fn lead(&self, commands: &mut CommandQueue, mut begun: Begun) -> Result<Infallible, ChiefError> {
        loop {
            let Begun { deadline, unfinished } = begun;
            let ended = tokio::select! {
                biased;
                ended = self.supervise(deadline) => ended,
                ended = self.carry_out(commands, unfinished) => ended,
                // The job cannot roll back any more, and the coordinator ends it.
                () = self.settle() => return std::future::pending().await,
            };
            let Err(error) = ended;
            let lost = Instant::now();
            begun = tokio::select! {
                biased;
                // Boxed, because it is large and rarely needed.
                begun = Box::pin(self.recover(error)) => begun?,
                () = self.interrupt.cancelled() => {
                    warn!("interrupted while a ps task was lost");
                    self.end_if_trained();
                    self.coordinator.do_send(JobEvent::Interrupt);
                    std::future::pending().await
                }
            };
            // The last save does not lose the time for which the task was away.
            self.save_by.set(self.save_by.get().map(|save_by| save_by + lost.elapsed()));
        }
    }

    /// Decides the placement of every variable.
    pub(super) fn place(&self) -> Result<Placement, ChiefError> {
        self.ps.place(self.job, self.workers())
    }

    /// Brings the job up. If a ps task is lost meanwhile, tries again until the start timeout is over.
    async fn start(&self) -> Result<Begun, ChiefError> {
        self.job.validate_on(&self.identity.cluster)?;
        self.config.workers_max.map_or(Ok(()), |max| self.job.validate_elastic(max))?;
        let deadline = Instant::now() + self.config.start_timeout;
        loop {
            match self.bring_up(deadline).await {
                Err(error) if Instant::now() + RETRY_PAUSE < deadline && self.may_try_again(&error).await => {
                    warn!(%error, "could not bring the job up; trying again");
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                other => return other,
            }
        }
    }

    /// Returns whether another attempt to bring the job up may succeed. It may if a ps task was lost. If the
    /// store fails, a job that has not begun ends at once, but a job whose workers already train waits.
    async fn may_try_again(&self, error: &ChiefError) -> bool {
        if !error.is_store_trouble() {
            return may_come_back(error);
        }
        if self.rolls_back.get() {
            return true;
        }
        let mut progress = self.progress.clone();
        let train = timeout(REJOIN_WITHIN, progress.wait_for(|now| now.rejoining > 0)).await;
        train.is_ok_and(|train| train.is_ok())
    }

    /// Connects to the ps tasks and claims them. Then initializes the shards or, if an earlier run of the
    /// chief has done so, continues its job.
    async fn bring_up(&self, deadline: Instant) -> Result<Begun, ChiefError> {
        let timeout = self.config.start_timeout;
        // This is longer than the start timeout, so that the deadline below applies to all tasks together.
        let patience = Patience::of(timeout + Duration::from_secs(60));
        let connect = self.ps.connect(self.transport, self.identity, patience, self.config.retry);
        match tokio::time::timeout_at(deadline, connect).await {
            Ok(connected) => connected?,
            Err(_) => return Err(self.missing()),
        }
        self.claim(deadline).await?;
        let placement = self.place()?;
        if self.config.log_placement {
            info!("placement:\n{}", table(&placement, &self.job.graph.variables));
        }
        let unfinished = match self.find(&placement).await? {
            Found::Unused => {
                self.begin(self.in_time(self.initializer().run(placement)).await?).await;
                Unfinished::default()
            }
            Found::Running(job) if !self.rolls_back.get() => {
                self.continues.set(true);
                self.continue_job(placement, job).await
            }
            // An earlier attempt restored the shards, but did not receive all of their replies.
            Found::Running(job) => self.roll_back(job, Vec::new()).await?,
            Found::Lost { shard, job } => {
                if !self.continues_newest() && self.memory.is_none() {
                    return Err(ChiefError::VariablesLost { shard });
                }
                self.continues.set(true);
                warn!(%shard, "an earlier run of the chief has begun the job, and a shard has lost its variables");
                let workers = job.workers.clone();
                self.roll_back(job, workers).await?
            }
        };
        Ok(Begun { deadline, unfinished })
    }

    /// Returns the number of workers that lead a replica, including those that may still join.
    pub(super) fn workers(&self) -> u32 {
        self.config.workers(self.job, &self.identity.cluster)
    }

    /// Returns what the shards hold of the job.
    pub(super) async fn find(&self, placement: &Placement) -> Result<Found, ChiefError> {
        self.in_time(self.ps.find(self.job, self.workers(), placement)).await
    }

    /// Awaits an answer of the shards within the start timeout.
    pub(super) async fn in_time<T>(
        &self,
        answer: impl Future<Output = Result<T, ChiefError>>,
    ) -> Result<T, ChiefError> {
        let timeout = self.config.start_timeout;
        match tokio::time::timeout(timeout, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(ChiefError::SlowStart(timeout.as_secs())),
        }
    }

    pub(super) fn initializer(&self) -> ShardInitializer<'_> {
        ShardInitializer {
            ps: self.ps,
            job: self.job,
            workers: self.workers(),
            checkpoints: self.checkpoints.as_ref().map(|(catalog, restore)| (catalog, *restore)),
            memory: self.memory.as_ref().map(|memory| &memory.catalog),
            warm_start: self.config.warm_start.as_ref(),
            wall_clock: &self.config.wall_clock,
        }
    }

    /// Begins the job, or begins it again, with this state of the variables.
    pub(super) async fn begin(&self, InitialState { mut start, resumes }: InitialState) {
        self.rolls_back.set(false);
        self.moves.set(false);
        start.after = self.newest_in_memory().await;
        let start_of_job = self.job_start(start.version, resumes);
        self.coordinator.do_send(JobEvent::Created(start.placement.clone(), start_of_job));
        self.saver.send(SaverCommand::Begin(start));
    }

    /// Returns the greatest incarnation number of the checkpoints in the memory of the ps tasks; `None` if
    /// there are none, or if they cannot be listed.
    async fn newest_in_memory(&self) -> Option<Incarnation> {
        let memory = self.memory.as_ref()?;
        match timeout(NEWEST_WITHIN, memory.catalog.newest_life()).await {
            Ok(Ok(newest)) => newest,
            Ok(Err(error)) => {
                warn!(%error, "could not list the checkpoints in memory");
                None
            }
            Err(_) => {
                warn!("the checkpoints in memory could not be listed in time");
                None
            }
        }
    }

    fn job_start(&self, version: Version, resumes: Vec<Resume>) -> JobStart {
        let (step, saves) = (GlobalStep(version.0), self.checkpoints.is_some());
        let saves_in_memory = self.memory.is_some();
        let may_roll_back = (saves || saves_in_memory) && !self.config.ps_lost_after.is_zero();
        let (summary_every, trace) = (self.summary_every, self.config.trace);
        JobStart { step, resumes, saves, saves_in_memory, may_roll_back, summary_every, trace }
    }

    /// When the job is trained and evaluated, waits until its last step is saved, and observes the shards for
    /// the report. Does not wait longer than until the first save of this step has failed or half of the time
    /// for it is over. If a ps task is lost meanwhile, the caller drops this future and recovers the job.
    /// Never returns if the job cannot roll back.
    async fn settle(&self) {
        let (mut progress, mut saves) = (self.progress.clone(), self.saves.clone());
        let settling = progress.wait_for(|now| now.settling).await.map(|now| now.last_step);
        let (step, checkpoint) = match (settling, &self.config.checkpoint) {
            (Ok(step), Some(checkpoint)) => (step, checkpoint),
            // Only a checkpoint in a directory outlasts the job, so no last step has to be saved.
            (Ok(_), None) => {
                let (save_by, shards) = (Instant::now(), self.observe_last().await);
                self.coordinator.do_send(JobEvent::Settled(Settled { save_by, shards, observed: true }));
                return;
            }
            (Err(_), _) => return std::future::pending().await,
        };
        // Half of the time is kept for the last save, which continues a save that is under way.
        let limit = checkpoint.last_save_timeout;
        let save_by = self.save_by(limit);
        let tried = saves.wait_for(|now| now.tried == Some(step));
        let saved = timeout_at(save_by - limit / 2, tried).await;
        let saved = saved.is_ok_and(|saved| saved.is_ok_and(|now| now.has(step)));
        let shards = match saved {
            true => self.observe_last().await,
            // The save has failed because a ps task is lost.
            false if self.ps.is_any_lost() => std::future::pending().await,
            false => None,
        };
        self.coordinator.do_send(JobEvent::Settled(Settled { save_by, shards, observed: saved }));
    }

    /// Returns whether the job was evaluated and may still roll back.
    pub(super) fn settles(&self) -> bool {
        self.progress.borrow().settling
    }

    /// Returns the time by which the last step must be saved, `limit` after the evaluation.
    fn save_by(&self, limit: Duration) -> Instant {
        let save_by = self.save_by.get().unwrap_or_else(|| Instant::now() + limit);
        self.save_by.set(Some(save_by));
        save_by
    }

    /// Ends a trained job that is told to end although a ps task is lost. The last save and the report wait
    /// for the task, but the job does not roll back. Has no effect on another job: the coordinator knows
    /// best whether the job is trained, and the caller also tells it why any other job ends.
    pub(super) fn end_if_trained(&self) {
        let Some(config) = &self.config.checkpoint else { return };
        if self.settles() {
            let deadline = Instant::now() + config.drain_timeout;
            let reason = "a signal was received".to_owned();
            self.drain.get_or_init(|| Drain { reason, deadline });
            self.saver.send(SaverCommand::Resume);
        }
        let save_by = self.drain.get().map_or_else(Instant::now, |drain| drain.deadline);
        let settled = Settled { save_by, shards: None, observed: false };
        self.coordinator.do_send(JobEvent::Settled(settled));
    }

    /// Returns the final snapshots of the shards, or `None` if they do not answer in time.
    async fn observe_last(&self) -> Option<Vec<(ShardId, ShardSnapshot)>> {
        let observed = async {
            match self.ps.observe().await {
                // The caller then learns of the lost task, and drops this future.
                Err(error) if may_come_back(&error) => std::future::pending().await,
                observed => observed.ok(),
            }
        };
        // If the shards do not answer, the chief asks again when it concludes the job.
        timeout(self.config.conclude_timeout / 2, observed).await.ok().flatten()
    }

    /// Continues the job of an earlier run of the chief. Completes the departures of workers, and returns
    /// what else is unfinished.
    async fn continue_job(&self, placement: Placement, running: RunningJob) -> Unfinished {
        let RunningJob { epoch, version, rate, workers, appointed, drawn, departures, change, stop } =
            running;
        info!(step = %version, "continuing the job of an earlier run of the chief");
        self.ps.continue_epoch(epoch);
        let placement = Placement { epoch, ..placement };
        self.ps.begin_with_rate(rate);
        self.ps.appoint_after(appointed);
        let departures = departures.into_iter().map(|(worker, life)| self.ps.leave(worker, life, epoch));
        futures_util::future::join_all(departures).await;
        let batch_size = u64::from(self.job.batch_size);
        let resume = |drawn: u64| Resume { drawn, examples: drawn.saturating_mul(batch_size), files: None };
        let start_of_job = self.job_start(version, drawn.into_iter().map(resume).collect());
        // The chief waits for the store here, because the saver must begin before the job can end. The time
        // limit keeps a store that hangs from delaying the job for long.
        let from = match &self.checkpoints {
            Some((catalog, _)) => {
                let newest = tokio::time::timeout(NEWEST_WITHIN, newest(catalog, version));
                newest.await.unwrap_or_else(|_| {
                    warn!("the store did not respond in time; the newest checkpoint is unknown");
                    None
                })
            }
            None => None,
        };
        let after = self.newest_in_memory().await;
        self.coordinator.do_send(JobEvent::Continued(placement.clone(), start_of_job, workers));
        let start = StartingPoint { placement, version, from, in_memory: false, after };
        self.saver.send(SaverCommand::Begin(start));
        Unfinished { change, stop, factor: None }
    }

    /// Claims the ps tasks for this run of the chief. If they belong to another chief, waits for that chief
    /// to end, but at most until the deadline: that chief may be an earlier run of this job that is about to
    /// end.
    pub(super) async fn claim(&self, deadline: Instant) -> Result<(), ChiefError> {
        let mut refused = None;
        loop {
            let error = match tokio::time::timeout_at(deadline, self.ps.claim()).await {
                Ok(Err(error)) if error.is_other_chief() => error,
                Ok(other) => return other,
                Err(_) => return Err(refused.unwrap_or_else(|| self.missing())),
            };
            if refused.is_none() {
                let seconds = deadline.saturating_duration_since(Instant::now()).as_secs();
                warn!(seconds, "waiting for another chief to end: {error}");
            }
            let next = Instant::now() + CLAIM_PAUSE;
            if next >= deadline {
                tokio::time::sleep_until(deadline).await;
                return Err(error);
            }
            refused = Some(error);
            tokio::time::sleep_until(next).await;
        }
    }

    /// Watches for lost ps tasks and, until the deadline, for missing workers.
    async fn supervise(&self, deadline: Instant) -> Result<Infallible, ChiefError> {
        let mut log = tokio::time::interval(MISSING_LOG_INTERVAL);
        log.tick().await;
        let mut progress = self.progress.clone();
        loop {
            tokio::select! {
                biased;
                (task, reason) = self.ps.wait_lost() => {
                    let step = self.progress.borrow().global_step;
                    return Err(ChiefError::PsLost { task, step, reason });
                }
                shard = self.shard_monitor.wait_hung(self.config.shard_hung_after) => {
                    return Err(self.hung(shard));
                }
                refused = self.ps.wait_refused() => return Err(refused.into()),
                // If workers are missing at the deadline, the job ends. A worker that is lost later does not
                // end the job.
                () = tokio::time::sleep_until(deadline), if !self.progress.borrow().missing.is_empty() => {
                    return Err(self.missing());
                }
                _ = progress.changed() => {}
                _ = log.tick() => {
                    let missing = self.progress.borrow().missing.clone();
                    if !missing.is_empty() {
                        info!("waiting for {}", self.with_addresses(&missing).join(", "));
                    }
                }
            }
        }
    }

    /// Carries out every command. A signal counts as a command to drain, and a request of the program as a
    /// command to stop. Begins with `unfinished`: what an earlier run of the chief has begun, or what the
    /// loss of a ps task has interrupted.
    async fn carry_out(
        &self,
        commands: &mut CommandQueue,
        unfinished: Unfinished,
    ) -> Result<Infallible, ChiefError> {
        let mut interrupted = false;
        let mut requested = std::pin::pin!(requested(self.stop.clone()).fuse());
        let agreement = FuturesUnordered::new();
        let factor = unfinished.factor;
        let mut pending = Pending { agreement, stopping: false, factor, workers_deadline: None };
        // The change of the learning rate that is being made; at most one.
        let mut changing = FuturesUnordered::new();
        changing.extend(unfinished.change.map(|change| self.change_learning_rate(change)));
        if let Some(HalfStop { drains, step }) = unfinished.stop {
            let reason = "the job had begun to stop before a ps task was lost or the chief was started again"
                .to_owned();
            let command = if drains { Command::Drain { reason } } else { Command::Stop { reason } };
            self.command(command, &mut pending, |drains| self.agree(step, drains));
        }
        loop {
            if changing.is_empty() {
                let change = pending.factor.take().map(HalfChange::Unknown);
                changing.extend(change.map(|change| self.change_learning_rate(change)));
            }
            let deadline = pending.workers_deadline;
            let workers_deadline = async move {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                command = commands.next() => self.command(command, &mut pending, |drains| self.agree(None, drains)),
                () = self.interrupt.cancelled(), if !interrupted => {
                    interrupted = true;
                    let drain = Command::Drain { reason: "a signal was received".into() };
                    self.command(drain, &mut pending, |drains| self.agree(None, drains));
                }
                reason = &mut requested => {
                    self.command(Command::Stop { reason }, &mut pending, |drains| self.agree(None, drains));
                }
                Some(agreed) = pending.agreement.next() => {
                    let step: GlobalStep = agreed?;
                    info!(%step, "shards agreed on the last step");
                    let drains = self.drain.get().is_some();
                    self.accepted.borrow_mut().stop = Some(HalfStop { drains, step: Some(step) });
                    self.coordinator.do_send(JobEvent::StoppingAt(step));
                }
                Some(changed) = changing.next() => changed?,
                () = workers_deadline => {
                    warn!("workers did not finish in time");
                    pending.workers_deadline = None;
                    self.coordinator.do_send(JobEvent::EndDrain);
                }
            }
        }
    }

    fn command<F>(&self, command: Command, pending: &mut Pending<F>, agree: impl FnOnce(bool) -> F) {
        match (command, &self.config.checkpoint) {
            (Command::Save, Some(_)) => self.saver.send(SaverCommand::Save),
            (Command::Save, None) => {
                warn!("ignoring the request for a checkpoint: the job has no --checkpoint-dir");
            }
            (Command::LearningRate { factor }, _) => {
                pending.factor = Some(factor);
                self.accepted.borrow_mut().factor = Some(factor);
            }
            (Command::Stop { reason }, _) => self.stop(reason, false, pending, agree),
            (Command::Drain { reason }, Some(config)) => {
                let now = Instant::now();
                let deadline = now + config.drain_timeout;
                if self.drain.set(Drain { reason: reason.clone(), deadline }).is_ok() {
                    pending.workers_deadline = Some(now + DrainShares::of(config.drain_timeout).workers);
                }
                self.stop(reason, true, pending, agree);
            }
            (Command::Drain { reason }, None) => {
                warn!(
                    reason,
                    "interrupted; stopping the workers without a checkpoint: the job has no --checkpoint-dir"
                );
                let step = self.progress.borrow().global_step;
                self.coordinator.do_send(match self.interrupt.is_cancelled() {
                    true => JobEvent::Interrupt,
                    false => JobEvent::Fail(ChiefError::NotSaved { reason, step }),
                });
            }
        }
    }

    fn stop<F>(&self, reason: String, drains: bool, pending: &mut Pending<F>, agree: impl FnOnce(bool) -> F) {
        match self.settles() {
            true => info!(reason, "ending when the last step of the trained job is saved"),
            false => warn!(reason, "stopping before the last step"),
        }
        // The coordinator must be informed before the shards, because workers react to what the shards tell
        // them.
        self.coordinator.do_send(JobEvent::Stop { reason, drains });
        self.accepted.borrow_mut().stop.get_or_insert(HalfStop { drains, step: None });
        if !std::mem::replace(&mut pending.stopping, true) {
            pending.agreement.push(agree(drains));
        }
    }

    /// Makes all shards stop at the same step, and returns that step. If the shards have agreed on a step
    /// before, it is passed as `agreed`, and is kept.
    async fn agree(&self, agreed: Option<GlobalStep>, drains: bool) -> Result<GlobalStep, ChiefError> {
        if let Some(step) = agreed {
            return Ok(step);
        }
        let mut agreement = self.ahead().await?;
        while !agreement.update(&self.ps.stop_at(agreement.step(), drains).await?) {}
        Ok(agreement.step())
    }

    /// Sets the factor of the learning rate, or completes a change that only some shards know. The new factor
    /// takes effect at the same version on all shards. Returns when all shards have passed that version,
    /// because a shard can store only one future change.
    async fn change_learning_rate(&self, change: HalfChange) -> Result<(), ChiefError> {
        if self.job.deterministic {
            warn!("a hook changes the learning rate; the result of the job now depends on timing");
        }
        let change = match change {
            HalfChange::Known(change) => change,
            HalfChange::Unknown(factor) => {
                let mut agreement = self.ahead().await?;
                while !agreement.update(&self.ps.hold_at(Version(agreement.step().0)).await?) {}
                RateChange { from: Version(agreement.step().0), factor }
            }
        };
        let RateChange { from, factor } = change;
        self.ps.set_learning_rate(change).await?;
        info!(step = %from, factor, "changed the factor of the learning rate");
        let mut progress = self.progress.clone();
        if progress.wait_for(|now| now.global_step.0 > from.0).await.is_err() {
            std::future::pending::<()>().await;
        }
        // The next change must be at a greater version, because shards ignore changes that arrive again.
        while self.ps.observe().await?.iter().any(|(_, snapshot)| snapshot.version <= from) {
            tokio::time::sleep(PACE).await;
        }
        Ok(())
    }

    /// Begins the search for a step that no shard has passed.
    async fn ahead(&self) -> Result<StepAgreement, ChiefError> {
        let furthest = async || {
            let shards = self.ps.observe().await?;
            Ok::<_, ChiefError>(shards.iter().map(|(_, snapshot)| snapshot.version).max().unwrap_or_default())
        };
        let first = furthest().await?;
        let trains = self.progress.borrow().workers > 0;
        let (seen, pace) = if trains {
            tokio::time::sleep(PACE).await;
            let seen = furthest().await?;
            (seen, Some(seen.0.saturating_sub(first.0)))
        } else {
            (first, None)
        };
        Ok(StepAgreement::new(seen, pace, self.job.last_step))
    }

    /// Returns the error about a shard that hangs.
    fn hung(&self, shard: ShardId) -> ChiefError {
        let seconds = self.config.shard_hung_after.unwrap_or_default().as_secs();
        let reason = format!(
            "{shard} hangs: its task is alive, but the shard has not answered for {seconds} s; if the shard needs \
             more time, increase shard_hung_after"
        );
        ChiefError::PsLost { task: shard.task(), step: self.progress.borrow().global_step, reason }
    }

    /// Returns the error that names every missing task.
    fn missing(&self) -> ChiefError {
        let present = self.ps.tasks();
        let mut missing: Vec<TaskId> =
            self.identity.cluster.tasks_and_hosted().map(|(task, _)| task).collect();
        missing.retain(|task| task.job == JobName::Ps && !present.contains(task));
        missing.extend(&self.progress.borrow().missing);
        let tasks = self.with_addresses(&missing);
        ChiefError::Missing { seconds: self.config.start_timeout.as_secs(), tasks }
    }

    fn with_addresses(&self, tasks: &[TaskId]) -> Vec<String> {
        let cluster = &self.identity.cluster;
        let with_address = |task: &TaskId| match cluster.reached_at(*task) {
            Some(address) => format!("{task} at {address}"),
            None => task.to_string(),
        };
        tasks.iter().map(with_address).collect()
    }
}
