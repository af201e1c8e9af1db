//! The life of a task: the number that tells it from earlier lives, and the span that its log lines belong
//! to.

use std::time::{SystemTime, UNIX_EPOCH};

use pushpull_messages::id::{Incarnation, TaskId};
use tracing::Span;

/// Returns the number of a life that begins now: microseconds since 1970, so that a later life has a greater
/// number as far as the clock is right.
pub(crate) fn incarnation() -> Incarnation {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Incarnation(u64::try_from(now.as_micros()).unwrap_or(u64::MAX))
}

/// Returns the span of a task. What is logged within it names the task, where several tasks run in one
/// process.
pub(crate) fn span_of(task: TaskId) -> Span {
    // The level of an error: a filter that lets any line through must let the span through, too.
    tracing::error_span!("task", task = %task)
}
