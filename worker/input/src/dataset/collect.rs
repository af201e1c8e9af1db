//! Reads a whole data set, to hold it in memory or to count its examples. This module must not depend on
//! formats.

use super::{Dataset, InMemory, Rows, block, check, read_some};
use crate::InputError;

impl InMemory {
    /// Reads all examples of `set` into memory. Copies nothing if the set is in memory already.
    ///
    /// # Errors
    /// If the set cannot be read; [`InputError::Endless`] if it has no end; [`InputError::Held`] if it is too
    /// large.
    pub fn collect(set: &dyn Dataset) -> Result<Self, InputError> {
        check(set)?;
        collect(set)
    }
}

/// Reads all examples of `set` into memory.
///
/// # Errors
/// If the set cannot be read; [`InputError::Held`] if its examples take more than
/// [`HELD_BYTES_MAX`](super::HELD_BYTES_MAX); [`InputError::Extent`] if it has no example, or more than a
/// `u32` can count; [`InputError::Endless`] if it has no end.
pub(crate) fn collect(set: &dyn Dataset) -> Result<InMemory, InputError> {
    // No limit is needed here: reading more than `HELD_BYTES_MAX` bytes into one block is an error.
    let held = collect_within(set, u64::MAX)?;
    Ok(held.expect("no set is larger than the maximum"))
}

/// Reads all examples of `set` into memory, as [`collect`] does. Stops and returns `None` as soon as it is
/// known that the examples take more than `bytes_max` bytes. A set that is in memory already may be of any
/// size.
pub(crate) fn collect_within(set: &dyn Dataset, bytes_max: u64) -> Result<Option<InMemory>, InputError> {
    if let Some(held) = set.in_memory() {
        return Ok(Some(held));
    }
    if set.is_endless() {
        return Err(InputError::Endless);
    }
    let mut rows: Rows = set.rows()?;
    let (bytes, block) = (rows.example_bytes(), block(&rows));
    let is_within = |examples: u64| examples.saturating_mul(bytes) <= bytes_max;
    if bytes_max == 0 || !is_within(set.examples().unwrap_or(0)) {
        return Ok(None);
    }
    let mut reader = set.reader()?;
    while read_some(&mut *reader, block, &mut rows)? > 0 {
        if !is_within(rows.len() as u64) {
            return Ok(None);
        }
    }
    rows.try_into().map(Some)
}

/// A check of a block of examples. It gets the block, and the index of the block's first example in the set.
type CheckRows<'a> = &'a dyn Fn(&Rows, u64) -> Result<(), InputError>;

/// Returns the number of examples of `set`. Reads the set if the number is unknown, or if `check` must see
/// the examples. Reading finds every record that is damaged.
///
/// # Errors
/// If the set cannot be read; [`InputError::Endless`] if it has no end; the errors of `check`.
pub(crate) fn count(set: &dyn Dataset, check: Option<CheckRows<'_>>) -> Result<u64, InputError> {
    if set.is_endless() {
        return Err(InputError::Endless);
    }
    if let (Some(examples), None) = (set.examples(), check) {
        return Ok(examples);
    }
    let mut rows = set.rows()?;
    let (mut reader, block, mut examples) = (set.reader()?, block(&rows), 0);
    loop {
        rows.clear();
        let read = read_some(&mut *reader, block, &mut rows)?;
        if read == 0 {
            return Ok(examples);
        }
        check.map_or(Ok(()), |check| check(&rows, examples))?;
        examples += read as u64;
    }
}
