//! The start of a worker, from its registration until the chief lets it begin. This module must not depend
//! on how a step is computed.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join;
use pushpull_input::{PipelineWorker, TestSet, input_in_directory};
use pushpull_messages::cluster::on_one_host;
use pushpull_messages::id::{Incarnation, JobName};
use pushpull_messages::input::{ColumnSpec, InputSpec};
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::{Go, Ready, Register, Registered, Rejoin, Resume, ServeStage, Share};
use pushpull_messages::observe::TraceSpec;
use pushpull_messages::placement::Placement;
use pushpull_messages::sync::SyncSpec;
use pushpull_transport::buffer::{BufferPool, Payload};
use pushpull_transport::{CallError, Identity, ReconnectingClient, Transport};
use tokio::time::timeout;

use super::courtesy;
use super::input::{InputSource, WorkerInput};
use crate::blocking::blocking;
use crate::chief_link::ChiefLink;
use crate::client::{ClientError, Parameters};
use crate::config::{GivesWay, WorkerConfig};
use crate::devices::{Devices, Replica, parts};
use crate::error::WorkerError;
use crate::fetches::{FetchConfig, FetchPlan};
use crate::hooks::{Hook, ModelSummaries, Start};
use crate::preparation::{Preparation, Prepared};
use crate::routes::{RouteSpec, RoutesStart};
use crate::stages::{Group, GroupStart, Registration};
use crate::telemetry::{Journal, Life};

/// The time that is added to the worker's limit for the start of the job. It lets the chief fail first,
/// because the chief's error names the missing tasks.
const CHIEF_FIRST: Duration = Duration::from_secs(10);
/// How long a worker that joins a running job waits for another worker that is not there.
const LATE_PATIENCE: Duration = Duration::from_secs(5);

/// The objects with which a registered worker trains.
pub(super) struct Session {
    pub job: JobSpec,
    /// The number of workers of the job.
    pub workers: u32,
    pub parameters: Parameters,
    pub devices: Arc<Devices>,
    pub input: WorkerInput,
    pub hooks: Vec<Box<dyn Hook>>,
    /// The tensors that training steps fetch.
    pub fetches: FetchPlan,
    /// The number of batches taken from the input in earlier runs of this worker.
    pub drawn: u64,
    pub saves: JobSaves,
    pub trace: Option<TraceSpec>,
    /// The test set, if this worker evaluates the model while the job trains.
    pub test: Option<Arc<TestSet>>,
}

/// Where a job keeps checkpoints.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobSaves {
    /// True if it makes checkpoints that outlast it.
    pub in_directory: bool,
    /// True if it keeps checkpoints in the memory of the ps tasks.
    pub in_memory: bool,
}

/// What a worker is told to do when it registers.
pub(super) enum Started {
    /// It trains. With the other stages of its replica; `None` if the replica has one stage.
    Session(Box<Session>, Option<Arc<Group>>),
    /// It serves as a stage of another worker's replica.
    Stage(ServeStage),
}

/// Checks that no hook needs the tensors or gradients of other stages.
fn check_hooks(hooks: &[Box<dyn Hook>]) -> Result<(), WorkerError> {
    for hook in hooks {
        if hook.changes_gradients() {
            return Err(WorkerError::StageHook(
                "a hook changes gradients, of which a worker has only its own",
            ));
        }
        if hook.fetches().is_some() {
            return Err(WorkerError::StageHook("a hook fetches tensors, of which a worker has only its own"));
        }
    }
    Ok(())
}

/// Returns what each hook fetches.
fn fetches_of(hooks: &[Box<dyn Hook>]) -> Vec<Option<FetchConfig>> {
    hooks.iter().map(|hook| hook.fetches()).collect()
}

/// Plans what the hooks fetch.
///
/// # Errors
/// If a tensor that a hook requests cannot be fetched; if there are more devices than examples.
fn plan_fetches(
    job: &JobSpec,
    devices: usize,
    wanted: &[Option<FetchConfig>],
) -> Result<FetchPlan, WorkerError> {
    let parts = parts(job.batch_size as usize, devices)?;
    let parts: Vec<usize> = parts.into_iter().map(|part| part.len()).collect();
    Ok(FetchPlan::new(job, &parts, wanted)?)
}

/// Returns the part of the examples that a worker reads and its position in it: a share if it has one, and
/// otherwise `own` after `resume`.
fn part_of(share: Option<Share>, own: PipelineWorker, resume: Resume) -> (PipelineWorker, Resume) {
    match share {
        Some(Share { position, shares, examples }) => {
            (PipelineWorker { index: position, workers: shares }, Resume { examples, ..resume })
        }
        None => (own, resume),
    }
}

/// The objects with which a session is started.
pub(super) struct SessionStart<'a> {
    pub config: &'a WorkerConfig,
    pub identity: &'a Identity,
    /// The incarnation with which this process has registered before; `None` if it has not.
    pub after: Option<Incarnation>,
    pub transport: &'a Arc<dyn Transport>,
    pub pool: &'a BufferPool,
    pub life: &'a Life,
    pub journal: &'a Journal,
}

impl SessionStart<'_> {
    /// Registers with the chief, prepares the training, and waits until the chief lets the worker begin.
    ///
    /// # Errors
    /// If the chief or a ps task cannot be reached; if the preparation takes too long, or the job does not
    /// begin in time; if the model or the data cannot be used.
    pub(super) async fn run(
        &self,
        link: &ChiefLink,
        chief: &Arc<ReconnectingClient>,
    ) -> Result<Started, WorkerError> {
        let Self { config, identity, transport, pool, life, journal, after } = *self;
        tracing::info!("registering with the chief");
        life.doing("registering");
        let register = chief.call::<Registration>(Register { after }, Payload::EMPTY);
        let registered = match self.in_time(register).await? {
            Registration::Leads(registered) => *registered,
            Registration::Serves(serve) => return Ok(Started::Stage(serve)),
        };
        let Registered {
            mut job,
            placement,
            workers,
            share,
            resume,
            saves,
            saves_in_memory,
            summary_every,
            trace,
            begun,
        } = registered;
        life.doing("preparing");
        let digest = job.digest();
        let stages = job.graph.stages();
        let sent = job.clone();
        job.freeze();
        if let Some(directory) = &config.data_dir {
            warn_unless_read(&job.input);
            job.input = input_in_directory(&job.input, directory)?;
        }
        let (variables, own) = (&job.graph.variables, (&placement, &stages, 0));
        let mut parameters =
            Parameters::connect_stage(transport, identity, own, variables, pool, config.client()).await?;
        parameters.compress(&job.sent_as());
        let mut hooks = self.make_hooks(&job, summary_every.filter(|_| stages.count() == 1));
        let mut group = None;
        if stages.count() > 1 {
            let opened = self.open_group(&sent, &placement, workers, &hooks, summary_every).await?;
            parameters.lead(Arc::clone(&opened));
            // The other stages send no tensors of a step to the leader but those that it computes with.
            (group, job.metrics_every) = (Some(opened), Some(0));
        }
        journal.counters(parameters.counters().clone());
        journal.metrics(&job.graph);
        let wanted = fetches_of(&hooks);
        let (part, resume) = part_of(share, PipelineWorker { index: identity.task.index, workers }, resume);
        let prepare = self.prepare(&job, part, resume, wanted, group.clone());
        let travel = self.open_routes(&job, workers, begun, &mut parameters);
        let ((fetches, prepared), ()) = try_join(prepare, travel).await?;
        let Prepared { input, files, replicas, parts, test } = prepared;
        let devices = self.start_devices(&job, replicas, parts);
        self.begin_hooks(&mut hooks, &job, input.columns())?;
        self.announce(&job, input.examples(), input.is_streamed());
        let input = WorkerInput::start(self.source(&job, devices.copies()), input, share)?;
        life.doing("waiting for the other tasks");
        let Go {} = self.in_time(chief.call(Ready { files }, Payload::EMPTY)).await?;
        link.begin(chief, Rejoin { job: digest, files }).await?;
        life.ready();
        let (drawn, test) = (resume.drawn, test.map(Arc::new));
        let saves = JobSaves { in_directory: saves, in_memory: saves_in_memory };
        let session =
            Session { job, workers, parameters, devices, input, hooks, fetches, drawn, saves, trace, test };
        Ok(Started::Session(Box::new(session), group))
    }

    /// Starts the devices. Their threads and this one give way to other threads of their core, if the other
    /// tasks of a synchronous job share it. Links within a host carry no gradient before all are there, so
    /// nothing waits for these threads while they compute.
    fn start_devices(
        &self,
        job: &JobSpec,
        replicas: Vec<Box<dyn Replica>>,
        parts: Vec<Range<usize>>,
    ) -> Arc<Devices> {
        let Self { config, identity, .. } = *self;
        // Stages, and workers through which gradients travel, wait for each other within a step.
        let waits_once = job.graph.stages().count() == 1 && !job.communication.has_routes();
        let pays = waits_once
            && job.sync == SyncSpec::SYNC
            && identity.cluster.address(identity.task).is_some()
            && on_one_host(identity.cluster.tasks().map(|(_, address)| address));
        let gives = pays && config.gives_way != GivesWay::Never && courtesy::begin();
        let devices = Arc::new(Devices::start(replicas, config.own_threads, parts, &job.graph));
        if gives && config.gives_way == GivesWay::WhileAlone {
            courtesy::watch(Arc::downgrade(&devices));
        }
        self.life.devices(devices.meters());
        devices
    }

    /// Returns what it takes to open the input of another share. `early` says whether devices copy batches
    /// before their steps.
    fn source(&self, job: &JobSpec, early: bool) -> Arc<InputSource> {
        let Self { config, journal, .. } = *self;
        let (datasets, own_threads) = (config.datasets.clone(), config.own_threads);
        // Each step in flight keeps its batch.
        let used = job.pipeline as usize + usize::from(early);
        Arc::new(InputSource { job: job.clone(), datasets, own_threads, used, journal: journal.clone() })
    }

    /// Opens the other stages of this worker's replica. `job` is the job as the chief has sent it.
    async fn open_group(
        &self,
        job: &JobSpec,
        placement: &Placement,
        replicas: u32,
        hooks: &[Box<dyn Hook>],
        summary_every: Option<u64>,
    ) -> Result<Arc<Group>, WorkerError> {
        self.check_staged(job, hooks, summary_every)?;
        let Self { config, identity, transport, pool, .. } = *self;
        let patience = config.start_timeout;
        let start = GroupStart { transport, identity, pool, job, placement, replicas, patience };
        let limit = self.limit();
        let opened = timeout(limit, start.open()).await;
        let opened = opened.map_err(|_| WorkerError::NotPrepared(limit.as_secs()))?;
        Ok(Arc::new(opened.map_err(ClientError::from)?))
    }

    /// Opens the routes of the worker's pushes, if the job has any.
    async fn open_routes(
        &self,
        job: &JobSpec,
        workers: u32,
        begun: bool,
        parameters: &mut Parameters,
    ) -> Result<(), WorkerError> {
        let listed = self.identity.cluster.addresses(JobName::Worker).len() as u32;
        // A worker that the cluster does not list has no address, so no route passes it.
        let Some(spec) = RouteSpec::new(job.communication, workers.min(listed)) else { return Ok(()) };
        if self.identity.task.index >= listed {
            return Ok(());
        }
        let Self { config, identity, transport, pool, .. } = *self;
        // When the training begins, all workers are there. Later, some may have left for good.
        let patience = if begun { config.start_timeout.min(LATE_PATIENCE) } else { config.start_timeout };
        let start = RoutesStart {
            spec,
            transport,
            identity,
            layout: parameters.layout(),
            pool,
            bind: config.bind.as_deref(),
            patience,
            in_flight_bytes_max: config.in_flight_bytes_max,
            deterministic: job.deterministic,
        };
        let routes = start.open().await?;
        parameters.travel(Arc::new(routes));
        Ok(())
    }

    /// Reads the data and compiles the graph, within the limit of a preparation.
    async fn prepare(
        &self,
        job: &JobSpec,
        part: PipelineWorker,
        resume: Resume,
        wanted: Vec<Option<FetchConfig>>,
        group: Option<Arc<Group>>,
    ) -> Result<(FetchPlan, Prepared), WorkerError> {
        let (config, job, task) = (self.config.clone(), job.clone(), self.identity.task);
        let prepare = blocking(self.config.own_threads, "preparation", move || {
            let fetches = plan_fetches(&job, config.devices.len(), &wanted)?;
            let own = fetches.clone();
            let preparation = Preparation { config, job, task, part, resume, fetches: own, group };
            Ok((fetches, preparation.run()?))
        });
        let limit = self.limit();
        timeout(limit, prepare).await.map_err(|_| WorkerError::NotPrepared(limit.as_secs()))?
    }

    /// Logs that the worker is ready. `examples` is the size of its share of the data, if it is known.
    fn announce(&self, job: &JobSpec, examples: Option<u64>, streamed: bool) {
        tracing::info!(
            "ready: model '{}', {} examples{}, batch {}{}, {} device(s), {} thread(s)",
            job.graph.name,
            examples.map_or("an unknown number of".to_owned(), |examples| examples.to_string()),
            if streamed { " (streamed)" } else { "" },
            job.batch_size,
            if job.accumulate > 1 { format!(" x {}", job.accumulate) } else { String::new() },
            self.config.devices.len(),
            self.config.threads
        );
    }

    /// Creates the configured hooks and, if the job writes summaries, the hooks that plot the graph's
    /// summaries.
    fn make_hooks(&self, job: &JobSpec, summary_every: Option<u64>) -> Vec<Box<dyn Hook>> {
        let mut hooks: Vec<Box<dyn Hook>> = self.config.hooks.iter().map(|make| make()).collect();
        if let Some(every) = summary_every {
            let summaries = ModelSummaries::hooks(&job.graph, job.batch_size as usize, every);
            hooks.extend(summaries.into_iter().map(|hook| Box::new(hook) as Box<dyn Hook>));
        }
        hooks
    }

    /// Checks that this worker can lead a replica with stages. Warns about what such a replica does not
    /// measure.
    fn check_staged(
        &self,
        job: &JobSpec,
        hooks: &[Box<dyn Hook>],
        summary_every: Option<u64>,
    ) -> Result<(), WorkerError> {
        if !self.config.own_threads {
            return Err(WorkerError::StageThreads);
        }
        check_hooks(hooks)?;
        if summary_every.is_some() {
            tracing::warn!("plotting no summaries of tensors: the graph has stages");
        }
        if !job.graph.metrics.is_empty() && job.metrics_every != Some(0) {
            tracing::warn!("computing metrics only in evaluations: the graph has stages");
        }
        Ok(())
    }

    fn begin_hooks(
        &self,
        hooks: &mut [Box<dyn Hook>],
        job: &JobSpec,
        columns: &[ColumnSpec],
    ) -> Result<(), WorkerError> {
        let start = Start { job, task: self.identity.task, columns };
        Ok(hooks.iter_mut().try_for_each(|hook| hook.begin(&start))?)
    }

    /// Awaits a reply that the chief sends when all tasks of the cluster are ready. Returns an error if the
    /// reply takes too long. A process that has registered before waits without a limit.
    async fn in_time<R>(
        &self,
        call: impl Future<Output = Result<(R, Payload), CallError>>,
    ) -> Result<R, WorkerError> {
        if self.after.is_some() {
            // The job has begun already, and may wait for a ps task for any time. If the chief is lost,
            // `call` returns an error, which ends the wait.
            return Ok(call.await?.0);
        }
        let limit = self.limit();
        match timeout(limit, call).await {
            Ok(reply) => Ok(reply?.0),
            Err(_) => Err(WorkerError::NotStarted(limit.as_secs())),
        }
    }

    /// Returns how long the worker waits for the other tasks, and for its own preparation.
    fn limit(&self) -> Duration {
        self.config.start_timeout + CHIEF_FIRST
    }
}

/// Logs a warning if the input reads no files, so that their directory means nothing.
fn warn_unless_read(input: &InputSpec) {
    if [&input.train, &input.test].into_iter().all(|set| set.files().is_empty()) {
        tracing::warn!("the data directory has no effect: the job generates its data, or the program has it");
    }
}
