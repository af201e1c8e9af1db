//! Makes checkpoints while the job trains, without delaying the training, and makes the last one after the
//! training has ended. Other files of this folder decide when a checkpoint is due, write it, and decide
//! which checkpoints to delete.

use pushpull_messages::checkpoint::{CheckpointName, Level};
use pushpull_messages::id::{GlobalStep, Incarnation, Version};
use pushpull_messages::job::JobSpec;
use pushpull_messages::observe::{TimeHistogram, WallClock};
use pushpull_messages::placement::Placement;
use pushpull_storage::{Catalog, Store, StoreError, StoreLock};
use pushpull_transport::Identity;
use tokio::sync::{mpsc, watch};
use tokio::time::{Duration, Instant};
use tracing::{debug, error, info, warn};

use super::checkpoint_writer::{CheckpointWriter, CommittedCheckpoint, SaveError};
use super::cleaner::Cleaner;
use super::config::{CheckpointConfig, MemoryCheckpointConfig, RestoreChoice};
use super::schedule::{NextSave, Schedule};
use crate::launch::PsTasks;
use crate::report::JobProgress;

/// The maximum number of attempts at the last save. The save is attempted again if the shards are at
/// different versions, if a shard has passed the requested version, or if the save fails.
const LOOKS_MAX: u32 = 5;
/// The interval at which a save that is still unfinished is logged.
const SLOW: Duration = Duration::from_secs(60);
/// The time after which the last save is attempted again if the shards did not have the right version.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The time after which a failed last save is attempted again. It doubles with each attempt.
const RETRY: Duration = Duration::from_secs(1);

/// The status of all saves so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SaveStatus {
    /// The number of checkpoints that were committed.
    pub saves: u64,
    /// The number of saves that failed.
    pub failed: u64,
    /// The newest valid checkpoint, which may be one of an earlier run.
    pub last: Option<CheckpointName>,
    /// The last step of the trained job, when the saver has saved it or could not; `None` before that.
    pub tried: Option<GlobalStep>,
    /// A histogram of the times that the committed saves took.
    pub took: TimeHistogram,
    /// The time that the last committed save took.
    pub last_took: Duration,
}

/// A command to the saver.
#[derive(Clone, Debug)]
pub(crate) enum SaverCommand {
    /// Starts the schedule; sent when all shards have been initialized. Sent again when a job has rolled
    /// back.
    Begin(StartingPoint),
    /// Stops saving, because a ps task is lost. Another [`Begin`](Self::Begin) or [`Resume`](Self::Resume)
    /// follows if the task comes back.
    Suspend,
    /// Continues to make checkpoints, because all shards still have their variables.
    Resume,
    /// Makes one more checkpoint, as soon as possible.
    Save,
    /// Makes a checkpoint of this step, at which all workers have finished.
    Trained(GlobalStep),
    /// Makes the last checkpoint by the deadline, and then ends the saver. The checkpoint is that of `step`
    /// or, if `step` is `None`, of the version that all shards have reached.
    End { step: Option<GlobalStep>, deadline: Instant },
}

/// The state of the shards when the job begins.
#[derive(Clone, Debug)]
pub(crate) struct StartingPoint {
    pub placement: Placement,
    pub version: Version,
    /// The checkpoint of the directory that the job continues from, if any.
    pub from: Option<CheckpointName>,
    /// Whether the job continues from a checkpoint in the memory of the ps tasks.
    pub in_memory: bool,
    /// The greatest incarnation number of the checkpoints in the memory of the ps tasks; `None` if there are
    /// none.
    pub after: Option<Incarnation>,
}

/// The saver, which makes the checkpoints of one run of the chief.
#[derive(Debug)]
pub(crate) struct Saver {
    level: Level,
    config: CheckpointConfig,
    writer: CheckpointWriter,
    cleaner: Cleaner,
    status: watch::Sender<SaveStatus>,
    /// The time after which a failed last save is attempted again.
    retry: Duration,
    /// The nonce of the chief, which decides how much the incarnation number of checkpoints grows after a
    /// rollback.
    nonce: u64,
    /// The lock of the store, kept until the last checkpoint is saved; `None` if the store cannot be locked.
    _lock: Option<StoreLock>,
}

impl Saver {
    /// Creates the saver of a chief. New checkpoints carry the chief's incarnation number, or a greater one
    /// if they would not count as the newest otherwise.
    ///
    /// # Errors
    /// Returns an error if the store cannot be listed.
    pub(crate) async fn new(
        config: CheckpointConfig,
        store: Store,
        job: JobSpec,
        identity: &Identity,
    ) -> Result<Self, StoreError> {
        let (status, _) = watch::channel(SaveStatus::default());
        let catalog = Catalog::new(store);
        let life = catalog.next_life(identity.incarnation, identity.nonce).await?;
        let cleaner = Cleaner::new(catalog.clone(), life, config.keep, config.keep_every);
        let writer = CheckpointWriter::new(catalog, job, identity.cluster.clone(), life);
        let (level, nonce) = (Level::Directory, identity.nonce);
        Ok(Self { level, writer, cleaner, status, config, retry: RETRY, nonce, _lock: None })
    }

    /// Creates the saver of checkpoints in the memory of the ps tasks. Its checkpoints carry `life`, which is
    /// the number of those in the directory, if the job makes some: then the newest of both levels can be
    /// found.
    pub(crate) fn in_memory(
        every: MemoryCheckpointConfig,
        store: Store,
        job: JobSpec,
        identity: &Identity,
        life: Incarnation,
    ) -> Self {
        let (status, _) = watch::channel(SaveStatus::default());
        let (config, catalog) = (CheckpointConfig::in_memory(every), Catalog::new(store));
        let cleaner = Cleaner::new(catalog.clone(), life, config.keep, None).deleting_broken();
        let writer = CheckpointWriter::new(catalog, job, identity.cluster.clone(), life);
        let (level, nonce) = (Level::Memory, identity.nonce);
        Self { level, writer, cleaner, status, config, retry: RETRY, nonce, _lock: None }
    }

    /// Keeps the lock of the store until the saver has ended.
    #[must_use]
    pub(crate) fn with_lock(self, lock: Option<StoreLock>) -> Self {
        Self { _lock: lock, ..self }
    }

    /// Sets the clock that gives the times of all checkpoints.
    #[must_use]
    pub(crate) fn dated_by(mut self, wall_clock: WallClock) -> Self {
        self.writer.dated_by(wall_clock);
        self
    }

    /// Sets the time after which a failed last save is repeated, in place of the usual time.
    #[cfg(test)]
    pub(super) fn retrying_after(self, retry: Duration) -> Self {
        Self { retry, ..self }
    }

    /// Returns a catalog of the existing checkpoints, and the setting that chooses the checkpoint that the
    /// job begins with.
    pub(crate) fn checkpoints(&self) -> (Catalog, RestoreChoice) {
        (self.writer.catalog().clone(), self.config.restore)
    }

    /// Returns the incarnation number that the checkpoints carry until the job rolls back.
    pub(crate) const fn life(&self) -> Incarnation {
        self.writer.life()
    }

    /// Returns a receiver of the status of the saves.
    pub(crate) fn status(&self) -> watch::Receiver<SaveStatus> {
        self.status.subscribe()
    }

    /// Makes checkpoints until the job ends, and then makes the last one. Returns the name of the last
    /// checkpoint, which may have been made before the end.
    ///
    /// # Errors
    /// Returns the reason if the last checkpoint could not be made.
    pub(crate) async fn run(
        mut self,
        ps: &PsTasks,
        progress: watch::Receiver<JobProgress>,
        mut commands: mpsc::UnboundedReceiver<SaverCommand>,
    ) -> Result<CheckpointName, String> {
        self.writer.follow(progress.clone());
        let (mut start, mut requested) = wait_to_begin(&mut commands, None).await?;
        loop {
            self.follow(start.after);
            self.begin_at(&start);
            let (steps, every) = (self.config.save_steps, self.config.save_secs);
            // In memory, the first version is always saved: a ps task that was started again has lost its
            // files.
            let saved = start.from.filter(|_| self.level == Level::Directory);
            let saved = saved.map(|from| Version(from.step.0));
            let mut schedule = Schedule::new(steps, every, start.version, saved);
            if requested {
                schedule.request(None);
            }
            let (placement, progress) = (&start.placement, progress.clone());
            let training = Training { ps, placement, progress, began: Instant::now() };
            let interruption = loop {
                if let Some(now) = self.save_next(&training, &mut schedule, &mut commands).await? {
                    break now;
                }
            };
            match interruption {
                Interruption::End(end) => return self.finish(ps, &start.placement, end).await,
                Interruption::Suspend => {
                    self.status.send_modify(|status| status.tried = None);
                    let seen = StartingPoint {
                        version: training.seen(),
                        from: self.status.borrow().last,
                        ..start.clone()
                    };
                    let unserved = schedule.is_requested();
                    (start, requested) = wait_to_begin(&mut commands, Some(seen)).await?;
                    requested |= unserved;
                    self.renew();
                }
            }
        }
    }

    /// Lets the next checkpoints count as newer than those with this incarnation number, which an earlier run
    /// of the chief has left in the memory of the ps tasks, also if the clock was set back. The savers of
    /// both levels do so, and keep equal numbers: otherwise an older checkpoint of one level would count as
    /// newer than one of the other.
    pub(super) fn follow(&mut self, earlier: Option<Incarnation>) {
        if let Some(earlier) = earlier.filter(|&earlier| earlier >= self.writer.life()) {
            self.name_after(earlier);
        }
    }

    /// Updates the status when the shards begin at `start`.
    fn begin_at(&self, start: &StartingPoint) {
        self.status.send_modify(|status| {
            status.tried = None;
            if self.level == Level::Directory {
                // A job that continues from a checkpoint in memory still has its older ones.
                let older = |last: &CheckpointName| start.in_memory && last.step.0 <= start.version.0;
                status.last = start.from.or(status.last.filter(older));
            }
        });
    }

    /// Gives a greater incarnation number, and therefore other file names, to all checkpoints from now on.
    /// Otherwise a shard that is still writing a file of an earlier save could overwrite a later save of the
    /// same step, whose values may differ.
    fn renew(&mut self) {
        self.name_after(self.writer.life());
    }

    fn name_after(&mut self, earlier: Incarnation) {
        let life = Catalog::life_after(earlier, self.nonce);
        self.writer.renew(life);
        self.cleaner.renew(life);
    }

    /// Carries out the schedule's next decision, or stops early if a command changes the schedule. Returns
    /// the [`Interruption`] if a command ended the job, or suspended it.
    async fn save_next(
        &mut self,
        training: &Training<'_>,
        schedule: &mut Schedule,
        commands: &mut mpsc::UnboundedReceiver<SaverCommand>,
    ) -> Result<Option<Interruption>, String> {
        schedule.saw(training.seen());
        let next = schedule.next(training.began.elapsed());
        if let (NextSave::Nothing, Some(last)) = (next, schedule.last()) {
            let tried = Some(GlobalStep(last.0));
            self.status.send_if_modified(|status| std::mem::replace(&mut status.tried, tried) != tried);
        }
        let under_way = next.at();
        let (saved, end) = {
            let mut work = std::pin::pin!(training.work(&self.writer, &mut self.cleaner, next));
            let mut slow = tokio::time::interval(SLOW);
            slow.tick().await;
            loop {
                let command = tokio::select! {
                    biased;
                    saved = &mut work => break (saved, None),
                    command = commands.recv() => command,
                    _ = slow.tick() => {
                        // A save has to wait until the shards reach its step, so it counts as slow only
                        // after that.
                        if let Some(step) = under_way.filter(|&at| at < training.seen()) {
                            warn!(%step, "save has not finished yet; check whether the store responds");
                        }
                        continue;
                    }
                };
                schedule.saw(training.seen());
                let changes = match command {
                    Some(SaverCommand::Save) => schedule.request(under_way),
                    Some(SaverCommand::Trained(step)) => schedule.trained(Version(step.0), under_way),
                    Some(SaverCommand::Begin(_) | SaverCommand::Resume) => false,
                    Some(SaverCommand::Suspend) => return Ok(Some(Interruption::Suspend)),
                    Some(SaverCommand::End { step, deadline }) => {
                        // A save of a step that the shards will never reach is abandoned.
                        let last = step.map_or(training.seen(), |step| Version(step.0));
                        let comes = under_way.is_some_and(|at| at <= last);
                        let work = async { if comes { work.await } else { None } };
                        break (within(deadline, work).await.flatten(), Some(End { step, deadline }));
                    }
                    None => return Err("the job has ended without a last checkpoint".into()),
                };
                if changes {
                    break (None, None);
                }
            }
        };
        if let (Some(at), Some(saved)) = (under_way, saved) {
            self.reschedule(schedule, at, saved, training.began.elapsed());
        }
        Ok(end.map(Interruption::End))
    }

    /// Counts a save of version `at`, and reports its result to the schedule.
    fn reschedule(
        &mut self,
        schedule: &mut Schedule,
        at: Version,
        saved: Result<CommittedCheckpoint, SaveError>,
        now: Duration,
    ) {
        match self.count(saved) {
            Ok(_) => {
                schedule.saw(at);
                schedule.ended(at, now);
            }
            Err(SaveError::Late(version)) => schedule.was_late(version),
            Err(SaveError::Failed(reason) | SaveError::PsLost(reason)) => {
                schedule.failed(at, now);
                let newest = self.status.borrow().newest();
                match self.level {
                    Level::Directory => error!(step = %at, reason, "checkpoint was not made; {newest}"),
                    Level::Memory => warn!(step = %at, reason, "checkpoint in memory was not made; {newest}"),
                }
            }
        }
    }

    /// Makes the last checkpoint, and then deletes old ones. Stops at the deadline.
    async fn finish(
        &mut self,
        ps: &PsTasks,
        placement: &Placement,
        End { step, deadline }: End,
    ) -> Result<CheckpointName, String> {
        let mut reason = String::new();
        let last = within(deadline, self.save_last(ps, placement, step, &mut reason)).await;
        let last = last.unwrap_or_else(|| {
            self.status.send_modify(|status| status.failed += 1);
            Err(match reason.is_empty() {
                true => "the last save did not finish in time".to_owned(),
                false => format!("the last save did not finish in time; an earlier attempt failed: {reason}"),
            })
        });
        if last.is_ok() && within(deadline, self.cleaner.clean_if_due()).await.is_none() {
            warn!("no time left to delete old checkpoints");
        }
        last
    }

    /// Makes the checkpoint of `step` or, if `step` is `None`, of the version that all shards have reached.
    /// Attempts it again if the save fails, for example because the store does not respond for a moment.
    /// Writes the reason of each failed attempt to `reason`.
    async fn save_last(
        &mut self,
        ps: &PsTasks,
        placement: &Placement,
        step: Option<GlobalStep>,
        reason: &mut String,
    ) -> Result<CheckpointName, String> {
        let (mut pause, mut retry) = (Duration::ZERO, self.retry);
        for _ in 0..LOOKS_MAX {
            tokio::time::sleep(std::mem::replace(&mut pause, LOOK_AGAIN)).await;
            let at = match step {
                Some(step) => Version(step.0),
                None => match same_version(ps).await {
                    Ok(at) => at,
                    Err(differing) => {
                        *reason = differing;
                        continue;
                    }
                },
            };
            let last = self.status.borrow().last;
            if let Some(last) = last.filter(|last| last.step.0 == at.0) {
                return Ok(last);
            }
            let saved = self.writer.run(ps, placement, at).await;
            match self.count(saved) {
                Err(SaveError::Late(version)) => {
                    *reason = format!("a shard has reached version {version}, expected at most {at}")
                }
                Err(SaveError::Failed(why)) => {
                    warn!(step = %at, reason = why, "saving the last step failed");
                    (*reason, pause, retry) = (why, retry, 2 * retry);
                }
                Err(SaveError::PsLost(why)) if ps.wait_reached().await => *reason = why,
                Err(SaveError::PsLost(reason)) => return Err(reason),
                Ok(name) => return Ok(name),
            }
        }
        Err(std::mem::take(reason))
    }

    /// Counts a save, and logs it if it was committed.
    fn count(&mut self, saved: Result<CommittedCheckpoint, SaveError>) -> Result<CheckpointName, SaveError> {
        match saved {
            Ok(CommittedCheckpoint { name, bytes, took, saved_ms }) => {
                let (megabytes, seconds) = (bytes as f64 / 1e6, took.as_secs_f32());
                match self.level {
                    Level::Directory => info!("saved {name}: {megabytes:.1} MB in {seconds:.3} s"),
                    Level::Memory => debug!("saved {name} in memory: {megabytes:.1} MB in {seconds:.3} s"),
                }
                self.cleaner.committed(name, saved_ms);
                self.status.send_modify(|status| {
                    status.saves += 1;
                    status.last = Some(name);
                    status.took.record(took);
                    status.last_took = took;
                });
                Ok(name)
            }
            Err(late @ SaveError::Late(_)) => Err(late),
            Err(failed) => {
                self.status.send_modify(|status| status.failed += 1);
                Err(failed)
            }
        }
    }
}

/// Waits for [`SaverCommand::Begin`]. Returns its starting point, and whether a checkpoint was requested
/// meanwhile. If the saver is suspended, `suspended` is its earlier starting point. In this case,
/// [`SaverCommand::Resume`] also ends the wait, and `suspended` is returned as the starting point.
///
/// # Errors
/// If the job ends before such a command, returns the reason why there is no last checkpoint.
async fn wait_to_begin(
    commands: &mut mpsc::UnboundedReceiver<SaverCommand>,
    suspended: Option<StartingPoint>,
) -> Result<(StartingPoint, bool), String> {
    let mut requested = false;
    loop {
        match (commands.recv().await, &suspended) {
            (Some(SaverCommand::Begin(start)), _) => return Ok((start, requested)),
            (Some(SaverCommand::Resume), Some(start)) => return Ok((start.clone(), requested)),
            (Some(SaverCommand::Save), _) => requested = true,
            (Some(SaverCommand::End { .. }) | None, None) => {
                return Err("the shards have no variables yet".into());
            }
            (Some(SaverCommand::End { .. }) | None, Some(_)) => return Err("a ps task is lost".into()),
            _ => {}
        }
    }
}

/// A command that interrupts the schedule.
#[derive(Clone, Copy, Debug)]
enum Interruption {
    End(End),
    Suspend,
}

/// The fields of the command [`SaverCommand::End`].
#[derive(Clone, Copy, Debug)]
struct End {
    step: Option<GlobalStep>,
    deadline: Instant,
}

/// The training that the checkpoints save: its shards and its progress.
struct Training<'a> {
    ps: &'a PsTasks,
    placement: &'a Placement,
    progress: watch::Receiver<JobProgress>,
    began: Instant,
}

impl Training<'_> {
    /// Returns the latest version that workers have reported.
    fn seen(&self) -> Version {
        Version(self.progress.borrow().global_step.0)
    }

    /// Deletes old checkpoints. Then makes the next checkpoint, or waits until the schedule must be
    /// consulted again.
    async fn work(
        &self,
        writer: &CheckpointWriter,
        cleaner: &mut Cleaner,
        next: NextSave,
    ) -> Option<Result<CommittedCheckpoint, SaveError>> {
        cleaner.clean_if_due().await;
        match next {
            NextSave::At(at) => return Some(writer.run(self.ps, self.placement, at).await),
            NextSave::AtTime(due) => tokio::time::sleep_until(self.began + due).await,
            NextSave::Seen(version) => {
                let mut progress = self.progress.clone();
                // An error means that the sender was dropped because the training has ended, so the version
                // is never reached.
                if progress.wait_for(|now| now.global_step.0 >= version.0).await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
            NextSave::Nothing => std::future::pending().await,
        }
        None
    }
}

impl SaveStatus {
    /// Returns a phrase for log messages that names the newest checkpoint.
    pub(crate) fn newest(&self) -> String {
        match self.last {
            Some(last) => format!("the newest checkpoint is {last}"),
            None => "there is no checkpoint".to_owned(),
        }
    }

    /// Returns whether the checkpoint of `step` was made.
    pub(crate) fn has(&self, step: GlobalStep) -> bool {
        self.last.is_some_and(|last| last.step == step)
    }
}

/// Returns the result of `work`, or `None` if the deadline comes first.
async fn within<T>(deadline: Instant, work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout_at(deadline, work).await.ok()
}

/// Returns the version that all shards have reached, or an error if their versions differ.
async fn same_version(ps: &PsTasks) -> Result<Version, String> {
    let shards = ps.observe().await.map_err(|error| error.to_string())?;
    let versions = shards.iter().map(|(_, snapshot)| snapshot.version);
    match (versions.clone().min(), versions.max()) {
        (Some(least), Some(greatest)) if least == greatest => Ok(least),
        (Some(least), Some(greatest)) => {
            Err(format!("the shards are at different steps, from {least} to {greatest}"))
        }
        _ => Err("there are no shards".into()),
    }
}
