//! One incarnation of a worker, from its connection to the chief until it leaves the job or has to begin
//! again. This module must not depend on how a step is trained.
//!
//! Wanted properties: (A) if a request is refused because the job has rolled back, the worker begins again;
//! (B) a worker that trains or evaluates also begins again if a ps task is lost, provided that the job has
//! checkpoints; (C) an interrupted worker does not begin again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pushpull_input::{InputError, PipelineWorker, SplitMix64, TestSet};
use pushpull_messages::id::{GlobalStep, Incarnation, JobName, LocalStep};
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::{
    Evaluated, Evaluation, Finish, Finished, Resume, ServeStage, Share, TrainingResult,
};
use pushpull_messages::observe::Clock;
use pushpull_transport::buffer::Payload;
use pushpull_transport::{CallError, DialError};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::Worker;
use crate::blocking::blocking;
use crate::chief_link::{ChiefLink, DialChief};
use crate::client::{ClientError, Parameters};
use crate::devices::Devices;
use crate::error::{WorkerError, is_rolled_back};
use crate::evaluation::evaluate;
use crate::fetches::FetchPlan;
use crate::lease::Lease;
use crate::preparation::Preparation;
use crate::stages::StageTask;
use crate::telemetry::{Evaluations, Gauge, Plots, ReportSources, Reporter, Spans, StopCause, Tracer};
use crate::training::filter::Filter;
use crate::training::session::{Session, SessionStart, Started};
use crate::training::step::Stepper;
use crate::training::trainer::{Trained, Trainer, TrainingProgress};
use crate::training::validation::{Validation, ValidationSetting};

/// How long a worker that leaves early tries to inform the chief.
pub(super) const FAREWELL: Duration = Duration::from_secs(5);
/// How long a worker continues to train after an interrupt if the job saves checkpoints. If other tasks were
/// interrupted too, this gives the chief time to stop all of them at the same step.
pub(super) const GRACE: Duration = Duration::from_secs(3);
/// The minimum time for which a worker that begins again dials the chief. This minimum applies even if the
/// worker's `chief_lost_after` is shorter.
const REDIAL_MIN: Duration = Duration::from_secs(5);

/// One incarnation of a worker.
pub(super) struct WorkerIncarnation<'a> {
    pub worker: &'a Worker,
    /// The previous incarnation of the worker in the same process; `None` for the first incarnation.
    pub after: Option<Incarnation>,
    /// Set to true when the chief lets the worker begin, if the job saves checkpoints.
    pub saves: &'a AtomicBool,
    /// True after the chief has let the worker begin.
    pub begun: bool,
    /// Set to true when the chief lets the worker begin, if the job has checkpoints in the memory of ps
    /// tasks.
    pub saves_in_memory: bool,
}

/// How an incarnation has ended.
pub(super) enum Ending {
    /// The worker has left the job, with this result.
    Left(Result<(), WorkerError>),
    /// The worker has to register again, for this reason.
    BeginsAgain(WorkerError),
}

/// The part of a session that is still needed after the training.
struct AfterTraining {
    job: JobSpec,
    parameters: Parameters,
    devices: Arc<Devices>,
    /// The test set, if this worker has already opened it.
    test: Option<Arc<TestSet>>,
}

impl WorkerIncarnation<'_> {
    /// Connects to the chief, registers, prepares, trains, and evaluates if the chief requests it. When it
    /// returns, all connections are closed or about to close.
    pub(super) async fn run(&mut self) -> Ending {
        let Worker { config, identity, transport, pool, life, journal, interrupt, .. } = self.worker;
        let interrupted = WorkerError::Interrupted { local_step: LocalStep(0) };
        let chief = tokio::select! {
            biased;
            chief = self.dial_chief() => match chief {
                Ok(chief) => Arc::new(chief),
                Err(error) => return self.ended(error),
            },
            () = interrupt.cancelled() => return Ending::Left(Err(interrupted)),
        };
        let start = SessionStart { config, identity, after: self.after, transport, pool, life, journal };
        let prepared = tokio::select! {
            biased;
            prepared = prepare(&start, &chief) => prepared,
            () = interrupt.cancelled() => Err(interrupted),
        };
        let (session, group) = match prepared {
            Ok(Started::Session(session, group)) => (*session, group),
            Ok(Started::Stage(serve)) => return self.serve_stage(&chief, serve).await,
            Err(error) => return self.leave_early(&chief, error, None).await,
        };
        let ending = Box::pin(self.train_and_finish(&chief, session)).await;
        if let Some(group) = group {
            if matches!(ending, Ending::Left(Ok(()))) {
                group.close().await;
            }
            group.abandon();
        }
        ending
    }

    /// Serves as a stage of another worker's replica, until that worker has left the job.
    async fn serve_stage(&self, chief: &ChiefLink, serve: ServeStage) -> Ending {
        let Worker { config, identity, transport, pool, life, interrupt, .. } = self.worker;
        // After a signal, the leader needs this stage until the job is saved.
        self.saves.store(true, Ordering::Relaxed);
        let stage = StageTask { config, identity, transport, pool, interrupt, life };
        match stage.run(chief, serve).await {
            Err(error @ WorkerError::OtherRole) => self.ended(error),
            result => Ending::Left(result),
        }
    }

    /// Trains, tells the chief, and evaluates if the chief requests it.
    async fn train_and_finish(&mut self, chief: &Arc<ChiefLink>, session: Session) -> Ending {
        let Worker { life, journal, .. } = self.worker;
        self.begun = true;
        self.saves.store(session.saves.in_directory, Ordering::Relaxed);
        self.saves_in_memory = session.saves.in_memory;
        let (Trained { result, progress }, rest) = self.train(chief, session).await;
        let result = match result {
            Ok(()) => TrainingResult::Completed,
            // The other workers may have more input, and the chief may request an evaluation from this
            // worker.
            Err(WorkerError::Input(end @ InputError::Ended { .. })) => {
                tracing::warn!("waiting for the other workers: {end}");
                TrainingResult::input_ended(end)
            }
            Err(error) => return self.leave_early(chief, error, Some(progress)).await,
        };
        let TrainingProgress { local_step, loss, skipped } = progress;
        tracing::info!("finished after {local_step} steps of this worker");
        let records = journal.progress().snapshot.records_skipped;
        if records > 0 {
            tracing::warn!(records, "skipped damaged records of the training set");
        }
        life.doing("waiting for the other workers");
        self.finish(chief, Finish { result, local_step, loss, skipped }, rest).await
    }

    /// Tells the chief that this worker has finished, and evaluates if the chief requests it. If the chief is
    /// started again meanwhile, tells the next run of the chief.
    async fn finish(&self, chief: &Arc<ChiefLink>, finish: Finish, rest: AfterTraining) -> Ending {
        let (mut rest, mut evaluated) = (Some(rest), None);
        loop {
            let client = match chief.client().await {
                Ok(client) => client,
                Err(error) => return self.ended(error.into()),
            };
            let told = async {
                let (asked, _) = client.call::<Finished>(finish.clone(), Payload::EMPTY).await?;
                if !asked.evaluate {
                    return Ok(());
                }
                if let Some(rest) = rest.take() {
                    self.worker.life.doing("evaluating");
                    evaluated = Some(self.evaluate(rest, asked.step).await);
                }
                let message = match &evaluated {
                    Some(Ok(evaluation)) => Evaluated { result: Ok(evaluation.clone()) },
                    // Sends no result, because another worker may be able to evaluate, or this worker begins
                    // again.
                    Some(Err(own)) if self.gives_up(own) || own.is_rolled_back() => return Ok(()),
                    Some(Err(error)) => Evaluated::failed(error),
                    None => unreachable!("the evaluation was made before"),
                };
                client.call::<Finished>(message, Payload::EMPTY).await.map(|_| ())
            };
            let mut told = told.await;
            if matches!(told, Err(CallError::Lost { .. })) && client.is_lost() {
                if chief.is_renewed(&client).await {
                    continue;
                }
                // Gets the error with which the link has ended: for example, the next run of the chief may
                // have refused this worker.
                told = chief.client().await.map(|_| ());
            }
            return match told {
                Err(error) if is_rolled_back(&error) => self.ended(error.into()),
                told => match evaluated {
                    Some(Err(own)) if self.gives_up(&own) || own.is_rolled_back() => {
                        self.leave_early(chief, own, None).await
                    }
                    // The worker's own error is the cause, even if the chief could not be told of it.
                    Some(Err(own)) => Ending::Left(Err(own)),
                    _ => Ending::Left(told.map_err(WorkerError::from)),
                },
            };
        }
    }

    /// Trains, and concurrently reports to the chief. The input and the hooks are dropped at the end.
    async fn train(&self, chief: &Arc<ChiefLink>, session: Session) -> (Trained, AfterTraining) {
        let Session { job, parameters, devices, input, hooks, drawn, saves, trace, workers, test, fetches } =
            session;
        let (journal, clock) = (self.worker.journal.clone(), Clock::start());
        let (plots, spans, evaluations) = (Plots::default(), Spans::default(), Evaluations::default());
        let own = |trace| Tracer::new(trace, self.worker.identity.task, clock, spans.clone());
        let tracer = trace.map(|trace| own(trace).with_pipeline(job.pipeline));
        let hung_after = self.worker.config.hung_after;
        let validation = test.clone().map(|test| {
            let workers = workers.min(self.listed());
            let (job, devices) = (job.clone(), Arc::clone(&devices));
            let setting = ValidationSetting { job, workers, test, devices, hung_after };
            Validation::new(setting, evaluations.clone())
        });
        let sources = ReportSources { journal: journal.clone(), plots: plots.clone(), spans, evaluations };
        let (stop, share, reporter) = self.start_reporter(chief, sources, clock);
        self.worker.life.doing("training");
        let grace = saves.in_directory.then(|| Grace::after(self.worker.interrupt.clone()));
        let interrupt = grace.as_ref().map_or(&self.worker.interrupt, |grace| &grace.over).clone();
        let seed = SplitMix64::stream(&[job.seed, u64::from(self.worker.identity.task.index)]).bits();
        let filter = Filter::new(job.gradient, &job.graph.variables);
        let gauge = Gauge::new(self.worker.config.report_every);
        let (batches, took) = (job.accumulate, None);
        let lease = Lease::of_computation("the computation of a batch", hung_after);
        let (pipeline, pipelined) = (job.pipeline, job.pipeline > 1);
        let stepper = Stepper {
            parameters,
            devices,
            lease,
            filter,
            gauge,
            journal: journal.clone(),
            batches,
            pipelined,
            took,
        };
        let changes = hooks.iter().any(|hook| hook.changes_gradients());
        let changed = if changes { job.graph.variables.clone() } else { Vec::new() };
        let (sync, task) = (job.sync, self.worker.identity.task);
        let mut trainer = Trainer {
            stepper,
            task,
            seed,
            input: input.following(share),
            input_lease: Lease::of_input("the input", hung_after),
            drawn,
            sync,
            pipeline,
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
        // Other workers must not wait for the gradients of this one any more.
        parameters.close_routes().await;
        // Dropping `stop` tells the reporter to send the remaining summaries and spans. The result of the
        // reporter is ignored, because a panic in it has already been printed.
        drop(stop);
        let _ = reporter.await;
        (trained, AfterTraining { job, parameters, devices, test })
    }

    /// Returns the number of workers in the cluster spec. They determine how long an epoch is.
    fn listed(&self) -> u32 {
        self.worker.identity.cluster.addresses(JobName::Worker).len() as u32
    }

    fn start_reporter(
        &self,
        chief: &Arc<ChiefLink>,
        sources: ReportSources,
        clock: Clock,
    ) -> (watch::Receiver<Option<StopCause>>, watch::Receiver<Option<Share>>, JoinHandle<()>) {
        let Worker { config, life, .. } = self.worker;
        let ((stop_sender, stop), (share_sender, share)) = (watch::channel(None), watch::channel(None));
        let reporter = Reporter::new(Arc::clone(chief), life.clone(), sources, clock);
        let run = reporter.run(stop_sender, share_sender, config.report_every);
        (stop, share, tokio::spawn(run.in_current_span()))
    }

    async fn dial_chief(&self) -> Result<ChiefLink, WorkerError> {
        let Worker { config, identity, transport, life, .. } = self.worker;
        let lost_after = config.chief_lost_after;
        let dial = DialChief {
            transport: Arc::clone(transport),
            identity: identity.clone(),
            // A worker that begins again does not wait for the chief's first start, because the chief has led
            // an earlier incarnation of this worker.
            start_timeout: self.after.map_or(config.start_timeout, |_| lost_after.max(REDIAL_MIN)),
            lost_after,
            retry: config.retry,
        };
        let life = life.clone();
        ChiefLink::connect(dial, move |client| life.chief(client)).await
    }

    /// Evaluates the values of the variables after the job's last step, `step`.
    async fn evaluate(&self, rest: AfterTraining, step: GlobalStep) -> Result<Evaluation, WorkerError> {
        let AfterTraining { job, parameters, devices, test } = rest;
        let (config, task, resume) =
            (self.worker.config.clone(), self.worker.identity.task, Resume::default());
        let fetches = FetchPlan::default();
        let group = None;
        let preparation =
            Preparation { config, job: job.clone(), task, part: PipelineWorker::ALL, resume, fetches, group };
        let test = match test {
            Some(test) => test,
            None => Arc::new(
                blocking(self.worker.config.own_threads, "preparation", move || preparation.open_test())
                    .await?,
            ),
        };
        evaluate(&parameters, &devices, &test, &job, step, self.worker.config.hung_after).await
    }

    /// Ends the incarnation early because of `error`. If `error` requires that the worker begins again, does
    /// not inform the chief. Otherwise informs the chief why this worker leaves, and returns `error`. Returns
    /// `Ok` instead if the worker was interrupted, the job saves checkpoints and the chief has replied in
    /// time. If the chief replies that the job has rolled back, a worker that was not interrupted begins
    /// again after all.
    async fn leave_early(
        &self,
        chief: &ChiefLink,
        error: WorkerError,
        progress: Option<TrainingProgress>,
    ) -> Ending {
        if self.must_begin_again(&error) {
            return self.ended(error);
        }
        let saves = self.saves.load(Ordering::Relaxed);
        let result = match &error {
            WorkerError::Interrupted { .. } | WorkerError::Stopped(_) => TrainingResult::Interrupted,
            own if self.gives_up(own) => TrainingResult::gave_up(own),
            other => TrainingResult::failed(other),
        };
        let none = TrainingProgress { local_step: LocalStep(0), loss: f32::NAN, skipped: 0 };
        let TrainingProgress { local_step, loss, skipped } = progress.unwrap_or(none);
        let farewell = chief.call::<Finished>(Finish { result, local_step, loss, skipped });
        match tokio::time::timeout(FAREWELL, farewell).await {
            // The worker's updates are in the variables and will be in a checkpoint, so nothing is lost.
            Ok(Ok(_)) if saves && matches!(error, WorkerError::Interrupted { .. }) => {
                return Ending::Left(Ok(()));
            }
            Ok(Err(refused)) if is_rolled_back(&refused) => {
                tracing::warn!(%error, "was about to leave when the job rolled back");
                return self.ended(refused.into());
            }
            Ok(Err(lost)) => tracing::debug!(error = %lost, "could not tell the chief why this worker left"),
            _ => {}
        }
        Ending::Left(Err(error))
    }

    /// Returns how the incarnation ends because of `error`, without informing the chief.
    fn ended(&self, error: WorkerError) -> Ending {
        if !self.must_begin_again(&error) {
            return Ending::Left(Err(error));
        }
        if self.worker.interrupt.is_cancelled() {
            let local_step = self.worker.journal.progress().snapshot.local_step;
            return Ending::Left(Err(WorkerError::Interrupted { local_step }));
        }
        Ending::BeginsAgain(error)
    }

    /// Returns true if an error concerns only this worker, and the other workers may go on. Such an error
    /// means that this worker is cut off from a ps task, or that its preparation, its input or a device
    /// hangs. If all tasks have lost the ps task, the chief detects this loss by itself.
    const fn gives_up(&self, error: &WorkerError) -> bool {
        use WorkerError::{Client, Hung, NotPrepared};
        match error {
            // This ps task has started before, because an earlier incarnation was connected to it.
            Client(ClientError::Dial(DialError::Missing { .. })) => self.after.is_some(),
            Hung { .. } | NotPrepared(_) => true,
            error if error.is_missing_stage() => self.after.is_some(),
            error => error.is_lost_ps() || error.is_lost_stage(),
        }
    }

    /// Returns whether the worker must register again as another incarnation, which tells the chief that this
    /// one has ended. The worker must register again if the job has rolled back, or if the job will roll back
    /// because a ps task is lost. If the rollback is still to come, an interrupted worker ends instead.
    fn must_begin_again(&self, error: &WorkerError) -> bool {
        let rolls_back = self.saves.load(Ordering::Relaxed) || self.saves_in_memory;
        let will_roll_back = rolls_back && error.is_lost_ps();
        let again = will_roll_back || error.is_lost_stage();
        let must = error.is_rolled_back() || matches!(error, WorkerError::OtherRole);
        must || again && !self.worker.interrupt.is_cancelled()
    }
}

/// Registers with the chief and prepares the training. If the chief is started again before it lets the
/// worker begin, registers with the next run of the chief, whose job may differ.
async fn prepare(start: &SessionStart<'_>, chief: &ChiefLink) -> Result<Started, WorkerError> {
    loop {
        let client = chief.client().await?;
        match start.run(chief, &client).await {
            Err(WorkerError::Call(CallError::Lost { .. })) if chief.is_renewed(&client).await => {}
            prepared => return prepared,
        }
    }
}

/// The limited time for which the worker continues to train after an interrupt.
struct Grace {
    /// Cancelled when this time is over.
    over: CancellationToken,
    task: AbortHandle,
}

impl Grace {
    /// Waits for `interrupt` on a task of its own. The time begins when `interrupt` is cancelled, and lasts
    /// for [`GRACE`].
    fn after(interrupt: CancellationToken) -> Self {
        let over = CancellationToken::new();
        let cancelled = over.clone();
        let wait = async move {
            interrupt.cancelled().await;
            tracing::info!(
                grace_s = GRACE.as_secs(),
                "interrupted; continuing for a short time, in which the job can save a checkpoint"
            );
            tokio::time::sleep(GRACE).await;
            cancelled.cancel();
        };
        Self { over, task: tokio::spawn(wait).abort_handle() }
    }
}

/// Stops waiting for the interrupt, because the training has ended.
impl Drop for Grace {
    fn drop(&mut self) {
        self.task.abort();
    }
}
