//! Runs one task of a cluster as a process: a ps, a worker or the chief. Also runs the evaluator, which is
//! not part of a cluster.

use std::io::{Write, stdout};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use actix_rt::Arbiter;
use anyhow::anyhow;
use pushpull_chief::{Chief, ChiefConfig, JobEnd, JobProgress};
use pushpull_identity::Credentials;
use pushpull_messages::cluster::{Address, ClusterConfig, ClusterSpec};
use pushpull_messages::graph::GraphSpec;
use pushpull_messages::id::{JobName, TaskId};
use pushpull_messages::job::JobSpec;
use pushpull_ps::{PeerTransport, Ps, PsConfig, PsError};
use pushpull_storage::{EvaluationRecord, Store};
use pushpull_transport::buffer::BufferPool;
use pushpull_transport::{Congestion, Identity, Listener, Tcp, Transport};
use pushpull_worker::{Evaluator, EvaluatorConfig, Worker, WorkerConfig, WorkerError};
use tokio::sync::watch;
use tracing::Instrument;

use crate::attached::Attached;
use crate::collector::Collector;
use crate::programs::exit::{Failure, Outcome};
use crate::programs::http::{About, Endpoint, EndpointConfig};
use crate::programs::listen::{identity, listen};
use crate::programs::open_files;
use crate::programs::parent::end_with_parent;
use crate::programs::progress;
use crate::programs::shared::{HostedPs, WorkerPort};
use crate::programs::signals::Signals;
use crate::report::Report;
use crate::threads::{panicked, run_on};
use crate::trained::Trained;

/// The network settings of a task of a cluster.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    /// The address to listen at, if it differs from the task's address in the cluster spec.
    pub bind: Option<String>,
    /// What the task proves with who it is; `None` if the job has no join string.
    pub credentials: Option<Credentials>,
    /// Whether other hosts may reach the task although it has no credentials.
    pub insecure: bool,
    /// True if payloads carry a checksum.
    pub payload_crc: bool,
    /// Whether tasks of one host and one user may share memory.
    pub local: bool,
    /// The congestion control of the task's TCP connections.
    pub congestion: Congestion,
    /// For how long an end of a connection looks for the next message before its thread sleeps.
    pub spin: Duration,
    /// The time after which a silent peer counts as lost.
    pub lost_after: Duration,
    /// How long workers and ps tasks wait for a lost chief to be started again.
    pub chief_lost_after: Duration,
    /// The time after which an unanswered request is sent again.
    pub retry_after: Duration,
    /// The settings of the task's HTTP endpoint.
    pub http: EndpointConfig,
}

impl Network {
    fn tcp(&self, pool: &BufferPool) -> Tcp {
        Tcp::new(pool.clone())
            .with_payload_crc(self.payload_crc)
            .with_local(self.local)
            .with_lost_after(self.lost_after)
            .with_congestion(self.congestion.clone())
            .with_spin(self.spin)
            .with_credentials(self.credentials.clone())
            .with_insecure(self.insecure)
    }

    /// Returns the pool of a task that sends large payloads. If another task has the same host, that task can
    /// read the pool's buffers.
    fn pool(&self, cluster: &ClusterConfig) -> BufferPool {
        let (own, spec) = (cluster.task(), cluster.cluster());
        let host = spec.address(own).map(Address::host);
        let mut others = spec.tasks().filter(|&(task, _)| task != own);
        let beside = others.any(|(_, address)| Some(address.host()) == host);
        if self.local && !self.payload_crc && beside { BufferPool::shared() } else { BufferPool::default() }
    }

    /// Starts the task's HTTP endpoint.
    fn endpoint(&self, cluster: &ClusterConfig) -> anyhow::Result<Endpoint> {
        let endpoint = Endpoint::bind(&self.http, About::task(cluster))?;
        endpoint.announce(cluster.hosts_chief());
        Ok(endpoint)
    }

    /// Returns the orders with these network settings applied. Checks the settings now, before any task
    /// starts.
    fn order<'a>(&self, mut orders: ChiefOrders<'a>) -> Result<ChiefOrders<'a>, Failure> {
        orders.config.retry.resend_after = self.retry_after;
        orders.config.validate().map_err(Failure::usage)?;
        Ok(orders)
    }
}

/// The job of a chief, and the settings with which the chief runs the job.
#[derive(Clone)]
pub(crate) struct ChiefOrders<'a> {
    pub job: JobSpec,
    pub config: ChiefConfig,
    pub files: EndFiles<'a>,
    pub hooks: Vec<pushpull_chief::MakeHook>,
    /// What the chief gets from a program that calls the library; `None` if a command-line program runs the
    /// job. If this is `Some`, the end of the job is not reported on standard output.
    pub library: Option<Attached>,
}

/// The files that are written when a job has been trained.
#[derive(Clone, Copy, Default)]
pub(crate) struct EndFiles<'a> {
    /// The report, as JSON.
    pub report: Option<&'a Path>,
    /// The model, as a safetensors file.
    pub model: Option<&'a Path>,
}

impl EndFiles<'_> {
    /// Returns what the chief needs in order to write the files: a collector of the variables, if the model
    /// is to be written.
    pub(crate) fn attached(&self) -> Attached {
        Attached { collector: self.model.map(|_| Collector::default()), stop: None }
    }
}

/// Closes the endpoint of a task that has ended. Before that, waits for the configured linger time, or until
/// a signal arrives.
pub(crate) async fn closed(endpoint: Endpoint, task: TaskId, outcome: Outcome, signals: &Signals) -> Outcome {
    if let Err(failure) = &outcome {
        endpoint.fail(task, failure);
        if endpoint.lingers() {
            // The program prints the failure only when it ends, which may be much later.
            tracing::error!("{task} ended with an error: {failure}");
        }
    }
    endpoint.close(&signals.interrupt).await;
    outcome
}

/// Begins to listen for signals to this process, and for the end of the process that started this one.
fn task_signals() -> std::io::Result<Signals> {
    let signals = Signals::listen()?;
    end_with_parent()?;
    Ok(signals)
}

/// Runs a ps task until the job has ended.
pub(crate) async fn ps(
    cluster: &ClusterConfig,
    network: &Network,
    mut config: PsConfig,
    graph: Option<&GraphSpec>,
) -> Outcome {
    config.chief_lost_after = network.chief_lost_after;
    config.validate().map_err(Failure::usage)?;
    open_files::allow_task(cluster, config.shards)?;
    let signals = task_signals()?;
    let endpoint = network.endpoint(cluster)?;
    let outcome = run_ps(cluster, network, config, graph, &endpoint, &signals).await;
    closed(endpoint, cluster.task(), outcome, &signals).await
}

async fn run_ps(
    cluster: &ClusterConfig,
    network: &Network,
    config: PsConfig,
    graph: Option<&GraphSpec>,
    endpoint: &Endpoint,
    signals: &Signals,
) -> Outcome {
    let (pool, identity) = (network.pool(cluster), identity(cluster, graph, endpoint.advertised()));
    let tcp = network.tcp(&pool);
    let config = PsConfig { peers: Some(PeerTransport::new(Arc::new(tcp.clone()))), ..config };
    let (cluster, bind, interrupt) = (cluster.clone(), network.bind.clone(), signals.interrupt.clone());
    let (io, observers, exposure) = (Arbiter::new(), endpoint.observers(), endpoint.exposure());
    let result = run_on(&io, move || async move {
        let listener = listen(&tcp, &cluster, &identity, bind.as_deref(), &exposure).await?;
        let ps = Ps::start(config, identity, listener, &pool)?;
        observers.add(Arc::new(ps.view()));
        anyhow::Ok(ps.run(interrupt).await)
    });
    match panicked(result.await)?? {
        Err(error @ PsError::Interrupted) => {
            Err(Failure::Signal { reason: error.to_string(), number: signals.number() })
        }
        other => Ok(other?),
    }
}

/// Runs a worker task until the job has ended. If the cluster names no chief, worker 0 also runs the chief.
/// If it lists no ps tasks, each worker also runs the ps task of its index, with the settings `ps`.
pub(crate) async fn worker(
    cluster: &ClusterConfig,
    network: &Network,
    (config, mut ps): (WorkerConfig, PsConfig),
    graph: Option<&GraphSpec>,
    orders: Option<ChiefOrders<'_>>,
) -> Outcome {
    config.validate().map_err(Failure::usage)?;
    // A ps task that shares its process with the chief does not wait for a lost chief: both can only be
    // started again together.
    ps.chief_lost_after = orders.as_ref().map_or(network.chief_lost_after, |_| Duration::ZERO);
    ps.validate().map_err(Failure::usage)?;
    let orders = orders.map(|orders| network.order(orders)).transpose()?;
    open_files::allow_task(cluster, if cluster.hosts_ps() { ps.shards } else { 0 })?;
    let signals = task_signals()?;
    let endpoint = network.endpoint(cluster)?;
    let outcome = run_worker(cluster, network, (config, ps), graph, orders, (&endpoint, &signals)).await;
    closed(endpoint, cluster.task(), outcome, &signals).await
}

async fn run_worker(
    cluster: &ClusterConfig,
    network: &Network,
    (mut config, ps): (WorkerConfig, PsConfig),
    graph: Option<&GraphSpec>,
    orders: Option<ChiefOrders<'_>>,
    (endpoint, signals): (&Endpoint, &Signals),
) -> Outcome {
    config.retry.resend_after = network.retry_after;
    config.bind = network.bind.clone();
    // A worker that hosts the chief does not wait for a lost chief: both can only be started again together.
    config.chief_lost_after = orders.as_ref().map_or(network.chief_lost_after, |_| Duration::ZERO);
    let (pool, identity) = (network.pool(cluster), identity(cluster, graph, endpoint.advertised()));
    let tcp = network.tcp(&pool);
    // The port is opened before any task starts, so that an address in use is reported at once.
    let port = WorkerPort::open(cluster, &identity, &tcp, network.bind.as_deref(), endpoint).await?;
    let transport = port.as_ref().map_or_else(|| Arc::new(tcp.clone()) as _, |port| port.transport(&tcp));
    let (shared, interrupt) = (Arc::clone(&transport), signals.interrupt.clone());
    let worker = Worker::new(config, identity.clone(), shared, pool.clone(), interrupt);
    let worker = worker.map_err(Failure::usage)?;
    endpoint.observers().add(Arc::new(worker.view()));
    let ps = PsConfig { peers: Some(PeerTransport::new(Arc::clone(&transport))), ..ps };
    let hosted = match &port {
        Some(port) => HostedPs::start(cluster, port, &identity, ps, &pool, (endpoint, signals))?,
        None => None,
    };
    let own = Arbiter::new();
    let train = run_on(port.as_ref().map_or(&own, WorkerPort::io), move || worker.run());
    let [leave, leave_after_worker] = [(); 2].map(|()| hosted.as_ref().map(HostedPs::leave_later));
    let train = async {
        let trained = train.await;
        // The job is over. The chief tells the ps task so, unless it has gone on without this ps task.
        if matches!(trained, Ok(Ok(_))) && !signals.interrupt.is_cancelled() {
            leave_after_worker.into_iter().for_each(|leave| leave());
        }
        trained
    };
    let lead = async {
        let (Some(orders), Some(port)) = (orders, &port) else { return Ok(()) };
        let listener = port.port().listener(TaskId::CHIEF).map_err(anyhow::Error::from)?;
        let led = run_chief(cluster, listener, transport, &identity, orders, endpoint, signals).await;
        leave.into_iter().for_each(|leave| leave());
        led
    };
    let serve = async {
        match hosted {
            Some(hosted) => hosted.ended().await,
            None => Ok(Ok(())),
        }
    };
    // If the worker fails, the hosted ps task goes on: the job may need only its variables.
    let (trained, led, served) = tokio::join!(train, lead, serve);
    led?;
    let interrupted = |reason: String| Err(Failure::Signal { reason, number: signals.number() });
    match (panicked(trained)?, served?) {
        (Err(error @ WorkerError::Interrupted { .. }), _) => interrupted(error.to_string()),
        (Ok(_), Err(error @ PsError::Interrupted)) if signals.interrupt.is_cancelled() => {
            interrupted(error.to_string())
        }
        (Ok(_), Err(PsError::Interrupted | PsError::NoChief { .. })) => Ok(()),
        (trained, served) => Ok(trained.map(|_| ())?).and(Ok(served?)),
    }
}

/// Runs the chief until the job has ended.
pub(crate) async fn chief(cluster: &ClusterConfig, network: &Network, orders: ChiefOrders<'_>) -> Outcome {
    let orders = network.order(orders)?;
    open_files::allow_task(cluster, 0)?;
    let signals = task_signals()?;
    let endpoint = network.endpoint(cluster)?;
    let identity = identity(cluster, Some(&orders.job.graph), endpoint.advertised());
    let tcp = network.tcp(&BufferPool::default());
    let (bind, exposure) = (network.bind.as_deref(), endpoint.exposure());
    let listener = listen(&tcp, cluster, &identity, bind, &exposure).await?;
    let transport = Arc::new(tcp);
    let outcome = run_chief(cluster, listener, transport, &identity, orders, &endpoint, &signals).await;
    closed(endpoint, cluster.task(), outcome, &signals).await
}

/// Evaluates the checkpoints in a directory, and calls `told` with every evaluation. Ends after the
/// checkpoint of the job's last step, or at a signal. Finished evaluations are stored in the directory, so a
/// signal does not lose them.
pub(crate) async fn evaluator(
    checkpoint_dir: &str,
    config: EvaluatorConfig,
    http: &EndpointConfig,
    told: impl FnMut(&EvaluationRecord) + Send + 'static,
) -> Outcome {
    let signals = Signals::listen()?;
    // The evaluator may start before the first checkpoint exists.
    let store = Store::create(checkpoint_dir)?;
    let evaluator = Evaluator::new(config, store, BufferPool::default(), signals.interrupt.clone());
    let evaluator = evaluator.map_err(Failure::usage)?;
    let task = TaskId::new(JobName::Evaluator, 0);
    let endpoint = Endpoint::bind(http, About::new([task], None))?;
    endpoint.announce(false);
    endpoint.observers().add(Arc::new(evaluator.view()));
    let io = Arbiter::new();
    let result = panicked(run_on(&io, move || evaluator.run(told)).await);
    let outcome = result.and_then(|ended| Ok(ended?)).map_err(Failure::Error);
    closed(endpoint, task, outcome, &signals).await
}

async fn run_chief(
    cluster: &ClusterConfig,
    listener: Box<dyn Listener>,
    transport: Arc<dyn Transport>,
    identity: &Identity,
    orders: ChiefOrders<'_>,
    endpoint: &Endpoint,
    signals: &Signals,
) -> Outcome {
    let ChiefOrders { job, config, files, hooks, library } = orders;
    let config = ChiefConfig { workers_max: cluster.workers_max().or(config.workers_max), ..config };
    let attached = library.clone().unwrap_or_else(|| files.attached());
    let identity = Identity { graph: Some(job.graph.digest()), ..identity.clone() };
    let (tell, told) = watch::channel(JobProgress::default());
    let shown = tokio::spawn(progress::show(told, job.step_examples()).in_current_span());
    let (same, interrupt) = (Arc::clone(&transport), signals.interrupt.clone());
    let chief = Chief::new(config, identity.clone(), same, job.clone(), tell, interrupt)
        .with_hooks(hooks.iter().map(|make| make()));
    let chief = attached.add_to(chief, &job, &identity, transport, BufferPool::default());
    endpoint.observers().lead(chief.view());
    let result = chief.run(listener).await;
    let _ = shown.await;
    match result {
        Ok(end) => {
            attached.ended(&end);
            match library {
                Some(_) => Ok(()),
                None => tell_end(&job, cluster.cluster(), end, files, attached.collector),
            }
        }
        Err(error) if error.is_interrupt() => {
            Err(Failure::Signal { reason: error.to_string(), number: signals.number() })
        }
        Err(error) => Err(error.into()),
    }
}

/// Reports the end of a job that ended without an error, and fails if the result of the training is saved
/// nowhere. Prints the report and writes the files, or prints the name of the checkpoint in which the job
/// was saved. `collector` has the variables if the model is to be written.
pub(crate) fn tell_end(
    job: &JobSpec,
    cluster: &ClusterSpec,
    end: JobEnd,
    files: EndFiles<'_>,
    collector: Option<Collector>,
) -> Outcome {
    match end {
        JobEnd::Saved { step, checkpoint, reason } => {
            // An error of `writeln` means that the reader of standard output is gone.
            let _ = writeln!(stdout(), "stopped at step {step} of {} ({reason})", job.last_step);
            let _ = writeln!(stdout(), "saved as {checkpoint}: run the same command again to resume");
            Ok(())
        }
        JobEnd::Completed(outcome) => {
            let report = Report::new(job, cluster, &outcome);
            let written = files.report.map_or(Ok(()), |path| report.write(path));
            report.print();
            if let (Some(path), Some(collector)) = (files.model, collector) {
                Trained::new(job, cluster, collector, None)?.save(path)?;
            } else if let Some(reason) = &outcome.unsaved {
                written?;
                return Err(anyhow!("the job was trained, but its last step was not saved: {reason}").into());
            }
            Ok(written?)
        }
    }
}
