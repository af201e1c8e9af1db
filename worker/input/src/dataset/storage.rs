//! The elements of a column in memory, in the element type of their source. This module must not depend on
//! the name of the column or on which examples are read.

use std::collections::TryReserveError;
use std::sync::Arc;

use pushpull_messages::tensor::DType;

/// The elements of a column. The examples are stored one after the other, and each example is row-major.
#[derive(Clone, PartialEq)]
pub enum Storage {
    /// The bytes of an `f32` column, which are scaled from 0..255 to 0..1 when they are read.
    Pixels(Vec<u8>),
    /// The bytes of an `i32` column, such as tokens.
    Bytes(Vec<u8>),
    /// The elements of an `f32` column.
    F32(Vec<f32>),
    /// The elements of an `i32` column.
    I32(Vec<i32>),
    /// An `i32` column whose examples are windows into one text. Columns and workers share the text. Example
    /// `i` begins at the token `begin + i * stride`.
    Windows {
        /// The bytes of the whole text.
        tokens: Arc<[u8]>,
        /// The index of the token at which the first example begins.
        begin: usize,
        /// The number of tokens between the beginnings of two successive examples; at least 1.
        stride: usize,
    },
}

impl Storage {
    /// Returns the type in which the elements are read: `f32` or `i32`.
    pub const fn dtype(&self) -> DType {
        match self {
            Self::Pixels(_) | Self::F32(_) => DType::F32,
            Self::Bytes(_) | Self::I32(_) | Self::Windows { .. } => DType::I32,
        }
    }

    /// Returns true if the storage holds exactly `examples` examples of `elements` elements each. A text cut
    /// into windows may have tokens left over.
    pub(crate) fn holds(&self, examples: usize, elements: usize) -> bool {
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

    /// Returns a storage with only the first `examples` examples, of `elements` elements each.
    pub(crate) fn first(&self, examples: usize, elements: usize) -> Self {
        let all = examples * elements;
        match self {
            Self::Pixels(bytes) => Self::Pixels(bytes[..all].to_vec()),
            Self::Bytes(bytes) => Self::Bytes(bytes[..all].to_vec()),
            Self::F32(values) => Self::F32(values[..all].to_vec()),
            Self::I32(values) => Self::I32(values[..all].to_vec()),
            Self::Windows { .. } => self.clone(),
        }
    }

    /// Returns the number of bytes that one element takes in memory.
    pub(crate) const fn element_bytes(&self) -> u64 {
        match self {
            Self::Pixels(_) | Self::Bytes(_) | Self::Windows { .. } => 1,
            Self::F32(_) | Self::I32(_) => 4,
        }
    }

    /// Reserves memory for `elements` more elements. Does nothing for windows, whose text is complete
    /// already.
    pub(crate) fn reserve(&mut self, elements: usize) -> Result<(), TryReserveError> {
        match self {
            Self::Pixels(bytes) | Self::Bytes(bytes) => bytes.try_reserve(elements),
            Self::F32(values) => values.try_reserve(elements),
            Self::I32(values) => values.try_reserve(elements),
            Self::Windows { .. } => Ok(()),
        }
    }

    /// Removes all elements, but does not free the memory.
    pub(crate) fn clear(&mut self) {
        match self {
            Self::Pixels(bytes) | Self::Bytes(bytes) => bytes.clear(),
            Self::F32(values) => values.clear(),
            Self::I32(values) => values.clear(),
            Self::Windows { tokens, .. } => *tokens = Arc::from([]),
        }
    }

    /// Returns an empty storage of the same kind, or an empty storage of bytes if this one is a text cut
    /// into windows.
    pub(crate) fn empty(&self) -> Self {
        match self {
            Self::Pixels(_) => Self::Pixels(Vec::new()),
            Self::Bytes(_) | Self::Windows { .. } => Self::Bytes(Vec::new()),
            Self::F32(_) => Self::F32(Vec::new()),
            Self::I32(_) => Self::I32(Vec::new()),
        }
    }

    /// Appends elements that are given as bytes: pixel values for a column of floats, tokens for a column of
    /// integers.
    pub(crate) fn extend_bytes(&mut self, bytes: impl Iterator<Item = u8>) {
        match self {
            Self::Pixels(own) | Self::Bytes(own) => own.extend(bytes),
            Self::F32(own) => own.extend(bytes.map(|byte| f32::from(byte) / 255.0)),
            Self::I32(own) => own.extend(bytes.map(i32::from)),
            Self::Windows { .. } => unreachable!("a text is complete"),
        }
    }

    /// Appends the example at index `index` of `from`. An example has `elements` elements.
    ///
    /// # Panics
    /// If this storage holds bytes and `from` does not, or if their elements have different types.
    pub(crate) fn copy(&mut self, from: &Self, index: usize, elements: usize) {
        let range = index * elements..(index + 1) * elements;
        match (self, from) {
            (Self::Pixels(to), Self::Pixels(from)) | (Self::Bytes(to), Self::Bytes(from)) => {
                to.extend_from_slice(&from[range]);
            }
            (Self::Bytes(to), Self::Windows { tokens, begin, stride }) => {
                to.extend_from_slice(&tokens[begin + index * stride..][..elements]);
            }
            (Self::F32(to), from) => {
                let end = to.len();
                to.resize(end + elements, 0.0);
                from.fill_f32(index, &mut to[end..]);
            }
            (Self::I32(to), from) => {
                let end = to.len();
                to.resize(end + elements, 0);
                from.fill_i32(index, &mut to[end..]);
            }
            _ => unreachable!("numbers cannot be stored as bytes"),
        }
    }

    /// Replaces the example at index `index` with the example at index `other` of `from`. Both storages must
    /// be of the same kind. An example has `elements` elements.
    pub(crate) fn replace(&mut self, index: usize, from: &Self, other: usize, elements: usize) {
        let to = index * elements..(index + 1) * elements;
        let range = other * elements..(other + 1) * elements;
        match (self, from) {
            (Self::Pixels(own), Self::Pixels(from)) | (Self::Bytes(own), Self::Bytes(from)) => {
                own[to].copy_from_slice(&from[range]);
            }
            (Self::F32(own), Self::F32(from)) => own[to].copy_from_slice(&from[range]),
            (Self::I32(own), Self::I32(from)) => own[to].copy_from_slice(&from[range]),
            _ => unreachable!("blocks of one data set store their elements in the same way"),
        }
    }

    /// Keeps only the first `elements` elements. Does nothing for windows.
    pub(crate) fn truncate(&mut self, elements: usize) {
        match self {
            Self::Pixels(bytes) | Self::Bytes(bytes) => bytes.truncate(elements),
            Self::F32(values) => values.truncate(elements),
            Self::I32(values) => values.truncate(elements),
            Self::Windows { .. } => {}
        }
    }

    /// Returns the number of elements.
    pub(crate) fn elements(&self) -> usize {
        match self {
            Self::Pixels(bytes) | Self::Bytes(bytes) => bytes.len(),
            Self::F32(values) => values.len(),
            Self::I32(values) => values.len(),
            Self::Windows { tokens, .. } => tokens.len(),
        }
    }

    /// Writes one example of an `f32` column to `row`.
    pub(crate) fn fill_f32(&self, example: usize, row: &mut [f32]) {
        let begin = example * row.len();
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

    /// Writes one example of an `i32` column to `row`.
    pub(crate) fn fill_i32(&self, example: usize, row: &mut [i32]) {
        let begin = example * row.len();
        let range = begin..begin + row.len();
        let bytes = match self {
            Self::Bytes(bytes) => &bytes[range],
            Self::Windows { tokens, begin, stride } => &tokens[begin + example * stride..][..row.len()],
            Self::I32(values) => return row.copy_from_slice(&values[range]),
            Self::Pixels(_) | Self::F32(_) => unreachable!("a column of floats"),
        };
        for (value, &byte) in row.iter_mut().zip(bytes) {
            *value = byte.into();
        }
    }
}
