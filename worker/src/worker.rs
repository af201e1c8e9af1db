//! The worker task from its registration to its end.

use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use actix_rt::Arbiter;
use messages::buffer::{BufferPool, Payload};
use messages::id::{LocalStep, TaskId};
use messages::job::JobSpec;
use messages::message::{Evaluated, Finish, Finished, Go, Ready, Register, Registered, TrainingResult};
use messages::transport::{CallError, Client, Identity, Patience, Transport, dial};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::WorkerConfig;
use crate::device::Device;
use crate::error::WorkerError;
use crate::evaluate::{batch_sizes, evaluate};
use crate::input::{
    DataShare, Dataset, Description, InputError, Prefetch, READY_BATCHES, Sampler, describe, in_directory,
    load,
};
use crate::parameters::Parameters;
use crate::replica::{Replica, ReplicaError};
use crate::reporter::{Progress, report};
use crate::train::{Trained, Trainer};

/// So long a worker that leaves early tries to leave in good order.
const FAREWELL: Duration = Duration::from_secs(5);

/// A worker task.
pub struct Worker {
    config: WorkerConfig,
    identity: Identity,
    transport: Arc<dyn Transport>,
    pool: BufferPool,
    /// Cancelled when a signal wants the worker to stop.
    interrupt: CancellationToken,
}

/// What a registered worker trains with.
struct Prepared {
    job: JobSpec,
    parameters: Parameters,
    device: Addr<Device>,
    input: Prefetch,
}

impl Worker {
    /// A worker that is not started yet.
    ///
    /// # Errors
    /// Where a setting is out of range.
    pub fn new(
        config: WorkerConfig,
        identity: Identity,
        transport: Arc<dyn Transport>,
        pool: BufferPool,
        interrupt: CancellationToken,
    ) -> Result<Self, WorkerError> {
        config.validate()?;
        Ok(Self { config, identity, transport, pool, interrupt })
    }

    /// Trains until the job's last step, and evaluates if the chief asks for it.
    ///
    /// # Errors
    /// Whatever kept it from that; the chief has been told, where it can be reached.
    ///
    /// # Panics
    /// Outside of an actix system.
    pub async fn run(mut self) -> Result<(), WorkerError> {
        let chief = tokio::select! {
            chief = self.dial_chief() => Arc::new(chief?),
            () = self.interrupt.cancelled() => {
                return Err(WorkerError::Interrupted { local_step: LocalStep(0) });
            }
        };
        let arbiter = Arbiter::new();
        let interrupt = self.interrupt.clone();
        let out_of_patience = async move {
            interrupt.cancelled().await;
            tokio::time::sleep(FAREWELL).await;
        };
        let result = tokio::select! {
            result = self.work(&chief, &arbiter) => result,
            // Whatever it waits for, a push, the other workers, the chief: it goes.
            () = out_of_patience => Err(WorkerError::Interrupted { local_step: LocalStep(0) }),
        };
        arbiter.stop();
        result
    }

    async fn work(&mut self, chief: &Arc<Client>, arbiter: &Arbiter) -> Result<(), WorkerError> {
        let interrupt = self.interrupt.clone();
        let prepared = tokio::select! {
            prepared = self.prepare(chief, arbiter) => prepared,
            () = interrupt.cancelled() => {
                Err(WorkerError::Interrupted { local_step: LocalStep(0) })
            }
        };
        let Prepared { job, parameters, device, input } = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return self.give_up(chief, error, None).await,
        };
        let (progress, progressing) = watch::channel(Progress::default());
        let (stop_sender, stop) = watch::channel(None);
        tokio::spawn(report(Arc::clone(chief), progressing, stop_sender, self.config.report_every));
        let last_step = job.last_step;
        let interrupt = self.interrupt.clone();
        let mut trainer = Trainer { parameters, device, input, last_step, progress, stop, interrupt };
        let Trained { result, local_step, loss } = trainer.run().await;
        if let Err(error) = result {
            return self.give_up(chief, error, Some((local_step, loss))).await;
        }
        tracing::info!("finished after {local_step} steps of this worker");
        // The input and the reporter have done their work: what they hold goes before the evaluation.
        let Trainer { parameters, device, input, stop, progress, .. } = trainer;
        drop((input, stop, progress));
        let finish = Finish { result: TrainingResult::Completed, local_step, loss };
        let (Finished { evaluate: asked }, _) = chief.call(finish, Payload::EMPTY).await?;
        if asked {
            self.evaluate(chief, &parameters, &device, job).await?;
        }
        Ok(())
    }

    async fn dial_chief(&self) -> Result<Client, WorkerError> {
        let host = self.identity.cluster.chief_host();
        let address = self.identity.cluster.address(host).ok_or(WorkerError::NotInCluster(host))?;
        let patience = Patience::of(self.config.start_timeout);
        let client =
            dial(&*self.transport, address.as_str(), &self.identity, TaskId::CHIEF, patience).await?;
        Ok(client)
    }

    /// From registration to the word to begin.
    async fn prepare(&self, chief: &Client, arbiter: &Arbiter) -> Result<Prepared, WorkerError> {
        tracing::info!("registering with the chief");
        let registered = self.within(chief.call::<Registered>(Register {}, Payload::EMPTY)).await?;
        let Registered { job, placement, workers } = registered;
        let patience = Patience::of(self.config.start_timeout);
        let parameters = Parameters::connect(
            &*self.transport,
            &self.identity,
            &placement,
            &job.graph.variables,
            &self.pool,
            patience,
            self.config.in_flight_bytes_max,
        )
        .await?;
        let train = self.load(&job, |job| &job.input.train).await?;
        let mut replica = (self.config.replica)(&job, train.feature_shape(), self.config.threads)?;
        self.prepare_evaluation(&job, &train, &mut *replica).await?;
        let device = Device::start_on(&arbiter.handle(), replica);
        let share = DataShare::new(self.identity.task.index, workers, train.len())?;
        let sampler = Sampler::new(share, job.batch_size as usize, job.seed)?;
        let examples = share.len();
        let input = Prefetch::start(Arc::new(train), sampler, READY_BATCHES)?;
        tracing::info!(
            "ready: model '{}', {examples} examples, batch {}, {} thread(s)",
            job.graph.name,
            job.batch_size,
            self.config.threads
        );
        let Go {} = self.within(chief.call(Ready {}, Payload::EMPTY)).await?;
        Ok(Prepared { job, parameters, device, input })
    }

    /// Better to hear of a test set that is missing or does not fit now than after hours of training.
    async fn prepare_evaluation(
        &self,
        job: &JobSpec,
        train: &Dataset,
        replica: &mut dyn Replica,
    ) -> Result<(), WorkerError> {
        let (test, data_dir) = (job.input.test.clone(), self.config.data_dir.clone());
        let described = blocking(move || {
            let test = match data_dir {
                Some(directory) => in_directory(&test, &directory)?,
                None => test,
            };
            describe(&test)
        });
        let Description { examples, feature_shape } = described.await?;
        if &feature_shape != train.feature_shape() {
            let (expected, got) = (train.feature_shape().clone(), feature_shape);
            return Err(ReplicaError::Features { expected, got }.into());
        }
        for batch in batch_sizes(examples) {
            replica.prepare(batch)?;
        }
        Ok(())
    }

    /// A reply that comes when the whole cluster is up.
    async fn within<R>(
        &self,
        call: impl Future<Output = Result<(R, Payload), CallError>>,
    ) -> Result<R, WorkerError> {
        // The chief has the same patience, and names who is missing: let it speak first.
        let limit = self.config.start_timeout + Duration::from_secs(10);
        match tokio::time::timeout(limit, call).await {
            Ok(reply) => Ok(reply?.0),
            Err(_) => Err(WorkerError::NotStarted(limit.as_secs())),
        }
    }

    async fn load(
        &self,
        job: &JobSpec,
        which: fn(&JobSpec) -> &messages::input::DatasetSpec,
    ) -> Result<Dataset, WorkerError> {
        let (spec, data_dir) = (which(job).clone(), self.config.data_dir.clone());
        Ok(blocking(move || load(&spec, data_dir.as_deref())).await?)
    }

    async fn evaluate(
        &self,
        chief: &Client,
        parameters: &Parameters,
        device: &Addr<Device>,
        job: JobSpec,
    ) -> Result<(), WorkerError> {
        let result = async {
            let test = self.load(&job, |job| &job.input.test).await?;
            evaluate(parameters, device, &test, &job).await
        };
        let result = result.await;
        let evaluated = match &result {
            Ok(evaluation) => Evaluated { result: Ok(evaluation.clone()) },
            Err(error) => Evaluated::failed(error),
        };
        let told = chief.call::<Finished>(evaluated, Payload::EMPTY).await;
        // Of two errors the first is the reason.
        result?;
        told?;
        Ok(())
    }

    /// Tells the chief why this worker leaves before the end, and leaves.
    async fn give_up(
        &self,
        chief: &Client,
        error: WorkerError,
        progress: Option<(LocalStep, f32)>,
    ) -> Result<(), WorkerError> {
        let result = match &error {
            WorkerError::Interrupted { .. } | WorkerError::Stopped(_) => TrainingResult::Interrupted,
            other => TrainingResult::failed(other),
        };
        let (local_step, loss) = progress.unwrap_or((LocalStep(0), f32::NAN));
        let farewell = chief.call::<Finished>(Finish { result, local_step, loss }, Payload::EMPTY);
        if let Ok(Err(lost)) = tokio::time::timeout(FAREWELL, farewell).await {
            tracing::debug!("the chief was not told: {lost}");
        }
        Err(error)
    }
}

/// Reading and unpacking files takes a while: on a thread where nobody waits.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, InputError> + Send + 'static,
) -> Result<T, InputError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
