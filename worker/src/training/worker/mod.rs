//! The worker task, from its connection to the chief to its end. This module must not depend on how a step
//! is trained.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use pushpull_input::{InputError, SplitMix64, TestSet};
use pushpull_messages::id::{GlobalStep, LocalStep};
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::{Evaluated, Evaluation, Finish, Finished, Resume, TrainingResult};
use pushpull_messages::observe::Clock;
use pushpull_transport::buffer::{BufferPool, Payload};
use pushpull_transport::{CallError, Identity, Transport};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::filter::Filter;
use super::session::{Session, SessionStart};
use super::step::Stepper;
use super::trainer::{Trained, Trainer, TrainingProgress};
use super::validation::{Validation, ValidationSetting};
use crate::blocking::blocking;
use crate::chief_link::{ChiefLink, DialChief};
use crate::client::{ClientError, Parameters};
use crate::config::WorkerConfig;
use crate::devices::Devices;
use crate::error::WorkerError;
use crate::evaluation::evaluate;
use crate::fetches::FetchPlan;
use crate::lease::Lease;
use crate::preparation::Preparation;
use crate::telemetry::{
    EndOfLife, Evaluations, Gauge, Journal, Life, Plots, ReportSources, Reporter, Spans, Tracer, WorkerView,
};

/// How long a worker that leaves early tries to inform the chief.
const FAREWELL: Duration = Duration::from_secs(5);
/// How long a worker continues to train after an interrupt if the job saves checkpoints. If other tasks were
/// interrupted too, this gives the chief time to stop all of them at the same step.
const GRACE: Duration = Duration::from_secs(3);
/// After [`GRACE`], the worker waits at most this long for the chief's reply, which confirms that the
/// checkpoint is durable.
const SAVED: Duration = Duration::from_secs(30);

/// A worker task.
pub struct Worker {
    config: WorkerConfig,
    identity: Identity,
    transport: Arc<dyn Transport>,
    pool: BufferPool,
    /// Cancelled when a signal tells the worker to stop.
    interrupt: CancellationToken,
    life: Life,
    journal: Journal,
    _end: EndOfLife,
}

/// The part of a session that is still needed after the training.
struct AfterTraining {
    job: JobSpec,
    parameters: Parameters,
    devices: Arc<Devices>,
    /// The test set, if this worker has already opened it.
    test: Option<Arc<TestSet>>,
}

impl Worker {
    /// Creates a worker. [`run`](Self::run) starts it.
    ///
    /// # Errors
    /// If a setting is out of range.
    pub fn new(
        config: WorkerConfig,
        identity: Identity,
        transport: Arc<dyn Transport>,
        pool: BufferPool,
        interrupt: CancellationToken,
    ) -> Result<Self, WorkerError> {
        config.validate()?;
        let life = Life::new("dialling the chief", interrupt.clone());
        let (end, journal) = (life.end(), Journal::default());
        Ok(Self { config, identity, transport, pool, interrupt, life, journal, _end: end })
    }

    /// Returns a view of the worker that can be read even after the worker has ended.
    pub fn view(&self) -> WorkerView {
        let (life, journal) = (self.life.clone(), self.journal.clone());
        WorkerView::new(self.identity.task, self.identity.incarnation, life, journal)
    }

    /// Trains until the job's last step, then evaluates the model if the chief requests it.
    ///
    /// # Errors
    /// If anything ends the worker early. The worker has then informed the chief, if the chief
    /// could be reached.
    ///
    /// # Panics
    /// If called outside of an actix system.
    // Boxed, because its code is then compiled only in this crate, and not again in each program that awaits
    // it.
    pub fn run(self) -> LocalBoxFuture<'static, Result<(), WorkerError>> {
        Box::pin(self.train_and_evaluate())
    }

    async fn train_and_evaluate(self) -> Result<(), WorkerError> {
        let chief = tokio::select! {
            biased;
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
            biased;
            result = self.work(&chief, &saves) => result,
            // This ends the worker even while it waits for a push, for the other workers or for the chief.
            () = out_of_patience => Err(WorkerError::Interrupted { local_step: LocalStep(0) }),
        }
    }

    /// Runs the worker from its registration to its end. Sets `job_saves` as soon as the worker knows whether
    /// the job saves checkpoints.
    async fn work(&self, chief: &Arc<ChiefLink>, job_saves: &AtomicBool) -> Result<(), WorkerError> {
        let Self { config, identity, transport, pool, life, journal, interrupt, .. } = self;
        let start = SessionStart { config, identity, transport, pool, life, journal };
        let prepared = tokio::select! {
            biased;
            prepared = prepare(&start, chief) => prepared,
            () = interrupt.cancelled() => Err(WorkerError::Interrupted { local_step: LocalStep(0) }),
        };
        let session = match prepared {
            Ok(session) => session,
            Err(error) => return self.leave_early(chief, error, None, false).await,
        };
        let saves = session.saves;
        job_saves.store(saves, Ordering::Relaxed);
        let (Trained { result, progress }, rest) = self.train(chief, session).await;
        let result = match result {
            Ok(()) => TrainingResult::Completed,
            // The other workers may have more input, and the chief may request an evaluation from this
            // worker.
            Err(WorkerError::Input(end @ InputError::Ended { .. })) => {
                tracing::warn!("waiting for the other workers: {end}");
                TrainingResult::input_ended(end)
            }
            Err(error) => return self.leave_early(chief, error, Some(progress), saves).await,
        };
        let TrainingProgress { local_step, loss, skipped } = progress;
        tracing::info!("finished after {local_step} steps of this worker");
        let records = self.journal.progress().snapshot.records_skipped;
        if records > 0 {
            tracing::warn!(records, "skipped damaged records of the training set");
        }
        self.life.doing("waiting for the other workers");
        self.finish(chief, Finish { result, local_step, loss, skipped }, rest).await
    }

    /// Tells the chief that this worker has finished, and evaluates if the chief requests it. If the chief is
    /// started again meanwhile, tells the next run of the chief.
    async fn finish(
        &self,
        chief: &Arc<ChiefLink>,
        finish: Finish,
        rest: AfterTraining,
    ) -> Result<(), WorkerError> {
        let (mut rest, mut evaluated) = (Some(rest), None);
        loop {
            let client = chief.client().await?;
            let told = async {
                let (asked, _) = client.call::<Finished>(finish.clone(), Payload::EMPTY).await?;
                if !asked.evaluate {
                    return Ok(());
                }
                if let Some(rest) = rest.take() {
                    self.life.doing("evaluating");
                    evaluated = Some(self.evaluate(rest, asked.step).await);
                }
                let message = match &evaluated {
                    Some(Ok(evaluation)) => Evaluated { result: Ok(evaluation.clone()) },
                    // Another worker may be able to evaluate.
                    Some(Err(own)) if gives_up(own) => return Ok(()),
                    Some(Err(error)) => Evaluated::failed(error),
                    None => unreachable!("the evaluation was made before"),
                };
                client.call::<Finished>(message, Payload::EMPTY).await.map(|_| ())
            };
            let told = told.await;
            match told {
                Err(CallError::Lost { .. }) if chief.is_renewed(&client).await => {}
                told => {
                    return match evaluated {
                        Some(Err(own)) if gives_up(&own) => self.leave_early(chief, own, None, false).await,
                        // This error is the cause if the chief could not be told of it.
                        Some(Err(own)) => Err(own),
                        _ => Ok(told?),
                    };
                }
            }
        }
    }

    /// Trains, and concurrently reports to the chief. The input and the hooks are dropped at the end.
    async fn train(&self, chief: &Arc<ChiefLink>, session: Session) -> (Trained, AfterTraining) {
        let Session { job, parameters, devices, input, hooks, drawn, saves, trace, workers, test, fetches } =
            session;
        let (journal, clock) = (self.journal.clone(), Clock::start());
        let (plots, spans, evaluations) = (Plots::default(), Spans::default(), Evaluations::default());
        let tracer = trace.map(|trace| Tracer::new(trace, self.identity.task, clock, spans.clone()));
        let validation = test.clone().map(|test| {
            let (job, devices, hung_after) = (job.clone(), Arc::clone(&devices), self.config.hung_after);
            Validation::new(
                ValidationSetting { job, workers, test, devices, hung_after },
                evaluations.clone(),
            )
        });
        let sources = ReportSources { journal: journal.clone(), plots: plots.clone(), spans, evaluations };
        let (stop, reporter) = self.start_reporter(chief, sources, clock);
        self.life.doing("training");
        let interrupt = match saves {
            true => cancelled_after(GRACE, self.interrupt.clone()),
            false => self.interrupt.clone(),
        };
        let seed = SplitMix64::stream(&[job.seed, u64::from(self.identity.task.index)]).bits();
        let filter = Filter::new(job.gradient, &job.graph.variables);
        let gauge = Gauge::new(self.config.report_every);
        let (batches, took) = (job.accumulate, None);
        let hung_after = self.config.hung_after;
        let lease = Lease::of_computation("the computation of a batch", hung_after);
        let journal_of_step = journal.clone();
        let stepper =
            Stepper { parameters, devices, lease, filter, gauge, journal: journal_of_step, batches, took };
        let changes = hooks.iter().any(|hook| hook.changes_gradients());
        let changed = if changes { job.graph.variables.clone() } else { Vec::new() };
        let (sync, task) = (job.sync, self.identity.task);
        let mut trainer = Trainer {
            stepper,
            task,
            seed,
            input,
            input_lease: Lease::of_input("the input", hung_after),
            drawn,
            sync,
            workers,
            journal,
            fetches,
            tracer,
            hooks,
            validation,
            changed,
            plots,
            stop,
            interrupt,
        };
        let trained = trainer.run().await;
        let Trainer { stepper: Stepper { parameters, devices, .. }, stop, .. } = trainer;
        // Dropping `stop` tells the reporter to send the remaining summaries and spans. The result of the
        // reporter is ignored, because a panic in it has already been printed.
        drop(stop);
        let _ = reporter.await;
        (trained, AfterTraining { job, parameters, devices, test })
    }

    fn start_reporter(
        &self,
        chief: &Arc<ChiefLink>,
        sources: ReportSources,
        clock: Clock,
    ) -> (watch::Receiver<Option<String>>, JoinHandle<()>) {
        let (stop_sender, stop) = watch::channel(None);
        let reporter = Reporter::new(Arc::clone(chief), self.life.clone(), sources, clock);
        (stop, tokio::spawn(reporter.run(stop_sender, self.config.report_every).in_current_span()))
    }

    async fn dial_chief(&self) -> Result<ChiefLink, WorkerError> {
        let dial = DialChief {
            transport: Arc::clone(&self.transport),
            identity: self.identity.clone(),
            start_timeout: self.config.start_timeout,
            lost_after: self.config.chief_lost_after,
            retry: self.config.retry,
        };
        let life = self.life.clone();
        ChiefLink::connect(dial, move |client| life.chief(client)).await
    }

    /// Evaluates the values of the variables after the job's last step, `step`.
    async fn evaluate(&self, rest: AfterTraining, step: GlobalStep) -> Result<Evaluation, WorkerError> {
        let AfterTraining { job, parameters, devices, test } = rest;
        let (config, task, resume) = (self.config.clone(), self.identity.task, Resume::default());
        let fetches = FetchPlan::default();
        let preparation = Preparation { config, job: job.clone(), task, workers: 1, resume, fetches };
        let test = match test {
            Some(test) => test,
            None => Arc::new(
                blocking(self.config.own_threads, "preparation", move || preparation.open_test()).await?,
            ),
        };
        evaluate(&parameters, &devices, &test, &job, step, self.config.hung_after).await
    }

    /// Informs the chief why this worker leaves early, and returns the reason as an error. Returns `Ok`
    /// instead if the worker was interrupted, the job saves checkpoints and the chief has replied in time.
    async fn leave_early(
        &self,
        chief: &ChiefLink,
        error: WorkerError,
        progress: Option<TrainingProgress>,
        saves: bool,
    ) -> Result<(), WorkerError> {
        let result = match &error {
            WorkerError::Interrupted { .. } | WorkerError::Stopped(_) => TrainingResult::Interrupted,
            own if gives_up(own) => TrainingResult::gave_up(own),
            other => TrainingResult::failed(other),
        };
        let none = TrainingProgress { local_step: LocalStep(0), loss: f32::NAN, skipped: 0 };
        let TrainingProgress { local_step, loss, skipped } = progress.unwrap_or(none);
        let farewell = chief.call::<Finished>(Finish { result, local_step, loss, skipped });
        match tokio::time::timeout(FAREWELL, farewell).await {
            // The worker's updates are in the variables and will be in a checkpoint, so nothing is lost.
            Ok(Ok(_)) if saves && matches!(error, WorkerError::Interrupted { .. }) => return Ok(()),
            Ok(Err(lost)) => tracing::debug!(error = %lost, "could not tell the chief why this worker left"),
            _ => {}
        }
        Err(error)
    }
}

/// Registers with the chief and prepares the training. If the chief is started again before it lets the
/// worker begin, registers with the next run of the chief, whose job may differ.
async fn prepare(start: &SessionStart<'_>, chief: &ChiefLink) -> Result<Session, WorkerError> {
    loop {
        let client = chief.client().await?;
        match start.run(chief, &client).await {
            Err(WorkerError::Call(CallError::Lost { .. })) if chief.is_renewed(&client).await => {}
            prepared => return prepared,
        }
    }
}

/// Returns true if an error concerns only this worker, so that the other workers may go on: this worker is
/// cut off from a ps task, or its preparation, its input or a device hangs. If all tasks have lost a ps task,
/// the chief finds out by itself.
const fn gives_up(error: &WorkerError) -> bool {
    use WorkerError::{Client, Hung, NotPrepared};
    matches!(error, Client(ClientError::Call(CallError::Lost { .. })) | Hung { .. } | NotPrepared(_))
}

/// Returns a token that is cancelled `delay` after `interrupt` is cancelled.
fn cancelled_after(delay: Duration, interrupt: CancellationToken) -> CancellationToken {
    let later = CancellationToken::new();
    let cancelled = later.clone();
    tokio::spawn(async move {
        interrupt.cancelled().await;
        tracing::info!(
            grace_s = delay.as_secs(),
            "interrupted; continuing for a short time, in which the job can save a checkpoint"
        );
        tokio::time::sleep(delay).await;
        cancelled.cancel();
    });
    later
}

#[cfg(test)]
mod tests;
