//! What the programs of all tasks have in common: they run on this thread, within their log.

use tracing::Instrument;

use crate::programs::logging::Log;

/// Runs a future on this thread, in an actor system; what it logs belongs to `log`.
pub(super) fn run<T>(log: &Log, future: impl Future<Output = T>) -> T {
    actix_rt::System::new().block_on(future.instrument(log.span()))
}
