//! Tests of whole runs of the chief. The ps task is a fake that only counts updates, and the workers are
//! connections over which the tests send messages.

use std::cell::RefCell;
use std::time::Duration;

use futures_util::FutureExt;
use object_store::memory::InMemory;
use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::id::{GlobalStep, LocalStep};
use pushpull_messages::job::JobError;
use pushpull_messages::message::{
    Evaluated, Evaluation, Finish, Finished, Go, Ready, Register, Registered, TrainingResult,
};
use pushpull_messages::observe::{ChiefSnapshot, JobPhase, Observed, TraceSpec, WorkerState};
use pushpull_messages::placement::{PartitionerSpec, PlacementSpec};
use pushpull_messages::sync::SyncSpec;
use pushpull_storage::{Catalog, CheckpointState, Store, Stores};
use pushpull_transport::Connection;
use pushpull_transport::buffer::Payload;
use tempfile::TempDir;
use tokio::sync::mpsc;

use super::*;
use crate::checkpoint::CheckpointConfig;
use crate::checkpoint::tests::failing::FailingStore;
use crate::checkpoint::tests::shards::{FakeCluster, PATIENCE};
use crate::command::Command;
use crate::job::tests::job;

/// A running chief with its cluster.
struct TestRun {
    cluster: FakeCluster,
    view: ChiefView,
    progress: watch::Receiver<JobProgress>,
    commands: mpsc::UnboundedSender<Command>,
    interrupt: CancellationToken,
    ended: tokio::task::JoinHandle<Result<JobEnd, ChiefError>>,
    workers: Vec<Connection>,
    registered: Vec<Registered>,
}

fn config(path: &TempDir, drain_timeout: Duration) -> ChiefConfig {
    let location = path.path().to_str().unwrap();
    let checkpoint = Some(CheckpointConfig { drain_timeout, ..CheckpointConfig::new(location) });
    // No worker reconnects in these tests, so the timeouts can be short.
    let (reconnect_timeout, leave_timeout) = (Duration::from_millis(50), Duration::from_millis(50));
    ChiefConfig { checkpoint, reconnect_timeout, leave_timeout, ..Default::default() }
}

async fn newest(path: &TempDir) -> Option<u64> {
    let catalog = Catalog::new(Store::open(path.path().to_str().unwrap()).unwrap());
    let listed = catalog.list().await.unwrap();
    let whole =
        |(_, state): &&(CheckpointName, CheckpointState)| matches!(state, CheckpointState::Committed(_));
    listed.iter().find(whole).map(|(name, _)| name.step.0)
}

impl TestRun {
    /// Starts a chief, and waits until both workers train.
    async fn training(path: &TempDir, config: ChiefConfig) -> Self {
        Self::training_after(path, config, |_| {}).await
    }

    /// Starts a chief, and waits until both workers train. Calls `first` with the view of the chief before
    /// the workers register.
    async fn training_after(path: &TempDir, config: ChiefConfig, first: impl FnOnce(&ChiefView)) -> Self {
        let run = Self::start(path, config, None).await;
        first(&run.view);
        run.begin().await
    }

    /// Registers both workers, and waits until they train.
    async fn begin(mut self) -> Self {
        let run = &mut self;
        let workers = vec![run.cluster.worker(0, 1).await, run.cluster.worker(1, 1).await];
        let register =
            workers.iter().map(|worker| worker.call::<Registered>(Register::default(), Payload::EMPTY));
        let registered = futures_util::future::try_join_all(register).await.unwrap();
        run.registered = registered.into_iter().map(|(registered, _)| registered).collect();
        let ready = workers.iter().map(|worker| worker.call::<Go>(Ready::default(), Payload::EMPTY));
        futures_util::future::try_join_all(ready).await.unwrap();
        run.progress.wait_for(|progress| progress.running).await.unwrap();
        Self { workers, ..self }
    }

    /// Starts a chief, to which no worker is connected yet. If `before_stop` is given, the chief calls it
    /// before the ps tasks stop.
    async fn start(path: &TempDir, config: ChiefConfig, before_stop: Option<BeforeStop>) -> Self {
        Self::start_job(path, config, before_stop, job()).await
    }

    async fn start_job(
        path: &TempDir,
        config: ChiefConfig,
        before_stop: Option<BeforeStop>,
        job: JobSpec,
    ) -> Self {
        let store = Store::create(path.path().to_str().unwrap()).unwrap();
        let cluster = FakeCluster::new(job.clone(), store).await;
        let transport: Arc<dyn Transport> = Arc::new(cluster.transport.clone());
        let interrupt = CancellationToken::new();
        let (sender, progress) = watch::channel(JobProgress::default());
        let identity = cluster.identity.clone();
        let mut chief = Chief::new(config, identity, transport, job, sender, interrupt.clone());
        if let Some(before_stop) = before_stop {
            chief = chief.with_before_stop(before_stop);
        }
        let (view, commands) = (chief.view(), chief.commands.for_hooks());
        let listener = cluster.transport.listen("chief0:1").await.unwrap();
        let ended = tokio::task::spawn_local(chief.run(listener));
        let (workers, registered) = Default::default();
        Self { cluster, view, commands, interrupt, ended, progress, workers, registered }
    }

    /// Waits until the shards are told to stop at `step`, and trains them up to that step.
    async fn train_to(&self, step: u64) {
        while self.cluster.ps.ends() != [step, step] {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.cluster.ps.train(1000);
    }

    /// Sends `result` from every remaining worker, and an evaluation from a worker that is told to evaluate.
    /// Returns the replies to `result`.
    async fn finish(&self, result: TrainingResult) -> Vec<Finished> {
        let finish = Finish { result, local_step: LocalStep(2), loss: 0.5, skipped: 0 };
        let requests =
            self.workers.iter().map(|worker| worker.call::<Finished>(finish.clone(), Payload::EMPTY));
        let evaluate = async |worker: &Connection, reply: Finished| {
            if reply.evaluate {
                let evaluation = Evaluation { loss: 0.1, metrics: vec![], examples: 10, variables_crc32c: 1 };
                let evaluated = Evaluated { result: Ok(evaluation) };
                worker.call::<Finished>(evaluated, Payload::EMPTY).await.unwrap();
            }
            reply
        };
        let replies = requests
            .zip(&self.workers)
            .map(async |(request, worker)| evaluate(worker, request.await.unwrap().0).await);
        futures_util::future::join_all(replies).await
    }

    async fn end(self) -> Result<JobEnd, ChiefError> {
        drop(self.workers);
        tokio::time::timeout(PATIENCE, self.ended).await.expect("it ends").expect("it does not panic")
    }
}

fn block_on(test: impl Future<Output = ()>) {
    actix::System::new()
        .block_on(async { tokio::time::timeout(2 * PATIENCE, test).await.expect("it is done in time") });
}

fn saved(end: Result<JobEnd, ChiefError>) -> (u64, String) {
    match end {
        Ok(JobEnd::Saved { step, checkpoint, reason }) => {
            assert_eq!(step, checkpoint.step);
            (step.0, reason)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_signal_drains_a_job_and_another_goes_on() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        let run = TestRun::training(&path, config(&path, PATIENCE)).await;
        assert!(run.registered.iter().all(|reply| reply.saves && reply.resume.drawn == 0));
        run.cluster.ps.train(3);
        run.interrupt.cancel();
        run.train_to(5).await;
        let replies = run.finish(TrainingResult::Completed).await;
        assert!(replies.iter().all(|reply| !reply.evaluate));
        assert_eq!(saved(run.end().await), (5, "a signal was received".into()));
        assert_eq!(newest(&path).await, Some(5));

        let run = TestRun::training(&path, config(&path, PATIENCE)).await;
        assert!(run.registered.iter().all(|reply| (reply.resume.drawn, reply.resume.examples) == (5, 5)));
        run.cluster.ps.train(1000);
        let replies = run.finish(TrainingResult::Completed).await;
        assert_eq!(replies.iter().filter(|reply| reply.evaluate && reply.step == GlobalStep(10)).count(), 1);
        let Ok(JobEnd::Completed(report)) = run.end().await else { panic!("it is complete") };
        assert_eq!((report.steps, report.updates_applied, report.stopped), (GlobalStep(10), 5, None));
        assert_eq!((report.saves, report.saves_failed), (1, 0));
        assert_eq!(report.last_checkpoint.unwrap().step, GlobalStep(10));
        assert_eq!(newest(&path).await, Some(10));
    });
}

#[test]
fn a_changed_learning_rate_is_saved_with_the_values() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        let run = TestRun::training(&path, config(&path, PATIENCE)).await;
        run.cluster.ps.train(3);
        run.commands.send(Command::LearningRate { factor: 0.5 }).unwrap();
        while run.cluster.ps.rates().iter().any(Option::is_none) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let rates = run.cluster.ps.rates();
        let change = rates[0].expect("it is set");
        assert_eq!((rates[1], change.factor), (Some(change), 0.5));
        assert!((3..10).contains(&change.from.0), "{change:?}");
        run.cluster.ps.train(1000);
        run.finish(TrainingResult::Completed).await;
        let Ok(JobEnd::Completed(_)) = run.end().await else { panic!("it is complete") };
        let catalog = Catalog::new(Store::open(path.path().to_str().unwrap()).unwrap());
        let listed = catalog.list().await.unwrap();
        let CheckpointState::Committed(manifest) = &listed[0].1 else { panic!("{listed:?}") };
        assert_eq!((manifest.learning_rate.factor, manifest.learning_rate.next), (0.5, None));
    });
}

#[test]
fn a_worker_lost_while_the_rate_changes_does_not_stop_it() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        let mut run = TestRun::training(&path, config(&path, PATIENCE)).await;
        run.cluster.ps.train(3);
        run.commands.send(Command::LearningRate { factor: 0.5 }).unwrap();
        drop(run.workers.pop());
        let ps = run.cluster.ps.clone();
        while ps.rates().iter().any(Option::is_none) || ps.left() != [1, 1] {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let rates = ps.rates();
        assert_eq!((rates[0], rates[0].map(|change| change.factor)), (rates[1], Some(0.5)));
        ps.train(1000);
        run.finish(TrainingResult::Completed).await;
        let Ok(JobEnd::Completed(report)) = run.end().await else { panic!("it is complete") };
        assert_eq!(report.steps, GlobalStep(10));
    });
}

#[test]
fn a_shard_without_slices_hears_of_a_worker_first() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        let placement = PlacementSpec { partitioner: PartitionerSpec::None, ..PlacementSpec::default() };
        let job = JobSpec { placement, ..job() };
        let run = TestRun::start_job(&path, config(&path, PATIENCE), None, job).await;
        let mut run = run.begin().await;
        drop(run.workers.pop());
        let ps = run.cluster.ps.clone();
        while ps.left() != [1, 1] {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // The variable is on shard 0.
        for (order, worker) in [("Appoint", 0), ("Appoint", 1), ("Leave", 1)] {
            let mut told = ps.told();
            told.retain(|&(name, of, _)| (name, of) == (order, worker));
            assert_eq!(told, [(order, worker, 1), (order, worker, 0)]);
        }
        ps.train_one(0, 1000);
        run.finish(TrainingResult::Completed).await;
        let Ok(JobEnd::Completed(report)) = run.end().await else { panic!("it is complete") };
        assert_eq!((report.steps, report.shards.len()), (GlobalStep(10), 1));
    });
}

#[test]
fn a_job_that_cannot_be_deterministic_ends_with_a_reason() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        let sync = SyncSpec::Sync { aggregate: Some(1) };
        let job = JobSpec { sync, deterministic: true, ..job() };
        let run = TestRun::start_job(&path, config(&path, PATIENCE), None, job).await;
        let error = run.end().await.expect_err("an update has the gradient of one of two workers");
        assert!(
            matches!(error, ChiefError::Job(JobError::NotDeterministic(refused)) if refused == sync),
            "{error}"
        );
    });
}

/// Waits until a published snapshot satisfies `condition`, and returns it.
async fn published(
    view: &ChiefView,
    condition: impl FnMut(&Arc<ChiefSnapshot>) -> bool,
) -> Arc<ChiefSnapshot> {
    let mut snapshots = view.snapshots();
    let snapshot =
        tokio::time::timeout(PATIENCE, snapshots.wait_for(condition)).await.expect("it is published in time");
    Arc::clone(&snapshot.expect("the chief runs"))
}

#[test]
fn a_job_is_published_from_start_to_end() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        let config = ChiefConfig { trace: Some(TraceSpec::every(3)), ..config(&path, PATIENCE) };
        let mut run = TestRun::training(&path, config).await;
        assert!(run.registered.iter().all(|reply| reply.trace == Some(TraceSpec::every(3))));
        let view = run.view.clone();
        let now = published(&view, |now| now.phase == JobPhase::Training && now.shards.len() == 2).await;
        assert!(now.workers.iter().all(|worker| worker.state == WorkerState::Training));
        assert!(now.tasks.iter().all(|task| task.reachable && task.lives == 1));
        assert_eq!(view.placement().len(), 2);
        let task = view.observe().await;
        assert_eq!((task.state, task.actors[0].name.as_str()), (TaskState::Ready, "chief/0/desk"));
        assert!(task.actors[0].handling.count() > 0);

        // One shard does not reply; everything else is published nevertheless.
        run.cluster.ps.silence(1);
        run.cluster.ps.train(3);
        let now = published(&view, |now| now.shards[0].version.0 == 3).await;
        assert_eq!((now.step, now.shards[1].version.0), (GlobalStep(3), 0));
        let now = published(&view, |now| now.shards[1].seen_ms > 1500).await;
        assert!(now.shards[0].seen_ms < now.shards[1].seen_ms && now.at_ms > 0);
        run.cluster.ps.answer_again();
        published(&view, |now| now.shards[1].version.0 == 3).await;
        assert!(!view.curves().is_empty());

        // A worker is killed; its connection breaks at once.
        drop(run.workers.pop());
        let now = published(&view, |now| now.workers[1].state != WorkerState::Training).await;
        assert!(matches!(now.workers[1].state, WorkerState::Away | WorkerState::Lost));
        assert!(!now.tasks.iter().any(|task| task.task == TaskId::worker(1) && task.reachable));
        published(&view, |now| now.workers[1].state == WorkerState::Lost).await;

        run.cluster.ps.train(1000);
        run.finish(TrainingResult::Completed).await;
        let Ok(JobEnd::Completed(_)) = run.end().await else { panic!("it is complete") };
        let mut snapshots = view.snapshots();
        while snapshots.changed().await.is_ok() {}
        let last = Arc::clone(&snapshots.borrow());
        assert_eq!((last.phase, last.reason.clone(), last.step), (JobPhase::Ended, None, GlobalStep(10)));
        assert!(last.shards.iter().all(|shard| shard.version.0 == 10 && shard.pushes.applied == 10));
        let (step, metrics) = last.evaluation.clone().unwrap();
        assert_eq!((step, metrics[0].name.as_str(), metrics[0].value), (GlobalStep(10), "loss", 0.1));
        let checkpoints = last.checkpoints.clone().unwrap();
        // The checkpoint of the initial values may have been made, too.
        assert!((1..=2).contains(&checkpoints.saves) && checkpoints.last_step == Some(GlobalStep(10)));
        assert!(checkpoints.age_ms.is_some() && checkpoints.took.count() == checkpoints.saves);
        assert_eq!(view.curves().last().unwrap().evaluation[0].value, 0.1);
        let task = view.observe().await;
        assert_eq!((task.state, task.actors[0].queue), (TaskState::Ended, 0));
        assert!(!view.command(Command::Save));
    });
}

#[test]
fn a_chief_with_a_bad_config_ends_with_a_reason() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        let store = Store::create(path.path().to_str().unwrap()).unwrap();
        let cluster = FakeCluster::new(job(), store).await;
        let transport: Arc<dyn Transport> = Arc::new(cluster.transport.clone());
        let (progress, _) = watch::channel(JobProgress::default());
        let config = ChiefConfig { reconnect_timeout: Duration::ZERO, ..Default::default() };
        let chief = Chief::new(
            config,
            cluster.identity.clone(),
            transport,
            job(),
            progress,
            CancellationToken::new(),
        );
        let view = chief.view();
        assert_eq!(view.observe().await.state, TaskState::Starting);
        let listener = cluster.transport.listen("chief0:1").await.unwrap();
        chief.run(listener).await.unwrap_err();
        let snapshots = view.snapshots();
        assert!(snapshots.has_changed().is_err(), "it is closed");
        let last = Arc::clone(&snapshots.borrow());
        assert_eq!(last.phase, JobPhase::Ended);
        assert!(last.reason.as_deref().unwrap().starts_with("reconnect_timeout must be"));
        assert_eq!(view.observe().await.state, TaskState::Ended);
    });
}

#[test]
fn a_command_before_the_training_is_not_lost() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        let run = TestRun::training_after(&path, config(&path, PATIENCE), |view| {
            assert!(view.command(Command::Save) && view.command(Command::Stop { reason: "at once".into() }));
        })
        .await;
        let end = loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
            match run.cluster.ps.ends().as_slice() {
                [first, second] if first == second && *first < 10 => break *first,
                _ => {}
            }
        };
        run.cluster.ps.train(1000);
        run.finish(TrainingResult::Completed).await;
        let Ok(JobEnd::Completed(report)) = run.end().await else { panic!("it is complete") };
        assert_eq!((report.steps, report.stopped.as_deref()), (GlobalStep(end), Some("at once")));
        assert_eq!(report.last_checkpoint.unwrap().step, GlobalStep(end));

        // If the training has not begun yet, a drain ends the job at once.
        let run = TestRun::start(&path, config(&path, PATIENCE), None).await;
        assert!(run.view.command(Command::Drain { reason: "no more".into() }));
        assert_eq!(saved(run.end().await).1, "no more");
    });
}

#[test]
fn a_stop_ends_a_job_well() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        for checkpoints in [true, false] {
            let config = config(&path, PATIENCE);
            let checkpoint = config.checkpoint.clone().filter(|_| checkpoints);
            let run = TestRun::training(&path, ChiefConfig { checkpoint, ..config }).await;
            run.cluster.ps.train(3);
            run.commands.send(Command::Stop { reason: "good enough".into() }).unwrap();
            run.train_to(5).await;
            let replies = run.finish(TrainingResult::Completed).await;
            assert_eq!(
                replies.iter().filter(|reply| reply.evaluate && reply.step == GlobalStep(5)).count(),
                1
            );
            let Ok(JobEnd::Completed(report)) = run.end().await else { panic!("it is complete") };
            assert_eq!((report.steps, report.stopped.as_deref()), (GlobalStep(5), Some("good enough")));
            assert_eq!(report.last_checkpoint.is_some(), checkpoints);
        }
        assert_eq!(newest(&path).await, Some(5));
    });
}

#[test]
fn interrupted_workers_leave_what_all_shards_have() {
    block_on(async {
        // All tasks are told to stop at the same time.
        let path = tempfile::tempdir().unwrap();
        let run = TestRun::training(&path, config(&path, PATIENCE)).await;
        run.cluster.ps.train(3);
        run.commands.send(Command::Drain { reason: "ps/0 was told to stop".into() }).unwrap();
        run.finish(TrainingResult::Interrupted).await;
        assert_eq!(saved(run.end().await), (3, "ps/0 was told to stop".into()));

        // Only the workers are told to stop. The chief is not.
        let run = TestRun::training(&path, config(&path, PATIENCE)).await;
        run.cluster.ps.train(5);
        run.finish(TrainingResult::Interrupted).await;
        assert_eq!(saved(run.end().await), (5, "all workers were told to stop".into()));
        assert_eq!(newest(&path).await, Some(5));

        // One shard is ahead of the other, so no checkpoint can be made, and that of step 5 stays the
        // newest.
        let run = TestRun::training(&path, config(&path, PATIENCE)).await;
        run.cluster.ps.train_one(0, 6);
        run.commands.send(Command::Drain { reason: "x".into() }).unwrap();
        run.finish(TrainingResult::Interrupted).await;
        assert!(matches!(run.end().await, Err(ChiefError::Interrupted { .. })));
        assert_eq!(newest(&path).await, Some(5));
    });
}

#[test]
fn slow_workers_do_not_delay_a_drain() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        let run = TestRun::training(&path, config(&path, Duration::from_secs(2))).await;
        run.cluster.ps.train(3);
        run.interrupt.cancel();
        let TestRun { ended, .. } = run;
        let end = tokio::time::timeout(PATIENCE, ended).await.unwrap().unwrap();
        assert_eq!(saved(end).0, 3);
        assert_eq!(newest(&path).await, Some(3));
    });
}

#[test]
fn a_signal_ends_a_job_without_checkpoints() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        let config = ChiefConfig { checkpoint: None, ..config(&path, PATIENCE) };
        let run = TestRun::training(&path, config).await;
        assert!(run.registered.iter().all(|reply| !reply.saves));
        run.cluster.ps.train(3);
        run.interrupt.cancel();
        assert!(matches!(run.end().await, Err(ChiefError::Interrupted { .. })));
        assert_eq!(newest(&path).await, None);
    });
}

#[test]
fn a_checkpoint_is_saved_on_command() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        let run = TestRun::training(&path, config(&path, PATIENCE)).await;
        run.cluster.ps.train(3);
        run.commands.send(Command::Save).unwrap();
        let mut step = 3;
        while newest(&path).await.is_none_or(|newest| newest == 0) {
            if run.cluster.ps.is_armed() && step < 9 {
                step += 1;
                run.cluster.ps.train(step);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(newest(&path).await > Some(3));
        drop(run.interrupt);
    });
}

#[test]
fn a_store_that_hangs_at_the_start_is_an_error() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        let hanging = FailingStore::hanging(Arc::new(InMemory::new()));
        let (stores, start_timeout) = (Stores::all_in(Arc::new(hanging)), Duration::from_millis(20));
        let config = ChiefConfig { stores, start_timeout, ..config(&path, PATIENCE) };
        let error = TestRun::start(&path, config, None).await.end().await.unwrap_err().to_string();
        assert!(error.contains("did not respond within 0 s; check whether it can be reached"), "{error}");
    });
}

/// Returns a configuration that limits the time of the job's last save.
fn hasty(path: &TempDir, last_save_timeout: Duration) -> ChiefConfig {
    let usual = config(path, PATIENCE);
    let checkpoint = usual.checkpoint.map(|usual| CheckpointConfig { last_save_timeout, ..usual });
    ChiefConfig { checkpoint, ..usual }
}

#[test]
fn a_trained_job_ends_although_its_last_save_hangs() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        let run = TestRun::training(&path, hasty(&path, Duration::from_millis(20))).await;
        run.cluster.ps.hang();
        run.cluster.ps.train(1000);
        run.finish(TrainingResult::Completed).await;
        let Ok(JobEnd::Completed(report)) = run.end().await else { panic!("it is trained") };
        assert!(report.last_checkpoint.is_none_or(|last| last.step < report.steps), "{report:?}");
        assert!(report.unsaved.is_some_and(|reason| reason.contains("--last-save-timeout-s")));
        assert!(report.saves_failed > 0 && newest(&path).await != Some(10));
    });
}

#[test]
fn shards_that_do_not_report_end_a_trained_job() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        let conclude_timeout = Duration::from_millis(20);
        let run = TestRun::training(&path, ChiefConfig { conclude_timeout, ..config(&path, PATIENCE) }).await;
        run.cluster.ps.silence(0);
        run.cluster.ps.train(1000);
        run.finish(TrainingResult::Completed).await;
        let error = run.end().await.unwrap_err().to_string();
        assert!(error.starts_with("the job was trained to step 10, but some shards did not"), "{error}");
        assert_eq!(newest(&path).await, Some(10), "it was saved before");
    });
}

#[test]
fn a_shard_that_hangs_ends_the_job_and_is_named() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        // The limit is rounded up to a second.
        let shard_hung_after = Some(Duration::from_millis(1));
        let config = ChiefConfig { shard_hung_after, ..config(&path, PATIENCE) };
        let mut run = TestRun::training(&path, config).await;
        run.cluster.ps.silence(1);
        // The workers stay connected.
        let error = (&mut run.ended).await.unwrap().unwrap_err();
        assert!(matches!(&error, ChiefError::PsLost { task, .. } if *task == TaskId::ps(0)), "{error:?}");
        assert!(error.to_string().contains(": ps/0/shard/1 hangs: its task is alive"), "{error}");
    });
}

#[test]
fn two_jobs_do_not_save_in_one_directory() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        let first = TestRun::training(&path, config(&path, PATIENCE)).await;
        let second = TestRun::start(&path, config(&path, Duration::from_millis(200)), None).await;
        let error = second.end().await.expect_err("the directory is in use").to_string();
        assert!(error.starts_with("checkpoints cannot be made: "), "{error}");
        assert!(error.contains("is in use by the job 'linear' (chief/0 at "), "{error}");
        let process = format!(") in process {}: ", std::process::id());
        assert!(error.contains(&process), "{error}");

        // A job that is started again waits for its earlier run to end.
        let mut second = TestRun::start(&path, config(&path, PATIENCE), None).await;
        first.cluster.ps.train(5);
        first.finish(TrainingResult::Interrupted).await;
        assert!((&mut second.ended).now_or_never().is_none(), "it waits");
        assert_eq!(saved(first.end().await).0, 5);
        let second = second.begin().await;
        assert!(second.registered.iter().all(|reply| reply.resume.drawn == 5));
        second.cluster.ps.train(1000);
        second.finish(TrainingResult::Completed).await;
        let third = TestRun::start(&path, config(&path, PATIENCE), None).await;
        let Ok(JobEnd::Completed(_)) = second.end().await else { panic!("it is complete") };
        third.interrupt.cancel();
        assert!(third.end().await.is_err());
    });
}

/// Returns a list and a `before_stop` function that never completes. Each call of the function adds the
/// trained job to the list.
fn endless() -> (Rc<RefCell<Vec<TrainedJob>>>, BeforeStop) {
    let seen = Rc::<RefCell<Vec<TrainedJob>>>::default();
    let kept = Rc::clone(&seen);
    let call = move |trained| {
        kept.borrow_mut().push(trained);
        std::future::pending().boxed_local()
    };
    (seen, Box::new(call))
}

#[test]
fn reading_the_variables_cannot_hold_up_the_end() {
    for interrupted in [false, true] {
        block_on(async {
            let path = tempfile::tempdir().unwrap();
            let before_stop_timeout = if interrupted { 10 * PATIENCE } else { Duration::from_millis(20) };
            let config = ChiefConfig { before_stop_timeout, ..config(&path, PATIENCE) };
            let (seen, call) = endless();
            let run = TestRun::start(&path, config, Some(call)).await.begin().await;
            assert!(seen.borrow().is_empty(), "it is called at the end");
            run.cluster.ps.train(1000);
            let interrupt = async {
                while interrupted && seen.borrow().is_empty() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                if interrupted {
                    run.interrupt.cancel();
                }
            };
            // The workers stay until the variables are read.
            tokio::join!(run.finish(TrainingResult::Completed), interrupt);
            let Ok(JobEnd::Completed(_)) = run.end().await else { panic!("it is complete") };
            let seen = seen.borrow();
            assert_eq!((seen.len(), seen[0].step, seen[0].placement.shards.len()), (1, GlobalStep(10), 2));
        });
    }
}

#[test]
fn the_variables_of_a_failed_job_are_not_read() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        let (seen, call) = endless();
        let run = TestRun::start(&path, config(&path, PATIENCE), Some(call)).await.begin().await;
        run.finish(TrainingResult::Failed("no data".into())).await;
        assert!(run.end().await.is_err());
        assert!(seen.borrow().is_empty());
    });
}

/// Returns the settings of a chief that makes no checkpoints, and that fails if the job has not started
/// within `start_timeout`.
fn started_within(start_timeout: Duration) -> ChiefConfig {
    let (reconnect_timeout, leave_timeout) = (Duration::from_millis(50), PATIENCE);
    ChiefConfig { start_timeout, reconnect_timeout, leave_timeout, ..Default::default() }
}

#[test]
fn a_chief_waits_for_the_end_of_another() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        let run = TestRun::start(&path, started_within(PATIENCE), None).await;
        run.cluster.ps.take(true);
        while run.cluster.ps.rules().iter().filter(|&&rule| rule == "Withdraw").count() < 2 {
            tokio::task::yield_now().await;
        }
        assert!(run.cluster.ps.rules().iter().all(|&rule| rule != "Stop"));
        run.cluster.ps.take(false);
        let run = run.begin().await;
        run.cluster.ps.train(1000);
        run.finish(TrainingResult::Completed).await;
        let ps = run.cluster.ps.clone();
        let Ok(JobEnd::Completed(_)) = run.end().await else { panic!("it is complete") };
        assert_eq!(ps.rules().last(), Some(&"Stop"));
    });
}

#[test]
fn a_chief_that_is_refused_stops_nothing() {
    block_on(async {
        for interrupted in [false, true] {
            let path = tempfile::tempdir().unwrap();
            let limit = if interrupted { PATIENCE } else { Duration::from_secs(1) };
            let run = TestRun::start(&path, started_within(limit), None).await;
            run.cluster.ps.take(true);
            let worker = run.cluster.worker(0, 1).await;
            let ps = run.cluster.ps.clone();
            let interrupt = run.interrupt.clone();
            let registered = worker.call::<Registered>(Register::default(), Payload::EMPTY);
            let (registered, end) = tokio::join!(registered, async {
                while !ps.rules().contains(&"Withdraw") {
                    tokio::task::yield_now().await;
                }
                if interrupted {
                    interrupt.cancel();
                }
                run.end().await
            });
            let (error, told) = (end.unwrap_err(), registered.unwrap_err().to_string());
            match interrupted {
                true => assert!(error.is_interrupt(), "{error}"),
                false => assert_eq!(
                    error.to_string(),
                    "another chief leads this job: ps/0 belongs to another chief"
                ),
            }
            assert!(told.contains(&error.to_string()), "{told}");
            assert_eq!(ps.rules().last(), Some(&"Withdraw"));
            assert!(ps.rules().iter().all(|&rule| rule != "Stop"), "{:?}", ps.rules());
        }
    });
}

#[test]
fn a_chief_whose_order_is_refused_leaves_all_alone() {
    block_on(async {
        let path = tempfile::tempdir().unwrap();
        let mut run = TestRun::training(&path, started_within(PATIENCE)).await;
        let ps = run.cluster.ps.clone();
        let workers = std::mem::take(&mut run.workers);
        ps.take(true);
        run.commands.send(Command::Stop { reason: "enough".into() }).unwrap();
        let error = run.end().await.unwrap_err();
        assert!(error.is_other_chief(), "{error}");
        assert!(ps.rules().iter().all(|&rule| rule != "Stop"), "{:?}", ps.rules());
        for worker in workers {
            worker.wait_lost().await;
        }
    });
}
