//! The stages of a shard's life.

/// How far a shard is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It has not been given its variables.
    #[default]
    Empty,
    /// The values it begins with are being read from a checkpoint.
    Restoring,
    /// It accepts gradients.
    Serving,
    /// It has reached its last step.
    Complete,
}

impl Stage {
    /// Returns the stage's name, as snapshots show it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Restoring => "restoring",
            Self::Serving => "serving",
            Self::Complete => "complete",
        }
    }
}
