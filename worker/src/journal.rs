//! What a worker has done so far, and where its time went: written by the training loop once a step, read by reports and
//! views, which hold nothing up. Knows neither.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pushpull_messages::id::{GlobalStep, LocalStep};
use pushpull_messages::observe::{ActorSnapshot, TimeHistogram, WorkerSnapshot};

use crate::exchanges::Exchanges;
use crate::moments::Moments;

/// Of one worker; shared.
#[derive(Clone, Debug, Default)]
pub(crate) struct Journal(Arc<Mutex<Page>>);

#[derive(Debug, Default)]
struct Page {
    /// Without what the exchanges count.
    snapshot: WorkerSnapshot,
    exchanges: Option<Exchanges>,
    loss_sum: f64,
    gradient_norm: Option<(LocalStep, f32)>,
    /// Whole steps.
    steps: TimeHistogram,
    /// Since when the step that is taken now is.
    since: Option<Instant>,
    /// What of it is done now, and since when.
    phase: Option<(&'static str, Instant)>,
    /// Batches that waited for the last step, and how many may.
    ready: Option<[usize; 2]>,
}

/// A step that was taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub moments: Moments,
    pub global_step: GlobalStep,
    /// Batches taken from the input, in all lives of the worker.
    pub drawn: u64,
    pub examples: u64,
    pub loss: f32,
    /// Where it was measured.
    pub gradient_norm: Option<f32>,
    /// Whether its gradients were pushed; they are dropped where they are not finite.
    pub pushed: bool,
}

/// How far a worker is; sums from the start on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    pub snapshot: WorkerSnapshot,
    pub loss_sum: f64,
    /// The norm that was measured last, and after which step.
    pub gradient_norm: Option<(LocalStep, f32)>,
}

impl Journal {
    /// Its pushes are counted there.
    pub(crate) fn exchanges(&self, exchanges: Exchanges) {
        self.lock().exchanges = Some(exchanges);
    }

    /// The training begins, or goes on, at that step.
    pub(crate) fn begin(&self, global_step: GlobalStep, drawn: u64) {
        let mut page = self.lock();
        (page.snapshot.global_step, page.snapshot.drawn) = (global_step, drawn);
        let now = Instant::now();
        (page.since, page.phase) = (Some(now), Some(("input", now)));
    }

    /// That phase of a step begins, by its name in what is observed.
    pub(crate) fn enter(&self, phase: &'static str, at: Instant) {
        self.lock().phase = Some((phase, at));
    }

    /// So many batches are ready, of so many that may be.
    pub(crate) fn ready(&self, batches: usize, max: usize) {
        self.lock().ready = Some([batches, max]);
    }

    /// A step was taken.
    pub(crate) fn step(&self, taken: &Taken) {
        let Taken { moments, global_step, drawn, examples, loss, gradient_norm, pushed } = *taken;
        let mut page = self.lock();
        let Page { snapshot, steps, since, phase, .. } = &mut *page;
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
        page.loss_sum += f64::from(loss);
        page.gradient_norm = gradient_norm.map(|norm| (local_step, norm)).or(page.gradient_norm);
    }

    /// No more steps.
    pub(crate) fn end(&self) {
        let mut page = self.lock();
        (page.since, page.phase) = (None, None);
    }

    /// How far it is.
    pub(crate) fn progress(&self) -> Progress {
        let (mut progress, exchanges) = {
            let page = self.lock();
            let Page { loss_sum, gradient_norm, phase, .. } = *page;
            let mut snapshot = page.snapshot.clone();
            snapshot.phase = phase.map(|(name, _)| name.to_owned());
            snapshot.phase_us = phase.map_or(0, |(_, since)| elapsed_us(since));
            (Progress { snapshot, loss_sum, gradient_norm }, page.exchanges.clone())
        };
        if let Some(exchanges) = exchanges {
            exchanges.show(&mut progress.snapshot);
        }
        progress
    }

    /// The loop and the input, as if they were actors.
    pub(crate) fn actors(&self, task: impl std::fmt::Display, doing: &str) -> Vec<ActorSnapshot> {
        let page = self.lock();
        let busy = page.since.map(elapsed_us);
        let trainer = ActorSnapshot {
            name: format!("{task}/trainer"),
            state: doing.to_owned(),
            handling: page.steps,
            busy_us: busy,
            ..Default::default()
        };
        let input = page.ready.map(|[batches, max]| ActorSnapshot {
            name: format!("{task}/input"),
            state: match page.since {
                None => "ended".to_owned(),
                Some(_) => format!("{batches} of {max} batches ready"),
            },
            queue: batches as u64,
            ..Default::default()
        });
        std::iter::once(trainer).chain(input).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Page> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn elapsed_us(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pushpull_messages::observe::Phases;

    use super::*;

    fn taken(loss: f32, pushed: bool) -> Taken {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let (filtered, answered) = (Some(at(3)), pushed.then(|| at(7)));
        let (fed, started, computed, ended) = (at(1), at(1), at(2), at(7));
        let moments = Moments { begun, fed, started, computed, filtered, answered, ended, hooks: false };
        let (gradient_norm, examples) = (pushed.then_some(2.0), 16);
        Taken { moments, global_step: GlobalStep(9), drawn: 5, examples, loss, gradient_norm, pushed }
    }

    #[test]
    fn steps_are_counted_and_those_that_were_dropped_beside_them() {
        let journal = Journal::default();
        journal.begin(GlobalStep(4), 3);
        assert_eq!(journal.progress().snapshot.drawn, 3);
        journal.ready(2, 4);
        journal.step(&taken(0.5, true));
        journal.step(&taken(f32::NAN, false));
        journal.step(&taken(0.25, true));
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
    fn what_the_trainer_is_at_is_seen_and_for_how_long() {
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
        journal.step(&taken(0.5, true));
        assert_eq!(at(&journal).0.as_deref(), Some("input"));
        journal.end();
        assert_eq!(at(&journal), (None, 0));
    }
}
