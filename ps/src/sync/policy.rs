//! The trait of synchronisation policies: what a policy decides, and about which pushes.

use pushpull_messages::id::{GlobalStep, Version};

use super::Members;

/// A push that has passed all checks that do not depend on the policy: it is new, its gradients are finite
/// and have the right sizes, it comes from a member, and its step is before the last one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub worker: u32,
    /// The version of the values from which the gradient was computed; never greater than the shard's
    /// version.
    pub read: Version,
}

/// What a policy decides about a push.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Admission {
    /// The push is applied at once, as an update of its own, with the learning rate multiplied by
    /// `learning_rate_factor`.
    Apply { learning_rate_factor: f32 },
    /// The push is held, and later applied in one update together with others.
    Hold,
    /// The push is dropped: the update for which it was computed was made `by` versions ago.
    Stale { by: u64 },
}

/// A synchronisation policy. Every member has a next step, which the policy advances when it admits a push of
/// that member.
pub(crate) trait Policy: Send {
    /// Returns whether a member may push now: its next step must have begun, and the member must not have
    /// pushed a gradient for that step yet.
    fn may_push(&self, worker: u32, version: Version, members: &Members) -> bool;

    /// Returns whether a push arrives after the update for which it was computed.
    fn is_late(&self, push: Candidate, version: Version) -> bool;

    /// Decides what becomes of a push, at this version of the shard. [`may_push`](Self::may_push) must have
    /// returned true.
    fn admit(&mut self, push: Candidate, version: Version, members: &mut Members) -> Admission;

    /// Returns whether the held gradients are to become an update now. The shard calls this whenever a push
    /// was held, or a member joined, left or advanced.
    fn is_due(&self, version: Version, members: &Members) -> bool;

    /// Records that the held gradients have been applied as an update.
    fn updated(&mut self);

    /// Returns whether a member whose next step is `step` may get the values for that step now.
    fn may_begin(&self, step: GlobalStep, version: Version, members: &Members) -> bool;

    /// Returns the first step of a worker that joins at this moment.
    fn first_step(&self, worker: u32, version: Version, members: &Members) -> GlobalStep;
}
