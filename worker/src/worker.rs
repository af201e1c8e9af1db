//! The worker task from its registration to its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pushpull_messages::id::{GlobalStep, LocalStep, TaskId};
use pushpull_messages::input::ColumnSpec;
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::{
    Evaluated, Finish, Finished, Go, Ready, Register, Registered, Resume, TrainingResult,
};
use pushpull_messages::observe::{Clock, TraceSpec};
use pushpull_transport::buffer::{BufferPool, Payload};
use pushpull_transport::{CallError, Identity, Patience, ReconnectingClient, Transport};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::alignment::Alignment;
use crate::config::WorkerConfig;
use crate::devices::Devices;
use crate::error::WorkerError;
use crate::evaluate::evaluate;
use crate::filter::Filter;
use crate::gauge::Gauge;
use crate::hook::{Hook, MakeHook, Start};
use crate::journal::Journal;
use crate::life::{Ends, Life};
use crate::parameters::Parameters;
use crate::plots::Plots;
use crate::preparation::{Preparation, Prepared};
use crate::reporter::{Last, Reporter};
use crate::spans::Spans;
use crate::trace::Tracer;
use crate::train::{Trained, Trainer};
use crate::view::WorkerView;
use pushpull_input::{InputError, Prefetch, SplitMix64, input_in_directory};

/// So long a worker that leaves early tries to leave in good order.
const FAREWELL: Duration = Duration::from_secs(5);
/// Where the job saves, a worker that is told to stop goes on for so long: it may not be the only one that was told, and
/// then the chief lets all of them stop at the same step.
const GRACE: Duration = Duration::from_secs(3);
/// And so long after that it waits to hear that all is saved.
const SAVED: Duration = Duration::from_secs(30);

/// A worker task.
pub struct Worker {
    config: WorkerConfig,
    identity: Identity,
    transport: Arc<dyn Transport>,
    pool: BufferPool,
    /// Cancelled when a signal wants the worker to stop.
    interrupt: CancellationToken,
    life: Life,
    journal: Journal,
    _ends: Ends,
}

/// What a registered worker trains with.
struct Session {
    job: JobSpec,
    parameters: Parameters,
    devices: Devices,
    input: Prefetch,
    hooks: Vec<Box<dyn Hook>>,
    /// Batches taken from the input before.
    drawn: u64,
    /// Whether checkpoints are made.
    saves: bool,
    trace: Option<TraceSpec>,
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
        let life = Life::new("dialling the chief", interrupt.clone());
        let (ends, journal) = (life.ends(), Journal::default());
        Ok(Self { config, identity, transport, pool, interrupt, life, journal, _ends: ends })
    }

    /// What it shows of itself.
    pub fn view(&self) -> WorkerView {
        let (life, journal) = (self.life.clone(), self.journal.clone());
        WorkerView::new(self.identity.task, self.identity.incarnation, life, journal)
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
        let (interrupt, saves) = (self.interrupt.clone(), AtomicBool::new(false));
        let out_of_patience = async {
            interrupt.cancelled().await;
            tokio::time::sleep(FAREWELL).await;
            if saves.load(Ordering::Relaxed) {
                tokio::time::sleep(GRACE + SAVED).await;
            }
        };
        tokio::select! {
            result = self.work(&chief, &saves) => result,
            // Whatever it waits for, a push, the other workers, the chief: it goes.
            () = out_of_patience => Err(WorkerError::Interrupted { local_step: LocalStep(0) }),
        }
    }

    /// From the registration on. Whether the job saves, `told` tells as soon as that is known.
    async fn work(&mut self, chief: &Arc<ReconnectingClient>, told: &AtomicBool) -> Result<(), WorkerError> {
        let interrupt = self.interrupt.clone();
        let prepared = tokio::select! {
            prepared = self.prepare(chief) => prepared,
            () = interrupt.cancelled() => {
                Err(WorkerError::Interrupted { local_step: LocalStep(0) })
            }
        };
        let Session { job, parameters, devices, input, hooks, drawn, saves, trace } = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return self.give_up(chief, error, None, false).await,
        };
        told.store(saves, Ordering::Relaxed);
        let (stop_sender, stop) = watch::channel(None);
        let (every, plots) = (self.config.report_every, Plots::default());
        let (clock, spans) = (Clock::start(), Spans::default());
        let tracer = trace.map(|trace| Tracer::new(trace, self.identity.task, clock, spans.clone()));
        let reporter = Reporter {
            chief: Arc::clone(chief),
            journal: self.journal.clone(),
            life: self.life.clone(),
            plots: plots.clone(),
            spans,
            clock,
            alignment: Alignment::default(),
            last: Last::default(),
            untold: [0; 2],
        };
        let reporter = tokio::spawn(reporter.run(stop_sender, every));
        self.life.doing("training");
        let interrupt = if saves { after(GRACE, self.interrupt.clone()) } else { self.interrupt.clone() };
        let seed = SplitMix64::stream(&[job.seed, u64::from(self.identity.task.index)]).bits();
        let filter = Filter::new(job.gradient, &job.graph.variables);
        let mut trainer = Trainer {
            parameters,
            devices,
            filter,
            seed,
            input,
            drawn,
            sync: job.sync,
            took: None,
            journal: self.journal.clone(),
            tracer,
            gauge: Gauge::new(every),
            hooks,
            plots,
            stop,
            interrupt,
        };
        let Trained { result, local_step, loss, skipped } = trainer.run().await;
        let Trainer { parameters, devices, input, hooks, stop, .. } = trainer;
        // Now the reporter tells the rest. It has nothing to give, and where it panicked that has been said.
        drop(stop);
        let _ = reporter.await;
        let result = match result {
            Ok(()) => TrainingResult::Completed,
            // The others may have more, and this worker may be asked to evaluate.
            Err(WorkerError::Input(how @ InputError::Ended { .. })) => {
                tracing::warn!("waiting for the others: {how}");
                TrainingResult::input_ended(how)
            }
            Err(error) => return self.give_up(chief, error, Some((local_step, loss, skipped)), saves).await,
        };
        tracing::info!("finished after {local_step} steps of this worker");
        // The input and the hooks have done their work: what they hold goes before the evaluation.
        drop((input, hooks));
        self.life.doing("waiting for the others");
        let finish = Finish { result, local_step, loss, skipped };
        let (Finished { evaluate: asked, step }, _) = chief.call(finish, Payload::EMPTY).await?;
        if asked {
            self.life.doing("evaluating");
            self.evaluate(chief, &parameters, &devices, job, step).await?;
        }
        Ok(())
    }

    async fn dial_chief(&self) -> Result<ReconnectingClient, WorkerError> {
        let host = self.identity.cluster.chief_host();
        let address = self.identity.cluster.address(host).ok_or(WorkerError::NotInCluster(host))?;
        let patience = Patience::of(self.config.start_timeout);
        let (transport, retry) = (Arc::clone(&self.transport), self.config.retry);
        let chief = ReconnectingClient::connect(
            transport,
            address.as_str(),
            &self.identity,
            TaskId::CHIEF,
            patience,
            retry,
        );
        Ok(chief.await?)
    }

    /// From registration to the word to begin.
    async fn prepare(&self, chief: &ReconnectingClient) -> Result<Session, WorkerError> {
        tracing::info!("registering with the chief");
        self.life.doing("registering");
        let registered = self.within(chief.call::<Registered>(Register {}, Payload::EMPTY)).await?;
        let Registered { mut job, placement, workers, resume, saves, trace } = registered;
        self.life.doing("preparing");
        if let Some(directory) = &self.config.data_dir {
            job.input = input_in_directory(&job.input, directory)?;
        }
        let parameters = Parameters::connect(
            &self.transport,
            &self.identity,
            &placement,
            &job.graph.variables,
            &self.pool,
            &self.config,
        )
        .await?;
        self.journal.exchanges(parameters.exchanges().clone());
        let preparation = self.preparation(job.clone(), workers, resume);
        let prepared = blocking(move || preparation.run()).await?;
        let Prepared { train, sampler, replicas, parts, examples } = prepared;
        let devices = Devices::start(replicas, parts);
        self.life.devices(devices.meters());
        let hooks = self.begin_hooks(&job, train.columns())?;
        let input = Prefetch::start(train, sampler, job.input.prefetch as usize)?;
        tracing::info!(
            "ready: model '{}', {examples} examples, batch {}, {} device(s), {} thread(s)",
            job.graph.name,
            job.batch_size,
            self.config.devices,
            self.config.threads
        );
        self.life.doing("waiting for the others");
        let Go {} = self.within(chief.call(Ready {}, Payload::EMPTY)).await?;
        self.life.ready();
        Ok(Session { job, parameters, devices, input, hooks, drawn: resume.drawn, saves, trace })
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

    fn preparation(&self, job: JobSpec, workers: u32, resume: Resume) -> Preparation {
        Preparation { config: self.config.clone(), job, task: self.identity.task, workers, resume }
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

    async fn evaluate(
        &self,
        chief: &ReconnectingClient,
        parameters: &Parameters,
        devices: &Devices,
        job: JobSpec,
        step: GlobalStep,
    ) -> Result<(), WorkerError> {
        let result = async {
            let preparation = self.preparation(job.clone(), 1, Resume::default());
            let test = blocking(move || preparation.load_test()).await?;
            evaluate(parameters, devices, &test, &job, step).await
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
        chief: &ReconnectingClient,
        error: WorkerError,
        progress: Option<(LocalStep, f32, u64)>,
        saves: bool,
    ) -> Result<(), WorkerError> {
        let result = match &error {
            WorkerError::Interrupted { .. } | WorkerError::Stopped(_) => TrainingResult::Interrupted,
            other => TrainingResult::failed(other),
        };
        let (local_step, loss, skipped) = progress.unwrap_or((LocalStep(0), f32::NAN, 0));
        let farewell = chief.call::<Finished>(Finish { result, local_step, loss, skipped }, Payload::EMPTY);
        match tokio::time::timeout(FAREWELL, farewell).await {
            // What it did is in the variables, and will be in a checkpoint: nothing is lost.
            Ok(Ok(_)) if saves && matches!(error, WorkerError::Interrupted { .. }) => return Ok(()),
            Ok(Err(lost)) => tracing::debug!("the chief was not told: {lost}"),
            _ => {}
        }
        Err(error)
    }
}

/// Cancelled so long after the other is.
fn after(time: Duration, interrupt: CancellationToken) -> CancellationToken {
    let later = CancellationToken::new();
    let cancelled = later.clone();
    tokio::spawn(async move {
        interrupt.cancelled().await;
        tracing::info!(
            "told to stop: going on for {} s, in which the job may be saved as a whole",
            time.as_secs()
        );
        tokio::time::sleep(time).await;
        cancelled.cancel();
    });
    later
}

/// On a thread where nobody waits: what takes a while must hold up neither signs of life nor signals.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, WorkerError> + Send + 'static,
) -> Result<T, WorkerError> {
    // It is never aborted, so all that keeps it from an end is a panic.
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(WorkerError::PreparationPanicked))
}

#[cfg(test)]
mod tests;
