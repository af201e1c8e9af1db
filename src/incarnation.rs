//! The incarnation of a task (a number that distinguishes one run of the task from its earlier runs), its
//! nonce, and the span of the task's log lines.

use std::hash::{BuildHasher, Hasher, RandomState};

use pushpull_messages::id::{Incarnation, TaskId};
use pushpull_messages::observe::WallClock;
use tracing::Span;

/// Returns the number of an incarnation that begins now: the time in microseconds since 1970. It only
/// distinguishes the incarnations of a task. The chief decides which incarnation is later, because clocks
/// may be wrong.
pub(crate) fn incarnation() -> Incarnation {
    Incarnation(WallClock::default().unix_us())
}

/// Returns a random number, which distinguishes this start of a task from another start in the same
/// microsecond.
pub(crate) fn nonce() -> u64 {
    // The keys of the hasher are random.
    RandomState::new().build_hasher().finish()
}

/// Returns the span of a task. Log lines within it name the task, even if several tasks run in one process.
pub(crate) fn span_of(task: TaskId) -> Span {
    // The log's filter accepts spans of this target even if `RUST_LOG` turns all lines off.
    tracing::error_span!(target: "pushpull::spans", "task", task = %task)
}
