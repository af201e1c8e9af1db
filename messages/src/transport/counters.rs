//! How many connections came, and why they went: by reason, so that an attack or a faulty cable can be seen. And
//! how often a caller had to repeat itself.

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

/// What was needed to get one caller's calls answered.
#[derive(Debug, Default)]
pub struct CallCounters {
    reconnections: AtomicU64,
    resends: AtomicU64,
    ignored: AtomicU64,
}

/// The counts at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallsSnapshot {
    /// Connections that were found again.
    pub reconnections: u64,
    /// Requests that were made again because no answer had come, or because their connection had broken.
    pub resends: u64,
    /// Replies that nobody waited for any more.
    pub ignored: u64,
}

impl CallCounters {
    pub(super) fn reconnect(&self) {
        self.reconnections.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn resend(&self) {
        self.resends.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn ignore(&self) {
        self.ignored.fetch_add(1, Ordering::Relaxed);
    }

    /// The counts now.
    pub fn snapshot(&self) -> CallsSnapshot {
        CallsSnapshot {
            reconnections: self.reconnections.load(Ordering::Relaxed),
            resends: self.resends.load(Ordering::Relaxed),
            ignored: self.ignored.load(Ordering::Relaxed),
        }
    }
}
