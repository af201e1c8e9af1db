//! What the programs of all tasks have in common: they run on the current thread, within the span of their
//! log.

use tracing::Instrument;

use crate::programs::logging::Log;

/// Runs a future on this thread, in an actor system. What the future logs goes to `log`.
pub(super) fn run<T>(log: &Log, future: impl Future<Output = T>) -> T {
    actix_rt::System::new().block_on(future.instrument(log.span()))
}
