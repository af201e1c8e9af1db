//! Converts a traced step to spans: those of the worker, and those of the ps tasks that received its pushes.
//! Also converts times on the clocks of the ps tasks to the worker's clock. This module must not depend on
//! connections.
//!
//! Wanted properties: (A) any two spans of a lane either do not overlap, or one contains the other; (B)
//! every span of a push carries the id of the push, and lies between the start of the push and its reply.

use std::collections::BTreeMap;
use std::time::Instant;

use pushpull_messages::id::{LocalStep, ShardId, TaskId};
use pushpull_messages::observe::{Clock, LANE_BYTES_MAX, Micros, PushTimes, SPANS_MAX, SpanSpec, TraceSpec};

use super::alignment::{Alignment, CallTimes};
use super::moments::Moments;
use super::spans::Spans;
use crate::client::TracedPush;
use crate::devices::Work;

/// The minimum duration of a wait that is shown as a span. The wait lasts from when a reply is ready until
/// it is sent.
const WAIT_MIN_US: Micros = 20;

/// The maximum number of pieces of work that a traced step shows. If there are more, the longest pieces are
/// shown.
const WORK_MAX: usize = 1024;

/// A converter of traced steps to spans.
#[derive(Debug)]
pub(crate) struct Tracer {
    spec: TraceSpec,
    task: TaskId,
    clock: Clock,
    /// The estimate of each ps task's clock offset.
    clocks: BTreeMap<TaskId, Alignment>,
    spans: Spans,
    /// The number of pushes that may be in flight to a shard. As many lanes show them, so that (A) holds.
    pipeline: u32,
    /// The number of steps in which the times of operations are still to be recorded.
    ops_left: u32,
    /// The number of pieces of work in the last step for which the times of operations were recorded;
    /// [`WORK_MAX`] before the first such step.
    last_work: usize,
}

/// The times of a traced step, of its work on the devices, and of its pushes.
#[derive(Debug)]
pub(crate) struct TracedStep {
    pub local_step: LocalStep,
    pub moments: Moments,
    pub work: Vec<Work>,
    /// Whether `work` includes each single operation.
    pub ops: bool,
    pub pushes: Vec<TracedPush>,
}

impl Tracer {
    /// Creates a tracer for the worker `task` that adds its spans to `spans`.
    pub(crate) const fn new(spec: TraceSpec, task: TaskId, clock: Clock, spans: Spans) -> Self {
        let ops_left = spec.ops;
        let (pipeline, last_work) = (1, WORK_MAX);
        Self { spec, task, clock, clocks: BTreeMap::new(), spans, pipeline, ops_left, last_work }
    }

    /// Sets the number of steps that the worker may have in flight.
    #[must_use]
    pub(crate) const fn with_pipeline(mut self, pipeline: u32) -> Self {
        self.pipeline = pipeline;
        self
    }

    /// Returns true if this step is to be traced.
    pub(crate) const fn is_traced(&self, local_step: LocalStep) -> bool {
        self.spec.is_traced(local_step.0)
    }

    /// Returns true if a traced step is to record the time of every operation. A job records these times only
    /// in a limited number of steps. In addition, the step's spans and those that already wait must fill at
    /// most half of the next report. The other half is kept for steps without operations.
    pub(crate) fn has_room_for_ops(&self) -> bool {
        self.ops_left > 0 && self.spans.len() + self.last_work <= SPANS_MAX / 2
    }

    /// Converts a traced step to spans, and adds them to the spans of the next report.
    pub(crate) fn record(&mut self, step: &TracedStep) {
        for push in &step.pushes {
            if let Some(PushTimes { received_us: received, answered_us: answered, .. }) = push.times {
                let (sent, back) = self.on_its_way(push);
                let clock = self.clocks.entry(push.shard.task()).or_default();
                clock.hear(CallTimes { sent, received, answered, back });
            }
        }
        if step.ops {
            self.ops_left = self.ops_left.saturating_sub(1);
            self.last_work = step.work.len().min(WORK_MAX);
        }
        self.spans.put(self.spans_of(step));
    }

    /// Returns the pieces of work that a timeline shows of a step: the [`WORK_MAX`] longest, or all if there
    /// are fewer. They keep the order of `work`.
    fn shown(work: &[Work]) -> Vec<&Work> {
        let mut shown: Vec<(usize, &Work)> = work.iter().enumerate().collect();
        if shown.len() > WORK_MAX {
            shown
                .sort_by_key(|(_, work)| std::cmp::Reverse(work.ended.saturating_duration_since(work.began)));
            shown.truncate(WORK_MAX);
            shown.sort_by_key(|(position, _)| *position);
        }
        shown.into_iter().map(|(_, work)| work).collect()
    }

    /// Returns the time at which the whole push could be sent, and the time at which its reply arrived. If
    /// the reply seems to have arrived before the push could be sent, both times are the time of the reply's
    /// arrival.
    fn on_its_way(&self, push: &TracedPush) -> (Micros, Micros) {
        (self.clock.at(push.sent.max(push.complete).min(push.back)), self.clock.at(push.back))
    }

    fn spans_of(&self, step: &TracedStep) -> Vec<SpanSpec> {
        let own = |lane: String, name: &str, [from, until]: [Instant; 2]| {
            let (start_us, end_us) = (self.clock.at(from), self.clock.at(until));
            SpanSpec {
                task: self.task,
                lane,
                name: name.to_owned(),
                push: None,
                local_step: Some(step.local_step.0),
                start_us,
                took_us: end_us.saturating_sub(start_us).max(0),
            }
        };
        let trainer = |name, times| own("trainer".to_owned(), name, times);
        let mut spans = vec![trainer("step", [step.moments.begun, step.moments.ended])];
        spans.extend(step.moments.parts().map(|(name, from, until)| trainer(name, [from, until])));
        let work = |work: &Work| own(work.lane(), within(&work.name), [work.began, work.ended]);
        spans.extend(Self::shown(&step.work).into_iter().map(work));
        for push in &step.pushes {
            let lane = match push.id.sequence.0 % u64::from(self.pipeline) {
                0 => format!("to {}", push.shard),
                lane => format!("to {} ({})", push.shard, lane + 1),
            };
            let whole = own(lane, "push", [push.sent, push.back]);
            let whole = SpanSpec { push: Some((push.id, push.shard)), ..whole };
            let (sent, back) = self.on_its_way(push);
            let clock = self.clocks.get(&push.shard.task());
            let placed = push.times.and_then(|times| clock?.place(times, sent, back));
            let parts = placed.into_iter().flat_map(|times| parts_of(&whole, times, push.shard));
            spans.extend(std::iter::once(whole.clone()).chain(parts));
        }
        spans
    }
}

/// Shortens a name to the maximum length of a name in a span.
fn within(name: &str) -> &str {
    let fits = |end: &usize| name.is_char_boundary(*end);
    &name[..(0..=name.len().min(LANE_BYTES_MAX)).rev().find(fits).unwrap_or(0)]
}

/// Returns the spans of the parts of a push. `times` are on the worker's clock.
fn parts_of(whole: &SpanSpec, times: PushTimes, shard: ShardId) -> impl Iterator<Item = SpanSpec> {
    let PushTimes { received_us, taken_us, done_us, answered_us } = times;
    let part = |name: &str, from: Micros, until: Micros| SpanSpec {
        name: name.to_owned(),
        start_us: from,
        took_us: until - from,
        ..whole.clone()
    };
    let there = |name, from, until| SpanSpec {
        task: shard.task(),
        lane: format!("shard/{}", shard.shard),
        ..part(name, from, until)
    };
    let waited = answered_us - done_us >= WAIT_MIN_US;
    let parts = [
        Some(part("wire", whole.start_us, received_us)),
        Some(there("queue", received_us, taken_us)),
        Some(there("apply", taken_us, done_us)),
        waited.then(|| there("wait", done_us, answered_us)),
        Some(part("wire back", answered_us, whole.start_us + whole.took_us)),
    ];
    parts.into_iter().flatten()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use pushpull_messages::id::{Incarnation, Sequence};
    use pushpull_messages::message::PushId;

    use super::*;

    /// Returns true if (A) holds for the spans of a lane, given in any order: they nest or do not overlap.
    pub(crate) fn nest(mut spans: Vec<&SpanSpec>) -> bool {
        spans.sort_by_key(|span| (span.start_us, -span.took_us));
        let mut open: Vec<Micros> = Vec::new();
        spans.into_iter().all(|span| {
            let end = span.start_us + span.took_us;
            open.retain(|&until| until > span.start_us);
            let within = open.last().is_none_or(|&until| end <= until);
            open.push(end);
            within
        })
    }

    /// Checks that (A) holds in each lane of one step: the spans of a lane nest or do not overlap.
    fn check_lanes(spans: &[SpanSpec]) -> Result<(), TestCaseError> {
        let mut lanes: BTreeMap<(TaskId, &str), Vec<&SpanSpec>> = BTreeMap::new();
        for span in spans {
            prop_assert!(span.took_us >= 0 && span.local_step == Some(4));
            lanes.entry((span.task, span.lane.as_str())).or_default().push(span);
        }
        for (lane, spans) in lanes {
            prop_assert!(nest(spans.clone()), "(A): {lane:?}: {spans:?}");
        }
        Ok(())
    }

    /// Checks that (B) holds for one push: its spans lie between the push's start and its reply. If `whole`
    /// is true, also checks that the push has a span for each of its parts.
    fn check_push(
        spans: &[SpanSpec],
        push: &TracedPush,
        clock: Clock,
        whole: bool,
    ) -> Result<(), TestCaseError> {
        let (from, until) = (clock.at(push.sent), clock.at(push.back));
        let of: Vec<&SpanSpec> =
            spans.iter().filter(|span| span.push == Some((push.id, push.shard))).collect();
        prop_assert_eq!((of[0].name.as_str(), of[0].start_us), ("push", from), "(B)");
        for span in &of {
            prop_assert!(from <= span.start_us && span.start_us + span.took_us <= until, "(B)");
        }
        if whole {
            let names: Vec<&str> =
                of.iter().map(|span| span.name.as_str()).filter(|&name| name != "wait").collect();
            prop_assert_eq!(names, ["push", "wire", "queue", "apply", "wire back"]);
        }
        Ok(())
    }

    proptest! {
        /// Checks that the spans of each lane nest or do not overlap (A), and that the spans of each push
        /// lie within the push (B), for the true times of the ps tasks and for arbitrary times.
        #[test]
        fn spans_of_a_step_nest_and_pushes_hold_their_parts(
            took in any::<[u16; 6]>(),
            early in any::<bool>(),
            hasty in any::<bool>(),
            ways in prop::collection::vec(any::<[u16; 5]>(), 1..4),
            ahead in prop::collection::vec(-1_000_000i64..1_000_000, 3),
            wild in prop::option::of(any::<[i64; 4]>()),
        ) {
            let clock = Clock::start();
            let begun = Instant::now();
            let us = |us: u64| Duration::from_micros(us);
            let mut at = begun;
            let mut passes = |took: u16| {
                at += us(u64::from(took));
                at
            };
            let [fed, started, computed, filtered] = [took[0], took[1], took[2], took[3]].map(&mut passes);
            let sent = if early { started } else { filtered };
            // A push that is sent early may be complete, and answered, long before the other gradients are
            // computed.
            let complete = if early { started + (computed - started) / 2 } else { sent };
            let push = |(at, way): (usize, &[u16; 5])| {
                let shard = ShardId::new(at as u32 % 2, at as u32);
                let mut now = complete;
                let mut theirs = |took: u16| {
                    now += us(u64::from(took));
                    clock.at(now) + ahead[shard.ps as usize]
                };
                let [received_us, taken_us, done_us, answered_us] = [way[0], way[1], way[2], way[3]].map(&mut theirs);
                let times = PushTimes { received_us, taken_us, done_us, answered_us };
                let times = wild.map_or(times, |[received_us, taken_us, done_us, answered_us]| PushTimes {
                    received_us,
                    taken_us,
                    done_us,
                    answered_us,
                });
                let id = PushId { worker: 3, incarnation: Incarnation(1), sequence: Sequence(7) };
                // In the recorded times, the reply may arrive before the computation ends.
                let back = if early && hasty { sent } else { now + us(u64::from(way[4])) };
                TracedPush { shard, id, sent, complete, back, times: Some(times) }
            };
            let pushes: Vec<TracedPush> = ways.iter().enumerate().map(push).collect();
            let answered = pushes.iter().map(|push| push.back).max().unwrap().max(computed);
            let ended = answered + us(u64::from(took[5]));
            let (filtered, answered) = ((!early).then_some(filtered), Some(answered));
            let moments = Moments { begun, fed, started, computed, filtered, answered, ended, hooks: true };
            let work = vec![
                Work { device: 0, stream: None, name: "forward and backward".into(), began: started, ended: computed },
                Work { device: 0, stream: None, name: "ä".repeat(99).into(), began: started, ended: computed },
                Work { device: 0, stream: None, name: "reduce".into(), began: computed, ended: computed },
            ];
            let spans = Spans::default();
            let mut tracer = Tracer::new(TraceSpec::every(2), TaskId::worker(3), clock, spans.clone());
            let step = TracedStep { local_step: LocalStep(4), moments, work, ops: true, pushes: pushes.clone() };
            tracer.record(&step);
            let spans = spans.take(0);
            check_lanes(&spans)?;
            let whole = wild.is_none() && !(early && hasty);
            pushes.iter().try_for_each(|push| check_push(&spans, push, clock, whole))?;
        }
    }

    #[test]
    fn operations_are_few_and_leave_room_for_steps() {
        let (clock, spans, now) = (Clock::start(), Spans::default(), Instant::now());
        let spec = TraceSpec { every: 1, ops: 3 };
        let mut tracer = Tracer::new(spec, TaskId::worker(0), clock, spans.clone());
        let work = |number: u64| {
            let ended = now + Duration::from_micros(number);
            Work { device: 0, stream: None, name: format!("op {number}").into(), began: now, ended }
        };
        let moments = Moments {
            begun: now,
            fed: now,
            started: now,
            computed: now,
            filtered: None,
            answered: None,
            ended: now,
            hooks: false,
        };
        let record = |tracer: &mut Tracer, count: u64| {
            let work = (0..count).map(work).collect();
            let step = TracedStep { local_step: LocalStep(0), moments, work, ops: true, pushes: Vec::new() };
            tracer.record(&step);
            let names = spans.take(0).into_iter().filter(|span| span.lane == "device/0");
            names.map(|span| span.name).collect::<Vec<_>>()
        };
        assert!(tracer.has_room_for_ops());
        let names = record(&mut tracer, WORK_MAX as u64 + 5);
        assert_eq!((names.len(), names[0].as_str()), (WORK_MAX, "op 5"), "the longest, in order");
        assert_eq!(record(&mut tracer, 7).len(), 7);
        spans.put(vec![
            tracer.spans_of(&TracedStep {
                local_step: LocalStep(0),
                moments,
                work: vec![],
                ops: false,
                pushes: vec![]
            })[0]
                .clone();
            SPANS_MAX / 2 - 6
        ]);
        assert!(!tracer.has_room_for_ops(), "the report is half full");
        spans.take(0);
        assert!(tracer.has_room_for_ops());
        record(&mut tracer, 1);
        assert!(!tracer.has_room_for_ops(), "three steps were recorded");
    }
}
