//! [`Epilogue`]: the operation that is applied to a sum before it is stored. This module must not depend on
//! what is summed.

/// The operation that is applied to a sum before it is stored.
#[derive(Clone, Copy, Debug)]
pub enum Epilogue<'a> {
    /// Stores the sum without change.
    Bare,
    /// Adds `bias[j]` to each element of column `j` (for a convolution: of output channel `j`).
    Bias(&'a [f32]),
    /// Adds `bias[j]`, then applies [`Unary::Relu`](super::unary::Unary::Relu).
    BiasRelu(&'a [f32]),
}

impl<'a> Epilogue<'a> {
    /// Returns the bias, if there is one.
    pub(super) fn bias(self) -> Option<&'a [f32]> {
        match self {
            Self::Bare => None,
            Self::Bias(bias) | Self::BiasRelu(bias) => Some(bias),
        }
    }
}
