//! Fetches: tensors of a training step that are computed and returned in addition to the loss and the
//! gradients. This module must not depend on the use of the tensors.
//!
//! Required properties: (A) no fetch changes a bit of the loss or of the gradients; (B) if only fetches
//! need an instruction, it runs only in steps that ask for a group of these fetches; all other instructions
//! have the same kernels as in a program without fetches.

use pushpull_messages::id::NodeId;

/// A set of groups of fetches. A step computes the fetches of the groups that it asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Groups(u8);

impl Groups {
    /// No group.
    pub const NONE: Self = Self(0);
    /// The group of the results that every step computes.
    pub(super) const ALWAYS: Self = Self(1 << Self::MAX);
    /// The number of groups that callers can use.
    pub const MAX: u32 = 7;

    /// Returns the set that has only the group with this number.
    ///
    /// # Panics
    /// If the number is not below [`MAX`](Self::MAX).
    pub const fn only(number: u32) -> Self {
        assert!(number < Self::MAX, "there is no such group");
        Self(1 << number)
    }

    /// Returns the union of both sets.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true if the sets have a group in common.
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns true if the set has no group.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// A tensor that some training steps return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// The node that computes the tensor. It must return floats.
    pub node: NodeId,
    /// The groups that the fetch belongs to.
    pub groups: Groups,
}
