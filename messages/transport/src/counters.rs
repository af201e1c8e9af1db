//! How many connections came, and why they went: by reason, so that an attack or a faulty cable can be seen. What
//! they carried, and how often a caller had to repeat itself. Handshakes and heartbeats do not count.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::buffer::Budget;
use pushpull_messages::observe::{ServerSnapshot, SharedTimes, Traffic};

/// What connections have carried one way, counted by all of them at a time without a lock.
#[derive(Debug, Default)]
pub(super) struct Carried {
    messages: AtomicU64,
    payload_bytes: AtomicU64,
}

impl Carried {
    /// A message with such a payload.
    pub(super) fn count(&self, payload_bytes: usize) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.payload_bytes.fetch_add(payload_bytes as u64, Ordering::Relaxed);
    }

    fn traffic(&self) -> Traffic {
        let [messages, payload_bytes] =
            [&self.messages, &self.payload_bytes].map(|count| count.load(Ordering::Relaxed));
        Traffic { messages, payload_bytes }
    }
}

/// Counts of one server's connections.
#[derive(Debug, Default)]
pub(super) struct ConnectionCounters {
    pub received: Carried,
    pub sent: Carried,
    /// How long replies took to be written.
    writing: SharedTimes,
    accepted: AtomicU64,
    /// Reasons are a fixed set of words, so this is bounded.
    closed: Mutex<BTreeMap<&'static str, u64>>,
}

impl ConnectionCounters {
    pub(super) fn accept(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
    }

    /// A reply with such a payload was written, in that time.
    pub(super) fn send(&self, payload_bytes: usize, took: Duration) {
        self.sent.count(payload_bytes);
        self.writing.record(took);
    }

    pub(super) fn close(&self, reason: &'static str) {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner).entry(reason).or_default() += 1;
    }
}

/// Sees what a server's connections are doing, and after it has stopped what they did.
#[derive(Clone, Debug)]
pub struct ServerObserver {
    counters: Arc<ConnectionCounters>,
    budget: Budget,
}

impl ServerObserver {
    pub(super) const fn new(counters: Arc<ConnectionCounters>, budget: Budget) -> Self {
        Self { counters, budget }
    }

    /// The counts now. Of what is in flight those payloads that take memory of their own: within one process they are their
    /// sender's.
    pub fn snapshot(&self) -> ServerSnapshot {
        let closed = self.counters.closed.lock().unwrap_or_else(PoisonError::into_inner);
        ServerSnapshot {
            accepted: self.counters.accepted.load(Ordering::Relaxed),
            closed: closed.iter().map(|(&reason, &count)| (reason.to_owned(), count)).collect(),
            received: self.counters.received.traffic(),
            sent: self.counters.sent.traffic(),
            writing: self.counters.writing.snapshot(),
            in_flight_bytes: self.budget.taken(),
            in_flight_bytes_max: self.budget.bytes_max(),
        }
    }
}

/// What was needed to get one caller's calls answered.
#[derive(Debug, Default)]
pub struct CallCounters {
    pub(super) received: Carried,
    pub(super) sent: Carried,
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
    /// Requests that were written, those that were made again included.
    pub sent: Traffic,
    /// Replies that came, those that were ignored included.
    pub received: Traffic,
}

impl CallsSnapshot {
    /// Counts those of another caller, too.
    pub fn add(&mut self, other: &Self) {
        self.reconnections += other.reconnections;
        self.resends += other.resends;
        self.ignored += other.ignored;
        self.sent.add(&other.sent);
        self.received.add(&other.received);
    }
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
            sent: self.sent.traffic(),
            received: self.received.traffic(),
        }
    }
}
