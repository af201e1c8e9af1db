//! What a worker's pushes and pulls came to: counted with every answer. Outlives the connections; holds none of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use pushpull_messages::id::ShardId;
use pushpull_messages::message::{Pushed, StalenessHistogram, Verdict};
use pushpull_messages::observe::{RoundTrip, TimeHistogram, VerdictCounters, WorkerSnapshot};
use pushpull_transport::buffer::Budget;
use pushpull_transport::{CallsSnapshot, ReconnectingClient};

/// Of one worker with all shards; shared.
#[derive(Clone, Debug)]
pub(crate) struct Exchanges(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    credits: Budget,
    /// Of these when none was taken.
    credits_max: u64,
    /// One for each ps task.
    callers: Vec<Weak<ReconnectingClient>>,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    verdicts: VerdictCounters,
    staleness: StalenessHistogram,
    /// Of each shard, in their order.
    round_trips: Vec<RoundTrip>,
    /// Of all callers, as they told when they were asked last.
    calls: CallsSnapshot,
}

impl Exchanges {
    /// With these shards, of which each ps task's are called by one caller.
    pub(crate) fn new(
        credits: Budget,
        shards: impl Iterator<Item = ShardId>,
        callers: Vec<Weak<ReconnectingClient>>,
    ) -> Self {
        let round_trips = shards.map(|shard| RoundTrip { shard, times: TimeHistogram::default() }).collect();
        let counts = Mutex::new(Counts { round_trips, ..Default::default() });
        let credits_max = credits.available();
        Self(Arc::new(Shared { credits, credits_max, callers, counts }))
    }

    /// A push was answered.
    pub(crate) fn pushed(&self, pushed: &Pushed) {
        let mut counts = self.lock();
        counts.verdicts.record(pushed.verdict);
        if matches!(pushed.verdict, Verdict::Applied | Verdict::Held) {
            counts.staleness.record(pushed.staleness);
        }
    }

    /// The answer to a push to the shard of that position took so long.
    pub(crate) fn returned(&self, position: usize, took: Duration) {
        self.lock().round_trips[position].times.record(took);
    }

    /// Asks the callers what they have carried, and how often they had to repeat themselves: they cannot be asked any more
    /// when they are gone.
    pub(crate) fn ask(&self) {
        let mut counts = self.lock();
        let mut calls = CallsSnapshot::default();
        for caller in &self.0.callers {
            let Some(caller) = caller.upgrade() else { return };
            calls.add(&caller.counters().snapshot());
        }
        counts.calls = calls;
    }

    /// Writes down all of it.
    pub(crate) fn show(&self, snapshot: &mut WorkerSnapshot) {
        self.ask();
        let counts = self.lock();
        snapshot.verdicts = counts.verdicts;
        snapshot.staleness = counts.staleness;
        snapshot.round_trips.clone_from(&counts.round_trips);
        snapshot.in_flight_bytes = self.0.credits_max.saturating_sub(self.0.credits.available());
        snapshot.in_flight_bytes_max = self.0.credits_max;
        let CallsSnapshot { reconnections, resends, sent, received, .. } = counts.calls;
        (snapshot.sent, snapshot.received) = (sent, received);
        (snapshot.reconnections, snapshot.resends) = (reconnections, resends);
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use pushpull_messages::id::{GlobalStep, Version};

    use super::*;

    #[tokio::test]
    async fn every_answer_is_counted_with_what_became_of_the_push() {
        let shards = [ShardId::new(0, 0), ShardId::new(1, 0)];
        let budget = Budget::new(4 << 10);
        let exchanges = Exchanges::new(budget.clone(), shards.into_iter(), Vec::new());
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
        // What is in no variable has no staleness.
        assert_eq!((seen.staleness.count(), seen.staleness.sum), (2, 3));
        let round_trips = seen.round_trips.iter().map(|trip| (trip.shard, trip.times.count()));
        assert_eq!(round_trips.collect::<Vec<_>>(), [(shards[0], 3), (shards[1], 1)]);
        assert_eq!((seen.in_flight_bytes, seen.in_flight_bytes_max), (1 << 10, 4 << 10));
        drop(credit);
        exchanges.show(&mut seen);
        assert_eq!(seen.in_flight_bytes, 0);
    }
}
