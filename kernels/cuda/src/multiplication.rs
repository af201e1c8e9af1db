//! Products of matrices, and what computes them: our own kernels or a library of the device. This module must
//! not depend on which library that is.

use std::fmt;
use std::str::FromStr;

/// What is done with a sum before it is stored. The bias has one number for each column or channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epilogue {
    /// Stores the sum without change.
    Bare,
    /// Adds the bias, which is the input behind the factors.
    Bias,
    /// Adds the bias, and replaces negative numbers with 0.
    BiasRelu,
}

/// How factors are rounded before they are multiplied. Sums are always `f32`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Precision {
    /// Not at all.
    #[default]
    F32,
    /// To 10 bits behind the point, with the exponents of `f32`. Tensor cores multiply such numbers several
    /// times faster.
    Tf32,
    /// To `bf16`, which has 7 bits behind the point and the exponents of `f32`.
    Bf16,
    /// To `fp16`, which has 10 bits behind the point, and exponents from -14 to 15. Each matrix is first
    /// multiplied by a power of two that makes its largest number fit, and the results are divided by both.
    Fp16,
}

impl Precision {
    /// Returns whether factors are stored in two bytes each.
    pub const fn is_narrow(self) -> bool {
        matches!(self, Self::Bf16 | Self::Fp16)
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "fp32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
        })
    }
}

/// The error for the name of another precision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no precision '{0}', expected fp32, tf32, bf16 or fp16")]
pub struct NoPrecision(String);

impl FromStr for Precision {
    type Err = NoPrecision;

    fn from_str(text: &str) -> Result<Self, NoPrecision> {
        let all = [Self::F32, Self::Tf32, Self::Bf16, Self::Fp16];
        all.into_iter().find(|own| own.to_string() == text).ok_or_else(|| NoPrecision(text.to_owned()))
    }
}

/// What multiplies matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Multiplier {
    /// Our own kernels, in `f32`.
    #[default]
    Own,
    /// The device's library: see [`Driver::has_library`](crate::Driver::has_library).
    Library(Precision),
}

/// `batch` products epilogue(a · b) of matrices in row-major order, which lie side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Multiplication {
    /// The number of products, at least 1.
    pub batch: usize,
    /// The number of rows of a result, the number of terms of each sum, and the number of columns; each of
    /// them is at least 1.
    pub sizes: [usize; 3],
    /// Whether a is stored as `[terms, rows]`, and b as `[columns, terms]`.
    pub transposed: [bool; 2],
    /// How the factors are rounded, and whether they are stored in two bytes each.
    pub precision: Precision,
    /// What is done with a sum before it is stored.
    pub epilogue: Epilogue,
}
