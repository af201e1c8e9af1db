//! Evaluates the model while it trains. The evaluation shares the devices with the training: it adds one
//! batch at a time to the queue of each device, so no step waits for more than one batch. Other threads read
//! the batches. Wanted properties: (A) at most one evaluation runs at a time; (B) when an evaluation is due
//! and none runs, it begins with the values of that moment; the training never waits for an evaluation,
//! except for the pull of the moving averages if the job keeps them, or of exact values if pushes return
//! compressed ones.

use std::sync::Arc;
use std::time::Duration;

use pushpull_input::TestSet;
use pushpull_messages::id::GlobalStep;
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::{Evaluation, StepEvaluation};
use tokio::task::JoinHandle;
use tracing::Instrument;

use crate::client::{Exchange, Parameters, Values};
use crate::devices::Devices;
use crate::error::WorkerError;
use crate::evaluation::evaluate_values;
use crate::telemetry::Evaluations;

/// The evaluations of a worker while it trains.
pub(super) struct Validation {
    setting: Arc<ValidationSetting>,
    /// The evaluations that the next report contains.
    reported: Evaluations,
    /// The number of evaluations that had fallen due when the most recent evaluation began. Before the first
    /// evaluation, it is the number that had fallen due when the training began.
    due: u64,
    running: Option<Running>,
}

/// The settings and resources that all evaluations of a worker share.
pub(super) struct ValidationSetting {
    pub job: JobSpec,
    /// The number of workers of the job.
    pub workers: u32,
    pub test: Arc<TestSet>,
    pub devices: Arc<Devices>,
    /// The lower bound of the time limit after which the evaluation of a batch counts as hung; see
    /// [`Lease`](crate::lease).
    pub hung_after: Duration,
}

/// An evaluation that is running.
struct Running {
    step: GlobalStep,
    values: Arc<Values>,
    task: JoinHandle<Result<Evaluation, WorkerError>>,
}

/// The result of an evaluation, and the values of the variables that were evaluated.
pub(super) struct Validated {
    pub result: StepEvaluation,
    pub values: Arc<Values>,
}

impl Validation {
    /// Returns the state before the first evaluation of a training. The results of all evaluations are added
    /// to `reported`.
    pub(super) fn new(setting: ValidationSetting, reported: Evaluations) -> Self {
        let setting = Arc::new(setting);
        Self { setting, reported, due: 0, running: None }
    }

    /// Skips the evaluations that were already due at `step`, where the training begins.
    pub(super) fn begin_at(&mut self, step: GlobalStep) {
        self.due = self.setting.job.evaluations_due(self.setting.workers, step);
    }

    /// Begins an evaluation if one is due and none runs. `latest` contains the values with which the worker
    /// computes its next step.
    ///
    /// # Errors
    /// If the moving averages or the exact values cannot be pulled.
    pub(super) async fn begin_if_due(
        &mut self,
        latest: &Exchange,
        parameters: &Parameters,
    ) -> Result<(), WorkerError> {
        let due = self.setting.job.evaluations_due(self.setting.workers, latest.global_step());
        if self.running.is_some() || due <= self.due {
            return Ok(());
        }
        self.due = due;
        let averages = self.setting.job.average.is_some();
        let (step, values) = match averages || !parameters.has_exact_values() {
            false => (latest.global_step(), Arc::clone(&latest.values)),
            true => {
                let pulled = parameters.pull(averages).await?;
                (pulled.global_step(), pulled.values)
            }
        };
        let (setting, evaluated) = (Arc::clone(&self.setting), Arc::clone(&values));
        let evaluate = async move {
            let ValidationSetting { job, test, devices, hung_after, .. } = &*setting;
            evaluate_values(&evaluated, devices, test, job, *hung_after).await
        };
        let task = actix_rt::spawn(Box::pin(evaluate).in_current_span());
        self.running = Some(Running { step, values, task });
        Ok(())
    }

    /// Returns the evaluation that has ended since the last call, if there is one, and adds its result to
    /// the next report.
    ///
    /// # Errors
    /// If the model could not be computed; if the test set or a device hangs.
    pub(super) async fn ended(&mut self) -> Result<Option<Validated>, WorkerError> {
        match &self.running {
            Some(running) if running.task.is_finished() => self.wait().await,
            _ => Ok(None),
        }
    }

    /// Waits for the running evaluation, if there is one, returns it, and adds its result to the next
    /// report.
    ///
    /// # Errors
    /// If the model could not be computed; if the test set or a device hangs.
    pub(super) async fn wait(&mut self) -> Result<Option<Validated>, WorkerError> {
        let Some(Running { task, .. }) = &mut self.running else { return Ok(None) };
        // The task is aborted only when this object is dropped, so an error means that the task panicked.
        let evaluation = task.await.map_err(|_| WorkerError::DevicePanicked)??;
        let Running { step, values, .. } = self.running.take().expect("it has just ended");
        let result = StepEvaluation { step, evaluation };
        tracing::debug!(%step, loss = result.evaluation.loss, "evaluated the model");
        self.reported.add(result.clone());
        Ok(Some(Validated { result, values }))
    }
}

/// Ends the running evaluation, because its result is not needed any more.
impl Drop for Validation {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            running.task.abort();
        }
    }
}
