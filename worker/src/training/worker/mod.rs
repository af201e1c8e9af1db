//! The worker task, from its start to its end. It begins again as another incarnation if its job rolls back.
//! This module must not depend on how a step is trained.

mod incarnation;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use pushpull_messages::id::{Incarnation, LocalStep};
use pushpull_transport::buffer::BufferPool;
use pushpull_transport::{Identity, Transport};
use tokio_util::sync::CancellationToken;

use self::incarnation::{Ending, FAREWELL, GRACE, WorkerIncarnation};
use crate::config::WorkerConfig;
use crate::error::WorkerError;
use crate::telemetry::{EndOfLife, Journal, Life, ShownIncarnation, WorkerView};

/// After [`GRACE`], the worker waits at most this long for the chief's reply, which confirms that the
/// checkpoint is durable.
const SAVED: Duration = Duration::from_secs(30);
/// The first pause before the worker registers again. The pause doubles each time, up to [`PAUSE_MAX`]. It
/// starts at this value again after the chief has let the worker begin.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause before the worker registers again.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// A worker task.
pub struct Worker {
    config: WorkerConfig,
    /// The task's identity, with its current incarnation.
    identity: Identity,
    transport: Arc<dyn Transport>,
    pool: BufferPool,
    /// Cancelled when a signal tells the worker to stop.
    interrupt: CancellationToken,
    /// The [`Life`] and the [`Journal`] of the current incarnation.
    life: Life,
    journal: Journal,
    view: WorkerView,
    end: EndOfLife,
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
        let shown = ShownIncarnation::new(identity.incarnation, interrupt.clone());
        let ShownIncarnation { life, journal, .. } = shown.clone();
        let (end, view) = (life.end(), WorkerView::new(identity.task, shown));
        Ok(Self { config, identity, transport, pool, interrupt, life, journal, view, end })
    }

    /// Returns a view of the worker that can be read even after the worker has ended.
    pub fn view(&self) -> WorkerView {
        self.view.clone()
    }

    /// Trains until the job's last step, then evaluates the model if the chief requests it. If the job rolls
    /// back to a checkpoint meanwhile, begins again as if the process had been started again: registers as
    /// another incarnation, with new hooks, and trains from the position in the input that the chief gives.
    ///
    /// # Errors
    /// If anything ends the worker early. The worker has then informed the chief, if the chief
    /// could be reached.
    ///
    /// # Panics
    /// If called outside of an actix system.
    // Returns a boxed future, because the code of this future is then compiled only in this crate, and not
    // again in each program that awaits it.
    pub fn run(self) -> LocalBoxFuture<'static, Result<(), WorkerError>> {
        Box::pin(self.train_and_evaluate())
    }

    async fn train_and_evaluate(self) -> Result<(), WorkerError> {
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
            result = self.begin_until_left(&saves) => result,
            // Ends the worker even while it waits for the reply to a push, for other workers, or for the
            // chief.
            () = out_of_patience => Err(WorkerError::Interrupted { local_step: LocalStep(0) }),
        }
    }

    /// Runs one incarnation after the other, until one leaves the job. The connections, the devices, the
    /// input and the hooks of each incarnation are dropped before the next one begins.
    async fn begin_until_left(mut self, saves: &AtomicBool) -> Result<(), WorkerError> {
        let (mut after, mut pause) = (None, PAUSE_MIN);
        loop {
            saves.store(false, Ordering::Relaxed);
            let mut incarnation =
                WorkerIncarnation { worker: &self, after, saves, begun: false, saves_in_memory: false };
            let reason = match incarnation.run().await {
                Ending::Left(result) => return result,
                Ending::BeginsAgain(reason) => reason,
            };
            if incarnation.begun {
                pause = PAUSE_MIN;
            }
            after = Some(self.begin_again(&reason));
            tokio::select! {
                biased;
                () = self.interrupt.cancelled() => {
                    return Err(WorkerError::Interrupted { local_step: LocalStep(0) });
                }
                () = tokio::time::sleep(pause) => {}
            }
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }

    /// Gives the worker its next incarnation, which the view shows from now on. Returns the previous
    /// incarnation.
    fn begin_again(&mut self, reason: &WorkerError) -> Incarnation {
        let before = self.identity.incarnation;
        self.identity.incarnation = before.again();
        let incarnation = self.identity.incarnation;
        tracing::info!(%reason, %incarnation, "registering again as another incarnation");
        let shown = ShownIncarnation::new(incarnation, self.interrupt.clone());
        (self.life, self.journal) = (shown.life.clone(), shown.journal.clone());
        self.view.show(shown);
        // Drops the guard of the previous `Life`, and so marks this `Life` as ended. The view no longer shows
        // it.
        self.end = self.life.end();
        before
    }
}

#[cfg(test)]
mod tests;
