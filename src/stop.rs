//! A handle with which a program ends a job early.

use std::sync::Arc;

use tokio::sync::watch;

/// A handle that ends the training of a [`Job`](crate::Job) early, from any thread. All clones of the handle
/// belong to the same job.
#[derive(Clone, Debug, Default)]
pub struct StopHandle(Arc<watch::Sender<Option<String>>>);

impl StopHandle {
    /// Ends the training as soon as all shards agree on a step, usually within a few steps. The job then
    /// ends in the same way as after its last step: the variables are evaluated, saved if the job makes
    /// checkpoints, and returned by [`Job::train`](crate::Job::train). `reason` becomes the field `stopped`
    /// of the report. This function returns at once. If the training has not begun, it ends at its first
    /// step; if it has ended, nothing happens. If the function is called several times, the first reason
    /// counts.
    pub fn stop(&self, reason: impl Into<String>) {
        self.0.send_if_modified(|first| {
            let is_first = first.is_none();
            if is_first {
                *first = Some(reason.into());
            }
            is_first
        });
    }

    /// Returns true if [`stop`](Self::stop) has been called.
    pub fn is_stopped(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// Returns a receiver of the reason, for the chief.
    pub(crate) fn receiver(&self) -> watch::Receiver<Option<String>> {
        self.0.subscribe()
    }
}
