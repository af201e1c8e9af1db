//! One step of a worker: its computation and its push, which may overlap. This module must not depend on
//! inputs or hooks.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pushpull_kernels::cpu::sum_of_squares;
use pushpull_messages::id::LocalStep;
use pushpull_messages::observe;
use tokio::task::yield_now;

use super::filter::Filter;
use crate::client::{Exchange, ExchangeInFlight, Gradients, Parameters, Values};
use crate::devices::{Computed, DeviceParts, Devices, Fed, Recorded, Work};
use crate::error::WorkerError;
use crate::fetches::{StepFetches, WantedGradient};
use crate::lease::Lease;
use crate::telemetry::{Gauge, Journal};

/// The limit on the duration of the previous computation: if that computation took longer, a push begins
/// only when all gradients are complete. If the push began earlier, its frame would stall during a long
/// computation, and the receiver would close the connection.
const EARLY_MAX: Duration = Duration::from_secs(5);

/// The stepper of a worker: takes its steps with its devices, its filter and its connections to the shards.
pub(super) struct Stepper {
    pub parameters: Parameters,
    pub devices: Arc<Devices>,
    pub filter: Filter,
    pub gauge: Gauge,
    pub journal: Journal,
    /// The time limit for the computation of one batch.
    pub lease: Lease,
    /// The number of batches in a step; at least 1.
    pub batches: u32,
    /// Whether a step ends before its push is answered, so that the next step may begin meanwhile.
    pub pipelined: bool,
    /// How long the computation of the previous step's last batch took; `None` before the first step.
    pub took: Option<Duration>,
}

/// The input of a computation: one batch of a step.
#[derive(Clone)]
pub(super) struct StepInput<'a> {
    pub fed: Fed<'a>,
    /// The seed of the random numbers of this batch.
    pub random: u64,
    pub local_step: LocalStep,
    /// The number of batches taken from the input, including those in earlier runs of the worker.
    pub drawn: u64,
    pub recorded: Recorded,
    /// The gradients that hooks fetch, each whole or only as its norm.
    pub gradients: &'a [WantedGradient],
}

/// The totals of all batches of a step except the last one.
pub(super) struct EarlierBatches {
    loss: f32,
    /// For each device, the sum of its gradients over all batches of the step except the last one.
    gradients: Vec<Gradients>,
    work: Vec<Work>,
}

/// A function that changes the gradients of a step before they are filtered and pushed.
pub(super) type ChangeGradients<'a> = &'a mut dyn FnMut(&mut Gradients) -> Result<(), WorkerError>;

/// A function that is called once in a step, when its gradients are on their way.
pub(super) type Meanwhile<'a> = &'a mut (dyn FnMut() + Send);

/// The exchange of a step with all shards.
pub(super) enum StepExchange {
    /// Every shard has replied, or the gradients were dropped. In the latter case, there are no verdicts, and
    /// the values are those of this step.
    Over(Exchange),
    /// The push may be unanswered.
    InFlight(ExchangeInFlight),
}

/// The result of a step.
pub(super) struct StepResult {
    /// The mean loss over the batches of the step.
    pub loss: f32,
    /// The norm of the gradients; `None` if it was not measured.
    pub gradient_norm: Option<f32>,
    /// The verdicts on the push, and the values for the next step.
    pub exchange: StepExchange,
    /// When the computation ended.
    pub computed: Instant,
    /// When the gradients had been filtered; `None` if they were not filtered.
    pub filtered: Option<Instant>,
    /// When every shard had replied; `None` if the gradients were not pushed, or their push is in flight.
    pub answered: Option<Instant>,
    /// The tensors that the devices have fetched, and the fetched gradients and norms.
    pub fetched: StepFetches,
    /// The work of each device; empty unless the step is traced.
    pub work: Vec<Work>,
}

impl StepResult {
    /// Returns true if the gradients were dropped, so that the same step is taken again.
    pub(super) fn is_dropped(&self) -> bool {
        matches!(&self.exchange, StepExchange::Over(exchange) if exchange.verdicts.is_empty())
    }
}

impl Stepper {
    /// Computes a batch that is not the last one of its step, and adds the gradients to those of the step's
    /// earlier batches. Each device forms its own sum, in the order of the batches.
    ///
    /// # Errors
    /// If the batch does not fit the model.
    pub(super) async fn accumulate(
        &mut self,
        input: StepInput<'_>,
        values: &Arc<Values>,
        before: Option<EarlierBatches>,
    ) -> Result<EarlierBatches, WorkerError> {
        let StepInput { fed, random, recorded, .. } = input;
        let mut memory = self.memory();
        let (earlier_loss, mut all_work) = match before {
            Some(EarlierBatches { loss, gradients, work }) => {
                memory.iter_mut().zip(gradients).for_each(|(next, sum)| next.follow(sum, 1.0));
                (loss, work)
            }
            None => (0.0, Vec::new()),
        };
        let parts = self.devices.compute(fed, random, values, memory, recorded);
        let parts = self.lease.hold(parts).await??;
        let DeviceParts { loss, gradients, work, .. } = parts;
        all_work.extend(work);
        Ok(EarlierBatches { loss: earlier_loss + loss, gradients, work: all_work })
    }

    /// Takes buffers for the gradients of every device from the buffer pool.
    fn memory(&self) -> Vec<Gradients> {
        (0..self.devices.count()).map(|_| self.parameters.gradients()).collect()
    }

    /// Computes the last batch of a step from the values in `read`, and pushes the gradients of the step. If
    /// the worker has a pipeline, does not wait for the replies of the shards.
    /// `before` holds the sums over the earlier batches of the step; it is `None` if the step has a single
    /// batch. `change`, if given, is called with the gradients before they are filtered.
    /// `meanwhile` is called when the gradients are on their way.
    ///
    /// # Errors
    /// If `change` fails; if the batch does not fit the model; if a gradient is not finite and the job stops
    /// at such a gradient; if a shard refuses the push or cannot be reached.
    pub(super) async fn step(
        &mut self,
        input: StepInput<'_>,
        read: Exchange,
        before: Option<EarlierBatches>,
        change: Option<ChangeGradients<'_>>,
        meanwhile: Meanwhile<'_>,
    ) -> Result<StepResult, WorkerError> {
        let mut memory = self.memory();
        let (share, mut earlier) = (1.0 / self.batches as f32, None);
        if let Some(EarlierBatches { loss, gradients, work }) = before {
            memory.iter_mut().zip(gradients).for_each(|(last, sum)| last.follow(sum, share));
            earlier = Some((loss, work));
        }
        let begun = observe::now();
        // A leader has only a part of the gradients, whose norm would say nothing.
        let measured = self.gauge.is_due(input.local_step, begun) && !self.parameters.leads();
        // After a push has begun, a shard waits only a limited time for the rest of it.
        let early = !measured
            && input.gradients.is_empty()
            && change.is_none()
            && self.took.is_some_and(|took| took <= EARLY_MAX)
            && self.filter.is_open()
            && self.parameters.streams()
            && memory.len() == 1;
        let mut result = match early {
            true => self.step_overlapped(input, read, memory, meanwhile).await?,
            false => self.step_in_turn(input, read, memory, (measured, change), meanwhile).await?,
        };
        self.took = Some(result.computed - begun);
        if let Some((loss, mut work)) = earlier {
            result.loss = (loss + result.loss) * share;
            work.append(&mut result.work);
            result.work = work;
        }
        Ok(result)
    }

    /// Begins the push before the computation, and sends each gradient as soon as it is complete. Requires
    /// that the worker has a single device.
    async fn step_overlapped(
        &mut self,
        input: StepInput<'_>,
        read: Exchange,
        mut memory: Vec<Gradients>,
        meanwhile: Meanwhile<'_>,
    ) -> Result<StepResult, WorkerError> {
        let Self { parameters, devices, lease, journal, pipelined, .. } = self;
        let StepInput { fed, random, local_step, drawn, recorded, .. } = input;
        let Exchange { values, versions, .. } = read;
        let payloads = memory[0].promise();
        let compute = async {
            let computed = lease.hold(devices.step(fed, random, &values, memory, recorded)).await??;
            let Computed { loss, gradients, fetched, work } = computed;
            // The values go first, so that the ps learns of it together with the gradients, and may change
            // them in place.
            drop(values);
            // The device has completed all gradients. The last one leaves now.
            drop(gradients);
            let computed = observe::now();
            journal.enter("exchange", computed);
            after_others(meanwhile).await;
            Ok::<_, WorkerError>((loss, fetched, work, computed))
        };
        let traced = recorded.traced;
        let ((loss, fetched, work, computed), exchange, answered) = match *pipelined {
            true => {
                let exchange = parameters.begin_push_pull(payloads, local_step, drawn, &versions, traced);
                (compute.await?, StepExchange::InFlight(exchange), None)
            }
            false => {
                let push =
                    async { Ok(parameters.push_pull(payloads, local_step, drawn, &versions, traced).await?) };
                let (computed, exchange) = overlap(compute, push).await?;
                (computed, StepExchange::Over(exchange), Some(observe::now()))
            }
        };
        let (gradient_norm, filtered) = (None, None);
        let fetched = StepFetches { parts: fetched, gradients: Vec::new() };
        Ok(StepResult { loss, gradient_norm, exchange, computed, filtered, answered, fetched, work })
    }

    /// Computes all gradients, changes and filters them, then pushes or drops them.
    async fn step_in_turn(
        &mut self,
        input: StepInput<'_>,
        read: Exchange,
        memory: Vec<Gradients>,
        (measured, change): (bool, Option<ChangeGradients<'_>>),
        meanwhile: Meanwhile<'_>,
    ) -> Result<StepResult, WorkerError> {
        let StepInput { fed, random, local_step, drawn, recorded, gradients: wanted } = input;
        let Exchange { values, versions, last_steps, .. } = read;
        let result = self.devices.step(fed, random, &values, memory, recorded);
        let result = self.lease.hold(result).await??;
        let Computed { loss, mut gradients, fetched, work } = result;
        let fetched_gradients = wanted.iter().map(|wanted| {
            let values = gradients.variable(wanted.variable);
            let norm = || vec![sum_of_squares(values).sqrt() as f32];
            (*wanted, if wanted.whole { values.to_vec() } else { norm() })
        });
        let fetched = StepFetches { parts: fetched, gradients: fetched_gradients.collect() };
        let computed = observe::now();
        self.journal.enter("filter", computed);
        change.map_or(Ok(()), |change| change(&mut gradients))?;
        if !self.filter.pass(&mut gradients, local_step)? {
            let filtered = Some(observe::now());
            let (verdicts, pushes) = (Vec::new(), Vec::new());
            let exchange = StepExchange::Over(Exchange { values, versions, last_steps, verdicts, pushes });
            let (gradient_norm, answered) = (None, None);
            return Ok(StepResult {
                loss,
                gradient_norm,
                exchange,
                computed,
                filtered,
                answered,
                fetched,
                work,
            });
        }
        let gradient_norm = self.filter.norm(&gradients, measured);
        let passed = observe::now();
        self.journal.enter("exchange", passed);
        // Returns the buffers of the values to the pool. The next values can then be received into these
        // buffers.
        drop(values);
        let payloads = gradients.into_payloads();
        let (parameters, traced) = (&mut self.parameters, recorded.traced);
        let (exchange, answered) = match self.pipelined {
            true => {
                let exchange = parameters.begin_push_pull(payloads, local_step, drawn, &versions, traced);
                after_others(meanwhile).await;
                (StepExchange::InFlight(exchange), None)
            }
            false => {
                let push = Box::pin(parameters.push_pull(payloads, local_step, drawn, &versions, traced));
                let (exchange, ()) = tokio::join!(push, after_others(meanwhile));
                (StepExchange::Over(exchange?), Some(observe::now()))
            }
        };
        let filtered = Some(passed);
        Ok(StepResult { loss, gradient_norm, exchange, computed, filtered, answered, fetched, work })
    }
}

/// Calls `meanwhile` after the other tasks of this thread, which may send the gradients.
async fn after_others(meanwhile: Meanwhile<'_>) {
    yield_now().await;
    meanwhile();
}

/// Awaits the computation and the push concurrently. If the computation fails, returns the error of the
/// computation, even if the push failed too.
async fn overlap<C, P, E>(
    compute: impl Future<Output = Result<C, E>>,
    push: impl Future<Output = Result<P, E>>,
) -> Result<(C, P), E> {
    let (mut compute, mut push) = (pin!(compute), pin!(push));
    let mut pushed = None;
    let computed = loop {
        tokio::select! {
            biased;
            computed = &mut compute => break computed?,
            ended = &mut push, if pushed.is_none() => pushed = Some(ended),
        }
    };
    let pushed = match pushed {
        Some(ended) => ended,
        None => push.await,
    };
    Ok((computed, pushed?))
}
