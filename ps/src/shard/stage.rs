//! The stages of a shard, from empty to complete.

/// The stage that a shard has reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The chief has not created the shard's variables yet.
    #[default]
    Empty,
    /// The values that the shard begins with are being read from a checkpoint.
    Restoring,
    /// The shard accepts gradients.
    Serving,
    /// The shard has reached its last step.
    Complete,
}

impl Stage {
    /// Returns the stage's name for snapshots.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Restoring => "restoring",
            Self::Serving => "serving",
            Self::Complete => "complete",
        }
    }
}
