//! Counts the runs of clients.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pushpull_messages::observe::SharedTimes;

/// Counts the runs that clients have requested.
#[derive(Debug, Default)]
pub(crate) struct RunMeter {
    pub completed: AtomicU64,
    pub failed: AtomicU64,
    pub took: SharedTimes,
}

impl RunMeter {
    pub fn ended(&self, completed: bool, took: Duration) {
        let count = if completed { &self.completed } else { &self.failed };
        count.fetch_add(1, Ordering::Relaxed);
        self.took.record(took);
    }
}
