//! The course of a training loop: how far it is, and the steps whose pushes are unanswered. This module must
//! not depend on devices or shards.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use pushpull_input::Batch;
use pushpull_messages::id::LocalStep;

use super::patience::Standstill;
use super::step::StepResult;
use crate::devices::Recorded;
use crate::telemetry::Moments;

/// The final loss of a worker is the mean over at most this number of steps. They are the most recent steps
/// whose gradients were applied or held.
const LAST_LOSSES: usize = 100;

/// The course of a training loop.
pub(super) struct Course {
    /// The number of steps that have ended.
    pub local_step: LocalStep,
    /// The step that begins next. Without steps in flight, it equals `local_step`.
    pub next: LocalStep,
    /// When the current step began, which is when the worker turned away from the one before it.
    pub begun: Instant,
    pub standstill: Standstill,
    /// The steps that have not ended, the oldest first; at most the pipeline of the job.
    pub in_flight: VecDeque<StepInFlight>,
    losses: VecDeque<f32>,
}

/// A step whose gradients have been computed, and whose push may be unanswered.
pub(super) struct StepInFlight {
    pub local_step: LocalStep,
    /// The step's last batch.
    pub batch: Arc<Batch>,
    /// The number of examples in all batches of the step.
    pub examples: u64,
    /// The number of batches taken from the input, with those of the step, including those in earlier runs of
    /// the worker.
    pub drawn: u64,
    pub recorded: Recorded,
    pub result: StepResult,
    /// When the devices began to compute the step.
    pub began: Instant,
    /// The step's moments, as far as they are known.
    pub moments: Moments,
    /// Whether the worker has not yet turned to another step, so that the end of `moments` is still to come.
    pub is_current: bool,
}

impl Course {
    /// Returns the course of a training that begins at `begun`, with up to `pipeline` steps in flight.
    pub(super) fn new(begun: Instant, pipeline: u32) -> Self {
        Self {
            local_step: LocalStep(0),
            next: LocalStep(0),
            begun,
            standstill: Standstill::default(),
            in_flight: VecDeque::with_capacity(pipeline as usize),
            losses: VecDeque::with_capacity(LAST_LOSSES),
        }
    }

    /// Ends the moments of the current step at `ended`, if it is still in flight. The worker has waited for
    /// earlier steps until `waited`. Returns whether there is such a step.
    pub(super) fn turn(&mut self, waited: Instant, ended: Instant) -> bool {
        let Some(step) = self.in_flight.back_mut().filter(|step| step.is_current) else { return false };
        step.is_current = false;
        (step.moments.answered, step.moments.ended) = (Some(waited), ended);
        self.begun = ended;
        true
    }

    /// Counts a step that has ended. `loss` is its loss; `None` if no shard applied or held its gradients.
    pub(super) fn count(&mut self, loss: Option<f32>) {
        self.local_step = self.local_step.next();
        let Some(loss) = loss else { return };
        if self.losses.len() == LAST_LOSSES {
            self.losses.pop_front();
        }
        self.losses.push_back(loss);
    }

    /// Returns the mean loss over the most recent steps whose gradients were applied or held; NaN if there is
    /// no such step.
    pub(super) fn loss(&self) -> f32 {
        self.losses.iter().sum::<f32>() / self.losses.len() as f32
    }
}
