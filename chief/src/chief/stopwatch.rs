//! Measures the training time.

use std::time::{Duration, Instant};

/// A stopwatch for the time from when the workers were told to begin until the last of them has finished.
#[derive(Default)]
pub(super) struct Stopwatch {
    started: Option<Instant>,
    stopped: Option<Instant>,
}

impl Stopwatch {
    pub(super) fn start(&mut self) {
        self.started = Some(Instant::now());
    }

    /// Stops the watch. Only the first call counts, since the job may be evaluated again by another worker.
    pub(super) fn stop(&mut self) {
        self.stopped.get_or_insert_with(Instant::now);
    }

    /// Returns the measured time, or zero while it is incomplete.
    pub(super) fn elapsed(&self) -> Duration {
        match (self.started, self.stopped) {
            (Some(started), Some(stopped)) => stopped - started,
            _ => Duration::ZERO,
        }
    }
}
