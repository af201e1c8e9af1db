//! The shuffle buffer of a stream: which examples it holds, and which of them comes next. This module must
//! not depend on where the examples come from.

use crate::InputError;
use crate::dataset::Rows;
use crate::dataset::Storage;
use crate::random::SplitMix64;

/// A shuffle buffer. It hands out examples in the same order as a [`Sampler`](crate::Sampler) with a buffer
/// of the same size.
pub(super) struct Buffer {
    random: SplitMix64,
    slots: Vec<Slot>,
    rows: Rows,
    /// The number of examples that have entered the buffer in this epoch.
    read: u64,
}

/// An example in the buffer.
#[derive(Clone, Copy)]
struct Slot {
    /// The example's index in the worker's part of the data set.
    example: u64,
    /// The position of the example in `rows`.
    row: usize,
}

impl Buffer {
    /// Creates an empty buffer. `rows` has the columns of the data set.
    pub(super) fn new(random: SplitMix64, rows: Rows) -> Self {
        Self { random, slots: Vec::new(), rows, read: 0 }
    }

    /// Creates a buffer of `size` examples in the state that it has after handing out `drawn` examples. The
    /// worker's part of the data set has `length` examples; `None` stands for an unknown number that is at
    /// least `drawn + size`. Also returns the indices of the examples that the buffer holds in this state,
    /// ascending, each with its slot. The caller must [`fill`](Self::fill) these slots.
    pub(super) fn after(
        drawn: u64,
        length: Option<u64>,
        size: u32,
        mut random: SplitMix64,
        rows: Rows,
    ) -> (Self, Vec<(u64, usize)>) {
        let length = length.unwrap_or(u64::MAX);
        let mut read = length.min(size.into());
        let mut held: Vec<u64> = (0..read).collect();
        for _ in 0..drawn {
            let taken = random.below(held.len() as u32) as usize;
            if read < length {
                held[taken] = read;
                read += 1;
            } else {
                held.swap_remove(taken);
            }
        }
        let mut slots: Vec<(u64, usize)> = held.into_iter().zip(0..).collect();
        let buffer = Self { random, slots: vec![Slot { example: 0, row: 0 }; slots.len()], rows, read };
        slots.sort_unstable();
        (buffer, slots)
    }

    /// Returns the number of examples that have entered the buffer in this epoch.
    pub(super) fn read(&self) -> u64 {
        self.read
    }

    /// Returns true if the buffer holds no example.
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Puts an example into a slot that was not filled before, or into a new slot behind all others.
    /// `example` is its index in the worker's part of the data set. The elements are copied from the example
    /// at index `index` of `from`.
    ///
    /// # Errors
    /// If the memory is full.
    pub(super) fn fill(
        &mut self,
        slot: usize,
        example: u64,
        from: &Rows,
        index: usize,
    ) -> Result<(), InputError> {
        let filled = Slot { example, row: self.rows.len() };
        self.rows.copy(from, index)?;
        if slot == self.slots.len() {
            self.slots.push(filled);
            self.read += 1;
        } else {
            self.slots[slot] = filled;
        }
        Ok(())
    }

    /// Chooses the slot of the next example.
    ///
    /// # Panics
    /// If the buffer is empty.
    pub(super) fn draw(&mut self) -> usize {
        self.random.below(self.slots.len() as u32) as usize
    }

    /// Finds the example in a slot. Returns its position in `rows`, and its index in the worker's part of the
    /// data set.
    pub(super) fn example(&self, slot: usize) -> (usize, u64) {
        (self.slots[slot].row, self.slots[slot].example)
    }

    /// Returns the stored elements of a column. `position` is the column's index.
    pub(super) fn storage(&self, position: usize) -> &Storage {
        self.rows.storage(position)
    }

    /// Replaces the example of a slot with the next example, whose elements are at index `index` of `from`.
    /// `example` is the next example's index in the worker's part of the data set.
    pub(super) fn replace(&mut self, slot: usize, example: u64, from: &Rows, index: usize) {
        let row = self.slots[slot].row;
        self.rows.replace(row, from, index);
        self.slots[slot].example = example;
        self.read += 1;
    }

    /// Removes a slot. The caller does this once all examples of the epoch have been read, because no example
    /// is left to replace the one in the slot.
    pub(super) fn remove(&mut self, slot: usize) {
        self.slots.swap_remove(slot);
    }
}
