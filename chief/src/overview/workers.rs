//! The last seconds of one worker, from what it reports. Knows no clock and no other worker.
//!
//! Wanted properties: (A) what is of the last seconds is never negative, also where the worker was started again; (B) what is
//! counted for the curves adds up to what was reported, in each of its lives; (C) spans that were lost are those of all its lives.

use std::sync::Arc;
use std::time::Duration;

use pushpull_messages::id::{Incarnation, LocalStep, ShardId};
use pushpull_messages::observe::{Phases, RoundTrip, TimeHistogram, WorkerRow, WorkerSnapshot, WorkerState};

use super::curves::Stretch;
use super::slow::Trainer;
use super::window::{Counted, Window, rate};
use crate::job::WorkerSeen;

/// What a worker has told last.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    /// Which life of it.
    pub life: Incarnation,
    /// When, since the chief was started.
    pub at: Duration,
    pub local_step: LocalStep,
    /// Of its last steps, if it took any.
    pub loss: Option<f32>,
    /// Spans that there was no room for, in this life.
    pub spans_lost: u64,
    pub snapshot: Option<Arc<WorkerSnapshot>>,
}

impl Counted for Arc<WorkerSnapshot> {
    fn count(&self) -> u64 {
        self.local_step.0
    }
}

/// One worker as it is known.
#[derive(Debug)]
pub(crate) struct WorkerPast {
    seen: WorkerSeen,
    told: Option<Told>,
    /// What it said of itself, in this life.
    past: Window<Arc<WorkerSnapshot>>,
    /// Where the time of its last steps went, in microseconds for each, in this life.
    usual_us: Vec<(String, u64)>,
    /// Of earlier lives.
    spans_lost: u64,
}

impl WorkerPast {
    pub(crate) fn new(seen: WorkerSeen) -> Self {
        Self { seen, told: None, past: Window::default(), usual_us: Vec::new(), spans_lost: 0 }
    }

    pub(crate) const fn seen(&self) -> &WorkerSeen {
        &self.seen
    }

    /// What it is at, at that time.
    pub(crate) fn see(&mut self, at: Duration, seen: WorkerSeen) {
        if seen.life != self.seen.life {
            let lost = self.told.take().map_or(0, |told| told.spans_lost);
            self.spans_lost = self.spans_lost.saturating_add(lost);
            (self.past, self.usual_us) = (Window::default(), Vec::new());
        }
        // What it reports first it has done since then.
        if seen.state == WorkerState::Training && self.past.last().is_none() {
            self.past.add(at, Arc::default());
        }
        self.seen = seen;
    }

    /// What it told last; counts what it had not told before.
    pub(crate) fn tell(&mut self, told: &Told, stretch: &mut Stretch) {
        let known = self.told.as_ref().is_some_and(|known| known.at >= told.at);
        if known || self.seen.life != Some(told.life) {
            return;
        }
        if let Some(now) = &told.snapshot {
            let before = self.past.last().map(|(_, before)| Arc::clone(before)).unwrap_or_default();
            stretch.count(
                now.local_step.0.saturating_sub(before.local_step.0),
                now.examples.saturating_sub(before.examples),
                &now.phases.since(&before.phases),
            );
            self.past.add(told.at, Arc::clone(now));
            let usual_us = self.phases_us(told.at);
            if !usual_us.is_empty() {
                self.usual_us = usual_us;
            }
        }
        self.told = Some(told.clone());
    }

    /// Spans that it had no room for.
    pub(crate) fn spans_lost(&self) -> u64 {
        self.spans_lost.saturating_add(self.told.as_ref().map_or(0, |told| told.spans_lost))
    }

    /// From push to answer at each shard, in the last seconds.
    pub(crate) fn round_trips(&self, now: Duration) -> Vec<(ShardId, TimeHistogram)> {
        let Some((before, after, _)) = self.past.ends(now) else { return Vec::new() };
        let before_of = |shard| before.round_trips.iter().find(|before| before.shard == shard);
        let since = |(index, after): (usize, &RoundTrip)| {
            let is_same = |before: &&RoundTrip| before.shard == after.shard;
            // Nearly always they are told in the same order.
            let before = before.round_trips.get(index).filter(is_same);
            let before = before.or_else(|| before_of(after.shard));
            let times = before.map_or(after.times, |before| after.times.since(&before.times));
            (after.shard, times)
        };
        after.round_trips.iter().enumerate().map(since).collect()
    }

    /// As it is judged, by its row of that time.
    pub(crate) fn trainer<'a>(&'a self, now: Duration, row: &'a WorkerRow) -> Trainer<'a> {
        let last = self.past.last().map(|(_, last)| last);
        let at = last.and_then(|last| Some((last.phase.as_deref()?, Duration::from_micros(last.phase_us))));
        Trainer { row, at, stood: now.saturating_sub(self.past.rose()), usual_us: &self.usual_us }
    }

    fn phases_us(&self, now: Duration) -> Vec<(String, u64)> {
        let Some((before, after, _)) = self.past.ends(now) else { return Vec::new() };
        let steps = after.local_step.0.saturating_sub(before.local_step.0);
        per_step(&after.phases.since(&before.phases), steps)
    }

    pub(crate) fn row(&self, now: Duration) -> WorkerRow {
        let told = self.told.as_ref();
        let last = self.past.last().map(|(_, last)| Arc::clone(last)).unwrap_or_default();
        let mut row = WorkerRow {
            worker: self.seen.worker,
            state: self.seen.state,
            reported_ms: told.map(|told| now.saturating_sub(told.at).as_millis() as u64),
            local_step: told.map_or(LocalStep(0), |told| told.local_step),
            loss: told.and_then(|told| told.loss),
            verdicts: last.verdicts,
            skipped: last.skipped,
            reconnections: last.reconnections,
            resends: last.resends,
            ..WorkerRow::default()
        };
        // Who is away, or has ended, does nothing any more.
        let trains = self.seen.state == WorkerState::Training;
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
        // One step that was held up makes no phase slow.
        let typical = times.typical().map_or(mean, |typical| mean.min(typical.as_micros() as u64));
        Some((name.to_owned(), typical))
    };
    phases.iter().into_iter().filter_map(per_step).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seen(life: u64) -> WorkerSeen {
        let (state, life) = (WorkerState::Training, Some(Incarnation(life)));
        WorkerSeen { worker: 1, state, life, lives: 1, http: None }
    }

    proptest! {
        /// (A)–(C): of a worker that takes steps, reports, and is started again now and then.
        #[test]
        fn reports_add_up_over_all_lives(
            reports in prop::collection::vec((0u64..40, 1u64..4000, 0u64..3, 0u8..6), 1..60),
        ) {
            let mut worker = WorkerPast::new(seen(0));
            let (mut life, mut at, mut all, mut lost) = (0, 0, 0, 0);
            let mut stretch = Stretch::default();
            let mut now = WorkerSnapshot::default();
            let mut spans_lost = 0;
            for (steps, wait, more_lost, again) in reports {
                if again == 0 {
                    (life, now, spans_lost) = (life + 1, WorkerSnapshot::default(), 0);
                }
                at += wait;
                worker.see(Duration::from_millis(at), seen(life));
                at += wait;
                now.local_step.0 += steps;
                now.examples += 2 * steps;
                (0..steps).for_each(|_| now.phases.compute.record(Duration::from_micros(7)));
                (all, lost, spans_lost) = (all + steps, lost + more_lost, spans_lost + more_lost);
                let told = Told {
                    life: Incarnation(life),
                    at: Duration::from_millis(at),
                    local_step: now.local_step,
                    loss: None,
                    spans_lost,
                    snapshot: Some(Arc::new(now.clone())),
                };
                worker.tell(&told, &mut stretch);
                // What is known already is not counted twice, nor is what another life has said.
                worker.tell(&told, &mut stretch);
                worker.tell(&Told { life: Incarnation(99), at: told.at * 2, ..told }, &mut stretch);
                let row = worker.row(Duration::from_millis(at));
                prop_assert!(row.steps_per_s >= 0.0 && row.examples_per_s >= 0.0, "(A)");
                prop_assert!(row.steps_per_s <= (all as f64) * 1000.0, "(A)");
                let computes = |(name, us): &(String, u64)| *us == if name == "compute" { 7 } else { 0 };
                prop_assert!(row.phases_us.iter().all(computes));
                prop_assert_eq!(row.local_step, now.local_step);
                prop_assert_eq!((stretch.steps, stretch.examples, stretch.phases_us[1]), (all, 2 * all, 7 * all), "(B)");
                prop_assert_eq!(worker.spans_lost(), lost, "(C)");
            }
            let silent = worker.row(Duration::from_millis(at + 6000));
            prop_assert_eq!((silent.steps_per_s, silent.reported_ms), (0.0, Some(6000)));
        }
    }
}
