//! Initializes the shards from a checkpoint, from another job's values, or with initial values. `search`
//! chooses the checkpoint; this file reads the stores and sends the requests to the shards. Wanted property:
//! (C2) no shard begins with a checkpoint that another shard cannot read completely.

use std::time::Duration;

use pushpull_messages::checkpoint::{CheckpointName, Level, StartSpec};
use pushpull_messages::id::{Incarnation, Version};
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::Resume;
use pushpull_messages::observe::WallClock;
use pushpull_messages::placement::Placement;
use pushpull_storage::{ManifestSpec, Store};
use tokio::time::Instant;
use tracing::{info, warn};

use super::config::RestoreChoice;
use super::error::RestoreError;
use super::resume::{records, resumes};
use super::saver::StartingPoint;
use super::search::{CheckpointSearch, fits};
use super::warm_start::WarmStartConfig;
use crate::error::ChiefError;
use crate::launch::{CreateError, PsTasks};
use pushpull_storage::{Catalog, CheckpointState};

/// An initializer of the shards of a job.
pub(crate) struct ShardInitializer<'a> {
    pub ps: &'a PsTasks,
    pub job: &'a JobSpec,
    pub workers: u32,
    /// The job's own checkpoints, and the choice of the checkpoint that the job begins with; `None` if the
    /// job makes no checkpoints.
    pub checkpoints: Option<(&'a Catalog, RestoreChoice)>,
    /// The job's checkpoints in the memory of the ps tasks; `None` if it keeps none.
    pub memory: Option<&'a Catalog>,
    pub warm_start: Option<&'a WarmStartConfig>,
    pub wall_clock: &'a WallClock,
}

/// The number of further attempts after the first attempt to read a checkpoint has failed.
const LOOKS: u32 = 3;
/// The time between two attempts to read a checkpoint.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The state that the job begins with.
#[derive(Debug)]
pub(crate) struct InitialState {
    pub start: StartingPoint,
    /// The position at which each worker continues in its input, indexed by worker.
    pub resumes: Vec<Resume>,
}

/// Checkpoints among which one is searched.
#[derive(Clone, Copy)]
struct Searched<'a> {
    catalog: &'a Catalog,
    level: Level,
    /// Checkpoints of smaller incarnations are ignored.
    since: Option<Incarnation>,
}

impl<'a> Searched<'a> {
    const fn directory(catalog: &'a Catalog) -> Self {
        Self { catalog, level: Level::Directory, since: None }
    }
}

/// The checkpoint from which the shards were initialized.
struct Taken {
    name: CheckpointName,
    level: Level,
    manifest: ManifestSpec,
    /// The version with which all shards begin.
    version: Version,
}

/// The purpose for which a checkpoint is read.
#[derive(Clone, Copy)]
enum Purpose<'a> {
    Resume,
    WarmStart(&'a WarmStartConfig),
}

impl ShardInitializer<'_> {
    /// Initializes all shards again after a ps task was lost: from the newest valid checkpoint of this job,
    /// in memory or in the directory. If there is none and `may_begin_anew` is true, does so in the way in
    /// which the job began. `life` is the incarnation of the chief's first checkpoints. Checkpoints of
    /// smaller incarnations in the directory are used only if the job was set to begin with the newest
    /// checkpoint; otherwise they do not belong to this job.
    pub(crate) async fn run_again(
        &self,
        placement: Placement,
        life: Incarnation,
        may_begin_anew: bool,
    ) -> Result<InitialState, ChiefError> {
        let mut levels = Vec::new();
        levels.extend(self.memory.map(|catalog| Searched { catalog, level: Level::Memory, since: None }));
        levels.extend(self.checkpoints.map(|(catalog, restore)| {
            let since = match restore {
                RestoreChoice::LatestValid | RestoreChoice::Latest => None,
                RestoreChoice::None | RestoreChoice::Step(_) => Some(life),
            };
            Searched { catalog, level: Level::Directory, since }
        }));
        let only_memory = self.checkpoints.is_none();
        match self.resume_from(&levels, RestoreChoice::LatestValid, &placement).await {
            Ok(Some(initial)) => Ok(initial),
            Ok(None) if may_begin_anew => self.run(placement).await,
            Ok(None) => Err(RestoreError::MemoryLost { broken: Vec::new() }.into()),
            Err(ChiefError::Restore(RestoreError::NoneWhole { broken, .. })) if only_memory => {
                Err(RestoreError::MemoryLost { broken }.into())
            }
            Err(error) => Err(error),
        }
    }

    /// Initializes all shards; each gets the variables that `placement` assigns to it.
    pub(crate) async fn run(&self, placement: Placement) -> Result<InitialState, ChiefError> {
        if let Some((catalog, restore)) = self.checkpoints
            && let Some(initial) =
                self.resume_from(&[Searched::directory(catalog)], restore, &placement).await?
        {
            return Ok(initial);
        }
        let version = match self.warm_start {
            None => self.ps.create(self.job, self.workers, &placement, &StartSpec::Initialise).await?,
            Some(config) => {
                let catalog = Catalog::new(Store::open(&config.location).map_err(RestoreError::from)?);
                let choice = config.checkpoint.map_or(RestoreChoice::LatestValid, RestoreChoice::Step);
                let purpose = Purpose::WarmStart(config);
                let levels = [Searched::directory(&catalog)];
                let found = self.begin_with(&levels, choice, &placement, purpose).await?;
                found.ok_or_else(|| RestoreError::NothingThere(config.location.clone()))?.version
            }
        };
        let resumes = vec![Resume::default(); self.workers as usize];
        Ok(InitialState {
            start: StartingPoint { placement, version, from: None, in_memory: false, after: None },
            resumes,
        })
    }

    /// Initializes the shards from the chosen checkpoint of the job; returns `None` if there is none.
    async fn resume_from(
        &self,
        levels: &[Searched<'_>],
        restore: RestoreChoice,
        placement: &Placement,
    ) -> Result<Option<InitialState>, ChiefError> {
        let found = self.begin_with(levels, restore, placement, Purpose::Resume).await?;
        let Some(Taken { name, level, manifest, version }) = found else { return Ok(None) };
        let resumes = resumes(&manifest, self.job, self.workers);
        if manifest.learning_rate.factor != 1.0 {
            info!(
                factor = manifest.learning_rate.factor,
                "learning rate multiplied by the factor in the checkpoint"
            );
        }
        self.ps.begin_with_rate(manifest.learning_rate);
        let (placement, in_memory) = (placement.clone(), level == Level::Memory);
        let from = Some(name).filter(|_| !in_memory);
        let start = StartingPoint { placement, version, from, in_memory, after: None };
        Ok(Some(InitialState { start, resumes }))
    }

    /// Returns the age of a checkpoint as text, such as `5 min`. The age is only logged and decides nothing,
    /// because the checkpoint may have been dated by another host's clock.
    fn age(&self, manifest: &ManifestSpec) -> String {
        match self.wall_clock.unix_ms().saturating_sub(manifest.saved_ms) / 1000 {
            seconds @ 0..120 => format!("{seconds} s"),
            seconds @ 120..7200 => format!("{} min", seconds / 60),
            seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
            seconds => format!("{} days", seconds / 86_400),
        }
    }

    /// Returns the names of all checkpoints of these levels.
    async fn names(&self, levels: &[Searched<'_>]) -> Result<Vec<(CheckpointName, Level)>, RestoreError> {
        let mut all = Vec::new();
        for &Searched { catalog, level, since } in levels {
            let names = catalog.names().await?.into_iter();
            let names = names.filter(|name| since.is_none_or(|since| name.life >= since));
            all.extend(names.map(|name| (name, level)));
        }
        Ok(all)
    }

    /// Initializes the shards from the chosen checkpoint; returns `None` if there is none.
    async fn begin_with(
        &self,
        levels: &[Searched<'_>],
        choice: RestoreChoice,
        placement: &Placement,
        purpose: Purpose<'_>,
    ) -> Result<Option<Taken>, ChiefError> {
        let locations: Vec<_> = levels.iter().map(|searched| searched.catalog.store().location()).collect();
        let mut search = CheckpointSearch::new(choice, self.names(levels).await?, &locations.join(" and "));
        while let Some((name, level)) = search.next() {
            let searched = levels.iter().find(|searched| searched.level == level);
            let catalog = searched.expect("the name is from one of them").catalog;
            let manifest = match look_patiently(catalog, name).await {
                // The ps tasks had another job before.
                CheckpointState::Committed(manifest)
                    if level == Level::Memory && manifest.job.digest() != self.job.digest() =>
                {
                    search.reject(name, "another job has made it".to_owned());
                    continue;
                }
                CheckpointState::Committed(manifest) => *manifest,
                CheckpointState::Unfinished => continue,
                CheckpointState::Broken(reason) => {
                    search.reject(name, reason);
                    continue;
                }
                // If a store does not respond, the job must not continue from an older checkpoint, because
                // the newer one may be valid.
                CheckpointState::Unreadable(reason) => {
                    return Err(RestoreError::Unreadable { checkpoint: name, reason }.into());
                }
            };
            search.accept(name)?;
            if let Some(warning) = search.warning(name) {
                warn!("{warning}");
            }
            let store = catalog.store().location().to_owned();
            let (start, [doing, done]) = match purpose {
                Purpose::Resume => {
                    fits(name, &manifest, self.job)?;
                    let workers = records(&manifest, &resumes(&manifest, self.job, self.workers));
                    (StartSpec::Resume { store, checkpoint: name, workers }, ["restoring", "restored"])
                }
                Purpose::WarmStart(config) => {
                    let variables = config.sources(self.job, &manifest)?;
                    info!(store, "warm start: {} variable(s) from {name}", variables.len());
                    (StartSpec::WarmStart { store, checkpoint: name, variables }, ["reading", "read"])
                }
            };
            info!("{doing} {name} (step {}, saved {} ago)", manifest.step, self.age(&manifest));
            let began = Instant::now();
            match self.ps.create(self.job, self.workers, placement, &start).await {
                Ok(version) => {
                    info!("{done} {name} in {:.3} s", began.elapsed().as_secs_f32());
                    return Ok(Some(Taken { name, level, manifest, version }));
                }
                // The checkpoint looked valid, but a shard could not read it.
                Err(CreateError::Unavailable { shard, reason }) => {
                    search.reject(name, format!("{shard} cannot read it: {reason}"));
                }
                Err(other) => return Err(other.into()),
            }
        }
        search.finish()?;
        Ok(None)
    }
}

/// Examines a checkpoint. If it cannot be read, tries again [`LOOKS`] times.
async fn look_patiently(catalog: &Catalog, name: CheckpointName) -> CheckpointState {
    for _ in 0..LOOKS {
        match catalog.look(name).await {
            CheckpointState::Unreadable(reason) => {
                warn!(checkpoint = %name, reason, "checkpoint could not be read; trying again");
            }
            state => return state,
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    catalog.look(name).await
}
