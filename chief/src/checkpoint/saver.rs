//! Makes checkpoints beside the training, which never waits for them, and the last one when it has ended. When they are
//! due, how one is made, and which are deleted, is decided in the files beside this one.

use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::id::{GlobalStep, Incarnation, Version};
use pushpull_messages::job::JobSpec;
use pushpull_messages::observe::TimeHistogram;
use pushpull_messages::placement::Placement;
use pushpull_storage::{Store, StoreError};
use pushpull_transport::Identity;
use tokio::sync::{mpsc, watch};
use tokio::time::{Duration, Instant};

use super::cleaner::Cleaner;
use super::config::{CheckpointConfig, RestoreChoice};
use super::save::{Committed, NotSaved, Save};
use super::schedule::{Next, Schedule};
use crate::ps_tasks::PsTasks;
use crate::report::JobProgress;
use pushpull_storage::Catalog;

/// How often shards that are not at the same version are looked at again.
const LOOKS_MAX: u32 = 5;
/// A save that takes longer is told, again and again.
const SLOW: Duration = Duration::from_secs(60);
/// Between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What became of all saves so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SaveStatus {
    /// Checkpoints that were committed.
    pub saves: u64,
    /// Saves that came to nothing.
    pub failed: u64,
    /// The newest that is whole, also of an earlier life.
    pub last: Option<CheckpointName>,
    /// How long those took that were committed.
    pub took: TimeHistogram,
    /// The same of the last one.
    pub last_took: Duration,
}

/// What the saver is told.
#[derive(Debug)]
pub(crate) enum Order {
    /// The variables are there.
    Begin(Begun),
    /// One more, as soon as can be.
    Save,
    /// All workers have finished, at that step: one more of that.
    Trained(GlobalStep),
    /// The job ends: one of that step, where there is none yet, and then no more. Without a step, of whatever version all
    /// shards are at.
    End { step: Option<GlobalStep>, deadline: Option<Instant> },
}

/// What the job began with.
#[derive(Clone, Debug)]
pub(crate) struct Begun {
    pub placement: Placement,
    pub version: Version,
    /// The checkpoint that has it.
    pub from: Option<CheckpointName>,
}

/// Makes the checkpoints of one life of the chief.
#[derive(Debug)]
pub(crate) struct Saver {
    config: CheckpointConfig,
    save: Save,
    cleaner: Cleaner,
    status: watch::Sender<SaveStatus>,
}

impl Saver {
    /// Of a chief of that life, or a later one if the store has checkpoints of such: the clock may have been set back,
    /// and what is saved now is the newest all the same.
    ///
    /// # Errors
    /// Where the store cannot be listed.
    pub(crate) async fn new(
        config: CheckpointConfig,
        store: Store,
        job: JobSpec,
        identity: &Identity,
    ) -> Result<Self, StoreError> {
        let (status, _) = watch::channel(SaveStatus::default());
        let catalog = Catalog::new(store);
        let newest = catalog.names().await?.first().map(|name| name.life.next());
        let life = newest.unwrap_or_default().max(identity.incarnation);
        let cleaner = Cleaner::new(catalog.clone(), life, config.keep, config.keep_every);
        let save = Save::new(catalog, job, identity.cluster.clone(), life);
        Ok(Self { config, save, cleaner, status })
    }

    /// The checkpoints that there are, and which of them the job is to begin with.
    pub(crate) fn checkpoints(&self) -> (Catalog, RestoreChoice) {
        (self.save.catalog().clone(), self.config.restore)
    }

    /// The life whose checkpoints it makes.
    pub(crate) const fn life(&self) -> Incarnation {
        self.save.life()
    }

    /// What becomes of the saves.
    pub(crate) fn status(&self) -> watch::Receiver<SaveStatus> {
        self.status.subscribe()
    }

    /// Makes checkpoints until the end, and the last one then. Gives that, also where it was made before.
    ///
    /// # Errors
    /// Why the last one could not be made.
    pub(crate) async fn run(
        mut self,
        ps: &PsTasks,
        progress: watch::Receiver<JobProgress>,
        mut orders: mpsc::UnboundedReceiver<Order>,
    ) -> Result<CheckpointName, String> {
        let begun = loop {
            match orders.recv().await {
                Some(Order::Begin(begun)) => break begun,
                Some(Order::Save | Order::Trained(_)) => {}
                Some(Order::End { .. }) | None => return Err("the shards have no variables yet".into()),
            }
        };
        self.status.send_modify(|status| status.last = begun.from);
        let (steps, every) = (self.config.save_steps, self.config.save_secs);
        let mut schedule = Schedule::new(steps, every, begun.version, begun.from.is_none());
        let seen = || Version(progress.borrow().global_step.0);
        let mut reports = progress.clone();
        let (clock, mut end) = (Instant::now(), None);
        while end.is_none() {
            schedule.saw(seen());
            let next = schedule.next(clock.elapsed());
            let under_way = next.at();
            let saved = {
                let (save, placement) = (&self.save, &begun.placement);
                let work = async {
                    self.cleaner.clean_if_due().await;
                    match next {
                        Next::At(at) => return Some(save.run(ps, placement, at).await),
                        Next::AtTime(due) => tokio::time::sleep_until(clock + due).await,
                        Next::Seen(version) => {
                            let there = |now: &JobProgress| now.global_step.0 >= version.0;
                            // Without anybody who reports nothing is trained.
                            if reports.wait_for(there).await.is_err() {
                                std::future::pending::<()>().await;
                            }
                        }
                        Next::Nothing => std::future::pending().await,
                    }
                    None
                };
                let mut work = std::pin::pin!(work);
                let mut slow = tokio::time::interval(SLOW);
                slow.tick().await;
                loop {
                    let order = tokio::select! {
                        saved = &mut work => break saved,
                        order = orders.recv() => order,
                        _ = slow.tick() => {
                            // One that the shards have not got to yet is not slow.
                            if let Some(at) = under_way.filter(|&at| at < seen()) {
                                tracing::warn!("the checkpoint of step {at} is still not made: is the store slow, or gone?");
                            }
                            continue;
                        }
                    };
                    schedule.saw(seen());
                    let changes = match order {
                        Some(Order::Save) => schedule.wish(under_way),
                        Some(Order::Trained(step)) => schedule.trained(Version(step.0), under_way),
                        Some(Order::Begin(_)) => false,
                        Some(Order::End { step, deadline }) => {
                            end = Some((step, deadline));
                            // What the shards will never get to is given up.
                            let last = step.map_or(seen(), |step| Version(step.0));
                            let comes = under_way.is_some_and(|at| at <= last);
                            let work = async { if comes { work.await } else { None } };
                            break within(deadline, work).await.flatten();
                        }
                        None => return Err("nobody waits for a checkpoint".into()),
                    };
                    if changes {
                        break None;
                    }
                }
            };
            if let (Some(at), Some(saved)) = (under_way, saved) {
                match self.note(saved) {
                    Ok(_) => {
                        schedule.saw(at);
                        schedule.ended(clock.elapsed());
                    }
                    Err(NotSaved::Late(version)) => schedule.was_late(version),
                    Err(NotSaved::Failed(reason)) => {
                        schedule.failed(at, clock.elapsed());
                        let newest = self.status.borrow().newest();
                        tracing::error!("the checkpoint of step {at} was not made: {reason}; {newest}");
                    }
                }
            }
        }
        let (step, deadline) = end.expect("it is the end");
        let last = within(deadline, self.save_last(ps, &begun.placement, step)).await;
        let last = last.unwrap_or_else(|| {
            let seconds = self.config.drain_timeout.as_secs_f32();
            Err(format!("it was not done within {seconds} s (drain_timeout)"))
        });
        if last.is_ok() && within(deadline, self.cleaner.clean_if_due()).await.is_none() {
            tracing::warn!("no time is left to delete checkpoints that are not kept");
        }
        last
    }

    /// The save of the step at which the job ends.
    async fn save_last(
        &mut self,
        ps: &PsTasks,
        placement: &Placement,
        step: Option<GlobalStep>,
    ) -> Result<CheckpointName, String> {
        let mut reason = String::new();
        for look in 0..LOOKS_MAX {
            if look > 0 {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            let at = match step {
                Some(step) => Version(step.0),
                None => match same_version(ps).await {
                    Ok(at) => at,
                    Err(differ) => {
                        reason = differ;
                        continue;
                    }
                },
            };
            let last = self.status.borrow().last;
            if let Some(last) = last.filter(|last| last.step.0 == at.0) {
                return Ok(last);
            }
            let saved = self.save.run(ps, placement, at).await;
            match self.note(saved) {
                Err(NotSaved::Late(version)) => reason = format!("a shard is at {version}, and beyond {at}"),
                Err(NotSaved::Failed(reason)) => return Err(reason),
                Ok(name) => return Ok(name),
            }
        }
        Err(reason)
    }

    /// Counts a save.
    fn note(&mut self, saved: Result<Committed, NotSaved>) -> Result<CheckpointName, NotSaved> {
        match saved {
            Ok(Committed { name, bytes, took, saved_ms }) => {
                let (megabytes, seconds) = (bytes as f64 / 1e6, took.as_secs_f32());
                tracing::info!("saved {name}: {megabytes:.1} MB in {seconds:.3} s");
                self.cleaner.committed(name, saved_ms);
                self.status.send_modify(|status| {
                    status.saves += 1;
                    status.last = Some(name);
                    status.took.record(took);
                    status.last_took = took;
                });
                Ok(name)
            }
            Err(late @ NotSaved::Late(_)) => Err(late),
            Err(failed) => {
                self.status.send_modify(|status| status.failed += 1);
                Err(failed)
            }
        }
    }
}

impl SaveStatus {
    /// What there is to go on from, for people.
    pub(crate) fn newest(&self) -> String {
        match self.last {
            Some(last) => format!("the newest checkpoint is {last}"),
            None => "there is no checkpoint".to_owned(),
        }
    }
}

/// What comes of it, where that comes in time.
async fn within<T>(deadline: Option<Instant>, work: impl Future<Output = T>) -> Option<T> {
    match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline, work).await.ok(),
        None => Some(work.await),
    }
}

/// At which version all shards are.
async fn same_version(ps: &PsTasks) -> Result<Version, String> {
    let shards = ps.observe().await.map_err(|error| error.to_string())?;
    let versions = shards.iter().map(|(_, snapshot)| snapshot.version);
    match (versions.clone().min(), versions.max()) {
        (Some(least), Some(greatest)) if least == greatest => Ok(least),
        (Some(least), Some(greatest)) => {
            Err(format!("the shards are not at the same step, but between {least} and {greatest}"))
        }
        _ => Err("there are no shards".into()),
    }
}
