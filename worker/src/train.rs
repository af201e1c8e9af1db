//! The training loop of one worker: a batch, a step, a push that pulls, and again, until every shard has reached
//! the last step.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pushpull_messages::id::LocalStep;
use pushpull_messages::sync::SyncSpec;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::devices::{Computed, Devices};
use crate::error::WorkerError;
use crate::filter::Filter;
use crate::gauge::Gauge;
use crate::gradients::Gradients;
use crate::hook::{Hook, StepContext, StepInfo};
use crate::journal::{Journal, Taken};
use crate::moments::Moments;
use crate::parameters::{Exchange, Parameters};
use crate::plots::Plots;
use crate::trace::{TracedStep, Tracer, Work};
use pushpull_input::{Batch, Prefetch, SplitMix64};

/// The loss that a worker ends with is the mean over so many of its last steps.
const LAST_LOSSES: usize = 100;
/// A worker that is to leave still takes an answer that is on its way; one that waits for other workers may take longer.
const LAST_ANSWER: Duration = Duration::from_secs(1);

/// With the chief lost, so long a step may wait for other workers, beside ten times what it takes to compute.
const DESERTED: Duration = Duration::from_secs(60);
/// Gradients leave while others are still computed where that does not take longer: a frame that stalls is cut off.
const EARLY_MAX: Duration = Duration::from_secs(5);

/// What the loop works with.
pub(crate) struct Trainer {
    pub parameters: Parameters,
    pub devices: Devices,
    pub filter: Filter,
    /// What the random numbers of this worker are drawn from.
    pub seed: u64,
    pub input: Prefetch,
    /// Batches taken from the input, in all lives of this worker: what is random in a step is drawn by their number.
    pub drawn: u64,
    pub sync: SyncSpec,
    /// How long the last computation took, once there was one.
    pub took: Option<Duration>,
    pub journal: Journal,
    /// Where some steps are traced.
    pub tracer: Option<Tracer>,
    pub gauge: Gauge,
    /// They have begun.
    pub hooks: Vec<Box<dyn Hook>>,
    pub plots: Plots,
    /// Set when the chief wants the worker to stop.
    pub stop: watch::Receiver<Option<String>>,
    /// Cancelled when a signal wants the worker to stop.
    pub interrupt: CancellationToken,
}

/// What a step came to.
struct Step {
    loss: f32,
    /// Where it was measured.
    gradient_norm: Option<f32>,
    exchange: Exchange,
    computed: Instant,
    /// Where the gradients were looked at.
    filtered: Option<Instant>,
    /// Where they were pushed.
    answered: Option<Instant>,
    /// What each device did, where the step is traced.
    work: Vec<Work>,
}

/// How far the loop came.
pub(crate) struct Trained {
    pub result: Result<(), WorkerError>,
    pub local_step: LocalStep,
    /// Mean over the last steps; NaN if there were none.
    pub loss: f32,
    /// Steps whose gradients were dropped; `local_step` does not count them.
    pub skipped: u64,
}

impl Trainer {
    pub(crate) async fn run(&mut self) -> Trained {
        let mut losses = VecDeque::with_capacity(LAST_LOSSES);
        let mut local_step = LocalStep(0);
        let result = self.steps(&mut local_step, &mut losses).await;
        self.journal.end();
        let loss = losses.iter().sum::<f32>() / losses.len() as f32;
        Trained { result, local_step, loss, skipped: self.filter.dropped() }
    }

    async fn steps(
        &mut self,
        local_step: &mut LocalStep,
        losses: &mut VecDeque<f32>,
    ) -> Result<(), WorkerError> {
        let (mut stop, interrupt) = (self.stop.clone(), self.interrupt.clone());
        let join = self.parameters.join(self.sync);
        let mut latest = unless_told(&mut stop, &interrupt, *local_step, DESERTED, join).await?;
        self.journal.begin(latest.global_step(), self.drawn);
        let mut begun = Instant::now();
        while !latest.is_complete() {
            if let Some(reason) = stop.borrow().clone() {
                return Err(WorkerError::Stopped(reason));
            }
            if interrupt.is_cancelled() {
                return Err(WorkerError::Interrupted { local_step: *local_step });
            }
            let traced = self.tracer.as_ref().is_some_and(|tracer| tracer.is_traced(*local_step));
            let [ready, ready_max] = self.input.ready();
            self.journal.ready(ready, ready_max);
            let batch = Arc::new(self.input.next().await?);
            let fed = Instant::now();
            self.enter_hooks(fed);
            let random = SplitMix64::stream(&[self.seed, self.drawn]).bits();
            self.drawn += 1;
            self.before_step(&batch, &latest, *local_step)?;
            let started = Instant::now();
            self.journal.enter("compute", started);
            let deserted_after = DESERTED + 10 * self.took.unwrap_or_default();
            let step = self.step(&batch, random, latest, *local_step, traced);
            let step = unless_told(&mut stop, &interrupt, *local_step, deserted_after, step).await?;
            self.after_step(&batch, &step, *local_step, started)?;
            let Step { loss, gradient_norm, exchange: next, computed, filtered, answered, work } = step;
            let (ended, hooks) = (Instant::now(), !self.hooks.is_empty());
            let moments = Moments { begun, fed, started, computed, filtered, answered, ended, hooks };
            begun = ended;
            let examples = batch.examples as u64;
            // Every device has let go of it.
            Arc::into_inner(batch).into_iter().for_each(|batch| self.input.recycle(batch));
            latest = next;
            let (global_step, drawn, pushed) =
                (latest.global_step(), self.drawn, !latest.verdicts.is_empty());
            self.journal.step(&Taken { moments, global_step, drawn, examples, loss, gradient_norm, pushed });
            if let Some(tracer) = self.tracer.as_mut().filter(|_| traced) {
                let pushes = std::mem::take(&mut latest.pushes);
                tracer.record(&TracedStep { local_step: *local_step, moments, work, pushes });
            }
            if !pushed {
                // Dropped: the same step once more, with the next batch.
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
        step: &Step,
        local_step: LocalStep,
        started: Instant,
    ) -> Result<(), WorkerError> {
        self.enter_hooks(Instant::now());
        if !self.hooks.is_empty() {
            let Step { loss, gradient_norm, exchange, .. } = step;
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

    /// Computes a step from what was `read` and pushes its gradients. Gives the values for the next step: where the gradients were
    /// dropped the same, and no verdicts.
    async fn step(
        &mut self,
        batch: &Arc<Batch>,
        random: u64,
        read: Exchange,
        local_step: LocalStep,
        traced: bool,
    ) -> Result<Step, WorkerError> {
        let Exchange { values, versions, last_steps, .. } = read;
        let mut memory: Vec<Gradients> =
            (0..self.devices.count()).map(|_| self.parameters.gradients()).collect();
        let begun = Instant::now();
        let measured = self.gauge.is_due(local_step, begun);
        // The shards may wait for the rest of a push that has begun, but not for long.
        let early = !measured
            && self.took.is_some_and(|took| took <= EARLY_MAX)
            && self.filter.is_open()
            && self.parameters.streams();
        if let ([only], true) = (&mut memory[..], early) {
            let payloads = only.promise();
            let push = self.parameters.push_pull(payloads, local_step, self.drawn, &versions, traced);
            let compute = async {
                let Computed { loss, mut gradients, work } =
                    self.devices.step(batch, random, &values, memory, traced).await?;
                drop(values);
                gradients.complete_all();
                let computed = Instant::now();
                self.journal.enter("exchange", computed);
                Ok((loss, work, computed))
            };
            let ((loss, work, computed), exchange) = overlap(compute, push).await?;
            self.took = Some(computed - begun);
            let answered = Some(Instant::now());
            return Ok(Step {
                loss,
                gradient_norm: None,
                exchange,
                computed,
                filtered: None,
                answered,
                work,
            });
        }
        let Computed { loss, mut gradients, work } =
            self.devices.step(batch, random, &values, memory, traced).await?;
        let computed = Instant::now();
        self.journal.enter("filter", computed);
        self.took = Some(computed - begun);
        if !self.filter.pass(&mut gradients, local_step)? {
            let (verdicts, pushes, filtered) = (Vec::new(), Vec::new(), Some(Instant::now()));
            let exchange = Exchange { values, versions, last_steps, verdicts, pushes };
            return Ok(Step {
                loss,
                gradient_norm: None,
                exchange,
                computed,
                filtered,
                answered: None,
                work,
            });
        }
        let gradient_norm = self.filter.norm(&gradients, measured);
        let looked_at = Instant::now();
        self.journal.enter("exchange", looked_at);
        let filtered = Some(looked_at);
        // The values go back to the pool before the next ones arrive in its buffers.
        drop(values);
        let payloads = gradients.into_payloads();
        let exchange = self.parameters.push_pull(payloads, local_step, self.drawn, &versions, traced).await?;
        let answered = Some(Instant::now());
        Ok(Step { loss, gradient_norm, exchange, computed, filtered, answered, work })
    }
}

/// Both at the same time. Where the computation fails, that is the reason, whatever became of the push.
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

/// A step, which may wait for other workers: not for long any more once this one is to leave, and not for ever once the
/// chief is lost, as nobody else tells the shards of a worker that is gone.
async fn unless_told<T>(
    stop: &mut watch::Receiver<Option<String>>,
    interrupt: &CancellationToken,
    local_step: LocalStep,
    deserted_after: Duration,
    answer: impl Future<Output = Result<T, WorkerError>>,
) -> Result<T, WorkerError> {
    let told = async {
        let error = tokio::select! {
            biased;
            () = interrupt.cancelled() => WorkerError::Interrupted { local_step },
            told = stop.wait_for(Option::is_some) => match told {
                Ok(reason) => WorkerError::Stopped(reason.clone().expect("it has been waited for")),
                Err(_) => tokio::select! {
                    () = interrupt.cancelled() => WorkerError::Interrupted { local_step },
                    () = tokio::time::sleep(deserted_after) => {
                        return WorkerError::Deserted(deserted_after.as_secs());
                    }
                },
            },
        };
        tokio::time::sleep(LAST_ANSWER).await;
        error
    };
    tokio::select! {
        biased;
        answer = answer => answer,
        error = told => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(future)
    }

    #[test]
    fn who_is_told_to_leave_does_not_wait_for_the_others() {
        let step = LocalStep(3);
        let never = std::future::pending::<Result<(), WorkerError>>;
        block_on(async {
            let (_chief, mut stop) = watch::channel(Some("enough".to_owned()));
            let error =
                unless_told(&mut stop, &CancellationToken::new(), step, DESERTED, never()).await.unwrap_err();
            assert!(matches!(error, WorkerError::Stopped(reason) if reason == "enough"));
            // Whether the chief can still be heard or not.
            let (chief, mut stop) = watch::channel(None);
            drop(chief);
            let interrupt = CancellationToken::new();
            interrupt.cancel();
            let error = unless_told(&mut stop, &interrupt, step, DESERTED, never()).await.unwrap_err();
            assert!(matches!(error, WorkerError::Interrupted { local_step } if local_step == step));
            let (alone, short) = (CancellationToken::new(), Duration::from_millis(1));
            let error = unless_told(&mut stop, &alone, step, short, never()).await.unwrap_err();
            assert!(matches!(error, WorkerError::Deserted(_)), "{error}");
        });
    }

    #[test]
    fn an_answer_that_is_on_its_way_is_taken() {
        block_on(async {
            let (_chief, mut stop) = watch::channel(Some("enough".to_owned()));
            let answer = async {
                tokio::time::sleep(LAST_ANSWER / 2).await;
                Ok(7)
            };
            let taken =
                unless_told(&mut stop, &CancellationToken::new(), LocalStep(0), DESERTED, answer).await;
            assert_eq!(taken.unwrap(), 7);
        });
    }
}
