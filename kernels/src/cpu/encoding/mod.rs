//! Encodings that store numbers in fewer bytes than `f32`. The layouts of their bytes are part of the wire
//! format, so the tests hold samples. This module must not depend on what the numbers stand for.
//!
//! Wanted properties: (A) what is decoded differs from the input by at most the bound of the encoding; (B) an
//! input that is not finite is decoded to something that is not finite, and no finite input is; (C) what is
//! decoded plus the new remainder is the input plus the old remainder; (D) no bytes make decoding panic.

mod half;
mod int8;
#[cfg(test)]
mod tests;
mod top_k;

use std::fmt;

use half::{Brain, Half};

use super::threads::Threads;

/// A way to store `f32` numbers in fewer bytes. Numbers are little-endian, and the bytes are padded to a
/// multiple of 4 with zeros.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Encoding {
    /// IEEE 754 binary16: 11 bits of precision, from 6e-8 to 65504. Larger finite numbers become ±65504.
    Fp16,
    /// The upper half of an `f32`: 8 bits of precision, and the range of `f32`.
    Bf16,
    /// Blocks of 128 numbers, each with the scale `max |x| / 127` and one signed byte for each number: all
    /// scales, then all bytes. The error is at most half a scale.
    Int8,
    /// The numbers of the largest magnitudes: all indices as `u32`, increasing, then all numbers. The other
    /// numbers are decoded as 0 (Aji and Heafield, EMNLP 2017).
    TopK {
        /// The fraction of the numbers that are stored, rounded up to a whole number of them.
        fraction: f64,
    },
}

/// The error for bytes that no encoder writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadIndex {
    /// The position of the index among the indices.
    pub position: usize,
    /// The index.
    pub index: u32,
    /// The least index that may be at this position.
    pub least: usize,
    /// The number of elements, which every index must be below.
    pub elements: usize,
}

impl fmt::Display for BadIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { position, index, least, elements } = self;
        write!(f, "index {position} is {index}, expected at least {least} and less than {elements}")
    }
}

impl std::error::Error for BadIndex {}

impl Encoding {
    /// Returns the number of bytes in which `elements` numbers are stored; a multiple of 4.
    pub fn bytes(self, elements: usize) -> usize {
        let bytes = match self {
            Self::Fp16 | Self::Bf16 => 2 * elements,
            Self::Int8 => 4 * elements.div_ceil(int8::BLOCK) + elements,
            Self::TopK { fraction } => 8 * top_k::kept(elements, fraction),
        };
        bytes.next_multiple_of(4)
    }

    /// Returns whether `elements` numbers take fewer bytes in this encoding than as `f32`.
    pub fn shrinks(self, elements: usize) -> bool {
        self.bytes(elements) < 4 * elements
    }

    /// Returns whether numbers are encoded together with a remainder, see
    /// [`encode_with_remainder`](Self::encode_with_remainder).
    pub const fn has_remainder(self) -> bool {
        matches!(self, Self::Int8 | Self::TopK { .. })
    }

    /// Stores the numbers `from` in `to`. The threads share the work of `Int8`.
    ///
    /// # Panics
    /// If `to` does not have [`bytes`](Self::bytes) bytes, or if the encoding is `TopK`, which drops too much
    /// to be used without a remainder.
    #[track_caller]
    pub fn encode(self, to: &mut [u8], from: &[f32], threads: Threads) {
        self.check(to.len(), from.len());
        match self {
            Self::Fp16 => half::encode::<Half>(to, from),
            Self::Bf16 => half::encode::<Brain>(to, from),
            Self::Int8 => int8::encode(to, from, threads),
            Self::TopK { .. } => panic!("top-k needs a remainder"),
        }
    }

    /// Stores the numbers `from + remainder` in `to`, and replaces `remainder` with what the encoding has
    /// dropped of them. A caller that encodes the numbers of each step in this way drops nothing for ever:
    /// error feedback (Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019). Where the sum is not
    /// finite, the new remainder is 0.
    ///
    /// # Panics
    /// If the lengths do not fit each other, or if [`has_remainder`](Self::has_remainder) is false.
    #[track_caller]
    pub fn encode_with_remainder(self, to: &mut [u8], from: &[f32], remainder: &mut [f32]) {
        self.check(to.len(), from.len());
        assert_eq!(from.len(), remainder.len(), "a remainder of another length");
        match self {
            Self::Fp16 | Self::Bf16 => panic!("{self:?} has no remainder"),
            Self::Int8 => int8::encode_with_remainder(to, from, remainder),
            Self::TopK { .. } => top_k::encode(to, from, remainder),
        }
    }

    /// Computes the numbers `to` from the bytes `from`. Any bytes of the right length are decoded, except
    /// that the indices of `TopK` must increase and be less than the number of elements. The threads share
    /// the work of `Int8`.
    ///
    /// # Errors
    /// Returns the first index that is out of order or out of range.
    ///
    /// # Panics
    /// If `from` does not have [`bytes`](Self::bytes) bytes.
    #[track_caller]
    pub fn decode(self, to: &mut [f32], from: &[u8], threads: Threads) -> Result<(), BadIndex> {
        self.check(from.len(), to.len());
        match self {
            Self::Fp16 => half::decode::<Half>(to, from),
            Self::Bf16 => half::decode::<Brain>(to, from),
            Self::Int8 => int8::decode(to, from, threads),
            Self::TopK { .. } => return top_k::decode(to, from),
        }
        Ok(())
    }

    #[track_caller]
    fn check(self, bytes: usize, elements: usize) {
        let expected = self.bytes(elements);
        assert_eq!(bytes, expected, "{self:?}: {elements} numbers take {expected} bytes, but got {bytes}");
    }
}
