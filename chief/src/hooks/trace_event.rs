//! Converts spans to events of the Chrome trace format, which Perfetto opens: each task is a process, each
//! row of a lane is a thread, and a push is a flow from the computation of its gradients to the shard and
//! back. Writes no file. Wanted properties: (A) the spans of one thread are disjoint or nested if its lane
//! has enough rows; (B) the amount of remembered data is bounded; (C) all events of a push have the same id,
//! even if different tasks report them.

use std::collections::{BTreeMap, HashMap, VecDeque};

use pushpull_messages::id::{JobName, ShardId, TaskId};
use pushpull_messages::message::PushId;
use pushpull_messages::observe::{Micros, SpanSpec};
use serde_json::{Value, json};

use super::latest::Latest;

/// The name of the worker's span in which the gradients of a push are computed.
pub(super) const COMPUTE: &str = "compute";
/// The name of the worker's span from a push to its reply.
pub(super) const PUSH: &str = "push";
/// The name of the span in which a shard applies a push.
pub(super) const APPLY: &str = "apply";

/// The largest number of threads over all processes. Once it is reached, spans that need a further thread
/// share one of the existing threads of their process; all spans of a new process share one thread.
const THREADS_MAX: usize = 4096;
/// The largest number of rows of one lane. Spans that overlap without being nested are drawn in different
/// rows.
const ROWS_MAX: usize = 8;
/// The largest number of remembered spans of a row. This number covers a few seconds. Fewer spans would not
/// be enough, because workers report the same period at different times.
const RECENT_MAX: usize = 1024;
/// The largest number of steps whose `compute` span is remembered.
const COMPUTED_MAX: usize = 4096;

/// A timeline. It remembers earlier spans in order to find free rows and to draw arrows for later spans.
#[derive(Debug)]
pub(super) struct TraceEvents {
    processes: BTreeMap<TaskId, Process>,
    threads: usize,
    computed: Latest<(TaskId, u64), DrawnSpan, COMPUTED_MAX>,
}

#[derive(Debug, Default)]
struct Process {
    lanes: HashMap<String, Vec<Row>>,
    threads: u64,
}

#[derive(Debug)]
struct Row {
    thread: u64,
    recent: VecDeque<(Micros, Micros)>,
}

/// The position of a span in the timeline.
#[derive(Clone, Copy, Debug)]
struct DrawnSpan {
    process: u64,
    thread: u64,
    start: Micros,
    end: Micros,
}

impl DrawnSpan {
    /// Returns the last microsecond within the span.
    const fn last(self) -> Micros {
        if self.end > self.start { self.end - 1 } else { self.start }
    }
}

impl TraceEvents {
    /// Creates an empty timeline.
    pub(super) fn new() -> Self {
        Self { processes: BTreeMap::new(), threads: 0, computed: Latest::new() }
    }

    /// Converts spans to events of the trace format.
    pub(super) fn of(&mut self, spans: &[SpanSpec]) -> Vec<Value> {
        let mut events = Vec::new();
        let mut drawn = Vec::new();
        for span in spans {
            let slice = self.draw(span, &mut events);
            if let (COMPUTE, None, Some(step)) = (span.name.as_str(), &span.push, span.local_step) {
                self.computed.remember((span.task, step), slice);
            }
            drawn.push(slice);
        }
        for (span, slice) in spans.iter().zip(drawn) {
            self.flow(span, slice, &mut events);
        }
        events
    }

    fn draw(&mut self, span: &SpanSpec, events: &mut Vec<Value>) -> DrawnSpan {
        let process = process(span.task);
        let thread = self.thread(span, events);
        let mut args = serde_json::Map::new();
        if let Some(step) = span.local_step {
            args.insert("local_step".into(), step.into());
        }
        if let Some((push, shard)) = span.push {
            let PushId { worker, incarnation, sequence } = push;
            args.insert("push".into(), format!("worker/{worker} {incarnation} {sequence}").into());
            args.insert("shard".into(), shard.to_string().into());
        }
        events.push(json!({
            "name": span.name, "cat": "span", "ph": "X", "ts": span.start_us, "dur": span.took_us.max(0),
            "pid": process, "tid": thread, "args": args,
        }));
        let end = span.start_us.saturating_add(span.took_us.max(0));
        DrawnSpan { process, thread, start: span.start_us, end }
    }

    /// Returns the number of the thread in which a span is drawn. First adds the events that name the thread
    /// and its process, unless they were added before.
    fn thread(&mut self, span: &SpanSpec, events: &mut Vec<Value>) -> u64 {
        let pid = process(span.task);
        let full = self.threads >= THREADS_MAX;
        if full && !self.processes.contains_key(&span.task) {
            return 0;
        }
        let own = self.processes.entry(span.task).or_insert_with(|| {
            events.push(named("process_name", pid, 0, json!({ "name": span.task.to_string() })));
            events.push(named("process_sort_index", pid, 0, json!({ "sort_index": pid })));
            Process::default()
        });
        let time = (span.start_us, span.start_us.saturating_add(span.took_us.max(0)));
        if full && !own.lanes.contains_key(&span.lane) {
            return own.threads;
        }
        let rows = own.lanes.entry(span.lane.clone()).or_default();
        let free = rows.iter().position(|row| row.recent.iter().all(|&other| !crosses(time, other)));
        let index = match free {
            Some(row) => row,
            None if rows.len() == ROWS_MAX || full => rows.len() - 1,
            None => {
                own.threads += 1;
                self.threads += 1;
                let thread = own.threads;
                let name = match rows.len() {
                    0 => span.lane.clone(),
                    row => format!("{} ({})", span.lane, row + 1),
                };
                events.push(named("thread_name", pid, thread, json!({ "name": name })));
                let index = json!({ "sort_index": rank(&span.lane) * 10_000 + thread });
                events.push(named("thread_sort_index", pid, thread, index));
                rows.push(Row { thread, recent: VecDeque::new() });
                rows.len() - 1
            }
        };
        let row = &mut rows[index];
        if row.recent.len() == RECENT_MAX {
            row.recent.pop_front();
        }
        row.recent.push_back(time);
        row.thread
    }

    /// If the span belongs to a push, adds the push's arrows that begin or end at this span.
    fn flow(&self, span: &SpanSpec, slice: DrawnSpan, events: &mut Vec<Value>) {
        let Some((push, shard)) = span.push else { return };
        let mut arrow = |phase: &str, at: DrawnSpan, ts: Micros| {
            let mut event = json!({
                "name": "push", "cat": "push", "ph": phase, "id": flow_id(push, shard), "ts": ts,
                "pid": at.process, "tid": at.thread,
            });
            if phase == "f" {
                // The arrow ends at the enclosing span, and not at the next one.
                event["bp"] = "e".into();
            }
            events.push(event);
        };
        match (span.task.job, span.name.as_str()) {
            (JobName::Worker, PUSH) => {
                let computed = span.local_step.and_then(|step| self.computed.get(&(span.task, step)));
                match computed {
                    // A push may begin before the last gradient is computed.
                    Some(computed) if computed.start <= slice.start => {
                        arrow("s", *computed, computed.last().min(slice.start));
                        arrow("t", slice, slice.start);
                    }
                    _ => arrow("s", slice, slice.start),
                }
                arrow("f", slice, slice.last());
            }
            (JobName::Ps, APPLY) => arrow("t", slice, slice.start),
            _ => {}
        }
    }
}

/// Returns whether two spans overlap and neither contains the other.
const fn crosses(one: (Micros, Micros), other: (Micros, Micros)) -> bool {
    let overlap = one.0 < other.1 && other.0 < one.1;
    let within = (one.0 >= other.0 && one.1 <= other.1) || (other.0 >= one.0 && other.1 <= one.1);
    overlap && !within
}

fn named(name: &str, process: u64, thread: u64, args: Value) -> Value {
    json!({ "name": name, "ph": "M", "pid": process, "tid": thread, "args": args })
}

/// Returns the process number of a task. The numbers follow the order of the tasks in a cluster.
const fn process(task: TaskId) -> u64 {
    let job = match task.job {
        JobName::Chief => 0,
        JobName::Ps => 1,
        JobName::Worker => 2,
        JobName::Evaluator => 3,
        JobName::Other(_) => 4,
    };
    job * 1_000_000 + task.index as u64 + 1
}

/// Returns the position of a lane among the lanes of its task.
fn rank(lane: &str) -> u64 {
    match lane.split(['/', ' ']).next() {
        Some("trainer") => 0,
        Some("device" | "shard") => 1,
        Some("to") => 2,
        _ => 3,
    }
}

/// Returns the id of a push to a shard, which is the same in the spans of all tasks. The id is an FNV-1a
/// hash, cut to 52 bits, because every JSON reader represents integers of this length exactly.
fn flow_id(push: PushId, shard: ShardId) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let parts = [
        u64::from(push.worker),
        push.incarnation.0,
        push.sequence.0,
        u64::from(shard.ps) << 32 | u64::from(shard.shard),
    ];
    for byte in parts.into_iter().flat_map(u64::to_le_bytes) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash >> 12
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::spool::tests::{of_push, span};
    use super::*;

    proptest! {
        /// Checks that the spans of a thread nest or are disjoint (A), and that the number of rows is
        /// bounded (B), for spans with random times in two lanes of a ps task.
        #[test]
        fn spans_of_a_thread_are_apart_or_nested(
            spans in prop::collection::vec((0i64..60, 0i64..40, any::<bool>()), 1..60),
        ) {
            let mut events = TraceEvents::new();
            let mut threads: BTreeMap<u64, Vec<(i64, i64)>> = BTreeMap::new();
            for (start, took, lane) in spans {
                let lane = if lane { "shard/0" } else { "shard/1" };
                for event in events.of(&[span(TaskId::ps(0), lane, "apply", start, took)]) {
                    if event["ph"] == "X" {
                        let thread = event["tid"].as_u64().unwrap();
                        threads.entry(thread).or_default().push((start, start + took));
                    }
                }
            }
            for own in events.processes.values() {
                for rows in own.lanes.values() {
                    prop_assert!(rows.len() <= ROWS_MAX, "(B)");
                    // The last row takes spans that do not fit into any other row.
                    for row in rows.iter().take(ROWS_MAX - 1) {
                        let drawn = &threads[&row.thread];
                        let pairs = drawn.iter().flat_map(|one| drawn.iter().map(move |other| (*one, *other)));
                        for (one, other) in pairs {
                            prop_assert!(!crosses(one, other), "(A) {one:?} and {other:?}");
                        }
                    }
                }
            }
        }

        /// Checks that different pushes have different ids, and that one push has different ids for two
        /// shards (C).
        #[test]
        fn a_push_has_one_identity(sequences in prop::collection::hash_set(any::<u64>(), 2..50)) {
            let ids: std::collections::HashSet<u64> = sequences
                .iter()
                .map(|&sequence| {
                    let (push, shard) =
                        of_push(sequence, ShardId::new(0, 1), span(TaskId::ps(0), "", "", 0, 0)).push.unwrap();
                    assert_ne!(flow_id(push, shard), flow_id(push, ShardId::new(1, 0)));
                    flow_id(push, shard)
                })
                .collect();
            prop_assert_eq!(ids.len(), sequences.len());
            prop_assert!(ids.iter().all(|id| *id < 1 << 53));
        }
    }

    /// Checks that the spans of a thread nest or are disjoint (A) if four workers report spans of one shard.
    /// Each report has the spans of many pushes of one worker, which overlap with the spans of other
    /// workers.
    #[test]
    fn spans_of_several_workers_do_not_cross() {
        let mut events = TraceEvents::new();
        let mut threads: BTreeMap<u64, Vec<(i64, i64)>> = BTreeMap::new();
        for second in 0..3i64 {
            for worker in 0..4i64 {
                let of_push = |nth| {
                    span(TaskId::ps(0), "shard/0", "queue", second * 100_000 + nth * 500 + worker * 100, 150)
                };
                let spans: Vec<SpanSpec> = (0..200i64).map(of_push).collect();
                for event in events.of(&spans).iter().filter(|event| event["ph"] == "X") {
                    let [start, took] = ["ts", "dur"].map(|name| event[name].as_i64().unwrap());
                    threads.entry(event["tid"].as_u64().unwrap()).or_default().push((start, start + took));
                }
            }
        }
        assert!(threads.len() < ROWS_MAX, "two overlap at a time: {}", threads.len());
        for drawn in threads.values_mut() {
            drawn.sort_unstable();
            assert!(drawn.windows(2).all(|pair| !crosses(pair[0], pair[1])));
        }
    }

    #[test]
    fn remembered_steps_and_threads_are_bounded() {
        let mut events = TraceEvents::new();
        for step in 0..COMPUTED_MAX as u64 + 9 {
            let mut span = span(TaskId::worker(0), &format!("lane {step}"), COMPUTE, 5, 1);
            span.local_step = Some(step);
            events.of(&[span]);
        }
        let known = |step: usize| events.computed.get(&(TaskId::worker(0), step as u64)).is_some();
        assert!(!known(8) && known(9) && known(COMPUTED_MAX + 8));
        assert_eq!(
            (events.threads, events.processes[&TaskId::worker(0)].lanes.len()),
            (THREADS_MAX, THREADS_MAX)
        );
        // Later spans are drawn, but not remembered.
        for index in 1..99 {
            let drawn = events.of(&[span(TaskId::worker(index), "trainer", COMPUTE, 5, 1)]);
            assert_eq!((drawn.len(), &drawn[0]["ph"]), (1, &Value::from("X")));
        }
        assert_eq!((events.threads, events.processes.len()), (THREADS_MAX, 1));
    }
}
