//! A worker's progress, and the time that it spent in each phase. The training loop updates the journal in
//! each step; reports and views read the journal without delaying the loop. This module must not depend on
//! reports or on views.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use pushpull_input::SkippedRecords;
use pushpull_messages::graph::GraphSpec;
use pushpull_messages::id::{GlobalStep, LocalStep};
use pushpull_messages::observe::{self, ActorSnapshot, TimeHistogram, WorkerSnapshot};

use super::moments::Moments;
use crate::client::ExchangeCounters;
use crate::fetches::FetchedPart;
use crate::metric_totals::MetricTotals;

/// The journal of one worker. Clones share the same journal.
#[derive(Clone, Debug, Default)]
pub(crate) struct Journal(Arc<Mutex<JournalState>>);

#[derive(Debug, Default)]
struct JournalState {
    /// The worker's snapshot, without the counters of its pushes and pulls.
    snapshot: WorkerSnapshot,
    counters: Option<ExchangeCounters>,
    skipped: Option<SkippedRecords>,
    loss_sum: f64,
    gradient_norm: Option<(LocalStep, f32)>,
    /// The totals of the metrics over the batches since the last call of `take_metrics`.
    metrics: Option<MetricTotals>,
    /// The durations of whole steps.
    steps: TimeHistogram,
    /// When the current step began.
    since: Option<Instant>,
    /// The name of the current phase, and when it began.
    phase: Option<(&'static str, Instant)>,
    /// The number of batches that were ready before the most recent step, and the maximum number that can be
    /// ready.
    ready: Option<[usize; 2]>,
}

/// The result of one step, as the journal records it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepRecord<'a> {
    pub moments: Moments,
    pub global_step: GlobalStep,
    /// The number of batches taken from the input, including those in earlier runs of the worker.
    pub drawn: u64,
    pub examples: u64,
    pub loss: f32,
    /// The norm of the gradients, if it was measured.
    pub gradient_norm: Option<f32>,
    /// For each device, the values that it has fetched, which begin with the metrics. Empty if the step did
    /// not compute the metrics.
    pub metrics: &'a [FetchedPart],
    /// True if the gradients were pushed; false if they were dropped because they were not finite.
    pub pushed: bool,
}

/// A worker's progress since its start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    pub snapshot: WorkerSnapshot,
    pub loss_sum: f64,
    /// The most recently measured norm of the gradients, and the step at which it was measured.
    pub gradient_norm: Option<(LocalStep, f32)>,
}

impl Journal {
    /// Sets the counters of the worker's pushes and pulls, which later snapshots include.
    pub(crate) fn counters(&self, counters: ExchangeCounters) {
        self.0.lock().counters = Some(counters);
    }

    /// Sets the counter of skipped damaged records, which later snapshots include.
    pub(crate) fn skipped(&self, skipped: SkippedRecords) {
        self.0.lock().skipped = Some(skipped);
    }

    /// Sets the graph, whose metrics are then recorded with each later step.
    pub(crate) fn metrics(&self, graph: &GraphSpec) {
        self.0.lock().metrics = Some(MetricTotals::new(MetricTotals::kinds(graph)));
    }

    /// Returns the metrics over the batches since the last call, in the order of the graph; empty if they
    /// were not computed.
    pub(crate) fn take_metrics(&self) -> Vec<f32> {
        let mut state = self.0.lock();
        let Some(totals) = state.metrics.as_mut().filter(|totals| totals.examples() > 0) else {
            return Vec::new();
        };
        let values = totals.values();
        totals.clear();
        values
    }

    /// Records that the training begins, or continues, at `global_step`.
    pub(crate) fn begin(&self, global_step: GlobalStep, drawn: u64) {
        let mut state = self.0.lock();
        (state.snapshot.global_step, state.snapshot.drawn) = (global_step, drawn);
        let now = observe::now();
        (state.since, state.phase) = (Some(now), Some(("input", now)));
    }

    /// Records that a phase of a step begins at `at`. `phase` is the phase's name in the snapshot.
    pub(crate) fn enter(&self, phase: &'static str, at: Instant) {
        self.0.lock().phase = Some((phase, at));
    }

    /// Records how many batches are ready, and how many can be ready at most.
    pub(crate) fn ready(&self, batches: usize, max: usize) {
        self.0.lock().ready = Some([batches, max]);
    }

    /// Records a completed step.
    pub(crate) fn step(&self, step: &StepRecord<'_>) {
        let StepRecord { moments, global_step, drawn, examples, loss, gradient_norm, metrics, pushed } =
            *step;
        let mut state = self.0.lock();
        let JournalState { snapshot, steps, since, phase, .. } = &mut *state;
        moments.count(&mut snapshot.phases);
        steps.record(moments.ended.saturating_duration_since(moments.begun));
        (*since, *phase) = (Some(moments.ended), Some(("input", moments.ended)));
        (snapshot.global_step, snapshot.drawn, snapshot.loss) = (global_step, drawn, Some(loss));
        snapshot.examples += examples;
        if !pushed {
            snapshot.skipped += 1;
            return;
        }
        snapshot.local_step = snapshot.local_step.next();
        let local_step = snapshot.local_step;
        state.loss_sum += f64::from(loss);
        if let Some(totals) = &mut state.metrics {
            metrics.iter().for_each(|own| totals.add(&own.values, own.examples));
        }
        state.gradient_norm = gradient_norm.map(|norm| (local_step, norm)).or(state.gradient_norm);
    }

    /// Records that the current step began at `at`, while earlier ones are in flight.
    pub(crate) fn next_step(&self, at: Instant) {
        let mut state = self.0.lock();
        (state.since, state.phase) = (Some(at), Some(("input", at)));
    }

    /// Records that no further step is taken.
    pub(crate) fn end(&self) {
        let mut state = self.0.lock();
        (state.since, state.phase) = (None, None);
    }

    /// Returns the worker's progress so far.
    pub(crate) fn progress(&self) -> Progress {
        let (mut progress, counters) = {
            let state = self.0.lock();
            let JournalState { loss_sum, gradient_norm, phase, .. } = *state;
            let mut snapshot = state.snapshot.clone();
            snapshot.phase = phase.map(|(name, _)| name.to_owned());
            snapshot.records_skipped = state.skipped.as_ref().map_or(0, SkippedRecords::count);
            snapshot.phase_us = phase.map_or(0, |(_, since)| elapsed_us(since));
            (Progress { snapshot, loss_sum, gradient_norm }, state.counters.clone())
        };
        if let Some(counters) = counters {
            counters.show(&mut progress.snapshot);
        }
        progress
    }

    /// Returns snapshots of the training loop and of the input, shown as if they were actors.
    pub(crate) fn actors(&self, task: impl std::fmt::Display, doing: &str) -> Vec<ActorSnapshot> {
        let state = self.0.lock();
        let busy = state.since.map(elapsed_us);
        let trainer = ActorSnapshot {
            name: format!("{task}/trainer"),
            state: doing.to_owned(),
            handling: state.steps,
            busy_us: busy,
            ..Default::default()
        };
        let input = state.ready.map(|[batches, max]| ActorSnapshot {
            name: format!("{task}/input"),
            state: match state.since {
                None => "ended".to_owned(),
                Some(_) => format!("{batches} of {max} batches ready"),
            },
            queue: batches as u64,
            ..Default::default()
        });
        std::iter::once(trainer).chain(input).collect()
    }
}

fn elapsed_us(since: Instant) -> u64 {
    u64::try_from(observe::since(since).as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pushpull_messages::graph::GraphBuilder;
    use pushpull_messages::observe::Phases;

    use super::*;

    fn record(loss: f32, pushed: bool) -> StepRecord<'static> {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let (filtered, answered) = (Some(at(3)), pushed.then(|| at(7)));
        let (fed, started, computed, ended) = (at(1), at(1), at(2), at(7));
        let moments = Moments { begun, fed, started, computed, filtered, answered, ended, hooks: false };
        let (gradient_norm, examples) = (pushed.then_some(2.0), 16);
        let (global_step, metrics) = (GlobalStep(9), &[][..]);
        StepRecord { moments, global_step, drawn: 5, examples, loss, gradient_norm, metrics, pushed }
    }

    #[test]
    fn pushed_and_dropped_steps_are_counted_apart() {
        let journal = Journal::default();
        journal.begin(GlobalStep(4), 3);
        assert_eq!(journal.progress().snapshot.drawn, 3);
        journal.ready(2, 4);
        journal.step(&record(0.5, true));
        journal.step(&record(f32::NAN, false));
        journal.step(&record(0.25, true));
        let Progress { snapshot, loss_sum, gradient_norm } = journal.progress();
        assert_eq!((snapshot.local_step, snapshot.skipped, snapshot.examples), (LocalStep(2), 1, 48));
        assert_eq!((snapshot.global_step, snapshot.drawn, snapshot.loss), (GlobalStep(9), 5, Some(0.25)));
        assert_eq!((loss_sum, gradient_norm), (0.75, Some((LocalStep(2), 2.0))));
        let phases = snapshot.phases.iter().map(|(_, times)| (times.count(), times.sum_us));
        assert_eq!(phases, [(3, 3000), (3, 3000), (3, 3000), (2, 8000), (0, 0)]);
        let [trainer, input] = &journal.actors("worker/1", "training")[..] else { panic!("two of them") };
        assert_eq!((trainer.name.as_str(), trainer.handling.count()), ("worker/1/trainer", 3));
        assert!(trainer.busy_us.is_some() && trainer.state == "training");
        assert_eq!((input.state.as_str(), input.queue), ("2 of 4 batches ready", 2));
        journal.end();
        assert!(journal.actors("worker/1", "ended").iter().all(|actor| actor.busy_us.is_none()));
    }

    #[test]
    fn metrics_are_those_of_pushed_steps_since_the_last_report() {
        let mut g = GraphBuilder::new("small");
        let x = g.input("features", [1]);
        let loss = g.l2_loss(x);
        let graph = g.finish(loss, &[("half", loss)]).unwrap();
        let journal = Journal::default();
        journal.step(&record(0.5, true));
        journal.metrics(&graph);
        assert!(journal.take_metrics().is_empty());
        let fetched = |examples, value: f32| FetchedPart { examples, values: vec![value, 9.0] };
        let metrics = &[fetched(1, 4.0), fetched(3, 8.0)][..];
        journal.step(&StepRecord { metrics, ..record(0.5, true) });
        journal.step(&StepRecord { metrics: &[fetched(4, 100.0)], ..record(0.5, false) });
        journal.step(&record(0.5, true));
        assert_eq!(journal.take_metrics(), [7.0]);
        assert!(journal.take_metrics().is_empty());
    }

    #[test]
    fn the_current_phase_and_its_duration_are_shown() {
        let journal = Journal::default();
        let at = |journal: &Journal| {
            let Progress { snapshot, .. } = journal.progress();
            (snapshot.phase, snapshot.phase_us)
        };
        assert_eq!(at(&journal), (None, 0));
        journal.begin(GlobalStep(0), 0);
        assert_eq!(at(&journal).0.as_deref(), Some("input"));
        let since = Instant::now().checked_sub(Duration::from_secs(7)).expect("a clock that is not new");
        for (phase, _) in Phases::default().iter() {
            journal.enter(phase, since);
            let (seen, us) = at(&journal);
            assert_eq!(seen.as_deref(), Some(phase));
            assert!((7_000_000..3_600_000_000).contains(&us) && phase.len() <= Phases::NAME_BYTES_MAX);
        }
        journal.step(&record(0.5, true));
        assert_eq!(at(&journal).0.as_deref(), Some("input"));
        journal.end();
        assert_eq!(at(&journal), (None, 0));
    }
}
