//! [`Epilogue`]: what happens to a sum before it is stored. It must not know what was summed.

/// What happens to a sum before it is stored.
#[derive(Clone, Copy, Debug)]
pub enum Epilogue<'a> {
    /// No value.
    Bare,
    /// `bias[j]` is added, one for each column (for a convolution: each output channel).
    Bias(&'a [f32]),
    /// `bias[j]` is added, then [`Unary::Relu`](super::unary::Unary::Relu).
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
