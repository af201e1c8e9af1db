//! The incarnation of a task (a number that distinguishes one run of the task from its earlier runs), its
//! nonce, and the span of the task's log lines.

use std::hash::{BuildHasher, Hasher, RandomState};

use pushpull_messages::id::{Incarnation, TaskId};
use pushpull_messages::observe;
use tracing::Span;

/// Returns the number of an incarnation that begins now: the time in microseconds since 1970. A later
/// incarnation has a greater number, as long as the clock is not set back.
pub(crate) fn incarnation() -> Incarnation {
    let now = observe::unix_time();
    Incarnation(u64::try_from(now.as_micros()).unwrap_or(u64::MAX))
}

/// Returns a random number, which distinguishes this start of a task from another one that happens in the
/// same microsecond.
pub(crate) fn nonce() -> u64 {
    // The keys of the hasher are random.
    RandomState::new().build_hasher().finish()
}

/// Returns the span of a task. Log lines within it name the task, even if several tasks run in one process.
pub(crate) fn span_of(task: TaskId) -> Span {
    // The log's filter lets this target pass, whichever lines it accepts.
    tracing::error_span!(target: "pushpull::spans", "task", task = %task)
}
