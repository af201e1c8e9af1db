//! The training loop of one worker: takes a batch, computes the gradients, pushes them and pulls new values,
//! until every shard has reached the last step. This module must not depend on the chief.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pushpull_input::{Batch, Prefetch, SplitMix64};
use pushpull_messages::id::LocalStep;
use pushpull_messages::sync::SyncSpec;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::patience::{deserted_after, unless_leaving};
use super::step::{StepInput, StepResult, Stepper};
use super::validation::{Validated, Validation};
use crate::client::Exchange;
use crate::error::WorkerError;
use crate::hooks::{EvaluationInfo, Hook, StepContext, StepInfo};
use crate::telemetry::{Journal, Moments, Plots, StepRecord, TracedStep, Tracer};

/// The maximum number of steps over which the final loss of a worker is averaged: the last ones whose
/// gradients were applied or held.
const LAST_LOSSES: usize = 100;

/// The training loop, with the objects that it uses.
pub(super) struct Trainer {
    pub stepper: Stepper,
    /// The seed of all random numbers of this worker.
    pub seed: u64,
    pub input: Prefetch,
    /// The number of batches taken from the input, including those in earlier runs of this worker. Together
    /// with `seed` it seeds the random numbers of each step.
    pub drawn: u64,
    pub sync: SyncSpec,
    pub journal: Journal,
    /// The tracer, which traces some of the steps; `None` if the job does not trace.
    pub tracer: Option<Tracer>,
    /// The hooks, whose `begin` has been called.
    pub hooks: Vec<Box<dyn Hook>>,
    /// The evaluations while the job trains; `None` if this worker makes none.
    pub validation: Option<Validation>,
    pub plots: Plots,
    /// Set when the chief tells the worker to stop; closed when the chief is lost.
    pub stop: watch::Receiver<Option<String>>,
    /// Cancelled when a signal tells the worker to stop.
    pub interrupt: CancellationToken,
}

/// The result of a training loop.
pub(super) struct Trained {
    pub result: Result<(), WorkerError>,
    pub progress: TrainingProgress,
}

/// The progress of a training loop.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrainingProgress {
    pub local_step: LocalStep,
    /// The mean loss over the last steps whose gradients were applied or held; NaN if there is no such step.
    pub loss: f32,
    /// The number of steps whose gradients were dropped; `local_step` does not count these steps.
    pub skipped: u64,
}

impl Trainer {
    /// Trains until every shard has reached the last step, or until an error ends the training.
    pub(super) async fn run(&mut self) -> Trained {
        let mut losses = VecDeque::with_capacity(LAST_LOSSES);
        let mut local_step = LocalStep(0);
        let mut result = self.train(&mut local_step, &mut losses).await;
        self.journal.end();
        if result.is_ok() {
            result = self.end_validation(local_step).await;
        }
        let loss = losses.iter().sum::<f32>() / losses.len() as f32;
        let skipped = self.stepper.filter.dropped();
        Trained { result, progress: TrainingProgress { local_step, loss, skipped } }
    }

    async fn train(
        &mut self,
        local_step: &mut LocalStep,
        losses: &mut VecDeque<f32>,
    ) -> Result<(), WorkerError> {
        let (mut stop, interrupt) = (self.stop.clone(), self.interrupt.clone());
        let join = async { Ok(self.stepper.parameters.join(self.sync).await?) };
        let limit = deserted_after(Duration::ZERO);
        let mut latest = unless_leaving(&mut stop, &interrupt, *local_step, limit, join).await?;
        self.journal.begin(latest.global_step(), self.drawn);
        self.validation.iter_mut().for_each(|validation| validation.begin_at(latest.global_step()));
        let mut begun = Instant::now();
        while !latest.is_complete() {
            if let Some(reason) = stop.borrow().clone() {
                return Err(WorkerError::Stopped(reason));
            }
            if interrupt.is_cancelled() {
                return Err(WorkerError::Interrupted { local_step: *local_step });
            }
            self.validate(&latest).await?;
            let traced = self.tracer.as_ref().is_some_and(|tracer| tracer.is_traced(*local_step));
            let (batch, fed) = self.next_batch().await?;
            let random = SplitMix64::stream(&[self.seed, self.drawn]).bits();
            self.drawn += 1;
            self.before_step(&batch, &latest, *local_step)?;
            let started = Instant::now();
            self.journal.enter("compute", started);
            let limit = deserted_after(self.stepper.took.unwrap_or_default());
            let input =
                StepInput { batch: &batch, random, local_step: *local_step, drawn: self.drawn, traced };
            let step = self.stepper.step(input, latest);
            let step = unless_leaving(&mut stop, &interrupt, *local_step, limit, step).await?;
            self.after_step(&batch, &step, *local_step, started)?;
            let (ended, hooks) = (Instant::now(), !self.hooks.is_empty());
            let StepResult { computed, filtered, answered, .. } = step;
            let moments = Moments { begun, fed, started, computed, filtered, answered, ended, hooks };
            begun = ended;
            let examples = batch.examples as u64;
            // Every device has dropped its reference to the batch, so its memory can be used again.
            Arc::into_inner(batch).into_iter().for_each(|batch| self.input.recycle(batch));
            let loss = step.loss;
            latest = self.record(step, moments, *local_step, examples, traced);
            if latest.verdicts.is_empty() {
                // The gradients were dropped, so the same step is taken again with the next batch.
                continue;
            }
            *local_step = local_step.next();
            if latest.counts() {
                if losses.len() == LAST_LOSSES {
                    losses.pop_front();
                }
                losses.push_back(loss);
            }
        }
        Ok(())
    }

    /// Passes on the evaluation that has ended, and begins the next one if it is due.
    async fn validate(&mut self, latest: &Exchange) -> Result<(), WorkerError> {
        let Some(validation) = &mut self.validation else { return Ok(()) };
        let ended = validation.ended().await?;
        validation.begin_if_due(latest, &self.stepper.parameters).await?;
        self.pass_on(ended)
    }

    /// Waits for the evaluation that runs, if there is one, after the last step.
    async fn end_validation(&mut self, local_step: LocalStep) -> Result<(), WorkerError> {
        let Some(validation) = &mut self.validation else { return Ok(()) };
        let (mut stop, interrupt) = (self.stop.clone(), self.interrupt.clone());
        let limit = deserted_after(Duration::ZERO);
        let ended = unless_leaving(&mut stop, &interrupt, local_step, limit, validation.wait()).await?;
        self.pass_on(ended)
    }

    fn pass_on(&mut self, ended: Option<Validated>) -> Result<(), WorkerError> {
        let Some(Validated { result, values }) = ended else { return Ok(()) };
        let (step, evaluation) = (result.step, &result.evaluation);
        let info = EvaluationInfo { step, evaluation, values: &values };
        self.hooks.iter_mut().try_for_each(|hook| hook.evaluated(&info))?;
        Ok(())
    }

    /// Waits for the next batch, and returns it with the time at which it was ready.
    async fn next_batch(&mut self) -> Result<(Arc<Batch>, Instant), WorkerError> {
        let [ready, ready_max] = self.input.ready();
        self.journal.ready(ready, ready_max);
        let batch = Arc::new(self.input.next().await?);
        let fed = Instant::now();
        self.enter_hooks(fed);
        Ok((batch, fed))
    }

    /// Records a step in the journal and in the trace. Returns the values that the next step is computed
    /// from.
    fn record(
        &mut self,
        step: StepResult,
        moments: Moments,
        local_step: LocalStep,
        examples: u64,
        traced: bool,
    ) -> Exchange {
        let StepResult { loss, gradient_norm, exchange: mut latest, work, .. } = step;
        self.journal.step(&StepRecord {
            moments,
            global_step: latest.global_step(),
            drawn: self.drawn,
            examples,
            loss,
            gradient_norm,
            pushed: !latest.verdicts.is_empty(),
        });
        if let Some(tracer) = self.tracer.as_mut().filter(|_| traced) {
            let pushes = std::mem::take(&mut latest.pushes);
            tracer.record(&TracedStep { local_step, moments, work, pushes });
        }
        latest
    }

    fn enter_hooks(&self, at: Instant) {
        if !self.hooks.is_empty() {
            self.journal.enter("hooks", at);
        }
    }

    fn before_step(
        &mut self,
        batch: &Batch,
        read: &Exchange,
        local_step: LocalStep,
    ) -> Result<(), WorkerError> {
        if !self.hooks.is_empty() {
            let (global_step, values) = (read.global_step(), &read.values);
            let context = StepContext { local_step, global_step, batch, values };
            self.hooks.iter_mut().try_for_each(|hook| hook.before_step(&context))?;
        }
        Ok(())
    }

    fn after_step(
        &mut self,
        batch: &Batch,
        step: &StepResult,
        local_step: LocalStep,
        started: Instant,
    ) -> Result<(), WorkerError> {
        self.enter_hooks(Instant::now());
        if !self.hooks.is_empty() {
            let StepResult { loss, gradient_norm, exchange, .. } = step;
            let info = StepInfo {
                local_step,
                global_step: exchange.global_step(),
                loss: *loss,
                batch,
                values: &exchange.values,
                gradient_norm: *gradient_norm,
                seconds: started.elapsed().as_secs_f64(),
                verdicts: &exchange.verdicts,
            };
            self.hooks.iter_mut().try_for_each(|hook| hook.after_step(&info, &self.plots))?;
        }
        Ok(())
    }
}
