//! The recent history of one shard, taken from its snapshots of the last seconds. Reads no clock.

use std::time::Duration;

use pushpull_messages::id::ShardId;
use pushpull_messages::message::ShardSnapshot;
use pushpull_messages::observe::{ShardRow, ShardState, TimeHistogram};

use super::evidence::EVIDENCE_MIN;
use super::window::{Counted, Window, rate};

impl Counted for ShardSnapshot {
    fn count(&self) -> u64 {
        self.version.0
    }
}

/// The history of one shard.
#[derive(Debug)]
pub(crate) struct ShardHistory {
    shard: ShardId,
    /// The time at which the shard last replied or, before its first reply, the time at which the chief
    /// connected to its task.
    heard: Duration,
    past: Window<ShardSnapshot>,
}

impl ShardHistory {
    pub(crate) fn new(shard: ShardId) -> Self {
        Self { shard, heard: Duration::ZERO, past: Window::default() }
    }

    /// Records the shard's last snapshot, if there is any. `at` is the time at which the shard last replied
    /// or, before its first reply, the time at which the chief connected to its task.
    pub(crate) fn update(&mut self, at: Duration, snapshot: Option<ShardSnapshot>) {
        self.heard = at;
        if let Some(snapshot) = snapshot {
            self.past.add(at, snapshot);
        }
    }

    /// Returns the state of the shard. The caller checks whether the task of the shard can be reached.
    fn state(&self, now: Duration, leaving: bool) -> ShardState {
        match leaving {
            _ if now.saturating_sub(self.heard) >= EVIDENCE_MIN => ShardState::Silent,
            true => ShardState::Leaving,
            false => ShardState::Serving,
        }
    }

    /// Returns the number of updates that the shard had applied at its last snapshot.
    pub(crate) fn version(&self) -> u64 {
        self.past.last().map_or(0, |(_, last)| last.version.0)
    }

    /// Returns the row of the shard in the overview. `variables` is the number of variables on the shard,
    /// and `round_trips` has the times from a push to its reply.
    pub(crate) fn row(&self, now: Duration, variables: u64, round_trips: &TimeHistogram) -> ShardRow {
        let last = self.past.last().map(|(_, last)| last.clone()).unwrap_or_default();
        let us = |mean: Option<Duration>| mean.map(|mean| mean.as_micros() as u64);
        let pushed = last.staleness.count();
        let mut row = ShardRow {
            shard: self.shard,
            state: self.state(now, last.leaving),
            seen_ms: now.saturating_sub(self.heard).as_millis() as u64,
            version: last.version,
            updates_per_s: 0.0,
            busy: 0.0,
            queue: last.actor.queue,
            waited_us: 0,
            handling_us: 0,
            round_trip_us: us(round_trips.typical()),
            variables,
            slices: last.slices,
            bytes: last.bytes,
            more_bytes: last.slot_bytes.saturating_add(last.held_bytes),
            pushes: last.pushes,
            pulls: last.pulls,
            staleness: (pushed > 0).then(|| last.staleness.sum as f64 / pushed as f64),
            waiting: last.waiting,
        };
        if let Some((before, after, took)) = self.past.ends(now) {
            let handling = after.actor.handling.since(&before.actor.handling);
            row.updates_per_s = rate(before.version.0, after.version.0, took);
            row.busy = (handling.sum_us as f64 / took.as_micros() as f64).clamp(0.0, 1.0);
            row.waited_us = us(after.actor.waited.since(&before.actor.waited).mean()).unwrap_or(0);
            row.handling_us = us(handling.mean()).unwrap_or(0);
        }
        row
    }
}

#[cfg(test)]
mod tests {
    use pushpull_messages::id::Version;

    use super::*;

    #[test]
    fn rates_are_of_the_last_seconds() {
        let mut shard = ShardHistory::new(ShardId::new(1, 2));
        let mut snapshot = ShardSnapshot::default();
        for second in 0..20u64 {
            snapshot.version = Version(second * 100);
            snapshot.staleness.record(3);
            snapshot.slot_bytes = 8;
            for _ in 0..if second < 10 { 100 } else { 50 } {
                snapshot.actor.handling.record(Duration::from_millis(5));
                snapshot.actor.waited.record(Duration::from_micros(1500));
            }
            shard.update(Duration::from_secs(second), Some(snapshot.clone()));
        }
        let mut round_trips = TimeHistogram::default();
        round_trips.record(Duration::from_millis(7));
        let row = shard.row(Duration::from_secs(20), 4, &round_trips);
        assert_eq!((row.seen_ms, row.version, row.updates_per_s), (1000, Version(1900), 100.0));
        assert_eq!((row.busy, row.waited_us, row.handling_us), (0.25, 1500, 5000));
        assert_eq!((row.round_trip_us, row.staleness, row.more_bytes), (Some(7000), Some(3.0), 8));
        assert_eq!(row.state, ShardState::Serving);
        // The rates of a silent shard decrease, and then become zero.
        let row = shard.row(Duration::from_secs(22), 4, &round_trips);
        assert!(row.updates_per_s < 70.0 && row.state == ShardState::Silent, "{row:?}");
        let row = shard.row(Duration::from_secs(30), 4, &TimeHistogram::default());
        assert_eq!((row.busy, row.updates_per_s, row.round_trip_us), (0.0, 0.0, None));
        assert_eq!((row.seen_ms, row.version), (11_000, Version(1900)));
    }
}
