//! Tests how a job with fake shards saves and restores checkpoints: on a store that works, and on stores
//! that fail, each from a different operation on.

use std::sync::Arc;
use std::time::Duration;

use object_store::local::LocalFileSystem;
use pushpull_messages::checkpoint::{CheckpointName, SourceSpec, StartSpec};
use pushpull_messages::id::{GlobalStep, Incarnation, VariableId};
use pushpull_messages::job::JobSpec;
use pushpull_messages::observe::WallClock;
use pushpull_messages::placement::{PartitionerSpec, Placement, PlacementSpec};
use pushpull_storage::{Catalog, CheckpointState, Store, StoreError};
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::failing::FailingStore;
use super::named;
use super::shards::{FakeCluster, PATIENCE, read_all};
use crate::checkpoint::saver::{SaveStatus, Saver, SaverCommand};
use crate::checkpoint::shard_initializer::{InitialState, ShardInitializer};
use crate::checkpoint::{CheckpointConfig, MemoryCheckpointConfig, RestoreChoice, WarmStartConfig};
use crate::error::ChiefError;
use crate::job::tests::job;
use crate::launch::PsTasks;
use crate::report::JobProgress;

pub(super) fn config() -> CheckpointConfig {
    CheckpointConfig {
        save_steps: Some(2),
        keep: 2,
        drain_timeout: PATIENCE,
        ..CheckpointConfig::new("here")
    }
}

fn split(job: JobSpec) -> JobSpec {
    let partitioner = PartitionerSpec::Fixed { slices: 2 };
    JobSpec { placement: PlacementSpec { partitioner, ..job.placement.clone() }, ..job }
}

/// Returns a store in the directory `path`. It does not wait until data are on the disk, so the tests are
/// fast.
fn directory(path: &TempDir) -> Arc<LocalFileSystem> {
    Arc::new(LocalFileSystem::new_with_prefix(path.path()).unwrap())
}

pub(super) fn location(path: &TempDir) -> &str {
    path.path().to_str().unwrap()
}

pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(2 * PATIENCE, future).await.expect("it is done in time") })
}

/// One incarnation of a chief, with its fake ps task. This chief only restores checkpoints and makes new
/// ones.
pub(super) struct ChiefLife {
    pub cluster: FakeCluster,
    pub tasks: PsTasks,
    store: Store,
    config: CheckpointConfig,
    job: JobSpec,
}

/// The result of `ChiefLife::live`: the last checkpoint or an error, and the saver's status.
pub(super) struct LifeResult {
    pub last: Result<CheckpointName, String>,
    pub status: SaveStatus,
}

impl ChiefLife {
    pub(super) async fn new(store: Store, config: CheckpointConfig) -> Self {
        let job = split(job());
        let cluster = FakeCluster::new(job.clone(), store.clone()).await;
        let tasks = cluster.connect().await;
        Self { cluster, tasks, store, config, job }
    }

    pub(super) async fn begin(&self) -> Result<InitialState, ChiefError> {
        self.begin_with(async |begin, placement| begin.run(placement).await).await
    }

    /// Initializes the shards again, as after the loss of a ps task. `life` is the number of the first
    /// checkpoints of this chief.
    pub(super) async fn begin_again(&self, life: u64) -> Result<InitialState, ChiefError> {
        self.begin_with(async |begin, placement| begin.run_again(placement, Incarnation(life), true).await)
            .await
    }

    /// Does the same for a job with checkpoints in `memory`, which has those of the directory only if
    /// `directory` is true.
    pub(super) async fn begin_again_from(
        &self,
        memory: &Store,
        directory: bool,
        may_begin_anew: bool,
    ) -> Result<InitialState, ChiefError> {
        let catalog = Catalog::new(memory.clone());
        let begin = async |begin: ShardInitializer<'_>, placement| {
            let checkpoints = begin.checkpoints.filter(|_| directory);
            let begin = ShardInitializer { checkpoints, memory: Some(&catalog), ..begin };
            begin.run_again(placement, Incarnation(1), may_begin_anew).await
        };
        self.begin_with(begin).await
    }

    async fn begin_with(
        &self,
        run: impl AsyncFnOnce(ShardInitializer<'_>, Placement) -> Result<InitialState, ChiefError>,
    ) -> Result<InitialState, ChiefError> {
        let (job, catalog) = (&self.job, Catalog::new(self.store.clone()));
        let checkpoints = Some((&catalog, self.config.restore));
        let (memory, warm_start, wall_clock) = (None, None, &WallClock::default());
        let ps = &self.tasks;
        let begin = ShardInitializer { ps, job, workers: 2, checkpoints, memory, warm_start, wall_clock };
        run(begin, self.tasks.place(job, 2).unwrap()).await
    }

    pub(super) async fn saver(&self) -> Result<Saver, StoreError> {
        let (config, identity) = (self.config.clone(), &self.cluster.identity);
        let saver = Saver::new(config, self.store.clone(), self.job.clone(), identity).await?;
        Ok(saver.retrying_after(Duration::from_micros(1)))
    }

    /// Begins or resumes the job, and lets the shards train to step 10. Before the step of each save, waits
    /// until the shards have received the request for this save.
    pub(super) async fn live(&self) -> LifeResult {
        let failed = |reason: String| LifeResult { last: Err(reason), status: SaveStatus::default() };
        let saver = match self.saver().await {
            Ok(saver) => saver,
            Err(error) => return failed(error.to_string()),
        };
        let InitialState { start, .. } = match self.begin().await {
            Ok(began) => began,
            Err(error) => return failed(error.to_string()),
        };
        let status = saver.status();
        let (tell, progress) = watch::channel(JobProgress::default());
        let (orders, ordered) = mpsc::unbounded_channel();
        let began = start.version.0;
        orders.send(SaverCommand::Begin(start)).unwrap();
        let every = self.config.save_steps.expect("it saves");
        let train = async {
            for step in (began + 1..=10).filter(|step| step % every == 0) {
                // After this call, the previous save has ended, and the shards have received the next save
                // request.
                self.armed().await;
                self.cluster.ps.train(step);
                tell.send_modify(|progress| progress.global_step = GlobalStep(step));
            }
            let (step, deadline) = (Some(GlobalStep(10)), Instant::now() + PATIENCE);
            orders.send(SaverCommand::End { step, deadline }).unwrap();
        };
        let (last, ()) = tokio::join!(saver.run(&self.tasks, progress, ordered), train);
        let status = *status.borrow();
        LifeResult { last, status }
    }

    pub(super) async fn armed(&self) {
        while !self.cluster.ps.is_armed() {
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    }
}

/// Reads every tensor of the committed checkpoints. Returns the steps of these checkpoints, the oldest
/// first, and the number of unfinished checkpoints.
async fn found(store: &Store) -> (Vec<u64>, usize) {
    let (mut whole, mut others) = (Vec::new(), 0);
    for (name, state) in Catalog::new(store.clone()).list().await.unwrap() {
        match state {
            CheckpointState::Committed(manifest) => {
                read_all(store, name, &manifest).await;
                whole.push(name.step.0);
            }
            CheckpointState::Unfinished => others += 1,
            CheckpointState::Broken(reason) | CheckpointState::Unreadable(reason) => {
                panic!("{name}: {reason}")
            }
        }
    }
    whole.reverse();
    (whole, others)
}

#[test]
fn another_job_goes_on_from_the_last_checkpoint() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        let store = Store::create(location(&path)).unwrap();
        // The first two files are left from an earlier run. Another program may be writing the third one.
        store.put("step-3-0000000000000001/ps-0-shard-0.safetensors", "half").await.unwrap();
        store.put("step-4-0000000000000001/manifest.json", "{}").await.unwrap();
        store.put("other/file", "of somebody else").await.unwrap();
        let none = CheckpointConfig { restore: RestoreChoice::None, ..config() };
        let lived = ChiefLife::new(store.clone(), none).await.live().await;
        assert_eq!(lived.last, Ok(named(10, 5)));
        // A broken checkpoint is left for an operator to examine.
        assert_eq!(store.files("step-4-0000000000000001").await.unwrap(), ["manifest.json"]);
        store.delete_folder("step-4-0000000000000001").await.unwrap();
        let status = lived.status;
        assert_eq!((status.saves, status.failed, status.last), (6, 0, Some(named(10, 5))));
        assert!(status.took.count() == 6 && status.last_took > Duration::ZERO);
        assert_eq!(found(&store).await, (vec![8, 10], 0));
        assert_eq!(store.files("other").await.unwrap(), ["file"]);

        // The job resumes at its last step, so it saves nothing.
        let lived = ChiefLife::new(store.clone(), config()).await.live().await;
        assert_eq!((lived.last, lived.status.saves), (Ok(named(10, 5)), 0));

        // If a job resumes from an older checkpoint, its new checkpoints count as the newest.
        let earlier = CheckpointConfig { restore: RestoreChoice::Step(GlobalStep(8)), ..config() };
        let life = ChiefLife::new(store.clone(), earlier).await;
        let beginning = life.begin().await.unwrap();
        assert_eq!(beginning.start.from, Some(named(8, 5)));
        assert!(beginning.resumes.iter().all(|resume| (resume.drawn, resume.examples) == (8, 8)));
        let lived = life.live().await;
        assert_eq!((lived.last, lived.status.saves), (Ok(named(10, 6)), 1));
        assert_eq!(found(&store).await, (vec![10, 10], 0));
    });
}

#[test]
fn both_levels_name_their_checkpoints_alike() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        let life = ChiefLife::new(Store::create(location(&path)).unwrap(), config()).await;
        let mut directory = life.saver().await.unwrap();
        let (every, identity) = (MemoryCheckpointConfig::Steps(3), &life.cluster.identity);
        let (store, job) = (life.store.clone(), life.job.clone());
        let mut memory = Saver::in_memory(every, store, job, identity, directory.life());
        // The clock of an earlier run was ahead.
        let ahead = Some(Incarnation(directory.life().0 + (1 << 40)));
        for earlier in [None, Some(Incarnation(0)), Some(directory.life()), ahead, Some(Incarnation(1))] {
            let before = directory.life();
            [&mut directory, &mut memory].into_iter().for_each(|saver| saver.follow(earlier));
            assert_eq!(directory.life(), memory.life());
            assert!(directory.life() >= before && earlier.is_none_or(|earlier| directory.life() > earlier));
        }
    });
}

#[test]
fn all_shards_begin_with_the_same_checkpoint() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        let store = Store::with(directory(&path), location(&path));
        ChiefLife::new(store.clone(), config()).await.live().await.last.unwrap();
        let life = ChiefLife::new(store.clone(), config()).await;
        life.cluster.ps.cannot_read(named(10, 5));
        assert_eq!(life.begin().await.unwrap().start.from, Some(named(8, 5)));
        for shard in 0..2 {
            let starts = life.cluster.ps.starts(shard);
            let step = |start: &StartSpec| match start {
                StartSpec::Resume { checkpoint, store, .. } if store == location(&path) => checkpoint.step.0,
                other => panic!("{other:?}"),
            };
            let names: Vec<_> = starts.iter().map(step).collect();
            assert_eq!(names, [10, 8], "(C2)");
        }
        life.cluster.ps.cannot_read(named(8, 5));
        let error = life.begin().await.unwrap_err().to_string();
        assert!(
            error.contains("is valid: ")
                && error.contains("a checksum differs")
                && error.ends_with("use --restore none to train from the start"),
            "{error}"
        );
        let latest = CheckpointConfig { restore: RestoreChoice::Latest, ..config() };
        let life = ChiefLife::new(store, latest).await;
        life.cluster.ps.cannot_read(named(10, 5));
        let error = life.begin().await.unwrap_err().to_string();
        assert!(error.contains("request step 8 or latest-valid"), "{error}");
    });
}

#[test]
fn a_warm_start_takes_values_and_no_steps() {
    block_on(async {
        let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let place = |path: &TempDir| Store::with(directory(path), location(path));
        ChiefLife::new(place(&old), config()).await.live().await.last.unwrap();
        let life = ChiefLife::new(place(&new), config()).await;
        let warm_start = |checkpoint: Option<u64>, from: &TempDir| WarmStartConfig {
            location: location(from).to_owned(),
            checkpoint: checkpoint.map(GlobalStep),
            ..Default::default()
        };
        let begin = async |config: WarmStartConfig| {
            let catalog = Catalog::new(life.store.clone());
            let checkpoints = Some((&catalog, RestoreChoice::LatestValid));
            let (ps, job, warm_start) = (&life.tasks, &life.job, Some(&config));
            let wall_clock = &WallClock::default();
            let begin =
                ShardInitializer { ps, job, workers: 2, checkpoints, memory: None, warm_start, wall_clock };
            begin.run(life.tasks.place(job, 2).unwrap()).await.map_err(|error| error.to_string())
        };
        life.cluster.ps.cannot_read(named(10, 5));
        let beginning = begin(warm_start(None, &old)).await.unwrap();
        assert_eq!((beginning.start.version.0, beginning.start.from), (0, None));
        assert!(beginning.resumes.iter().all(|resume| resume.drawn == 0));
        let variables = vec![SourceSpec { variable: VariableId(0), source: "kernel".into() }];
        let (store, checkpoint) = (location(&old).to_owned(), named(8, 5));
        let start = StartSpec::WarmStart { store, checkpoint, variables };
        assert_eq!(life.cluster.ps.starts(0).last(), Some(&start));
        let error = begin(warm_start(Some(7), &old)).await.unwrap_err();
        assert!(error.starts_with("no checkpoint of step 7 in "), "{error}");
        let error = begin(warm_start(None, &new)).await.unwrap_err();
        assert!(error.starts_with("warm start: there is no checkpoint in "), "{error}");
        // The job's own checkpoints come first.
        life.live().await.last.unwrap();
        assert!(begin(warm_start(None, &old)).await.unwrap().start.from.is_some());
    });
}

/// Checks that, if the store fails, the last committed checkpoint stays valid (C1), and that the next run
/// resumes from it and leaves no unfinished files. Each run of the loop chooses another operation as the
/// first that fails: every second operation, from number `first` on, because two tests share the work. If
/// `late` is true, the first operation that fails still takes effect.
fn the_last_checkpoint_survives(first: u64, late: bool) {
    let often = CheckpointConfig { save_steps: Some(1), ..config() };
    for operations in (first..).step_by(2) {
        let path = tempfile::tempdir().unwrap();
        let inner = directory(&path);
        let failing = FailingStore::new(inner.clone(), operations, late);
        let store = Store::with(Arc::new(failing.clone()), location(&path));
        let good = Store::with(inner, location(&path));
        let left = block_on(async {
            let lived = ChiefLife::new(store, often.clone()).await.live().await;
            let (whole, _) = found(&good).await;
            if let Some(last) = lived.status.last {
                assert!(
                    whole.last() >= Some(&last.step.0),
                    "(C1) {last} was committed, and there is {whole:?}"
                );
            }
            let newest = whole.last().copied();
            let life = ChiefLife::new(good.clone(), often.clone()).await;
            assert_eq!(life.begin().await.unwrap().start.from.map(|name| name.step.0), newest);
            let lived = life.live().await;
            assert_eq!(lived.last.unwrap().step, GlobalStep(10));
            if newest != Some(10) {
                let (whole, unfinished) = found(&good).await;
                assert_eq!((whole.len().min(2), whole.last(), unfinished), (whole.len(), Some(&10), 0));
            }
            failing.left()
        });
        if left > 0 {
            assert!(operations > 100, "{operations} operations were enough");
            break;
        }
    }
}

#[test]
fn the_last_checkpoint_survives_failures_before_odd_effects() {
    the_last_checkpoint_survives(1, false);
}

#[test]
fn the_last_checkpoint_survives_failures_before_even_effects() {
    the_last_checkpoint_survives(2, false);
}

#[test]
fn the_last_checkpoint_survives_failures_after_odd_effects() {
    the_last_checkpoint_survives(1, true);
}

#[test]
fn the_last_checkpoint_survives_failures_after_even_effects() {
    the_last_checkpoint_survives(2, true);
}

#[test]
fn a_requested_save_catches_shards_that_run_ahead() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        let store = Store::with(directory(&path), location(&path));
        let seldom = CheckpointConfig { save_steps: Some(1000), ..config() };
        let mut life = ChiefLife::new(store.clone(), seldom).await;
        life.job.last_step = GlobalStep(1_000_000);
        let saver = life.saver().await.unwrap();
        let start = life.begin().await.unwrap().start;
        let mut status = saver.status();
        let (tell, progress) = watch::channel(JobProgress::default());
        let (orders, ordered) = mpsc::unbounded_channel();
        orders.send(SaverCommand::Begin(start)).unwrap();
        let lead = async {
            life.armed().await;
            let mut step = 2;
            life.cluster.ps.train(step);
            life.cluster.ps.run_ahead(7);
            orders.send(SaverCommand::Save).unwrap();
            while status.borrow_and_update().saves < 2 {
                step += 1;
                life.cluster.ps.train(step);
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
            let first = status.borrow().last.unwrap();
            life.cluster.ps.run_ahead(0);
            life.cluster.ps.train(1500);
            let deadline = Instant::now() + PATIENCE;
            orders.send(SaverCommand::End { step: None, deadline }).unwrap();
            first
        };
        let (last, first) = tokio::join!(saver.run(&life.tasks, progress, ordered), lead);
        drop(tell);
        assert!((10..1000).contains(&first.step.0) && last.unwrap().step == GlobalStep(1500), "{first}");
    });
}

#[test]
fn a_last_save_that_fails_is_attempted_again() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        let failing = FailingStore::new(directory(&path), u64::MAX, false);
        let store = Store::with(Arc::new(failing.clone()), location(&path));
        let seldom = CheckpointConfig { save_steps: Some(1000), ..config() };
        let life = ChiefLife::new(store, seldom).await;
        let saver = life.saver().await.unwrap();
        let start = life.begin().await.unwrap().start;
        let mut status = saver.status();
        let (_tell, progress) = watch::channel(JobProgress::default());
        let (orders, ordered) = mpsc::unbounded_channel();
        orders.send(SaverCommand::Begin(start)).unwrap();
        let lead = async {
            life.armed().await;
            failing.refill(0);
            life.cluster.ps.train(10);
            let (step, deadline) = (Some(GlobalStep(10)), Instant::now() + PATIENCE);
            orders.send(SaverCommand::End { step, deadline }).unwrap();
            status.wait_for(|status| status.failed == 2).await.unwrap();
            failing.refill(u64::MAX);
        };
        let (last, ()) = tokio::join!(saver.run(&life.tasks, progress, ordered), lead);
        assert_eq!(last.unwrap().step, GlobalStep(10));
        assert!(status.borrow().last.is_some_and(|last| last.step == GlobalStep(10)));
    });
}

#[test]
fn differing_shards_are_not_saved_at_the_end() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        let life = ChiefLife::new(Store::with(directory(&path), location(&path)), config()).await;
        let saver = life.saver().await.unwrap();
        let start = life.begin().await.unwrap().start;
        let (_tell, progress) = watch::channel(JobProgress::default());
        let (orders, ordered) = mpsc::unbounded_channel();
        orders.send(SaverCommand::Begin(start)).unwrap();
        let lead = async {
            life.armed().await;
            life.cluster.ps.train_one(0, 1);
            orders.send(SaverCommand::End { step: None, deadline: Instant::now() + PATIENCE }).unwrap();
        };
        let (last, ()) = tokio::join!(saver.run(&life.tasks, progress, ordered), lead);
        assert_eq!(last.unwrap_err(), "the shards are at different steps, from 0 to 1");
        // If the shards never reach the step, the saver stops waiting at the deadline.
        let saver = life.saver().await.unwrap();
        let start = life.begin().await.unwrap().start;
        let (_tell, progress) = watch::channel(JobProgress::default());
        let (orders, ordered) = mpsc::unbounded_channel();
        orders.send(SaverCommand::Begin(start)).unwrap();
        orders.send(SaverCommand::End { step: Some(GlobalStep(7)), deadline: Instant::now() }).unwrap();
        let error = saver.run(&life.tasks, progress, ordered).await.unwrap_err();
        assert_eq!(error, "the last save did not finish in time");
    });
}

#[test]
fn a_directory_that_is_not_shared_is_an_error() {
    block_on(async {
        let (path, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = Store::with(directory(&path), location(&path));
        let mut life = ChiefLife::new(store, config()).await;
        // The chief uses a different directory than the ps task.
        life.store = Store::with(directory(&other), location(&other));
        let saver = life.saver().await.unwrap();
        let start = life.begin().await.unwrap().start;
        let (_tell, progress) = watch::channel(JobProgress::default());
        let (orders, ordered) = mpsc::unbounded_channel();
        orders.send(SaverCommand::Begin(start)).unwrap();
        orders
            .send(SaverCommand::End { step: Some(GlobalStep(0)), deadline: Instant::now() + PATIENCE })
            .unwrap();
        let error = saver.run(&life.tasks, progress, ordered).await.unwrap_err();
        assert!(error.starts_with("ps/0 at ps0:1 wrote ps-0-shard-0.safetensors in"), "{error}");
        assert!(error.ends_with("use a directory that all hosts share"), "{error}");
    });
}
