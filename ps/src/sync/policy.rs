//! What every synchronisation policy decides, and about what. Knows no particular policy.

use pushpull_messages::id::{GlobalStep, Version};

use super::Members;

/// A push that passed every check that does not depend on the policy: it is new, finite and of the right
/// sizes, from a member, and before the last step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub worker: u32,
    /// The version of the values from which the gradient was computed; at most the shard's own.
    pub read: Version,
}

/// What a policy decides about a push.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Admission {
    /// It becomes an update of its own at once, with the learning rate multiplied by `learning_rate_factor`.
    Apply { learning_rate_factor: f32 },
    /// It is held, and becomes an update together with others.
    Hold,
    /// The update it was meant for was made `by` versions ago: it is dropped.
    Stale { by: u64 },
}

/// A synchronisation policy. Every member has a next step; the policy advances it when it admits a push.
pub(crate) trait Policy: Send {
    /// Returns whether a member may push now: its next step has begun, and it has not pushed a gradient for
    /// it.
    fn may_push(&self, worker: u32, version: Version, members: &Members) -> bool;

    /// Returns whether a push arrives after the update it was meant for.
    fn is_late(&self, push: Candidate, version: Version) -> bool;

    /// Decides about a push for which [`may_push`](Self::may_push) holds, at this version of the shard.
    fn admit(&mut self, push: Candidate, version: Version, members: &mut Members) -> Admission;

    /// Returns whether the held gradients make an update now. The shard asks whenever a push was held, or
    /// members joined, left or advanced.
    fn is_due(&self, version: Version, members: &Members) -> bool;

    /// Notes that the held gradients have become an update.
    fn updated(&mut self);

    /// Returns whether a member whose next step is `step` may have the values for it.
    fn may_begin(&self, step: GlobalStep, version: Version, members: &Members) -> bool;

    /// Returns the first step of a worker that joins now.
    fn first_step(&self, worker: u32, version: Version, members: &Members) -> GlobalStep;
}
