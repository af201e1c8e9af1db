//! Synchronisation policies: plain state machines that decide whether a push is applied, held or dropped,
//! when held gradients become an update, and when a worker may begin its next step. They only decide: the
//! shard applies gradients and sends replies.

mod appointments;
mod asynchronous;
mod bounded;
mod members;
mod policy;
mod repeating;
mod synchronous;
#[cfg(test)]
mod tests;

use pushpull_messages::sync::SyncSpec;

use asynchronous::Asynchronous;
use bounded::Bounded;
pub(crate) use members::Members;
pub(crate) use policy::{Admission, Candidate, Policy};
use repeating::Repeating;
use synchronous::Synchronous;

/// Returns the factor of the learning rate for a push with this staleness, if every push is applied at once
/// as an update of its own; `None` if updates take several pushes.
pub(crate) fn factor(spec: SyncSpec, staleness: u64) -> Option<f32> {
    match spec {
        SyncSpec::Async { staleness_lr } => Some(asynchronous::factor(staleness_lr, staleness)),
        SyncSpec::Bounded { .. } => Some(1.0),
        SyncSpec::Sync { .. } => None,
    }
}

/// Returns the policy that `spec` describes in a job with `workers` workers.
pub(crate) fn policy(spec: SyncSpec, workers: u32) -> Box<dyn Policy> {
    match spec {
        SyncSpec::Sync { aggregate: Some(aggregate) } if spec.repeats(workers) => {
            Box::new(Repeating::new(aggregate))
        }
        SyncSpec::Async { staleness_lr } => Box::new(Asynchronous { staleness_lr }),
        SyncSpec::Bounded { staleness } => Box::new(Bounded { staleness }),
        SyncSpec::Sync { aggregate } => Box::new(Synchronous::new(aggregate)),
    }
}
