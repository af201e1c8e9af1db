//! Counts the ended connections and the refused requests by reason, the traffic on connections, and the
//! repeated requests. The reasons can reveal an attack or a faulty cable. Handshakes and heartbeats are not
//! counted as traffic.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::buffer::Budget;
use pushpull_messages::message::RefusalCode;
use pushpull_messages::observe::{ServerSnapshot, SharedTimes, Traffic};

/// The traffic in one direction on all connections, counted without a lock.
#[derive(Debug, Default)]
pub(super) struct Carried {
    messages: AtomicU64,
    payload_bytes: AtomicU64,
}

impl Carried {
    /// Counts a message whose payload has `payload_bytes` bytes.
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

/// The counts of one server's connections.
#[derive(Debug, Default)]
pub(super) struct ConnectionCounters {
    pub received: Carried,
    pub sent: Carried,
    /// How long each reply took to write.
    writing: SharedTimes,
    accepted: AtomicU64,
    /// The number of ended connections, by reason. The set of reasons is fixed, so the map is bounded.
    closed: Mutex<BTreeMap<&'static str, u64>>,
    /// The number of refused requests, by the code of the refusal.
    refused: Mutex<BTreeMap<&'static str, u64>>,
}

impl ConnectionCounters {
    pub(super) fn accept(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a reply that took `took` to write and whose payload has `payload_bytes` bytes.
    pub(super) fn send(&self, payload_bytes: usize, took: Duration) {
        self.sent.count(payload_bytes);
        self.writing.record(took);
    }

    /// Counts a message that was sent ahead of its reply. The time to write it says nothing, because it waits
    /// for the request.
    pub(super) fn send_ahead(&self, payload_bytes: usize) {
        self.sent.count(payload_bytes);
    }

    pub(super) fn close(&self, reason: &'static str) {
        *self.closed.lock().entry(reason).or_default() += 1;
    }

    /// Counts a request that was refused with this code.
    pub(super) fn refuse(&self, code: RefusalCode) {
        *self.refused.lock().entry(code.as_str()).or_default() += 1;
    }
}

/// An observer of a server's connections. It can outlive the server.
#[derive(Clone, Debug)]
pub struct ServerObserver {
    counters: Arc<ConnectionCounters>,
    budget: Budget,
}

impl ServerObserver {
    pub(super) const fn new(counters: Arc<ConnectionCounters>, budget: Budget) -> Self {
        Self { counters, budget }
    }

    /// Returns the current counts. The bytes in flight are those of payloads and large headers for which the
    /// server allocated memory. A payload from a task in the same process does not count, because its memory
    /// belongs to the sender.
    pub fn snapshot(&self) -> ServerSnapshot {
        let counts = |counts: &Mutex<BTreeMap<&'static str, u64>>| {
            counts.lock().iter().map(|(&reason, &count)| (reason.to_owned(), count)).collect()
        };
        ServerSnapshot {
            accepted: self.counters.accepted.load(Ordering::Relaxed),
            closed: counts(&self.counters.closed),
            refused: counts(&self.counters.refused),
            received: self.counters.received.traffic(),
            sent: self.counters.sent.traffic(),
            writing: self.counters.writing.snapshot(),
            in_flight_bytes: self.budget.taken(),
            in_flight_bytes_max: self.budget.bytes_max(),
        }
    }
}

/// The counts of one client's calls.
#[derive(Debug, Default)]
pub struct CallCounters {
    pub(super) received: Carried,
    pub(super) sent: Carried,
    reconnections: AtomicU64,
    resends: AtomicU64,
    ignored: AtomicU64,
}

/// The counts of a client's calls at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallsSnapshot {
    /// The number of times that a broken connection was replaced.
    pub reconnections: u64,
    /// The number of times that a request was sent again, because no reply came or because its connection
    /// broke.
    pub resends: u64,
    /// The number of replies that arrived when no call was waiting for them any more.
    pub ignored: u64,
    /// The requests that were written, including those sent again.
    pub sent: Traffic,
    /// The replies that were received, including those that were ignored.
    pub received: Traffic,
}

impl CallsSnapshot {
    /// Adds the counts of another client.
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

    /// Returns the current counts.
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
