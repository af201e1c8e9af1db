//! The number of inputs of an operation.

/// The number of inputs that an operation takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    /// Exactly this number of inputs.
    Exactly(usize),
    /// At least this number of inputs.
    AtLeast(usize),
}

impl Arity {
    /// Returns true if this number of inputs is allowed.
    pub const fn allows(self, inputs: usize) -> bool {
        match self {
            Self::Exactly(count) => inputs == count,
            Self::AtLeast(count) => inputs >= count,
        }
    }
}

impl std::fmt::Display for Arity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exactly(count) => write!(f, "{count}"),
            Self::AtLeast(count) => write!(f, "{count} or more"),
        }
    }
}
