//! A whole cluster in this process. It has the same tasks and messages as any cluster, but messages are
//! handed over without being encoded.

use std::sync::Arc;
use std::time::Duration;

use actix_rt::Arbiter;
use anyhow::{Context, anyhow};
use pushpull_chief::{Chief, ChiefConfig, ChiefView, JobEnd, JobProgress, JobReport, MakeHook};
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::{JobName, TaskId};
use pushpull_messages::job::JobSpec;
use pushpull_messages::observe::Observed;
use pushpull_ps::{PeerTransport, Ps, PsConfig};
use pushpull_transport::buffer::BufferPool;
use pushpull_transport::{Identity, InProcess, Listener, SharedPort, Transport};
use pushpull_worker::{Worker, WorkerConfig};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::attached::Attached;
use crate::incarnation::{incarnation, nonce, span_of};
use crate::threads::{arbiter, run_on, threads_per_worker};

/// How long the other tasks may keep running after the chief has ended. Normally they end by themselves,
/// because the chief has told them that the job is over. Tasks that still run after this time are cancelled.
const LEAVE: Duration = Duration::from_secs(5);
/// Replaces [`LEAVE`] if the chief has failed. This time is shorter, because a failed chief may not have
/// told the other tasks that the job is over.
const LEAVE_FAILED: Duration = Duration::from_millis(500);

/// The settings of an embedded cluster. [`run`](Self::run) starts the cluster. Any number of embedded
/// clusters may run in one process.
#[derive(Clone)]
pub struct Embedded {
    /// The number of ps tasks. With 0, each worker hosts a ps task.
    pub ps: u32,
    /// The number of worker tasks.
    pub workers: u32,
    /// The settings of every ps task.
    pub ps_config: PsConfig,
    /// The settings of every worker task, including the workers' hooks.
    pub worker_config: WorkerConfig,
    /// The settings of the chief.
    pub chief_config: ChiefConfig,
    /// The chief's hooks.
    pub hooks: Vec<MakeHook>,
}

/// An object that is notified when tasks of a cluster start or fail.
pub(crate) trait Observers: Send + Sync {
    /// Adds a task that can be observed.
    fn add(&self, task: Arc<dyn Observed>);
    /// Adds the chief, whose snapshots describe the whole job.
    fn lead(&self, chief: ChiefView);
    /// Records that a task ended with an error.
    fn fail(&self, task: TaskId, reason: String);
    /// Returns the address at which the tasks can be observed over HTTP, `host:port`.
    fn http(&self) -> Option<String>;
}

/// Ignores all notifications. A run without observers uses this implementation.
impl Observers for () {
    fn add(&self, _: Arc<dyn Observed>) {}
    fn lead(&self, _: ChiefView) {}
    fn fail(&self, _: TaskId, _: String) {}
    fn http(&self) -> Option<String> {
        None
    }
}

/// The running tasks of an embedded cluster, except its chief.
struct Tasks {
    arbiters: Vec<Arbiter>,
    running: Vec<(TaskId, oneshot::Receiver<anyhow::Result<()>>)>,
}

/// The state that all tasks of one run share.
struct Run<'a> {
    cluster: ClusterSpec,
    job: &'a JobSpec,
    transport: InProcess,
    pool: BufferPool,
    observers: Arc<dyn Observers>,
    /// A token that is cancelled a while after the chief has ended. Signals do not cancel it: only the chief
    /// reacts to a signal, and the chief then stops the other tasks.
    leave: CancellationToken,
}

impl Embedded {
    /// Makes the settings of a cluster with `ps` ps tasks and `workers` workers. All other settings have
    /// their defaults; the workers share the machine's cores.
    pub fn new(ps: u32, workers: u32) -> Self {
        let threads = threads_per_worker(workers as usize);
        Self {
            ps,
            workers,
            ps_config: PsConfig::default(),
            worker_config: WorkerConfig { threads, ..Default::default() },
            chief_config: ChiefConfig::default(),
            hooks: Vec::new(),
        }
    }

    /// Returns the cluster spec that all tasks receive. Its addresses are only names; no task listens there.
    ///
    /// # Errors
    /// Returns an error if there is no worker, or if there are too many tasks.
    pub fn cluster(&self) -> anyhow::Result<ClusterSpec> {
        let addresses = |job: JobName, count: u32| {
            (job, (0..count).map(|index| format!("{job}{index}:1")).collect::<Vec<_>>())
        };
        let jobs = [
            addresses(JobName::Chief, 1),
            addresses(JobName::Ps, self.ps),
            addresses(JobName::Worker, self.workers),
        ];
        Ok(ClusterSpec::new(jobs)?.for_training()?)
    }

    /// Trains a job to its end.
    ///
    /// # Errors
    /// Returns an error if the job fails, or if `interrupt` is cancelled before the job has ended.
    ///
    /// # Panics
    /// Panics outside of an actix system.
    pub async fn run(
        &self,
        job: JobSpec,
        progress: watch::Sender<JobProgress>,
        interrupt: CancellationToken,
    ) -> anyhow::Result<JobReport> {
        match self.run_or_save(job, progress, interrupt).await? {
            JobEnd::Completed(report) => Ok(report),
            JobEnd::Saved { step, checkpoint, reason } => {
                Err(anyhow!("stopped at step {step} ({reason}); saved as {checkpoint}"))
            }
        }
    }

    /// Trains a job to its end, or until `interrupt` is cancelled. An interrupted job is saved as a
    /// checkpoint if the chief's settings contain a location for checkpoints.
    ///
    /// # Errors
    /// Returns an error if the job fails, or if it is interrupted and cannot be saved.
    ///
    /// # Panics
    /// Panics outside of an actix system.
    pub async fn run_or_save(
        &self,
        job: JobSpec,
        progress: watch::Sender<JobProgress>,
        interrupt: CancellationToken,
    ) -> anyhow::Result<JobEnd> {
        self.run_observed(job, progress, interrupt, Arc::new(()), &Attached::default()).await
    }

    /// Trains a job to its end. Adds the collector and the stop handle of `attached` to the chief.
    pub(crate) async fn run_attached(&self, job: JobSpec, attached: &Attached) -> anyhow::Result<()> {
        let (progress, _) = watch::channel(JobProgress::default());
        let (interrupt, observers) = (CancellationToken::new(), Arc::new(()));
        self.run_observed(job, progress, interrupt, observers, attached).await?;
        Ok(())
    }

    /// Does the same as [`run_or_save`](Self::run_or_save). Also reports the tasks to `observers`, and adds
    /// the collector and the stop handle of `attached` to the chief.
    pub(crate) async fn run_observed(
        &self,
        job: JobSpec,
        progress: watch::Sender<JobProgress>,
        interrupt: CancellationToken,
        observers: Arc<dyn Observers>,
        attached: &Attached,
    ) -> anyhow::Result<JobEnd> {
        let (transport, pool, leave) = (InProcess::new(), BufferPool::default(), CancellationToken::new());
        let run = Run { cluster: self.cluster()?, job: &job, transport, pool, observers, leave };
        let mut tasks = Tasks { arbiters: Vec::new(), running: Vec::new() };
        for index in 0..self.ps {
            let listener = run.transport.listen(&run.address(TaskId::ps(index))).await?;
            tasks.start_ps(&run, index, arbiter(), listener, self.ps_config.clone());
        }
        for index in 0..self.workers {
            let mut transport: Arc<dyn Transport> = Arc::new(run.transport.clone());
            let own = arbiter();
            if self.ps == 0 {
                // The worker and its ps task have one thread, as in a process of their own.
                let (task, ps) = (TaskId::worker(index), TaskId::ps(index));
                let address = run.address(task);
                let port = SharedPort::open(run.transport.listen(&address).await?, &run.identity(task));
                tasks.start_ps_on(&run, index, &own, port.listener(ps)?, self.ps_config.clone());
                transport = port.transport(task, address, transport);
            }
            tasks.start_worker(&run, index, own, transport, self.worker_config.clone())?;
        }
        let listener = run.transport.listen(&run.address(TaskId::CHIEF)).await?;
        // Nothing starts a lost ps task of this process again, so the chief does not wait for one.
        let config = ChiefConfig { ps_lost_after: Duration::ZERO, ..self.chief_config.clone() };
        let identity = run.identity(TaskId::CHIEF);
        let transport: Arc<dyn Transport> = Arc::new(run.transport.clone());
        let (same, shared) = (identity.clone(), Arc::clone(&transport));
        let chief = Chief::new(config, same, shared, job.clone(), progress, interrupt);
        let chief = attached.add_to(chief, &job, &identity, transport, run.pool.clone());
        let chief = chief.with_hooks(self.hooks.iter().map(|make| make()));
        run.observers.lead(chief.view());
        let result = chief.run(listener).instrument(span_of(TaskId::CHIEF)).await;
        if let Ok(end) = &result {
            attached.ended(end);
        }
        let others = tasks.end(&run, if result.is_ok() { LEAVE } else { LEAVE_FAILED }).await;
        // If the chief failed, its error is returned: the errors of the other tasks are only consequences.
        match result? {
            // Errors of other tasks are ignored here, because some are expected: once the job is saved, the
            // chief turns away every worker that has not begun, and such a worker fails.
            end @ JobEnd::Saved { .. } => Ok(end),
            end => others.map(|()| end),
        }
    }
}

impl Run<'_> {
    fn identity(&self, task: TaskId) -> Identity {
        Identity {
            task,
            incarnation: incarnation(),
            cluster: self.cluster.clone(),
            graph: Some(self.job.graph.digest()),
            http: self.observers.http(),
            nonce: nonce(),
        }
    }

    fn address(&self, task: TaskId) -> String {
        self.cluster.address(task).expect("every task is in the cluster").to_string()
    }
}

impl Tasks {
    fn start_ps(
        &mut self,
        run: &Run<'_>,
        index: u32,
        arbiter: Arbiter,
        listener: Box<dyn Listener>,
        config: PsConfig,
    ) {
        self.start_ps_on(run, index, &arbiter, listener, config);
        self.arbiters.push(arbiter);
    }

    /// Starts a ps task on the thread of another task.
    fn start_ps_on(
        &mut self,
        run: &Run<'_>,
        index: u32,
        arbiter: &Arbiter,
        listener: Box<dyn Listener>,
        config: PsConfig,
    ) {
        let task = TaskId::ps(index);
        let (identity, pool, interrupt) = (run.identity(task), run.pool.clone(), run.leave.clone());
        let (observers, span) = (Arc::clone(&run.observers), span_of(task));
        let peers = Some(PeerTransport::new(Arc::new(run.transport.clone())));
        let config = PsConfig { peers, ..config };
        let start = move || async move {
            let ps = Ps::start(config, identity, listener, &pool)?;
            observers.add(Arc::new(ps.view()));
            anyhow::Ok(ps.run(interrupt).await?)
        };
        self.running.push((task, run_on(arbiter, move || start().instrument(span))));
    }

    fn start_worker(
        &mut self,
        run: &Run<'_>,
        index: u32,
        arbiter: Arbiter,
        transport: Arc<dyn Transport>,
        config: WorkerConfig,
    ) -> anyhow::Result<()> {
        let task = TaskId::worker(index);
        let worker = Worker::new(config, run.identity(task), transport, run.pool.clone(), run.leave.clone())?;
        run.observers.add(Arc::new(worker.view()));
        let span = span_of(task);
        let start = move || async move { anyhow::Ok(worker.run().await?) };
        self.running.push((task, run_on(&arbiter, move || start().instrument(span))));
        self.arbiters.push(arbiter);
        Ok(())
    }

    /// Waits until all tasks have ended, and cancels those that still run after `limit`. Returns the first
    /// error, in the order in which the tasks were started.
    async fn end(self, run: &Run<'_>, limit: Duration) -> anyhow::Result<()> {
        let leave = run.leave.clone();
        let patience = actix_rt::spawn(async move {
            tokio::time::sleep(limit).await;
            leave.cancel();
        });
        let mut all = Ok(());
        for (task, ended) in self.running {
            let ended = match ended.await {
                Ok(ended) => ended.with_context(|| task.to_string()),
                Err(_) => Err(anyhow!("{task}: a thread of this task panicked: see the message above")),
            };
            if let Err(error) = &ended {
                run.observers.fail(task, format!("{error:#}"));
            }
            all = all.and(ended);
        }
        patience.abort();
        for arbiter in self.arbiters {
            arbiter.stop();
        }
        all
    }
}
