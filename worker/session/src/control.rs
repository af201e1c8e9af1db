//! Decides whether a run goes on. The control of a run exists from its request to its end, so that a
//! cancelled run also ends while it is planned.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

use crate::error::RunError;

/// The control of a run.
#[derive(Debug, Default)]
pub(crate) struct Control {
    failure: Mutex<Option<RunError>>,
    /// Notified when a value has arrived, or when the run has failed.
    changed: Condvar,
    is_failed: AtomicBool,
    failed: CancellationToken,
}

impl Control {
    /// Ends the run with this error. Only the first error counts.
    pub fn fail(&self, error: RunError) {
        self.failure.lock().get_or_insert(error);
        self.is_failed.store(true, Ordering::Release);
        self.changed.notify_all();
        self.failed.cancel();
    }

    /// Checks that the run has not failed.
    ///
    /// # Errors
    /// Returns the error with which it has failed.
    pub fn check(&self) -> Result<(), RunError> {
        if !self.is_failed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.failure.lock().clone().map_or(Ok(()), Err)
    }

    /// Waits until the run has failed.
    pub async fn wait_failed(&self) {
        self.failed.cancelled().await;
    }

    /// Waits for the result of `work`, or until the run has failed.
    ///
    /// # Errors
    /// Returns the error with which the run has failed.
    pub async fn unless_failed<T>(&self, work: impl Future<Output = T>) -> Result<T, RunError> {
        tokio::select! {
            biased;
            () = self.wait_failed() => {
                self.check()?;
                unreachable!("a run that has failed has an error")
            }
            result = work => Ok(result),
        }
    }

    /// Wakes the threads that wait for a value.
    pub fn notify(&self) {
        // A thread that has looked for the value before now waits for this lock or for the notice.
        drop(self.failure.lock());
        self.changed.notify_all();
    }

    /// Returns a guard with which a thread waits for a value.
    pub fn waiting(&self) -> Waiting<'_> {
        Waiting { control: self, failure: self.failure.lock() }
    }
}

/// A thread that waits for a value. While it looks for the value, no notice is lost.
pub(crate) struct Waiting<'a> {
    control: &'a Control,
    failure: MutexGuard<'a, Option<RunError>>,
}

impl Waiting<'_> {
    /// Waits for the next notice.
    ///
    /// # Errors
    /// Returns the error if the run has failed.
    pub fn wait(&mut self) -> Result<(), RunError> {
        match &*self.failure {
            Some(error) => Err(error.clone()),
            None => {
                self.control.changed.wait(&mut self.failure);
                Ok(())
            }
        }
    }
}
