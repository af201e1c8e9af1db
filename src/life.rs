//! The incarnation of a task: the number that distinguishes a run of a task from earlier runs. Also the span
//! that the task's log lines belong to.

use std::time::{SystemTime, UNIX_EPOCH};

use pushpull_messages::id::{Incarnation, TaskId};
use tracing::Span;

/// Returns the number of an incarnation that begins now: the microseconds since 1970. As long as the clock is
/// right, a later incarnation has a greater number.
pub(crate) fn incarnation() -> Incarnation {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Incarnation(u64::try_from(now.as_micros()).unwrap_or(u64::MAX))
}

/// Returns the span of a task. Log lines within it name the task, even if several tasks run in one process.
pub(crate) fn span_of(task: TaskId) -> Span {
    // The span has the level ERROR, so that a filter that lets any line through lets the span through as
    // well.
    tracing::error_span!("task", task = %task)
}
