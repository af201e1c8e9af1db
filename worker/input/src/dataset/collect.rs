//! Reads a whole data set, to hold it in memory or to count its examples. This module must not depend on
//! formats.

use super::{BLOCK, Dataset, InMemory, Rows};
use crate::InputError;

/// Reads all examples of `set` into memory.
///
/// # Errors
/// If the set cannot be read; [`InputError::Held`] if its examples take more than
/// [`HELD_BYTES_MAX`](super::HELD_BYTES_MAX); [`InputError::Extent`] if it has no example, or more than a
/// `u32` can count.
pub(crate) fn collect(set: &dyn Dataset) -> Result<InMemory, InputError> {
    let mut rows: Rows = set.rows()?;
    let mut reader = set.reader()?;
    while reader.read(BLOCK, &mut rows)? > 0 {}
    rows.try_into()
}

/// Returns the number of examples of `set`. Reads the set if the number is unknown, and so finds every record
/// that is damaged.
///
/// # Errors
/// If the set cannot be read.
pub(crate) fn count(set: &dyn Dataset) -> Result<u64, InputError> {
    match set.examples() {
        Some(examples) => Ok(examples),
        None => super::skip_by_reading(&mut *set.reader()?, u64::MAX, &mut set.rows()?),
    }
}
