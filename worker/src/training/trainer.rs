//! The training loop of one worker: takes a batch, computes the gradients, pushes them and pulls new values,
//! until every shard has reached the last step. This module must not depend on the chief.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pushpull_engine::Groups;
use pushpull_input::{Batch, InputError, SplitMix64};
use pushpull_messages::id::{GlobalStep, LocalStep, TaskId};
use pushpull_messages::observe;
use pushpull_messages::sync::SyncSpec;
use pushpull_messages::variable::VariableSpec;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::course::{Course, StepInFlight};
use super::input::WorkerInput;
use super::patience::{deserted_after, unless_leaving};
use super::step::{ChangeGradients, EarlierBatches, StepExchange, StepInput, StepResult, Stepper};
use super::validation::{Validated, Validation};
use crate::client::{Exchange, Gradients, Values};
use crate::devices::{Fed, Recorded};
use crate::error::WorkerError;
use crate::fetches::{FetchPlan, WantedGradient};
use crate::hooks::{EvaluationInfo, Fetched, Hook, StepContext, StepGradients, StepInfo};
use crate::lease::Lease;
use crate::telemetry::{Journal, Moments, Plots, StepRecord, StopCause, TracedStep, Tracer};

/// The training loop, with the objects that it uses.
pub(super) struct Trainer {
    pub stepper: Stepper,
    pub task: TaskId,
    /// The seed of all random numbers of this worker.
    pub seed: u64,
    pub input: WorkerInput,
    pub input_lease: Lease,
    /// The number of batches taken from the input, including those in earlier runs of this worker. Together
    /// with `seed` it seeds the random numbers of each step.
    pub drawn: u64,
    pub sync: SyncSpec,
    /// The number of steps that may be in flight; at least 1.
    pub pipeline: u32,
    pub journal: Journal,
    pub fetches: FetchPlan,
    /// The tracer, which traces some of the steps; `None` if the job does not trace.
    pub tracer: Option<Tracer>,
    /// The hooks, whose `begin` has been called.
    pub hooks: Vec<Box<dyn Hook>>,
    /// The evaluations that this worker makes while the job trains; `None` if it makes none.
    pub validation: Option<Validation>,
    /// The variables of the job, if a hook changes gradients; empty otherwise.
    pub changed: Vec<VariableSpec>,
    pub plots: Plots,
    /// Set when the chief ends the training; closed when the chief is lost.
    pub stop: watch::Receiver<Option<StopCause>>,
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
    /// The mean loss over the most recent steps whose gradients were applied or held; NaN if there is no
    /// such step.
    pub loss: f32,
    /// The number of steps whose gradients were dropped; `local_step` does not count these steps.
    pub skipped: u64,
}

impl Trainer {
    /// Trains until every shard has reached the last step, or until an error ends the training.
    pub(super) async fn run(&mut self) -> Trained {
        let mut course = Course::new(observe::now(), self.pipeline);
        let mut result = self.train(&mut course).await;
        self.journal.end();
        if result.is_ok() {
            result = self.end_validation(course.local_step).await;
        }
        let (local_step, loss) = (course.local_step, course.loss());
        let skipped = self.stepper.filter.dropped();
        Trained { result, progress: TrainingProgress { local_step, loss, skipped } }
    }

    async fn train(&mut self, course: &mut Course) -> Result<(), WorkerError> {
        let (mut stop, interrupt) = (self.stop.clone(), self.interrupt.clone());
        let join = async { Ok(self.stepper.parameters.join(self.sync).await?) };
        let limit = deserted_after(Duration::ZERO);
        let mut latest = unless_leaving(&mut stop, &interrupt, course.local_step, limit, join).await?;
        self.journal.begin(latest.global_step(), self.drawn);
        self.validation.iter_mut().for_each(|validation| validation.begin_at(latest.global_step()));
        course.begun = observe::now();
        while !latest.is_complete() {
            latest = match self.take_step(latest, course).await {
                Ok(newest) => newest,
                Err(error) => return self.leave(error, course).await,
            };
            if latest.is_complete() {
                // The verdicts on the pushes of later steps are still to come. The chief may also have moved
                // the last step meanwhile.
                latest = self.end_steps(Some(latest), 0, course).await?;
            }
        }
        Ok(())
    }

    /// Takes one step from the values of `latest`, and ends as many earlier steps as the pipeline requires.
    /// Returns the newest values.
    async fn take_step(
        &mut self,
        mut latest: Exchange,
        course: &mut Course,
    ) -> Result<Exchange, WorkerError> {
        let (ended, local_step) = (course.local_step, course.next);
        self.check_stay(ended)?;
        // `stop` is closed because the chief is lost. No chief will then give all shards the same last step.
        if self.stop.has_changed().is_err() {
            let limit = deserted_after(self.stepper.took.unwrap_or_default());
            if latest.is_stopped() || course.standstill.lasts(&latest.versions, observe::now()) > limit {
                return Err(WorkerError::StopUnfinished);
            }
        }
        self.validate(&latest, ended).await?;
        let (recorded, wanted) = (self.recorded(local_step), self.fetches.gradients(local_step));
        let (batch, fed) = self.next_batch(ended).await?;
        self.enter_hooks(fed);
        if self.stepper.pipelined {
            // Newer values may have arrived while the worker waited for its input.
            latest = self.end_steps(Some(latest), self.pipeline, course).await?;
            if latest.is_complete() {
                self.recycle(batch);
                return Ok(latest);
            }
        }
        let ended = course.local_step;
        self.before_step(&batch, &latest, local_step)?;
        let started = observe::now();
        self.journal.enter("compute", started);
        let (batch, before, waited) =
            self.earlier_batches(batch, local_step, &latest.values, recorded.traced).await?;
        let input = self.draw(&batch, local_step, recorded, &wanted);
        let (read, latest) = match self.stepper.pipelined {
            true => (latest.read_again(), Some(latest)),
            // Lets the step free the values before the next ones arrive.
            false => (latest, None),
        };
        let result = self.last_batch(input, read, before, ended).await?;
        let began = started;
        // The waits for the later batches count as part of the wait for the first one.
        let (fed, started) = (fed + waited, started + waited);
        let StepResult { computed, filtered, answered, .. } = result;
        let (begun, hooks) = (course.begun, !self.hooks.is_empty());
        let moments = Moments { begun, fed, started, computed, filtered, answered, ended: computed, hooks };
        let examples = batch.examples as u64 * u64::from(self.stepper.batches);
        let (drawn, is_current) = (self.drawn, true);
        if !result.is_dropped() {
            course.next = local_step.next();
        }
        let step =
            StepInFlight { local_step, batch, examples, drawn, recorded, result, began, moments, is_current };
        course.in_flight.push_back(step);
        self.end_steps(latest, self.pipeline - 1, course).await
    }

    /// Ends steps in their order until at most `left` are in flight, and those whose replies have arrived
    /// already. `latest` has the newest values before. Returns the newest ones.
    async fn end_steps(
        &mut self,
        mut latest: Option<Exchange>,
        left: u32,
        course: &mut Course,
    ) -> Result<Exchange, WorkerError> {
        let mut waited = None;
        loop {
            let may_wait = course.in_flight.len() > left as usize;
            let Some(step) = course.in_flight.front_mut() else { break };
            let exchange = match &mut step.result.exchange {
                StepExchange::Over(_) => None,
                StepExchange::InFlight(exchange) => {
                    if !may_wait && !exchange.is_over() {
                        break;
                    }
                    if !exchange.is_over() {
                        self.journal.enter("exchange", observe::now());
                    }
                    let (stop, interrupt) = (&mut self.stop, &self.interrupt);
                    let limit = deserted_after(self.stepper.took.unwrap_or_default() * self.stepper.batches);
                    let reply = async { Ok(exchange.wait().await?) };
                    Some(unless_leaving(stop, interrupt, course.local_step, limit, reply).await?)
                }
            };
            waited = waited.or_else(|| exchange.is_some().then(observe::now));
            let mut step = course.in_flight.pop_front().expect("it is the first one");
            step.result.answered = step.result.answered.or(waited);
            if let Some(exchange) = exchange {
                step.result.exchange = StepExchange::Over(exchange);
            }
            let exchange = self.end_step(step, course)?;
            // The values of a step whose gradients were dropped are not newer.
            if latest.is_none() || !exchange.verdicts.is_empty() {
                latest = Some(exchange);
            }
        }
        let now = observe::now();
        if course.turn(waited.unwrap_or(now), now) {
            self.journal.next_step(now);
        }
        Ok(latest.expect("without a pipeline, a step ends at once"))
    }

    /// Ends the oldest step, whose exchange is over: calls the hooks, and records the step. Returns its
    /// exchange.
    fn end_step(&mut self, step: StepInFlight, course: &mut Course) -> Result<Exchange, WorkerError> {
        let StepInFlight { local_step, batch, examples, drawn, recorded, result, began, .. } = step;
        let StepExchange::Over(exchange) = &result.exchange else { unreachable!("its exchange is over") };
        self.after_step(&batch, &result, exchange, local_step, began)?;
        let mut moments = step.moments;
        if step.is_current {
            (moments.answered, moments.ended) = (result.answered, observe::now());
            course.begun = moments.ended;
        }
        self.recycle(batch);
        let (loss, pushed) = (result.loss, !exchange.verdicts.is_empty());
        let latest = self.record(result, moments, local_step, (examples, drawn), recorded);
        if !step.is_current {
            self.journal.next_step(course.begun);
        }
        // If the gradients were dropped, the same step is taken again with the next batch.
        if pushed {
            course.count(latest.counts().then_some(loss));
        }
        Ok(latest)
    }

    /// Ends the steps in flight of a worker that leaves because of `error`, if their pushes are not in vain.
    async fn leave(&mut self, error: WorkerError, course: &mut Course) -> Result<(), WorkerError> {
        let leaves = matches!(
            error,
            WorkerError::Interrupted { .. }
                | WorkerError::Stopped(_)
                | WorkerError::Input(InputError::Ended { .. })
        );
        if leaves && !course.in_flight.is_empty() {
            self.end_steps(None, 0, course).await?;
            // The error tells how many steps have ended.
            self.check_stay(course.local_step)?;
        }
        Err(error)
    }

    /// Returns an error if the chief has ended the training, or the worker was interrupted.
    fn check_stay(&self, local_step: LocalStep) -> Result<(), WorkerError> {
        if let Some(cause) = self.stop.borrow().clone() {
            return Err(cause.into());
        }
        if self.interrupt.is_cancelled() {
            return Err(WorkerError::Interrupted { local_step });
        }
        Ok(())
    }

    /// Returns which data the worker must record for a step.
    fn recorded(&self, step: LocalStep) -> Recorded {
        let traced = self.tracer.as_ref().is_some_and(|tracer| tracer.is_traced(step));
        let ops = traced && self.tracer.as_ref().is_some_and(Tracer::has_room_for_ops);
        Recorded { traced, ops, groups: self.fetches.groups(step) }
    }

    /// Computes all batches of a step except the last one, beginning with `batch`. Returns the last batch,
    /// the sums of the other batches' losses, gradients and work, and the time spent waiting for input.
    /// Tensors are fetched, and the times of operations are recorded, only in the last batch. If the worker
    /// leaves or its input ends before the last batch, the gradients of the other batches are not pushed,
    /// and these batches do not count as drawn.
    async fn earlier_batches(
        &mut self,
        mut batch: Arc<Batch>,
        local_step: LocalStep,
        values: &Arc<Values>,
        traced: bool,
    ) -> Result<(Arc<Batch>, Option<EarlierBatches>, Duration), WorkerError> {
        let (mut before, mut waited) = (None, Duration::ZERO);
        let recorded = Recorded { traced, ops: false, groups: Groups::NONE };
        for _ in 1..self.stepper.batches {
            self.check_stay(local_step)?;
            let input = self.draw(&batch, local_step, recorded, &[]);
            let limit = deserted_after(self.stepper.took.unwrap_or_default());
            let sums = self.stepper.accumulate(input, values, before);
            let sums = unless_leaving(&mut self.stop, &self.interrupt, local_step, limit, sums);
            before = Some(sums.await?);
            self.input.make_room();
            self.recycle(batch);
            let paused = observe::now();
            self.journal.enter("input", paused);
            let (next, fed) = self.next_batch(local_step).await?;
            (batch, waited) = (next, waited + (fed - paused));
            self.journal.enter("compute", fed);
        }
        Ok((batch, before, waited))
    }

    /// Computes the last batch of a step from the values of `read`, and pushes the gradients of the step.
    /// `ended` is the number of steps that have ended.
    async fn last_batch(
        &mut self,
        input: StepInput<'_>,
        read: Exchange,
        before: Option<EarlierBatches>,
        ended: LocalStep,
    ) -> Result<StepResult, WorkerError> {
        let Self { stepper, hooks, changed, stop, interrupt, input: batches, .. } = self;
        let (local_step, global_step) = (input.local_step, read.global_step());
        let changed: &[VariableSpec] = changed;
        let limit = deserted_after(stepper.took.unwrap_or_default() * stepper.batches);
        let mut change = |gradients: &mut Gradients| {
            let mut all = StepGradients::new(local_step, global_step, changed, gradients);
            Ok(hooks.iter_mut().try_for_each(|hook| hook.change_gradients(&mut all))?)
        };
        let change: Option<ChangeGradients<'_>> = if changed.is_empty() { None } else { Some(&mut change) };
        let mut meanwhile = || batches.make_room();
        let step = stepper.step(input, read, before, change, &mut meanwhile);
        unless_leaving(stop, interrupt, ended, limit, step).await
    }

    /// Counts a batch as drawn, and returns it as the input of a step.
    fn draw<'a>(
        &mut self,
        batch: &'a Arc<Batch>,
        local_step: LocalStep,
        recorded: Recorded,
        gradients: &'a [WantedGradient],
    ) -> StepInput<'a> {
        let random = SplitMix64::stream(&[self.seed, self.drawn]).bits();
        self.drawn += 1;
        let next = if self.stepper.devices.copies() { self.input.peek() } else { None };
        let fed = Fed { batch, number: self.input.number(), next };
        StepInput { fed, random, local_step, drawn: self.drawn, recorded, gradients }
    }

    /// Gives back the memory of a batch. The devices have already dropped their references to the batch, so
    /// this reference is the last one.
    fn recycle(&self, batch: Arc<Batch>) {
        Arc::into_inner(batch).into_iter().for_each(|batch| self.input.recycle(batch));
    }

    /// Passes the evaluation that has ended, if any, to the hooks, and begins the next evaluation if it is
    /// due.
    async fn validate(&mut self, latest: &Exchange, local_step: LocalStep) -> Result<(), WorkerError> {
        let Some(validation) = &mut self.validation else { return Ok(()) };
        let ended = validation.ended().await?;
        let begin = validation.begin_if_due(latest, &self.stepper.parameters);
        let limit = deserted_after(Duration::ZERO);
        unless_leaving(&mut self.stop, &self.interrupt, local_step, limit, begin).await?;
        self.pass_on_evaluation(ended)
    }

    /// After the last step, waits for the evaluation that is still running, if there is one.
    async fn end_validation(&mut self, local_step: LocalStep) -> Result<(), WorkerError> {
        let Some(validation) = &mut self.validation else { return Ok(()) };
        let (mut stop, interrupt) = (self.stop.clone(), self.interrupt.clone());
        let limit = deserted_after(Duration::ZERO);
        let ended = unless_leaving(&mut stop, &interrupt, local_step, limit, validation.wait()).await?;
        self.pass_on_evaluation(ended)
    }

    fn pass_on_evaluation(&mut self, ended: Option<Validated>) -> Result<(), WorkerError> {
        let Some(Validated { result, values }) = ended else { return Ok(()) };
        let (step, evaluation) = (result.step, &result.evaluation);
        let info = EvaluationInfo { step, evaluation, values: &values };
        self.hooks.iter_mut().try_for_each(|hook| hook.evaluated(&info))?;
        Ok(())
    }

    /// Waits for the next batch, and returns it with the time at which it was ready.
    async fn next_batch(&mut self, local_step: LocalStep) -> Result<(Arc<Batch>, Instant), WorkerError> {
        let [ready, ready_max] = self.input.ready();
        self.journal.ready(ready, ready_max);
        let (mut stop, interrupt) = (self.stop.clone(), self.interrupt.clone());
        let next = self.input_lease.hold(self.input.next());
        // The lease limits this wait. The loss of the chief adds no limit, because the input does not depend
        // on other workers.
        let next = unless_leaving(&mut stop, &interrupt, local_step, Duration::MAX, next);
        Ok((next.await??, observe::now()))
    }

    /// Records a step in the journal and in the trace. Returns the values that the next step is computed
    /// from.
    fn record(
        &mut self,
        step: StepResult,
        moments: Moments,
        local_step: LocalStep,
        (examples, drawn): (u64, u64),
        recorded: Recorded,
    ) -> Exchange {
        let StepResult { loss, gradient_norm, exchange, fetched, work, .. } = step;
        let StepExchange::Over(mut latest) = exchange else { unreachable!("the exchange is over") };
        self.journal.step(&StepRecord {
            moments,
            global_step: latest.global_step(),
            drawn,
            examples,
            loss,
            gradient_norm,
            metrics: self.fetches.metrics(recorded.groups, &fetched.parts),
            pushed: !latest.verdicts.is_empty(),
        });
        if let Some(tracer) = self.tracer.as_mut().filter(|_| recorded.traced) {
            let pushes = std::mem::take(&mut latest.pushes);
            tracer.record(&TracedStep { local_step, moments, work, ops: recorded.ops, pushes });
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
        exchange: &Exchange,
        local_step: LocalStep,
        started: Instant,
    ) -> Result<(), WorkerError> {
        self.enter_hooks(observe::now());
        if !self.hooks.is_empty() {
            self.pass_on_fetched(step, exchange.global_step(), local_step)?;
            let StepResult { loss, gradient_norm, .. } = step;
            let info = StepInfo {
                local_step,
                global_step: exchange.global_step(),
                loss: *loss,
                batch,
                values: &exchange.values,
                gradient_norm: *gradient_norm,
                seconds: observe::since(started).as_secs_f64(),
                verdicts: &exchange.verdicts,
            };
            self.hooks.iter_mut().try_for_each(|hook| hook.after_step(&info, &self.plots))?;
        }
        Ok(())
    }

    /// Passes the tensors of a step to the hooks that have fetched them.
    fn pass_on_fetched(
        &mut self,
        step: &StepResult,
        global_step: GlobalStep,
        local_step: LocalStep,
    ) -> Result<(), WorkerError> {
        for (index, hook) in self.hooks.iter_mut().enumerate() {
            if let Some(tensors) = self.fetches.of_hook(index, local_step, &step.fetched)? {
                let fetched = Fetched { task: self.task, local_step, global_step, tensors: &tensors };
                hook.fetched(&fetched, &self.plots)?;
            }
        }
        Ok(())
    }
}
