//! Initializes the shards from a checkpoint, from another job's values, or with initial values. `search`
//! chooses the checkpoint; this file reads the stores and sends the requests to the shards. Wanted property:
//! (C2) no shard begins with a checkpoint that another shard cannot read completely.

use std::time::Duration;

use pushpull_messages::checkpoint::{CheckpointName, StartSpec};
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

/// The purpose for which a checkpoint is read.
#[derive(Clone, Copy)]
enum Purpose<'a> {
    Resume,
    WarmStart(&'a WarmStartConfig),
}

impl ShardInitializer<'_> {
    /// Initializes all shards again after a ps task was lost: from the newest valid checkpoint of this job
    /// or, if there is none, in the way in which the job began. `life` is the incarnation of the chief's
    /// first checkpoints. Checkpoints of smaller incarnations are used only if the job was set to begin with
    /// the newest checkpoint; otherwise they do not belong to this job.
    pub(crate) async fn run_again(
        &self,
        placement: Placement,
        life: Incarnation,
    ) -> Result<InitialState, ChiefError> {
        let Some((catalog, restore)) = self.checkpoints else { return self.run(placement).await };
        let since = match restore {
            RestoreChoice::LatestValid | RestoreChoice::Latest => None,
            RestoreChoice::None | RestoreChoice::Step(_) => Some(life),
        };
        match self.resume_from(catalog, RestoreChoice::LatestValid, since, &placement).await? {
            Some(initial) => Ok(initial),
            None => self.run(placement).await,
        }
    }

    /// Initializes all shards; each gets the variables that `placement` assigns to it.
    pub(crate) async fn run(&self, placement: Placement) -> Result<InitialState, ChiefError> {
        if let Some((catalog, restore)) = self.checkpoints
            && let Some(initial) = self.resume_from(catalog, restore, None, &placement).await?
        {
            return Ok(initial);
        }
        let version = match self.warm_start {
            None => self.ps.create(self.job, self.workers, &placement, &StartSpec::Initialise).await?,
            Some(config) => {
                let catalog = Catalog::new(Store::open(&config.location).map_err(RestoreError::from)?);
                let choice = config.checkpoint.map_or(RestoreChoice::LatestValid, RestoreChoice::Step);
                let purpose = Purpose::WarmStart(config);
                let found = self.begin_with(&catalog, choice, None, &placement, purpose).await?;
                let (_, _, version) =
                    found.ok_or_else(|| RestoreError::NothingThere(config.location.clone()))?;
                version
            }
        };
        let resumes = vec![Resume::default(); self.workers as usize];
        Ok(InitialState { start: StartingPoint { placement, version, from: None }, resumes })
    }

    /// Initializes the shards from the chosen checkpoint of the job; returns `None` if there is none.
    async fn resume_from(
        &self,
        catalog: &Catalog,
        restore: RestoreChoice,
        since: Option<Incarnation>,
        placement: &Placement,
    ) -> Result<Option<InitialState>, ChiefError> {
        let found = self.begin_with(catalog, restore, since, placement, Purpose::Resume).await?;
        let Some((name, manifest, version)) = found else { return Ok(None) };
        let resumes = resumes(&manifest, self.job, self.workers);
        if manifest.learning_rate.factor != 1.0 {
            info!(
                factor = manifest.learning_rate.factor,
                "learning rate multiplied by the factor in the checkpoint"
            );
        }
        self.ps.begin_with_rate(manifest.learning_rate);
        let start = StartingPoint { placement: placement.clone(), version, from: Some(name) };
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

    /// Initializes the shards from the chosen checkpoint; returns `None` if there is none. Ignores the
    /// checkpoints of incarnations smaller than `since`.
    async fn begin_with(
        &self,
        catalog: &Catalog,
        choice: RestoreChoice,
        since: Option<Incarnation>,
        placement: &Placement,
        purpose: Purpose<'_>,
    ) -> Result<Option<(CheckpointName, ManifestSpec, Version)>, ChiefError> {
        let mut names = catalog.names().await.map_err(RestoreError::from)?;
        names.retain(|name| since.is_none_or(|since| name.life >= since));
        let mut search = CheckpointSearch::new(choice, names, catalog.store().location());
        while let Some(name) = search.next() {
            let manifest = match look_patiently(catalog, name).await {
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
                    return Ok(Some((name, manifest, version)));
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
