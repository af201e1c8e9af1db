//! How the elements of a column lie in memory between two batches: as small as they came.
//! Knows neither the column's name nor who asks for which example.

use std::collections::TryReserveError;
use std::sync::Arc;

use pushpull_messages::tensor::DType;

/// All elements of a column, one example after the other, each row-major.
#[derive(Clone, PartialEq)]
pub enum Storage {
    /// Of an `f32` column: bytes that are scaled from 0..255 to 0..1.
    Pixels(Vec<u8>),
    /// Of an `i32` column: bytes that stay what they are, such as tokens.
    Bytes(Vec<u8>),
    /// Floats.
    F32(Vec<f32>),
    /// Integers.
    I32(Vec<i32>),
    /// Of an `i32` column: windows into one text, which columns and workers share. Example `i` begins at
    /// `begin + i * stride`.
    Windows {
        /// The text.
        tokens: Arc<[u8]>,
        /// Where the first example begins.
        begin: usize,
        /// From one example's begin to the next one's; at least 1.
        stride: usize,
    },
}

impl Storage {
    /// The type of the elements that come out.
    pub const fn dtype(&self) -> DType {
        match self {
            Self::Pixels(_) | Self::F32(_) => DType::F32,
            Self::Bytes(_) | Self::I32(_) | Self::Windows { .. } => DType::I32,
        }
    }

    /// Whether it holds exactly `examples` examples of `elements` each; windows may leave a rest.
    pub(super) fn holds(&self, examples: usize, elements: usize) -> bool {
        let Some(all) = examples.checked_mul(elements) else { return false };
        match self {
            Self::Pixels(bytes) | Self::Bytes(bytes) => bytes.len() == all,
            Self::F32(values) => values.len() == all,
            Self::I32(values) => values.len() == all,
            Self::Windows { tokens, begin, stride } => {
                let last = (examples.saturating_sub(1)).checked_mul(*stride);
                let end = last.and_then(|last| last.checked_add(*begin)?.checked_add(elements));
                *stride > 0 && end.is_some_and(|end| end <= tokens.len())
            }
        }
    }

    /// Bytes of one element in memory.
    pub(super) const fn element_bytes(&self) -> u64 {
        match self {
            Self::Pixels(_) | Self::Bytes(_) | Self::Windows { .. } => 1,
            Self::F32(_) | Self::I32(_) => 4,
        }
    }

    /// Makes room for more elements; not for windows, which have a text already.
    pub(super) fn reserve(&mut self, elements: usize) -> Result<(), TryReserveError> {
        match self {
            Self::Pixels(bytes) | Self::Bytes(bytes) => bytes.try_reserve(elements),
            Self::F32(values) => values.try_reserve(elements),
            Self::I32(values) => values.try_reserve(elements),
            Self::Windows { .. } => Ok(()),
        }
    }

    /// Throws away all elements, and keeps the room.
    pub(super) fn clear(&mut self) {
        match self {
            Self::Pixels(bytes) | Self::Bytes(bytes) => bytes.clear(),
            Self::F32(values) => values.clear(),
            Self::I32(values) => values.clear(),
            Self::Windows { tokens, .. } => *tokens = Arc::from([]),
        }
    }

    /// How many elements it holds.
    pub(super) fn elements(&self) -> usize {
        match self {
            Self::Pixels(bytes) | Self::Bytes(bytes) => bytes.len(),
            Self::F32(values) => values.len(),
            Self::I32(values) => values.len(),
            Self::Windows { tokens, .. } => tokens.len(),
        }
    }

    /// Writes one example of a column of floats.
    pub(super) fn fill_f32(&self, example: u32, row: &mut [f32]) {
        let begin = example as usize * row.len();
        let range = begin..begin + row.len();
        match self {
            Self::Pixels(pixels) => {
                for (value, &pixel) in row.iter_mut().zip(&pixels[range]) {
                    *value = f32::from(pixel) / 255.0;
                }
            }
            Self::F32(values) => row.copy_from_slice(&values[range]),
            Self::Bytes(_) | Self::I32(_) | Self::Windows { .. } => unreachable!("a column of integers"),
        }
    }

    /// Writes one example of a column of integers.
    pub(super) fn fill_i32(&self, example: u32, row: &mut [i32]) {
        let begin = example as usize * row.len();
        let range = begin..begin + row.len();
        let bytes = match self {
            Self::Bytes(bytes) => &bytes[range],
            Self::Windows { tokens, begin, stride } => {
                &tokens[begin + example as usize * stride..][..row.len()]
            }
            Self::I32(values) => return row.copy_from_slice(&values[range]),
            Self::Pixels(_) | Self::F32(_) => unreachable!("a column of floats"),
        };
        for (value, &byte) in row.iter_mut().zip(bytes) {
            *value = byte.into();
        }
    }
}
