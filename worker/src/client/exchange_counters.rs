//! Counters of a worker's pushes and pulls, updated with every reply. The counters remain readable after the
//! connections are dropped. They hold only weak references to the connections, and therefore keep none of
//! them open.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use pushpull_messages::id::ShardId;
use pushpull_messages::message::{Pushed, StalenessHistogram, Verdict};
use pushpull_messages::observe::{RoundTrip, TimeHistogram, VerdictCounters, WorkerSnapshot};
use pushpull_transport::buffer::Budget;
use pushpull_transport::{CallsSnapshot, ReconnectingClient};

/// The counters of one worker's pushes and pulls, over all shards. Clones share the counters.
#[derive(Clone, Debug)]
pub(crate) struct ExchangeCounters(Arc<SharedCounters>);

#[derive(Debug)]
struct SharedCounters {
    credits: Budget,
    /// The number of credits when no push is in flight. A credit is one byte.
    credits_max: u64,
    /// The connection to each ps task.
    callers: Vec<Weak<ReconnectingClient>>,
    counts: Mutex<ExchangeCounts>,
}

#[derive(Debug, Default)]
struct ExchangeCounts {
    verdicts: VerdictCounters,
    staleness: StalenessHistogram,
    /// The round-trip times to each shard, in the order of the layout.
    round_trips: Vec<RoundTrip>,
    /// The counts summed over all connections, as of the most recent call of `refresh`.
    calls: CallsSnapshot,
}

impl ExchangeCounters {
    /// Creates the counters of the pushes and pulls of `shards`. `callers` holds one connection for each ps
    /// task.
    pub(crate) fn new(
        credits: Budget,
        shards: impl Iterator<Item = ShardId>,
        callers: Vec<Weak<ReconnectingClient>>,
    ) -> Self {
        let round_trips = shards.map(|shard| RoundTrip { shard, times: TimeHistogram::default() }).collect();
        let counts = Mutex::new(ExchangeCounts { round_trips, ..Default::default() });
        let credits_max = credits.available();
        Self(Arc::new(SharedCounters { credits, credits_max, callers, counts }))
    }

    /// Counts the reply to a push.
    pub(crate) fn pushed(&self, pushed: &Pushed) {
        let mut counts = self.0.counts.lock();
        counts.verdicts.record(pushed.verdict);
        if matches!(pushed.verdict, Verdict::Applied | Verdict::Held) {
            counts.staleness.record(pushed.staleness);
        }
    }

    /// Records `took`, the round-trip time of a push to the shard at `position`.
    pub(crate) fn returned(&self, position: usize, took: Duration) {
        self.0.counts.lock().round_trips[position].times.record(took);
    }

    /// Reads the counts of bytes, reconnections and resends from the connections. If a connection has been
    /// dropped, the counts of the previous refresh remain.
    pub(crate) fn refresh(&self) {
        let mut counts = self.0.counts.lock();
        let mut calls = CallsSnapshot::default();
        for caller in &self.0.callers {
            let Some(caller) = caller.upgrade() else { return };
            calls.add(&caller.counters().snapshot());
        }
        counts.calls = calls;
    }

    /// Copies all counters into a snapshot.
    pub(crate) fn show(&self, snapshot: &mut WorkerSnapshot) {
        self.refresh();
        let counts = self.0.counts.lock();
        snapshot.verdicts = counts.verdicts;
        snapshot.staleness = counts.staleness;
        snapshot.round_trips.clone_from(&counts.round_trips);
        snapshot.in_flight_bytes = self.0.credits_max.saturating_sub(self.0.credits.available());
        snapshot.in_flight_bytes_max = self.0.credits_max;
        let CallsSnapshot { reconnections, resends, sent, received, .. } = counts.calls;
        (snapshot.sent, snapshot.received) = (sent, received);
        (snapshot.reconnections, snapshot.resends) = (reconnections, resends);
    }
}

#[cfg(test)]
mod tests {
    use pushpull_messages::id::{GlobalStep, Version};

    use super::*;

    #[tokio::test]
    async fn every_reply_is_counted_by_its_verdict() {
        let shards = [ShardId::new(0, 0), ShardId::new(1, 0)];
        let budget = Budget::new(4 << 10);
        let exchanges = ExchangeCounters::new(budget.clone(), shards.into_iter(), Vec::new());
        let answer = |verdict, staleness| Pushed {
            verdict,
            version: Version(1),
            last_step: GlobalStep(9),
            staleness,
            times: None,
            slices: Vec::new(),
        };
        let verdicts =
            [(Verdict::Applied, 3), (Verdict::Held, 0), (Verdict::Stale { by: 2 }, 7), (Verdict::Stopped, 8)];
        for (at, (verdict, staleness)) in verdicts.into_iter().enumerate() {
            exchanges.pushed(&answer(verdict, staleness));
            exchanges.returned(usize::from(at == 3), Duration::from_millis(1));
        }
        let credit = budget.take(1000).await;
        let mut seen = WorkerSnapshot::default();
        exchanges.show(&mut seen);
        assert_eq!(seen.verdicts.iter().map(|(_, count)| count), [1; 4]);
        // Only applied and held gradients are counted in the staleness histogram.
        assert_eq!((seen.staleness.count(), seen.staleness.sum), (2, 3));
        let round_trips = seen.round_trips.iter().map(|trip| (trip.shard, trip.times.count()));
        assert_eq!(round_trips.collect::<Vec<_>>(), [(shards[0], 3), (shards[1], 1)]);
        assert_eq!((seen.in_flight_bytes, seen.in_flight_bytes_max), (1 << 10, 4 << 10));
        drop(credit);
        exchanges.show(&mut seen);
        assert_eq!(seen.in_flight_bytes, 0);
    }
}
