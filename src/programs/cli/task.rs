//! Runs the program of any task on the current thread, within the span of the task's log.

use tracing::Instrument;

use crate::programs::logging::Log;

/// Runs a future on this thread, in an actor system. The lines that the future logs go to `log`.
pub(super) fn run<T>(log: &Log, future: impl Future<Output = T>) -> T {
    actix_rt::System::new().block_on(future.instrument(log.span()))
}
