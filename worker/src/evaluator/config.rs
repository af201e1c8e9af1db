//! The settings of an evaluator task. This module reads neither flags nor files; its caller fills in the
//! values.

use std::time::Duration;

use pushpull_messages::observe::WallClock;
use pushpull_messages::out_of_range::OutOfRange;

use super::best::BestSpec;
use crate::config::WorkerConfig;
use crate::error::WorkerError;

/// The settings of an evaluator.
#[derive(Clone)]
pub struct EvaluatorConfig {
    /// The settings that the evaluator has in common with a worker, such as the devices and the directory of
    /// the data.
    pub worker: WorkerConfig,
    /// The metric by which the best checkpoint is chosen. `None` stands for the accuracy, or for the loss if
    /// the model has no accuracy.
    pub best: Option<BestSpec>,
    /// The time between two checks for new checkpoints in the store.
    pub poll_every: Duration,
    /// The time without a new checkpoint after which the evaluator ends; if `None`, it waits forever.
    pub idle_timeout: Option<Duration>,
    /// The clock for the time of day, which is only written to the results.
    pub wall_clock: WallClock,
}

impl Default for EvaluatorConfig {
    fn default() -> Self {
        let worker = WorkerConfig::default();
        let (poll_every, wall_clock) = (Duration::from_secs(1), WallClock::default());
        Self { worker, best: None, poll_every, idle_timeout: None, wall_clock }
    }
}

impl EvaluatorConfig {
    /// Checks that every setting is in range.
    ///
    /// # Errors
    /// If a setting is out of range; the error names it.
    pub fn validate(&self) -> Result<(), WorkerError> {
        self.worker.validate()?;
        if self.poll_every.is_zero() {
            return Err(OutOfRange::new("poll_every", "more than 0", 0).into());
        }
        Ok(())
    }
}
