//! Lists the actors of this process, with their states, queues and times, in a form that people can read.

use pushpull_messages::observe::{ActorSnapshot, TaskSnapshot, TimeHistogram};
use serde::Serialize;

/// One actor, as `/actors` shows it. Times are in milliseconds.
#[derive(Debug, Serialize)]
pub(super) struct ActorRow {
    task: String,
    name: String,
    state: String,
    queue: u64,
    handled: u64,
    handling_p50_ms: Option<f64>,
    handling_p99_ms: Option<f64>,
    waited_p50_ms: Option<f64>,
    waited_p99_ms: Option<f64>,
    /// The time that the actor has spent on its current message; `None` if it has none.
    busy_ms: Option<f64>,
}

/// Returns the actors of all tasks.
pub(super) fn actors(tasks: &[TaskSnapshot]) -> Vec<ActorRow> {
    let quantile = |times: &TimeHistogram, q| times.quantile(q).map(|time| time.as_micros() as f64 / 1e3);
    let all = tasks.iter().flat_map(|task| task.actors.iter().map(move |actor| (task, actor)));
    let row = |(task, actor): (&TaskSnapshot, &ActorSnapshot)| ActorRow {
        task: task.task.to_string(),
        name: actor.name.clone(),
        state: actor.state.clone(),
        queue: actor.queue,
        handled: actor.handling.count(),
        handling_p50_ms: quantile(&actor.handling, 0.5),
        handling_p99_ms: quantile(&actor.handling, 0.99),
        waited_p50_ms: quantile(&actor.waited, 0.5),
        waited_p99_ms: quantile(&actor.waited, 0.99),
        busy_ms: actor.busy_us.map(|us| us as f64 / 1e3),
    };
    all.map(row).collect()
}
