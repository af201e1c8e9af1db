//! How many connections came, and why they went: by reason, so that an attack or a faulty cable can be seen.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Counts of one server's connections.
#[derive(Debug, Default)]
pub struct ConnectionCounters {
    accepted: AtomicU64,
    /// Reasons are a fixed set of words, so this is bounded.
    closed: Mutex<BTreeMap<&'static str, u64>>,
}

/// The counts at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionsSnapshot {
    /// All that came.
    pub accepted: u64,
    /// Those that went, by reason; `closed` is the orderly one.
    pub closed: BTreeMap<&'static str, u64>,
}

impl ConnectionCounters {
    pub(super) fn accept(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn close(&self, reason: &'static str) {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner).entry(reason).or_default() += 1;
    }

    /// The counts now.
    pub fn snapshot(&self) -> ConnectionsSnapshot {
        ConnectionsSnapshot {
            accepted: self.accepted.load(Ordering::Relaxed),
            closed: self.closed.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}
