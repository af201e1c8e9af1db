//! The recent history of one worker, taken from its reports of the last seconds. Reads no clock.
//!
//! Wanted properties: (A) rates of the last seconds are never negative, even if the worker was started
//! again; (B) the examples and times that are added to the curves are the sums over all reports of all
//! incarnations; (C) the lost spans of all incarnations are counted.

use std::sync::Arc;
use std::time::Duration;

use pushpull_messages::id::{LocalStep, ShardId};
use pushpull_messages::observe::{Phases, RoundTrip, TimeHistogram, WorkerRow, WorkerSnapshot, WorkerState};

use super::curves::Segment;
use super::slow_workers::Trainer;
use super::window::{Counted, Window, rate};
use crate::job::MemberStatus;
use crate::monitor::LatestReport;

impl Counted for Arc<WorkerSnapshot> {
    fn count(&self) -> u64 {
        self.local_step.0
    }
}

/// The history of one worker.
#[derive(Debug)]
pub(crate) struct WorkerHistory {
    status: MemberStatus,
    latest: Option<LatestReport>,
    /// The snapshots that the worker's current incarnation has sent in the last seconds.
    past: Window<Arc<WorkerSnapshot>>,
    /// The usual time of each phase of a step in the current incarnation, in microseconds.
    usual_us: Vec<(String, u64)>,
    /// The number of spans that earlier incarnations lost.
    spans_lost: u64,
}

impl WorkerHistory {
    pub(crate) fn new(status: MemberStatus) -> Self {
        Self { status, latest: None, past: Window::default(), usual_us: Vec::new(), spans_lost: 0 }
    }

    pub(crate) const fn status(&self) -> &MemberStatus {
        &self.status
    }

    /// Records the status of the worker at the time `at`.
    pub(crate) fn update(&mut self, at: Duration, status: MemberStatus) {
        if status.life != self.status.life {
            let lost = self.latest.take().map_or(0, |latest| latest.spans_lost);
            self.spans_lost = self.spans_lost.saturating_add(lost);
            (self.past, self.usual_us) = (Window::default(), Vec::new());
        }
        // The worker's first report counts its work since now, so the window begins now, with zero counts.
        if status.state == WorkerState::Training && self.past.last().is_none() {
            self.past.add(at, Arc::default());
        }
        self.status = status;
    }

    /// Records the latest report, and adds to `segment` what the worker has done since the previous report.
    pub(crate) fn report(&mut self, latest: &LatestReport, segment: &mut Segment) {
        let known = self.latest.as_ref().is_some_and(|known| known.at >= latest.at);
        if known || self.status.life != Some(latest.life) {
            return;
        }
        if let Some(now) = &latest.snapshot {
            let before = self.past.last().map(|(_, before)| Arc::clone(before)).unwrap_or_default();
            let examples = now.examples.saturating_sub(before.examples);
            segment.add_work(examples, &now.phases.since(&before.phases));
            self.past.add(latest.at, Arc::clone(now));
            let usual_us = self.phases_us(latest.at);
            if !usual_us.is_empty() {
                self.usual_us = usual_us;
            }
        }
        self.latest = Some(latest.clone());
    }

    /// Returns the number of spans that all incarnations of the worker dropped for lack of room.
    pub(crate) fn spans_lost(&self) -> u64 {
        self.spans_lost.saturating_add(self.latest.as_ref().map_or(0, |latest| latest.spans_lost))
    }

    /// Returns, for each shard, a histogram of the times from a push to its reply in the last seconds.
    pub(crate) fn round_trips(&self, now: Duration) -> Vec<(ShardId, TimeHistogram)> {
        let Some((before, after, _)) = self.past.ends(now) else { return Vec::new() };
        let before_of = |shard| before.round_trips.iter().find(|before| before.shard == shard);
        let since = |(index, after): (usize, &RoundTrip)| {
            let is_same = |before: &&RoundTrip| before.shard == after.shard;
            // Tries the same position first, because the shards are nearly always in the same order.
            let before = before.round_trips.get(index).filter(is_same);
            let before = before.or_else(|| before_of(after.shard));
            let times = before.map_or(after.times, |before| after.times.since(&before.times));
            (after.shard, times)
        };
        after.round_trips.iter().enumerate().map(since).collect()
    }

    /// Returns the data for judging whether the worker delays the other workers. `row` is the worker's row
    /// at the time `now`.
    pub(crate) fn trainer<'a>(&'a self, now: Duration, row: &'a WorkerRow) -> Trainer<'a> {
        let last = self.past.last().map(|(_, last)| last);
        let at = last.and_then(|last| Some((last.phase.as_deref()?, Duration::from_micros(last.phase_us))));
        Trainer { row, at, stood: now.saturating_sub(self.past.increased()), usual_us: &self.usual_us }
    }

    /// Returns how long each phase of a step has usually taken over the last seconds. The times are in
    /// microseconds.
    fn phases_us(&self, now: Duration) -> Vec<(String, u64)> {
        let Some((before, after, _)) = self.past.ends(now) else { return Vec::new() };
        let steps = after.local_step.0.saturating_sub(before.local_step.0);
        per_step(&after.phases.since(&before.phases), steps)
    }

    /// Returns the worker's row in the overview at the time `now`.
    pub(crate) fn row(&self, now: Duration) -> WorkerRow {
        let latest = self.latest.as_ref();
        let last = self.past.last().map(|(_, last)| Arc::clone(last)).unwrap_or_default();
        let mut row = WorkerRow {
            worker: self.status.worker,
            state: self.status.state,
            reported_ms: latest.map(|latest| now.saturating_sub(latest.at).as_millis() as u64),
            local_step: latest.map_or(LocalStep(0), |latest| latest.local_step),
            loss: latest.and_then(|latest| latest.loss),
            verdicts: last.verdicts,
            skipped: last.skipped,
            reconnections: last.reconnections,
            resends: last.resends,
            ..WorkerRow::default()
        };
        // A worker that is disconnected or has finished takes no steps.
        let trains = self.status.state == WorkerState::Training;
        if let Some((before, after, took)) = self.past.ends(now).filter(|_| trains) {
            row.steps_per_s = rate(before.local_step.0, after.local_step.0, took);
            row.examples_per_s = rate(before.examples, after.examples, took);
            let (sum, count) = (after.staleness.sum, after.staleness.count());
            let pushes = count.saturating_sub(before.staleness.count());
            row.staleness =
                (pushes > 0).then(|| sum.saturating_sub(before.staleness.sum) as f64 / pushes as f64);
            row.phases_us = self.phases_us(now);
        }
        row
    }
}

fn per_step(phases: &Phases, steps: u64) -> Vec<(String, u64)> {
    let per_step = |(name, times): (&str, &TimeHistogram)| {
        let mean = times.sum_us.checked_div(steps)?;
        // The smaller of the two is used, so that a single delayed step does not make the phase look slow.
        let typical = times.typical().map_or(mean, |typical| mean.min(typical.as_micros() as u64));
        Some((name.to_owned(), typical))
    };
    phases.iter().into_iter().filter_map(per_step).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::id::Incarnation;

    use super::*;

    fn status(life: u64) -> MemberStatus {
        let (state, life) = (WorkerState::Training, Some(Incarnation(life)));
        MemberStatus { worker: 1, state, life, lives: 1, http: None }
    }

    proptest! {
        /// Checks that rates are never negative (A), and that the sums (B) and the lost spans (C) cover all
        /// incarnations, for a worker that takes steps, sends reports, and is sometimes restarted.
        #[test]
        fn reports_add_up_over_all_lives(
            reports in prop::collection::vec((0u64..40, 1u64..4000, 0u64..3, 0u8..6), 1..60),
        ) {
            let mut worker = WorkerHistory::new(status(0));
            let (mut life, mut at, mut all, mut lost) = (0, 0, 0, 0);
            let mut segment = Segment::default();
            let mut now = WorkerSnapshot::default();
            let mut spans_lost = 0;
            for (steps, wait, more_lost, again) in reports {
                if again == 0 {
                    (life, now, spans_lost) = (life + 1, WorkerSnapshot::default(), 0);
                }
                at += wait;
                worker.update(Duration::from_millis(at), status(life));
                at += wait;
                now.local_step.0 += steps;
                now.examples += 2 * steps;
                (0..steps).for_each(|_| now.phases.compute.record(Duration::from_micros(7)));
                (all, lost, spans_lost) = (all + steps, lost + more_lost, spans_lost + more_lost);
                let latest = LatestReport {
                    life: Incarnation(life),
                    at: Duration::from_millis(at),
                    local_step: now.local_step,
                    loss: None,
                    spans_lost,
                    snapshot: Some(Arc::new(now.clone())),
                };
                worker.report(&latest, &mut segment);
                // Reports that were already counted, and reports of other incarnations, are ignored.
                worker.report(&latest, &mut segment);
                let other = LatestReport { life: Incarnation(99), at: latest.at * 2, ..latest };
                worker.report(&other, &mut segment);
                let row = worker.row(Duration::from_millis(at));
                prop_assert!(row.steps_per_s >= 0.0 && row.examples_per_s >= 0.0, "(A)");
                prop_assert!(row.steps_per_s <= (all as f64) * 1000.0, "(A)");
                let computes = |(name, us): &(String, u64)| *us == if name == "compute" { 7 } else { 0 };
                prop_assert!(row.phases_us.iter().all(computes));
                prop_assert_eq!(row.local_step, now.local_step);
                prop_assert_eq!((segment.examples, segment.phases_us[1]), (2 * all, 7 * all), "(B)");
                prop_assert_eq!(worker.spans_lost(), lost, "(C)");
            }
            let silent = worker.row(Duration::from_millis(at + 6000));
            prop_assert_eq!((silent.steps_per_s, silent.reported_ms), (0.0, Some(6000)));
        }
    }
}
