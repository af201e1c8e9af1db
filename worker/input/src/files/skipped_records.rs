//! The number of damaged records that were skipped. This module must not depend on files.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of damaged records that a task has skipped. Clones share the number.
#[derive(Clone, Debug, Default)]
pub struct SkippedRecords(Arc<AtomicU64>);

impl SkippedRecords {
    /// Returns the number of damaged records that were skipped so far. A record that is skipped again, in a
    /// later epoch, is counted once.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
