//! The training loop of one worker: a batch, a step, a push that pulls, and again, until every shard has reached
//! the last step.

use std::collections::VecDeque;
use std::sync::Arc;

use messages::id::{GlobalStep, LocalStep};
use messages::message::Verdict;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::devices::Devices;
use crate::error::WorkerError;
use crate::input::{Prefetch, SplitMix64};
use crate::parameters::Parameters;
use crate::reporter::Progress;

/// The loss that a worker ends with is the mean over so many of its last steps.
const LAST_LOSSES: usize = 100;

/// What the loop works with.
pub(crate) struct Trainer {
    pub parameters: Parameters,
    pub devices: Devices,
    /// What the random numbers of this worker are drawn from.
    pub seed: u64,
    pub input: Prefetch,
    pub last_step: GlobalStep,
    pub progress: watch::Sender<Progress>,
    /// Set when the chief wants the worker to stop.
    pub stop: watch::Receiver<Option<String>>,
    /// Cancelled when a signal wants the worker to stop.
    pub interrupt: CancellationToken,
}

/// How far the loop came.
pub(crate) struct Trained {
    pub result: Result<(), WorkerError>,
    pub local_step: LocalStep,
    /// Mean over the last steps; NaN if there were none.
    pub loss: f32,
}

impl Trainer {
    pub(crate) async fn run(&mut self) -> Trained {
        let mut losses = VecDeque::with_capacity(LAST_LOSSES);
        let mut local_step = LocalStep(0);
        let result = self.steps(&mut local_step, &mut losses).await;
        let loss = losses.iter().sum::<f32>() / losses.len() as f32;
        Trained { result, local_step, loss }
    }

    async fn steps(
        &mut self,
        local_step: &mut LocalStep,
        losses: &mut VecDeque<f32>,
    ) -> Result<(), WorkerError> {
        let mut latest = self.parameters.pull().await?;
        while !latest.is_complete(self.last_step) {
            if let Some(reason) = self.stop.borrow().clone() {
                return Err(WorkerError::Stopped(reason));
            }
            if self.interrupt.is_cancelled() {
                return Err(WorkerError::Interrupted { local_step: *local_step });
            }
            let batch = Arc::new(self.input.next().await?);
            let random = SplitMix64::stream(&[self.seed, local_step.0]).bits();
            let memory = || self.parameters.gradients();
            let (loss, gradients) = self.devices.step(&batch, random, &latest.values, memory).await?;
            // Every device has let go of it.
            Arc::into_inner(batch).into_iter().for_each(|batch| self.input.recycle(batch));
            // The values go back to the pool before the next ones arrive in its buffers.
            let versions = std::mem::take(&mut latest.versions);
            drop(latest);
            latest = self.parameters.push_pull(gradients, *local_step, &versions).await?;
            *local_step = local_step.next();
            if latest.verdicts.contains(&Verdict::Applied) {
                if losses.len() == LAST_LOSSES {
                    losses.pop_front();
                }
                losses.push_back(loss);
            }
            self.progress.send_modify(|progress| {
                progress.global_step = latest.global_step();
                progress.local_step = *local_step;
                progress.loss_sum += f64::from(loss);
            });
        }
        Ok(())
    }
}
