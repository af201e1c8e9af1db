//! The trait of synchronisation policies, and the types of its decisions.

use pushpull_messages::id::{GlobalStep, Version};

use super::Members;

/// A push on which a policy decides. The shard has already checked that the push is new, comes from a
/// member, has gradients of the right sizes, and arrived before the last step was applied.
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
    /// The push is held, and later applied in one update together with other pushes.
    Hold,
    /// The push is dropped, because the values from which it was computed are `by` versions old.
    Stale { by: u64 },
}

/// A synchronisation policy. Every member has a next step, which the policy advances when it admits a push of
/// that member.
pub(crate) trait Policy: Send {
    /// Returns whether a member may push now. The member's next step must have begun, and the member must
    /// not have pushed a gradient for that step yet. If an update takes several gradients from a member, the
    /// result is always true.
    fn may_push(&self, worker: u32, version: Version, members: &Members) -> bool;

    /// Returns whether a push arrives after the update for which it was computed.
    fn is_late(&self, push: Candidate, version: Version) -> bool;

    /// Decides whether a push is applied, held or dropped when the shard is at `version`. Requires that
    /// [`may_push`](Self::may_push) has returned true. The gradients must be finite, too, unless the push is
    /// late.
    fn admit(&mut self, push: Candidate, version: Version, members: &mut Members) -> Admission;

    /// Returns whether the held gradients are to become an update now. The shard calls this whenever a push
    /// was held, or when a member joined, left or advanced to its next step.
    fn is_due(&self, version: Version, members: &Members) -> bool;

    /// Records that the held gradients have been applied as an update.
    fn updated(&mut self);

    /// Returns whether the member `worker`, whose next step is `step`, may get the values for that step now.
    fn may_begin(&self, worker: u32, step: GlobalStep, version: Version, members: &Members) -> bool;

    /// Returns the first step of a worker that joins when the shard is at `version`.
    fn first_step(&self, worker: u32, version: Version, members: &Members) -> GlobalStep;
}
