//! Tests a ps task through connections of a chief and workers: the task saves while it trains and resumes
//! from a checkpoint. After a signal, the task keeps serving until the chief has saved the job, takes too
//! long or is gone.

mod chiefs;
mod drafting;
mod files;
mod growing;
mod memory;
mod observing;
mod slow_reader;

use std::sync::Arc;
use std::time::Duration;

use pushpull_messages::checkpoint::{CheckpointName, StartSpec};
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::id::*;
use pushpull_messages::input::{DatasetSpec, InputSpec};
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::*;
use pushpull_messages::optimizer::{OptimizerSpec, RateChange, RateSpec};
use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
use pushpull_messages::sync::SyncSpec;
use pushpull_messages::variable::InitializerSpec;
use pushpull_ps::{Ps, PsConfig, PsError, PsView};
use pushpull_storage::{FORMAT, ManifestSpec, Store};
use pushpull_transport::buffer::{Buffer, BufferPool, Payload, Segment};
use pushpull_transport::{CallError, Connection, Identity, InProcess, Patience, Transport, dial};
use tokio_util::sync::CancellationToken;

/// The time limit of a test. Only a test that hangs exceeds it.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a task waits for a chief that has disconnected. It is short because connections within a process
/// do not break: a chief that drops its connection does not come back.
const CHIEF_LEASE: Duration = Duration::from_millis(50);

/// A ps task with two shards, and the means to connect to it, observe it and interrupt it.
struct Task {
    transport: Arc<dyn Transport>,
    cluster: ClusterSpec,
    interrupt: CancellationToken,
    view: PsView,
    ended: tokio::task::JoinHandle<Result<(), PsError>>,
}

impl Task {
    async fn start(drain_timeout: Duration) -> Self {
        let addresses = [
            (JobName::Chief, vec!["c:1"]),
            (JobName::Ps, vec!["p:1"]),
            (JobName::Worker, vec!["w:1", "w:2"]),
        ];
        let cluster = ClusterSpec::new(addresses).unwrap();
        let transport: Arc<dyn Transport> = Arc::new(InProcess::new());
        let listener = transport.listen("p:1").await.unwrap();
        let (shards, chief_lease) = (2, CHIEF_LEASE);
        let config = PsConfig { shards, drain_timeout, chief_lease, ..PsConfig::default() };
        let identity = identity(&cluster, TaskId::ps(0));
        let ps = Ps::start(config, identity, listener, &BufferPool::default()).unwrap();
        let (interrupt, view) = (CancellationToken::new(), ps.view());
        let ended = actix_rt::spawn(ps.run(interrupt.clone()));
        Self { transport, cluster, interrupt, view, ended }
    }

    async fn call(&self, task: TaskId) -> Connection {
        let identity = identity(&self.cluster, task);
        dial(&*self.transport, "p:1", &identity, TaskId::ps(0), Patience::of(PATIENCE)).await.unwrap()
    }

    /// Connects a chief, and claims the task for it.
    async fn chief(&self) -> Connection {
        let chief = self.call(TaskId::CHIEF).await;
        chief.call::<Claimed>(Claim { attempt: 1 }, Payload::EMPTY).await.unwrap();
        chief
    }

    async fn ended(self) -> Result<(), PsError> {
        self.ended.await.unwrap()
    }
}

/// Runs a test on an actix system. Panics if the test takes longer than [`PATIENCE`].
fn run(test: impl Future<Output = ()>) {
    actix_rt::System::new()
        .block_on(async { tokio::time::timeout(PATIENCE, test).await.expect("the test ends") });
}

fn identity(cluster: &ClusterSpec, task: TaskId) -> Identity {
    Identity {
        task,
        incarnation: Incarnation(1),
        cluster: cluster.clone(),
        graph: None,
        http: None,
        nonce: 0,
    }
}

/// Returns a job with one variable. Each shard owns half of the variable.
fn job() -> JobSpec {
    let mut g = GraphBuilder::new("one");
    g.variable("x", [4, 2], InitializerSpec::Normal { mean: 0.0, stddev: 1.0 });
    let loss = g.constant(0.0);
    let set = DatasetSpec::Digits { seed: 1, examples: 10 };
    let graph = g.finish(loss, &[]).unwrap();
    JobSpec {
        optimizer: OptimizerSpec::momentum(0.1, 0.9),
        ..JobSpec::new(graph, InputSpec::new(set.clone(), set), 100)
    }
}

fn placement() -> Placement {
    let shards = [0, 1].map(|shard| ShardId::new(0, shard));
    let slice = |row| SliceSpec { variable: VariableId(0), row, rows: 2 };
    let slices = vec![
        PlacedSlice { slice: slice(0), shard: shards[0] },
        PlacedSlice { slice: slice(2), shard: shards[1] },
    ];
    Placement { epoch: PlacementEpoch(1), shards: shards.to_vec(), slices }
}

async fn create(chief: &Connection, start: &StartSpec) -> Result<Vec<Version>, CallError> {
    create_for(chief, start, SyncSpec::ASYNC, 1).await
}

fn create_shard(shard: ShardId, start: &StartSpec, sync: SyncSpec, workers: u32) -> CreateShard {
    let job = job();
    CreateShard {
        job: 0,
        shard,
        placement: placement(),
        variables: job.graph.variables.clone(),
        update: job.update(),
        compression: Vec::new(),
        sync,
        pipeline: 1,
        deterministic: false,
        workers,
        last_step: job.last_step,
        seed: job.seed,
        start: start.clone(),
    }
}

async fn create_for(
    chief: &Connection,
    start: &StartSpec,
    sync: SyncSpec,
    workers: u32,
) -> Result<Vec<Version>, CallError> {
    let mut versions = Vec::new();
    for &shard in &placement().shards {
        let create = create_shard(shard, start, sync, workers);
        let (created, _) = chief.call::<ShardCreated>(create, Payload::EMPTY).await?;
        versions.push(created.version);
        for worker in 0..workers {
            let appoint = Appoint { shard: shard.shard, worker, incarnation: Incarnation(1), number: 1 };
            chief.call::<Appointed>(appoint, Payload::EMPTY).await?;
        }
    }
    Ok(versions)
}

/// Returns a worker's push to a shard. Its sequence number is `number`, and its version says that the
/// gradient was computed from the initial values.
fn push_of(worker: u32, shard: u32, number: u64) -> Push {
    Push {
        shard,
        id: PushId { worker, incarnation: Incarnation(1), sequence: Sequence(number) },
        local_step: LocalStep(number),
        epoch: PlacementEpoch(1),
        placement_digest: placement().digest(),
        version: Version(0),
        slices: vec![SliceId(shard)],
        drawn: number,
        pull: true,
        traced: false,
        with: Vec::new(),
    }
}

fn gradient(last: f32) -> Payload {
    Payload::new(vec![Segment::whole(Arc::new(Buffer::from_f32(&[1.0, 2.0, 3.0, last])))])
}

async fn push(worker: &Connection, number: u64) {
    push_after(0, worker, number).await;
}

/// Pushes the gradient `number` of the training, `before` of which were pushed before the worker's start.
async fn push_after(before: u64, worker: &Connection, number: u64) {
    for shard in 0..2 {
        let push = push_of(0, shard, number - before);
        worker.call::<Pushed>(push, gradient(number as f32)).await.unwrap();
    }
}

async fn values(client: &Connection) -> Vec<f32> {
    let mut values = Vec::new();
    for shard in 0..2 {
        let (epoch, placement_digest) = (PlacementEpoch(1), placement().digest());
        let pull = Pull { shard, epoch, placement_digest, at: PullAt::Latest, averages: false };
        let (_, payload) = client.call::<Pulled>(pull, Payload::EMPTY).await.unwrap();
        values.extend_from_slice(payload.segments()[0].as_f32());
    }
    values
}

fn name(step: u64) -> CheckpointName {
    CheckpointName { step: GlobalStep(step), life: Incarnation(1) }
}

/// Tells both shards to save their values at version `at`, and runs `meanwhile` at the same time. When both
/// shards have replied, writes the manifest and returns it.
async fn save(chief: &Connection, store: &str, at: u64, meanwhile: impl Future<Output = ()>) -> ManifestSpec {
    let save = |shard| Save { shard, store: store.to_owned(), checkpoint: name(at), at: Version(at) };
    let saves = async {
        tokio::join!(
            chief.call::<Saved>(save(0), Payload::EMPTY),
            chief.call::<Saved>(save(1), Payload::EMPTY)
        )
    };
    let ((one, other), ()) = tokio::join!(saves, meanwhile);
    let (mut files, mut records) = (Vec::new(), Vec::new());
    for saved in [one, other] {
        let SaveResult::Written { file, workers, .. } = saved.unwrap().0.result else {
            panic!("not written")
        };
        files.push(file);
        records = workers;
    }
    let manifest = ManifestSpec {
        format: FORMAT,
        step: GlobalStep(at),
        saved_ms: 1,
        job: job(),
        placement: placement(),
        files,
        workers: records,
        learning_rate: RateSpec::default(),
        inputs: Default::default(),
    };
    let store = Store::open(store).unwrap();
    store.put(&name(at).manifest(), manifest.encode().unwrap()).await.unwrap();
    manifest
}

#[test]
fn a_task_continues_from_what_another_saved_in_training() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().to_str().unwrap().to_owned();
    let resume =
        |step| StartSpec::Resume { store: store.clone(), checkpoint: name(step), workers: Vec::new() };
    run(async {
        let task = Task::start(PATIENCE).await;
        let (chief, worker) = (task.chief().await, task.call(TaskId::worker(0)).await);
        create(&chief, &StartSpec::Initialise).await.unwrap();
        save(&chief, &store, 0, async {}).await;
        let mut expected = Vec::new();
        save(&chief, &store, 3, async {
            for number in 1..=5 {
                push(&worker, number).await;
                if number == 3 {
                    expected = values(&worker).await;
                }
            }
        })
        .await;
        let trained = values(&worker).await;

        let other = Task::start(PATIENCE).await;
        let (chief, worker) = (other.chief().await, other.call(TaskId::worker(0)).await);
        // The newest checkpoint cannot be read while one of its files is missing.
        let file = directory.path().join(name(3).file("ps-0-shard-1.safetensors"));
        let away = directory.path().join("away");
        std::fs::rename(&file, &away).unwrap();
        let Err(CallError::Refused { refusal, .. }) = create(&chief, &resume(3)).await else {
            panic!("it was read")
        };
        assert_eq!(refusal.code, RefusalCode::Unavailable);
        assert!(refusal.reason.contains(&name(3).file("ps-0-shard-1.safetensors is missing")), "{refusal}");
        assert_eq!(create(&chief, &resume(0)).await.unwrap(), [Version(0); 2]);
        std::fs::rename(&away, &file).unwrap();
        assert_eq!(create(&chief, &resume(3)).await.unwrap(), [Version(3); 2]);
        assert_eq!(values(&worker).await, expected);
        push_after(3, &worker, 4).await;
        push_after(3, &worker, 5).await;
        assert_eq!(values(&worker).await, trained);
        for task in [task, other] {
            task.interrupt.cancel();
            task.ended.abort();
        }
    });
}

#[test]
fn only_the_chief_may_save_and_stop() {
    run(async {
        let task = Task::start(PATIENCE).await;
        let (chief, worker) = (task.chief().await, task.call(TaskId::worker(0)).await);
        create(&chief, &StartSpec::Initialise).await.unwrap();
        let save = Save { shard: 0, store: "/c".into(), checkpoint: name(0), at: Version(0) };
        let stop = StopAt { shard: 0, step: GlobalStep(1), drains: false };
        let refusals = [
            worker.call::<Saved>(save, Payload::EMPTY).await.map(drop),
            worker.call::<StoppingAt>(stop, Payload::EMPTY).await.map(drop),
        ];
        for refused in refusals {
            let Err(CallError::Refused { refusal, .. }) = refused else { panic!("{refused:?}") };
            assert_eq!(refusal.code, RefusalCode::Malformed);
        }
        let (stopping, _) = chief.call::<StoppingAt>(stop, Payload::EMPTY).await.unwrap();
        assert_eq!(stopping.version, Version(0));
        task.interrupt.cancel();
        drop(chief);
        assert!(matches!(task.ended().await, Err(PsError::Interrupted)));
    });
}

async fn is_leaving(chief: &Connection) -> bool {
    chief.call::<ShardSnapshot>(Observe { shard: 1 }, Payload::EMPTY).await.unwrap().0.leaving
}

#[test]
fn after_a_signal_it_serves_until_the_job_is_saved() {
    run(async {
        let task = Task::start(PATIENCE).await;
        let (chief, worker) = (task.chief().await, task.call(TaskId::worker(0)).await);
        create(&chief, &StartSpec::Initialise).await.unwrap();
        assert!(!is_leaving(&chief).await);
        task.interrupt.cancel();
        while !is_leaving(&chief).await {
            tokio::task::yield_now().await;
        }
        push(&worker, 1).await;
        chief.call::<Stopped>(Stop { reason: StopReason::Saved }, Payload::EMPTY).await.unwrap();
        task.ended().await.unwrap();
    });
}

#[test]
fn after_a_signal_it_ends_if_the_chief_is_late_or_away() {
    run(async {
        let slow = Task::start(Duration::from_millis(20)).await;
        let chief = slow.chief().await;
        slow.interrupt.cancel();
        assert!(matches!(slow.ended().await, Err(PsError::Interrupted)));
        drop(chief);

        let left = Task::start(PATIENCE).await;
        let (chief, worker) = (left.chief().await, left.call(TaskId::worker(0)).await);
        left.interrupt.cancel();
        drop(chief);
        assert!(matches!(left.ended().await, Err(PsError::Interrupted)));
        drop(worker);

        let alone = Task::start(PATIENCE).await;
        alone.interrupt.cancel();
        assert!(matches!(alone.ended().await, Err(PsError::Interrupted)));
    });
}
