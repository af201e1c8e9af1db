//! Converts spans to OpenTelemetry spans; all spans of a step, including those of its pushes, form one
//! trace. Sends nothing. Wanted properties: (A) the spans of a step's pushes are in one trace, even if
//! different tasks report them, and each step has its own trace; (B) a parent is in the same trace as its
//! child, and no span is its own ancestor; a parent contains its child in time, unless the parent is a
//! worker's push and the child is the handling of this push on a shard; (C) the amount of remembered data is
//! bounded.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use pushpull_messages::id::{JobName, ShardId, TaskId};
use pushpull_messages::message::PushId;
use pushpull_messages::observe::{Micros, SpanSpec};

use super::latest::Latest;
use super::trace_event::PUSH;

/// The largest number of steps whose push is remembered.
const STEPS_MAX: usize = 4096;

/// A converter that remembers pushes from one call to the next.
#[derive(Debug)]
pub(super) struct OtelSpans {
    began: SystemTime,
    pushes: Latest<(u32, u64), PushId, STEPS_MAX>,
}

/// The key that identifies a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum TraceKey {
    Push(u32, u64, u64),
    Step(TaskId, u64),
    Alone(TaskId, Micros),
}

impl OtelSpans {
    /// Creates a converter for spans whose times are on a clock that was started at `began`.
    pub(super) fn new(began: SystemTime) -> Self {
        Self { began, pushes: Latest::new() }
    }

    /// Converts spans to OpenTelemetry spans.
    pub(super) fn of(&mut self, spans: &[SpanSpec]) -> Vec<SpanData> {
        for span in spans {
            if let (Some((push, _)), Some(step)) = (span.push, span.local_step) {
                self.pushes.remember((push.worker, step), push);
            }
        }
        let traces: Vec<TraceKey> = spans.iter().map(|span| self.trace(span)).collect();
        let mut together: HashMap<TraceKey, Vec<usize>> = HashMap::new();
        traces.iter().enumerate().for_each(|(index, trace)| together.entry(*trace).or_default().push(index));
        let data = |(index, span): (usize, &SpanSpec)| {
            let own = together[&traces[index]].iter().copied();
            let parent = parent(spans, index, own).map(|parent| &spans[parent]);
            self.data(span, traces[index], parent)
        };
        spans.iter().enumerate().map(data).collect()
    }

    fn trace(&self, span: &SpanSpec) -> TraceKey {
        let of_step = |step: u64| self.pushes.get(&(span.task.index, step)).copied();
        let push = span.push.map(|(push, _)| push);
        let of_worker = || span.local_step.filter(|_| span.task.job == JobName::Worker);
        match (push.or_else(|| of_worker().and_then(of_step)), span.local_step) {
            // The pushes to each shard have their own sequence numbers, so only the step number is common to
            // all pushes of one step.
            (Some(push), Some(step)) => TraceKey::Push(push.worker, push.incarnation.0, step),
            (Some(push), None) => TraceKey::Push(push.worker, push.incarnation.0, push.sequence.0),
            (None, Some(step)) => TraceKey::Step(span.task, step),
            (None, None) => TraceKey::Alone(span.task, span.start_us),
        }
    }

    fn data(&self, span: &SpanSpec, trace: TraceKey, parent: Option<&SpanSpec>) -> SpanData {
        let id = u128::from(hash(&(1, trace))) << 64 | u128::from(hash(&(2, trace)));
        let trace_id = TraceId::from_bytes(id.to_be_bytes());
        let context =
            SpanContext::new(trace_id, span_id(span), TraceFlags::SAMPLED, false, TraceState::default());
        let mut attributes = vec![
            KeyValue::new("pushpull.task", span.task.to_string()),
            KeyValue::new("pushpull.lane", span.lane.clone()),
        ];
        if let Some(step) = span.local_step {
            attributes.push(KeyValue::new("pushpull.local_step", i64::try_from(step).unwrap_or(i64::MAX)));
        }
        if let Some((push, shard)) = span.push {
            let PushId { worker, incarnation, sequence } = push;
            attributes
                .push(KeyValue::new("pushpull.push", format!("worker/{worker} {incarnation} {sequence}")));
            attributes.push(KeyValue::new("pushpull.shard", shard.to_string()));
        }
        SpanData {
            span_context: context,
            parent_span_id: parent.map_or(SpanId::INVALID, span_id),
            parent_span_is_remote: parent.is_some_and(|parent| parent.task != span.task),
            span_kind: SpanKind::Internal,
            name: span.name.clone().into(),
            start_time: self.at(span.start_us),
            end_time: self.at(span.start_us.saturating_add(span.took_us.max(0))),
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: InstrumentationScope::builder("pushpull").build(),
        }
    }

    fn at(&self, us: Micros) -> SystemTime {
        let away = Duration::from_micros(us.unsigned_abs());
        let at = if us < 0 { self.began.checked_sub(away) } else { self.began.checked_add(away) };
        at.unwrap_or(self.began)
    }
}

/// Returns the index of the parent of the span at `index`, if any. `own` has the indices of all spans in the
/// same trace. Of those with the same task and lane, the parent is the innermost one that contains the span.
/// If there is no such span, and the span is a shard's handling of a push, the parent is the worker's span of
/// that push.
fn parent(spans: &[SpanSpec], index: usize, own: impl Iterator<Item = usize>) -> Option<usize> {
    let span = &spans[index];
    let time = |span: &SpanSpec| (span.start_us, span.start_us.saturating_add(span.took_us.max(0)));
    let (start, end) = time(span);
    let around = |&other: &usize| {
        let (from, until) = time(&spans[other]);
        let longer = (until - from, index) > (end - start, other);
        spans[other].task == span.task
            && spans[other].lane == span.lane
            && from <= start
            && end <= until
            && longer
    };
    let own: Vec<usize> = own.filter(|&other| other != index).collect();
    let innermost = own.iter().copied().filter(around).min_by_key(|&other| (spans[other].took_us, other));
    innermost.or_else(|| {
        let is_push = |&other: &usize| {
            let other = &spans[other];
            other.task.job == JobName::Worker && other.name == PUSH && other.push == span.push
        };
        let on_shard = span.task.job == JobName::Ps && span.push.is_some();
        own.iter().copied().find(|other| on_shard && is_push(other))
    })
}

fn span_id(span: &SpanSpec) -> SpanId {
    let push: Option<(PushId, ShardId)> = span.push;
    let own = (span.task, &span.lane, &span.name, push, span.local_step, span.start_us, span.took_us);
    SpanId::from_bytes(hash(&own).to_be_bytes())
}

/// Returns a hash that is the same in every process.
fn hash(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    // The value 0 is not a valid identifier.
    hasher.finish().max(1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::super::spool::tests::{of_push, one_push, span};
    use super::*;

    proptest! {
        /// Checks that each push has its own trace (A), and that parents contain their children (B). The
        /// spans belong to up to four pushes, come from a worker or a shard, and have random times in a
        /// random order.
        #[test]
        fn a_push_is_a_trace_and_parents_contain_children(
            parts in prop::collection::vec((0u64..4, 0i64..30, 0i64..30, any::<bool>()), 1..60),
        ) {
            let spans: Vec<SpanSpec> = parts
                .into_iter()
                .map(|(push, start, took, shard)| {
                    let task = if shard { TaskId::ps(0) } else { TaskId::worker(1) };
                    let name = if shard { "apply" } else { PUSH };
                    of_push(push, ShardId::new(0, 0), span(task, "lane", name, start, took))
                })
                .map(|span| SpanSpec { local_step: None, ..span })
                .collect();
            let data = OtelSpans::new(SystemTime::UNIX_EPOCH).of(&spans);
            let traces: HashMap<TraceId, Vec<usize>> = data.iter().enumerate().fold(HashMap::new(), |mut all, (index, data)| {
                all.entry(data.span_context.trace_id()).or_default().push(index);
                all
            });
            let pushes: HashSet<_> = spans.iter().map(|span| span.push).collect();
            prop_assert_eq!(traces.len(), pushes.len(), "(A)");
            for own in traces.values() {
                prop_assert!(own.iter().all(|&index| spans[index].push == spans[own[0]].push), "(A)");
                for &index in own {
                    let mut at = parent(&spans, index, own.iter().copied());
                    let mut seen = HashSet::from([index]);
                    while let Some(ancestor) = at {
                        prop_assert!(seen.insert(ancestor), "(B)");
                        let inside = data[ancestor].start_time <= data[index].start_time
                            && data[index].end_time <= data[ancestor].end_time;
                        prop_assert!(inside || spans[ancestor].task != spans[index].task, "(B)");
                        at = parent(&spans, ancestor, own.iter().copied());
                    }
                }
            }
        }
    }

    #[test]
    fn the_pushes_of_a_step_are_one_trace() {
        let push = |sequence, shard, step| {
            let push = of_push(sequence, ShardId::new(0, shard), span(TaskId::worker(1), "to", PUSH, 0, 1));
            SpanSpec { local_step: Some(step), ..push }
        };
        // One shard has had three more pushes than the other.
        let spans = [push(7, 0, 20), push(4, 1, 20), push(10, 0, 23), push(7, 1, 23)];
        let data = OtelSpans::new(SystemTime::UNIX_EPOCH).of(&spans);
        let [a, b, c, d] = [0, 1, 2, 3].map(|index: usize| data[index].span_context.trace_id());
        assert!(a == b && c == d && a != c);
    }

    #[test]
    fn a_shard_is_below_the_push_of_its_step() {
        let spans = one_push();
        let began = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let data = OtelSpans::new(began).of(&spans);
        let traces: HashSet<TraceId> = data[..7].iter().map(|data| data.span_context.trace_id()).collect();
        assert_eq!(traces.len(), 1);
        assert!(!traces.contains(&data[7].span_context.trace_id()), "a checkpoint is of no push");
        for apply in [2, 5] {
            assert_eq!(data[apply].parent_span_id, data[apply - 2].span_context.span_id());
            assert!(data[apply].parent_span_is_remote);
        }
        assert_eq!(data[6].parent_span_id, SpanId::INVALID);
        assert_eq!(data[2].start_time, began + Duration::from_micros(1_800));
        assert_eq!(data[2].end_time, began + Duration::from_micros(2_100));
    }

    #[test]
    fn remembered_steps_are_bounded() {
        let mut spans = OtelSpans::new(SystemTime::UNIX_EPOCH);
        for step in 0..STEPS_MAX as u64 + 5 {
            let push = of_push(step, ShardId::new(0, 0), span(TaskId::worker(1), "l", PUSH, 0, 1));
            spans.of(&[SpanSpec { local_step: Some(step), ..push }]);
        }
        let known = |step: usize| spans.pushes.get(&(1, step as u64)).is_some();
        assert!(!known(4) && known(5) && known(STEPS_MAX + 4));
    }
}
