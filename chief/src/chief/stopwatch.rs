//! Measures the training time.

use std::time::{Duration, Instant};

use pushpull_messages::observe;

/// A stopwatch for the time from the moment when the workers begin to train until the last worker has
/// finished.
#[derive(Default)]
pub(super) struct Stopwatch {
    started: Option<Instant>,
    stopped: Option<Instant>,
}

impl Stopwatch {
    /// Starts the watch. A later call starts it anew, because the job has rolled back.
    pub(super) fn start(&mut self) {
        (self.started, self.stopped) = (Some(observe::now()), None);
    }

    /// Stops the watch. Only the first call after a start counts. Further calls come if a worker is lost
    /// during the evaluation and another worker repeats the evaluation.
    pub(super) fn stop(&mut self) {
        self.stopped.get_or_insert_with(observe::now);
    }

    /// Returns the measured time, or zero until the watch has been stopped.
    pub(super) fn elapsed(&self) -> Duration {
        match (self.started, self.stopped) {
            (Some(started), Some(stopped)) => stopped - started,
            _ => Duration::ZERO,
        }
    }
}
