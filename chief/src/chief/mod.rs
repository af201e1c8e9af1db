//! The chief task, from its configuration to the end of its job. The rules of the job are in `job`.

mod job_run;
mod saving;
mod stopwatch;
#[cfg(test)]
mod tests;

use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use pushpull_messages::id::{GlobalStep, TaskId};
use pushpull_messages::job::JobSpec;
use pushpull_messages::observe::{Clock, TaskState};
use pushpull_messages::out_of_range::OutOfRange;
use pushpull_messages::placement::Placement;
use pushpull_storage::{Store, StoreError, StoreLock, without_passwords};
use pushpull_transport::{Identity, Listener, Transport};
use tokio::sync::watch;
use tokio::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::checkpoint::Saver;
use crate::command::CommandQueue;
use crate::config::ChiefConfig;
use crate::error::ChiefError;
use crate::hook::Hook;
use crate::report::{JobEnd, JobProgress};
use crate::status::{ChiefView, StatusBoard};
use job_run::JobRun;

/// The time between two attempts to lock the store of checkpoints.
const LOCK_PAUSE: Duration = Duration::from_millis(100);

/// A job that was trained and evaluated, and whose variables are still on the ps tasks.
#[derive(Clone, Debug)]
pub struct TrainedJob {
    /// The shard of each slice of each variable.
    pub placement: Placement,
    /// The number of updates that were applied to the variables.
    pub step: GlobalStep,
}

/// A function that the chief calls once, after the job was trained and evaluated and before the ps tasks are
/// told to stop. The function can still read the variables; the chief itself carries no tensors.
pub type BeforeStop = Box<dyn FnOnce(TrainedJob) -> LocalBoxFuture<'static, ()>>;

/// A chief task that has not been started yet.
pub struct Chief {
    config: ChiefConfig,
    identity: Identity,
    transport: Arc<dyn Transport>,
    job: JobSpec,
    progress: watch::Sender<JobProgress>,
    /// Cancelled when a signal asks the job to stop.
    interrupt: CancellationToken,
    /// The reason for which the program stops the job before its last step; `None` until the program stops
    /// the job.
    stop: watch::Receiver<Option<String>>,
    hooks: Vec<Box<dyn Hook>>,
    before_stop: Option<BeforeStop>,
    commands: CommandQueue,
    board: StatusBoard,
    clock: Clock,
}

impl Chief {
    /// Creates a chief for a job that has been validated. The chief sends every change of the progress to
    /// `progress`, and ends the job early when `interrupt` is cancelled.
    pub fn new(
        config: ChiefConfig,
        identity: Identity,
        transport: Arc<dyn Transport>,
        job: JobSpec,
        progress: watch::Sender<JobProgress>,
        interrupt: CancellationToken,
    ) -> Self {
        // A worker process may host the chief, but other tasks must still see the identity of the chief.
        let identity = Identity { task: TaskId::CHIEF, ..identity };
        let (hooks, commands) = (Vec::new(), CommandQueue::new());
        let (board, clock) = (StatusBoard::new(), Clock::start());
        let (before_stop, (_, stop)) = (None, watch::channel(None));
        Self {
            config,
            identity,
            transport,
            job,
            progress,
            interrupt,
            stop,
            hooks,
            before_stop,
            commands,
            board,
            clock,
        }
    }

    /// Sets a function that is called before the ps tasks of a trained job are told to stop. The job ends
    /// when the function's future has ended.
    #[must_use]
    pub fn with_before_stop(mut self, call: BeforeStop) -> Self {
        self.before_stop = Some(call);
        self
    }

    /// Sets the channel on which a program requests the end of the training. When the first reason is sent,
    /// the training ends successfully, as with [`Command::Stop`](crate::Command::Stop).
    #[must_use]
    pub fn with_stop(mut self, stop: watch::Receiver<Option<String>>) -> Self {
        self.stop = stop;
        self
    }

    /// Adds hooks to the job.
    #[must_use]
    pub fn with_hooks(mut self, hooks: impl IntoIterator<Item = Box<dyn Hook>>) -> Self {
        self.hooks.extend(hooks);
        self
    }

    /// Returns a view of the chief and its job.
    pub fn view(&self) -> ChiefView {
        let makes_checkpoints = self.config.checkpoint.is_some();
        self.board.view(self.identity.incarnation, makes_checkpoints, self.commands.for_views())
    }

    /// Runs the job on the current arbiter: connects the tasks, waits for the end of the job, and returns how
    /// it ended.
    ///
    /// # Errors
    /// Returns an error if a setting is out of range, or if the job could not be completed. If the job had
    /// been started, its tasks have been told how it ended, unless the ps tasks obey another chief.
    ///
    /// # Panics
    /// Panics outside of an actix system.
    // Boxed so that the code is compiled once, in this crate. An `async fn` would be compiled again in each
    // program that awaits it.
    pub fn run(mut self, listener: Box<dyn Listener>) -> LocalBoxFuture<'static, Result<JobEnd, ChiefError>> {
        Box::pin(async move {
            let board = Rc::new(std::mem::replace(&mut self.board, StatusBoard::new()));
            let result = self.run_job(listener, &board).await;
            if let Some(board) = Rc::into_inner(board) {
                board.end(end_reason(&result), result.is_err());
            }
            result
        })
    }

    async fn run_job(
        self,
        listener: Box<dyn Listener>,
        board: &Rc<StatusBoard>,
    ) -> Result<JobEnd, ChiefError> {
        self.config.validate()?;
        let ps = self.identity.cluster.ps_addresses().len();
        if self.config.memory_checkpoint.is_some() && ps < 2 {
            let expected = "left out in a cluster with fewer than 2 ps tasks";
            return Err(OutOfRange::new(
                "memory_checkpoint",
                expected,
                format!("given with {ps} ps task(s)"),
            )
            .into());
        }
        let saver = self.saver().await?;
        let (run, inputs) = JobRun::start(self, board);
        let server = run.serve(listener);
        board.state(TaskState::Ready);
        run.lead(saver, inputs, server).await
    }

    /// Returns the saver of the job's checkpoints, or `None` if the job makes none.
    async fn saver(&self) -> Result<Option<Saver>, ChiefError> {
        let Some(config) = self.config.checkpoint.clone() else { return Ok(None) };
        let mut location = config.location.clone();
        if !location.contains("://")
            && let Ok(path) = std::path::absolute(&location)
        {
            // The ps tasks may have a different working directory, so the path must be absolute.
            location = path.to_string_lossy().into_owned();
        }
        let store = self.config.stores.create(&location)?;
        // Writes a test file, so that an unwritable store is reported at the start and not hours later.
        let probe = format!("probe-{}", self.identity.incarnation);
        self.responds(&store, async {
            store.put(&probe, "").await?;
            store.delete(&probe).await
        })
        .await?;
        // Meanwhile, the other tasks dial the chief, and get no reply until the lock is held.
        let limit = config.drain_timeout.min(self.config.start_timeout / 2);
        let lock = self.lock(&store, limit).await?;
        let saver = Saver::new(config, store.clone(), self.job.clone(), &self.identity);
        let saver = self.responds(&store, saver).await?;
        Ok(Some(saver.with_lock(lock).dated_by(self.config.wall_clock.clone())))
    }

    /// Awaits an operation of the store, within the time limit for the start of the job.
    async fn responds<T>(
        &self,
        store: &Store,
        operation: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, ChiefError> {
        let limit = self.config.start_timeout;
        let slow = |_| ChiefError::SlowStore {
            location: without_passwords(store.location()),
            seconds: limit.as_secs(),
        };
        Ok(tokio::time::timeout(limit, operation).await.map_err(slow)??)
    }

    /// Locks the store against other jobs. Waits for at most `limit` if another job holds the lock, because
    /// the other job may be an earlier run of this job that was told to stop and is still saving. Returns
    /// `None` if this kind of store has no locks.
    async fn lock(&self, store: &Store, limit: Duration) -> Result<Option<StoreLock>, ChiefError> {
        let host = self.identity.cluster.chief_host();
        let address = self.identity.cluster.address(host).map(|address| format!(" ({host} at {address})"));
        let (job, process) = (&self.job.graph.name, std::process::id());
        let holder = format!("the job '{job}'{} in process {process}", address.unwrap_or_default());
        let deadline = Instant::now() + limit;
        let mut waits = false;
        loop {
            let error = match store.lock(&holder) {
                Err(error @ StoreError::InUse { .. }) if Instant::now() < deadline => error,
                other => return Ok(other?),
            };
            if !std::mem::replace(&mut waits, true) {
                warn!(seconds = limit.as_secs(), "waiting for another job to end: {error}");
            }
            tokio::select! {
                biased;
                () = tokio::time::sleep(LOCK_PAUSE) => {}
                () = self.interrupt.cancelled() => {
                    let (step, last_step) = (GlobalStep(0), self.job.last_step);
                    return Err(ChiefError::Interrupted { step, last_step });
                }
            }
        }
    }
}

/// Returns the reason why a job ended early, or `None` if it was trained to its end.
fn end_reason(result: &Result<JobEnd, ChiefError>) -> Option<String> {
    match result {
        Ok(JobEnd::Completed(report)) => report.stopped.clone(),
        Ok(JobEnd::Saved { reason, .. }) => Some(reason.clone()),
        Err(error) => Some(error.to_string()),
    }
}
