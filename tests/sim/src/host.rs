//! One start of a process: its real tasks with their actors, each in a set of its own that can be dropped at
//! any await. All tasks of a process are dropped together, as `kill -9` ends it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{AbortHandle, Abortable, FutureExt, LocalBoxFuture};
use pushpull_chief::checkpoint::{CheckpointConfig, MemoryCheckpointConfig};
use pushpull_chief::{Chief, ChiefConfig, JobEnd, JobProgress};
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::{Incarnation, JobName, LocalStep, TaskId};
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::Registered;
use pushpull_messages::observe::WallClock;
use pushpull_ps::{PeerTransport, Ps, PsConfig};
use pushpull_storage::Stores;
use pushpull_transport::buffer::BufferPool;
use pushpull_transport::{Identity, Listener, RetryConfig, SharedPort, Transport, TransportError};
use pushpull_worker::{Evaluator, EvaluatorConfig, Parameters, Worker, WorkerConfig};
use tokio::sync::watch;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::inside::Inside;
use crate::machine::Machine;
use crate::network::{Host, Network};
use crate::scenario::{SECOND_CHIEF, Scenario};
use crate::store::{LOCATION, SimulatedStore};

/// The time limit for the last save of a trained job.
const LAST_SAVE: Duration = Duration::from_secs(60);
/// The time for which the chief waits for a ps that is lost.
const PS_LOST_AFTER: Duration = Duration::from_secs(120);
/// The time between two looks of an evaluator at the store.
const EVALUATOR_POLL: Duration = Duration::from_millis(100);
/// The time without a new checkpoint after which an evaluator ends.
const EVALUATOR_IDLE: Duration = Duration::from_secs(400);

/// How long a ps task may serve after the chief in its process has ended.
const LEAVE: Duration = Duration::from_secs(5);

/// The index of the host of the twin of `worker/0`.
const TWINS: u32 = 1 << 20;

/// The host of a second start of a worker, which runs beside the first one.
pub const fn twin(worker: TaskId) -> TaskId {
    TaskId::new(JobName::Worker, TWINS + worker.index)
}

/// The host of a stranger that joins the shards as a worker.
pub const fn stranger(worker: TaskId) -> TaskId {
    TaskId::new(JobName::Worker, STRANGERS + worker.index)
}

/// The index of the host of a stranger in the place of `worker/0`.
const STRANGERS: u32 = 1 << 21;

/// Returns who the task on a host says that it is.
pub const fn identity_of(host: TaskId) -> TaskId {
    match host.job {
        JobName::Chief => TaskId::CHIEF,
        JobName::Worker => TaskId::worker(host.index % TWINS),
        _ => host,
    }
}

/// How a start of a task ended: `Ok` with the end of the job if the task is the chief.
pub type TaskEnd = Result<Option<JobEnd>, String>;

/// The end of a start of a task; `None` if it was killed.
pub type Running = LocalBoxFuture<'static, (TaskId, u64, Option<TaskEnd>)>;

/// What all tasks of a simulated job share.
pub struct Setting {
    /// The scenario, which says what the wall clocks show.
    pub scenario: Scenario,
    /// When the simulation began.
    pub began: Instant,
    /// The addresses of all tasks.
    pub cluster: ClusterSpec,
    /// The job.
    pub job: JobSpec,
    /// The number of shards of each ps task.
    pub shards: u32,
    /// The network between the tasks.
    pub network: Network,
    /// The store of the checkpoints.
    pub store: SimulatedStore,
    /// The time between two reports of a worker.
    pub report_every: Duration,
    /// The number of steps between two checkpoints; `None` if the job makes none.
    pub save_steps: Option<u64>,
    /// The number of checkpoints that are kept.
    pub keep: usize,
    /// The number of steps between two checkpoints in memory; `None` if the job keeps none.
    pub memory_steps: Option<u64>,
    /// Receives the progress of the job from the chief.
    pub progress: watch::Sender<JobProgress>,
    /// Tells the chief to end the job early.
    pub interrupt: CancellationToken,
}

/// One start of a process.
struct Process {
    /// Its transport.
    host: Host,
    /// The number of the start.
    start: u64,
    /// The port that its tasks share, or the reason why it could not be opened; `None` if it has one task.
    port: Option<Result<SharedPort, String>>,
    /// The address of the process.
    own: String,
    /// Cancelled when the chief in the process has ended; `None` if there is none.
    led: Option<CancellationToken>,
}

impl Process {
    /// Returns the transport of one of the tasks.
    fn transport(&self, task: TaskId) -> Arc<dyn Transport> {
        let Some(Ok(port)) = &self.port else { return Arc::new(self.host.clone()) };
        let host = self.host.of(task);
        let inner = port.transport(task, self.own.clone(), Arc::new(host.clone()));
        Arc::new(Inside { inner, host, own: self.own.clone() })
    }

    /// Begins to listen as one of the tasks.
    async fn listen(&self, task: TaskId, identity: &Identity) -> Result<Box<dyn Listener>, String> {
        match &self.port {
            None if task.job == JobName::Chief => listen(&self.host, task, identity).await,
            None => self.host.listen(&self.own).await.map_err(|error| error.to_string()),
            Some(Ok(port)) => port.listener(task).map_err(|error| error.to_string()),
            Some(Err(error)) => Err(error.clone()),
        }
    }
}

impl Setting {
    /// Starts a process for the `start`th time. Returns its tasks, each with the handle that kills it.
    pub fn start(&self, host: TaskId, start: u64) -> Vec<(TaskId, Running, AbortHandle)> {
        let place = self.network.join(host);
        place.machine().set_clock(self.scenario.time_at(host, start, self.began.elapsed()));
        let tasks = self.scenario.layout.tasks_on(host);
        let own = self.cluster.address(identity_of(host)).map(ToString::to_string).unwrap_or_default();
        let open = || {
            let listener = place.listen(&own).now_or_never().expect("a simulated host listens at once");
            let identity = self.identity(host, start, place.machine());
            listener.map(|listener| SharedPort::open(listener, &identity)).map_err(|error| error.to_string())
        };
        let port = (tasks.len() > 1).then(open);
        let led = (host == TaskId::worker(0) && tasks.contains(&TaskId::CHIEF)).then(CancellationToken::new);
        let process = Arc::new(Process { host: place, start, port, own, led });
        let run = |task| {
            let (running, kill) = self.start_task(task, Arc::clone(&process));
            (task, running, kill)
        };
        tasks.into_iter().map(run).collect()
    }

    /// Starts one task of a process.
    fn start_task(&self, task: TaskId, process: Arc<Process>) -> (Running, AbortHandle) {
        let (start, machine) = (process.start, process.host.machine().clone());
        let identity = self.identity(task, start, &machine);
        let stores = self.store.stores(&machine);
        // A task that shares its process with the chief does not wait for a lost chief.
        let led = process.led.is_some();
        let run: LocalBoxFuture<'static, TaskEnd> = match task.job {
            JobName::Ps => Box::pin(ps(process, identity, self.ps_config(stores, led))),
            JobName::Worker if task.index >= STRANGERS => {
                let registered = self.network.witness().registered();
                Box::pin(intrude(process.transport(task), identity, registered))
            }
            JobName::Worker => Box::pin(worker(process, identity, self.worker_config(led))),
            JobName::Evaluator => Box::pin(evaluator(self.evaluator_config(machine.wall_clock()), stores)),
            JobName::Chief => {
                let (own, interrupt) = match task == SECOND_CHIEF {
                    true => Default::default(),
                    false => (self.progress.clone(), self.interrupt.clone()),
                };
                let config = self.chief_config(stores, machine.wall_clock());
                Box::pin(chief(process, identity, (config, self.job.clone()), own, (task, interrupt)))
            }
            JobName::Other(_) => unreachable!("no task of a scenario is {task}"),
        };
        let (kill, killed) = AbortHandle::new_pair();
        let set = LocalSet::new();
        let run = machine.run(Box::pin(async move { set.run_until(run).await }));
        let run = Abortable::new(run, killed);
        (Box::pin(async move { (task, start, run.await.ok()) }), kill)
    }

    /// Returns the identity of a start of a task. Where clocks are right, the incarnations count the starts,
    /// so that a second chief has the incarnation of the first one.
    fn identity(&self, task: TaskId, start: u64, machine: &Machine) -> Identity {
        let wrong = self.scenario.wrong_clocks;
        Identity {
            task: identity_of(task),
            incarnation: Incarnation(match task.job {
                _ if wrong => machine.wall_clock().unix_us(),
                JobName::Worker => start + 1000 * u64::from(task.index / TWINS),
                _ => start,
            }),
            cluster: self.cluster.clone(),
            graph: Some(self.job.graph.digest()),
            http: None,
            nonce: match wrong {
                true => self.scenario.random_of(task, start).bits(),
                false => u64::from(task == SECOND_CHIEF),
            },
        }
    }

    fn ps_config(&self, stores: Stores, led: bool) -> PsConfig {
        let (shards, usual) = (self.shards, PsConfig::default());
        let chief_lost_after = if led { Duration::ZERO } else { usual.chief_lost_after };
        PsConfig { shards, stores, own_threads: false, drafted_bytes_min: 1, chief_lost_after, ..usual }
    }

    fn worker_config(&self, led: bool) -> WorkerConfig {
        let (retry, report_every, usual) = (retry(8), self.report_every, WorkerConfig::default());
        let chief_lost_after = if led { Duration::ZERO } else { usual.chief_lost_after };
        WorkerConfig { own_threads: false, retry, report_every, chief_lost_after, ..usual }
    }

    fn evaluator_config(&self, wall_clock: WallClock) -> EvaluatorConfig {
        let worker = self.worker_config(false);
        EvaluatorConfig {
            worker,
            wall_clock,
            poll_every: EVALUATOR_POLL,
            idle_timeout: Some(EVALUATOR_IDLE),
            ..EvaluatorConfig::default()
        }
    }

    fn chief_config(&self, stores: Stores, wall_clock: WallClock) -> ChiefConfig {
        let save_steps = self.save_steps;
        let checkpoint = save_steps.map(|_| CheckpointConfig {
            save_steps,
            keep: self.keep,
            last_save_timeout: LAST_SAVE,
            ..CheckpointConfig::new(LOCATION)
        });
        let retry = retry(3);
        ChiefConfig {
            retry,
            checkpoint,
            memory_checkpoint: self.memory_steps.map(MemoryCheckpointConfig::Steps),
            stores,
            wall_clock,
            ps_lost_after: PS_LOST_AFTER,
            workers_max: self.scenario.workers_max(),
            ..ChiefConfig::default()
        }
    }
}

fn address(identity: &Identity) -> String {
    identity.cluster.address(identity.task).expect("the task is in the cluster").to_string()
}

/// Returns how often requests are sent again: sooner than usual, so that a lost reply matters in a short job.
fn retry(redial_for: u64) -> RetryConfig {
    let resend_after = Duration::from_secs(5);
    RetryConfig { redial_for: Duration::from_secs(redial_for), resend_after, ..RetryConfig::default() }
}

async fn ps(process: Arc<Process>, identity: Identity, config: PsConfig) -> TaskEnd {
    let listener = process.listen(identity.task, &identity).await?;
    let peers = Some(PeerTransport::new(process.transport(identity.task)));
    let config = PsConfig { peers, ..config };
    let ps = Ps::start(config, identity, listener, &BufferPool::default());
    let (ps, leave) = (ps.map_err(|error| error.to_string())?, CancellationToken::new());
    let run = ps.run(leave.clone());
    let Some(led) = &process.led else {
        return run.await.map(|()| None).map_err(|error| error.to_string());
    };
    let leave_later = async {
        led.cancelled().await;
        sleep(LEAVE).await;
        leave.cancel();
        std::future::pending().await
    };
    let ended = tokio::select! {
        biased;
        ended = run => ended,
        () = leave_later => Ok(()),
    };
    ended.map(|()| None).map_err(|error| error.to_string())
}

async fn chief(
    process: Arc<Process>,
    identity: Identity,
    (config, job): (ChiefConfig, JobSpec),
    progress: watch::Sender<JobProgress>,
    (task, interrupt): (TaskId, CancellationToken),
) -> TaskEnd {
    let listener = process.listen(task, &identity).await?;
    let chief = Chief::new(config, identity, process.transport(task), job, progress, interrupt);
    let end = chief.run(listener).await.map(Some).map_err(|error| error.to_string());
    process.led.iter().for_each(CancellationToken::cancel);
    end
}

async fn worker(process: Arc<Process>, identity: Identity, config: WorkerConfig) -> TaskEnd {
    if let Some(Err(error)) = &process.port {
        return Err(error.clone());
    }
    let (pool, interrupt) = (BufferPool::default(), CancellationToken::new());
    let worker = Worker::new(config, identity.clone(), process.transport(identity.task), pool, interrupt);
    let worker = worker.map_err(|error| error.to_string())?;
    worker.run().await.map(|()| None).map_err(|error| error.to_string())
}

/// Joins the shards as a worker, and pushes. Fails if a shard lets it.
async fn intrude(
    transport: Arc<dyn Transport>,
    identity: Identity,
    registered: Option<Registered>,
) -> TaskEnd {
    let Some(Registered { job, placement, .. }) = registered else { return Ok(None) };
    let pool = BufferPool::default();
    let (config, variables) =
        (WorkerConfig { retry: retry(8), ..WorkerConfig::default() }, &job.graph.variables);
    let connected =
        Parameters::connect(&transport, &identity, &placement, variables, &pool, config.client()).await;
    // The job may be over.
    let Ok(mut parameters) = connected else { return Ok(None) };
    let Ok(latest) = parameters.pull(false).await else { return Ok(None) };
    if parameters.join(job.sync).await.is_ok() {
        return Err("a shard lets a stranger join".to_owned());
    }
    let gradients = parameters.gradients().into_payloads();
    match parameters.push_pull(gradients, LocalStep(0), 1, &latest.versions, false).await {
        Ok(_) => Err("all shards take the push of a stranger".to_owned()),
        Err(_) => Ok(None),
    }
}

async fn evaluator(config: EvaluatorConfig, stores: Stores) -> TaskEnd {
    let store = stores.open(LOCATION).map_err(|error| error.to_string())?;
    let evaluator = Evaluator::new(config, store, BufferPool::default(), CancellationToken::new());
    let evaluator = evaluator.map_err(|error| error.to_string())?;
    evaluator.run(|_| {}).await.map(|()| None).map_err(|error| error.to_string())
}

/// Listens at the address of the chief; a second chief listens at its own one if the first one runs.
async fn listen(host: &Host, task: TaskId, identity: &Identity) -> Result<Box<dyn Listener>, String> {
    let listener = match host.listen(&address(identity)).await {
        Err(TransportError::InUse { .. }) if task == SECOND_CHIEF => host.listen("chief1:1").await,
        other => other,
    };
    listener.map_err(|error| error.to_string())
}
