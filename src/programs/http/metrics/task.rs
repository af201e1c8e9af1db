//! Samples of any task: its state and its actors.

use pushpull_messages::observe::{TaskSnapshot, TaskState};

use super::exposition::Samples;

pub(super) fn samples(task: &TaskSnapshot, out: &mut Samples<'_>) {
    out.gauge("pushpull_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    out.one_of("pushpull_task_state", "state", &TaskState::ALL.map(TaskState::as_str), task.state.as_str());
    out.gauge("pushpull_task_start_time_seconds", &[], task.incarnation.started_us() as f64 / 1e6);
    for actor in &task.actors {
        let labels = &[("actor", &*actor.name)];
        out.gauge("pushpull_actor_queue_messages", labels, actor.queue as f64);
        out.times("pushpull_actor_waiting_seconds", labels, &actor.waited);
        out.times("pushpull_actor_handling_seconds", labels, &actor.handling);
        out.gauge("pushpull_actor_busy_seconds", labels, actor.busy_us.unwrap_or(0) as f64 / 1e6);
    }
}
