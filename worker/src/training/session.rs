//! The start of a worker, from its registration until the chief lets it begin. This module must not depend
//! on steps.

use std::sync::Arc;
use std::time::Duration;

use pushpull_input::{Mapped, Prefetch, input_in_directory};
use pushpull_messages::input::ColumnSpec;
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::{Go, Ready, Register, Registered};
use pushpull_messages::observe::TraceSpec;
use pushpull_transport::buffer::{BufferPool, Payload};
use pushpull_transport::{CallError, Identity, ReconnectingClient, Transport};

use crate::client::Parameters;
use crate::config::WorkerConfig;
use crate::devices::Devices;
use crate::error::WorkerError;
use crate::hooks::{Hook, MakeHook, Start};
use crate::preparation::{Preparation, Prepared, blocking};
use crate::telemetry::{Journal, Life};

/// The time that is added to the worker's limit for the start of the job. It lets the chief fail first,
/// because the chief's error names the missing tasks.
const CHIEF_FIRST: Duration = Duration::from_secs(10);

/// The objects with which a registered worker trains.
pub(super) struct Session {
    pub job: JobSpec,
    pub parameters: Parameters,
    pub devices: Arc<Devices>,
    pub input: Prefetch,
    pub hooks: Vec<Box<dyn Hook>>,
    /// The number of batches taken from the input in earlier runs of this worker.
    pub drawn: u64,
    /// True if the job makes checkpoints.
    pub saves: bool,
    pub trace: Option<TraceSpec>,
    /// The number of workers of the job.
    pub workers: u32,
    /// The test set, if this worker evaluates the model while the job trains.
    pub test: Option<Arc<Mapped>>,
}

/// The objects with which a session is started.
pub(super) struct SessionStart<'a> {
    pub config: &'a WorkerConfig,
    pub identity: &'a Identity,
    pub transport: &'a Arc<dyn Transport>,
    pub pool: &'a BufferPool,
    pub life: &'a Life,
    pub journal: &'a Journal,
}

impl SessionStart<'_> {
    /// Registers with the chief, prepares the training, and waits until the chief lets the worker begin.
    ///
    /// # Errors
    /// If the chief or a ps task cannot be reached; if the job does not begin in time; if the model or the
    /// data cannot be used.
    pub(super) async fn run(&self, chief: &ReconnectingClient) -> Result<Session, WorkerError> {
        let Self { config, identity, transport, pool, life, journal } = self;
        tracing::info!("registering with the chief");
        life.doing("registering");
        let registered = self.in_time(chief.call::<Registered>(Register {}, Payload::EMPTY)).await?;
        let Registered { mut job, placement, workers, resume, saves, trace } = registered;
        life.doing("preparing");
        job.freeze();
        if let Some(directory) = &config.data_dir {
            job.input = input_in_directory(&job.input, directory)?;
        }
        let variables = &job.graph.variables;
        let parameters =
            Parameters::connect(transport, identity, &placement, variables, pool, config.client()).await?;
        journal.counters(parameters.counters().clone());
        let (config, task) = ((*config).clone(), identity.task);
        let preparation = Preparation { config, job: job.clone(), task, workers, resume };
        let prepared = blocking(move || preparation.run()).await?;
        let Prepared { input, replicas, parts, test } = prepared;
        let devices = Arc::new(Devices::start(replicas, parts));
        life.devices(devices.meters());
        let hooks = self.begin_hooks(&job, input.columns())?;
        let (examples, streamed) = (input.examples(), input.is_streamed());
        let input = Prefetch::start(input, job.input.prefetch as usize)?;
        tracing::info!(
            "ready: model '{}', {} examples{}, batch {}, {} device(s), {} thread(s)",
            job.graph.name,
            examples.map_or("an unknown number of".to_owned(), |examples| examples.to_string()),
            if streamed { " (streamed)" } else { "" },
            job.batch_size,
            self.config.devices,
            self.config.threads
        );
        life.doing("waiting for the other tasks");
        let Go {} = self.in_time(chief.call(Ready {}, Payload::EMPTY)).await?;
        life.ready();
        let (drawn, test) = (resume.drawn, test.map(Arc::new));
        Ok(Session { job, parameters, devices, input, hooks, drawn, saves, trace, workers, test })
    }

    fn begin_hooks(&self, job: &JobSpec, columns: &[ColumnSpec]) -> Result<Vec<Box<dyn Hook>>, WorkerError> {
        let start = Start { job, task: self.identity.task, columns };
        let begin = |make: &MakeHook| {
            let mut hook = make();
            hook.begin(&start)?;
            Ok(hook)
        };
        self.config.hooks.iter().map(begin).collect()
    }

    /// Awaits a reply that the chief sends when all tasks of the cluster are ready, and returns an error if
    /// the reply takes too long.
    async fn in_time<R>(
        &self,
        call: impl Future<Output = Result<(R, Payload), CallError>>,
    ) -> Result<R, WorkerError> {
        let limit = self.config.start_timeout + CHIEF_FIRST;
        match tokio::time::timeout(limit, call).await {
            Ok(reply) => Ok(reply?.0),
            Err(_) => Err(WorkerError::NotStarted(limit.as_secs())),
        }
    }
}
