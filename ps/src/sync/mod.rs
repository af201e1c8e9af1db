//! Synchronisation policies: plain state machines that say what becomes of a push, when what is held makes an update,
//! and when a worker may begin its next step. They carry nothing out, and know neither gradients nor replies.

mod asynchronous;
mod bounded;
mod members;
#[cfg(test)]
mod simulation;
mod synchronous;

use pushpull_messages::id::{GlobalStep, Version};
use pushpull_messages::sync::SyncSpec;

use asynchronous::Asynchronous;
use bounded::Bounded;
pub(crate) use members::Members;
use synchronous::Synchronous;

/// A push that is new, fits and is finite, of a worker that takes part, before the last step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub worker: u32,
    /// Of the values that it was computed from; not beyond the shard's own.
    pub read: Version,
}

/// What shall become of a push.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Admission {
    /// It becomes an update of its own, now, with the step size times `rate`.
    Apply { rate: f32 },
    /// It is kept, and becomes an update together with others.
    Hold,
    /// The update that it was meant for was made so many updates ago: it becomes nothing.
    Stale { by: u64 },
}

/// Decides. Every member has a next step; the policy moves it on when it admits a push.
pub(crate) trait Policy: Send {
    /// Whether a member may push now: its next step has begun, and it has not given a gradient for it.
    fn may_push(&self, worker: u32, version: Version, members: &Members) -> bool;

    /// Whether a push comes after the update that it was meant for.
    fn is_late(&self, push: Candidate, version: Version) -> bool;

    /// What shall become of a push that may be made, at this version of the shard.
    fn admit(&mut self, push: Candidate, version: Version, members: &mut Members) -> Admission;

    /// Whether what is held makes an update now. Asked whenever a push was held, or members have come, gone or
    /// moved on.
    fn is_due(&self, version: Version, members: &Members) -> bool;

    /// What was held has become an update.
    fn updated(&mut self);

    /// Whether a member whose next step is `step` may have the values for it.
    fn may_begin(&self, step: GlobalStep, version: Version, members: &Members) -> bool;

    /// The step with which a worker begins that joins now.
    fn first_step(&self, worker: u32, version: Version, members: &Members) -> GlobalStep;
}

/// The policy that a job asks for.
pub(crate) fn policy(spec: SyncSpec) -> Box<dyn Policy> {
    match spec {
        SyncSpec::Async { staleness_lr } => Box::new(Asynchronous { staleness_lr }),
        SyncSpec::Bounded { staleness } => Box::new(Bounded { staleness }),
        SyncSpec::Sync { aggregate } => Box::new(Synchronous::new(aggregate)),
    }
}
