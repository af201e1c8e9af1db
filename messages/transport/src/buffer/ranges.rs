//! The free ranges of an arena. This module does not touch the memory.

use std::collections::BTreeMap;

/// The free ranges of a number of bytes.
#[derive(Debug)]
pub(super) struct Ranges {
    /// The length of each free range by its start. No two ranges touch.
    free: BTreeMap<usize, usize>,
}

impl Ranges {
    /// Returns one free range of `bytes` bytes.
    pub(super) fn new(bytes: usize) -> Self {
        Self { free: BTreeMap::from([(0, bytes)]) }
    }

    /// Takes a range of `bytes` bytes, which must be at least 1, that begins at a multiple of `alignment`.
    /// Returns its start, or `None` if no free range has space for it.
    pub(super) fn take(&mut self, bytes: usize, alignment: usize) -> Option<usize> {
        let fits = |(&start, &length): (&usize, &usize)| {
            let end = start + length;
            let start = start.checked_next_multiple_of(alignment)?;
            (start.checked_add(bytes)? <= end).then_some(start)
        };
        let (found, start) = self.free.iter().find_map(|range| Some((*range.0, fits(range)?)))?;
        let end = found + self.free.remove(&found).expect("it was found");
        if found < start {
            self.free.insert(found, start - found);
        }
        if start + bytes < end {
            self.free.insert(start + bytes, end - start - bytes);
        }
        Some(start)
    }

    /// Makes a range free again.
    pub(super) fn put(&mut self, mut start: usize, mut bytes: usize) {
        if let Some(length) = self.free.remove(&(start + bytes)) {
            bytes += length;
        }
        if let Some((&before, &length)) = self.free.range(..start).next_back()
            && before + length == start
        {
            (start, bytes) = (before, bytes + length);
        }
        self.free.insert(start, bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Checks that ranges that are taken never overlap, and that all of them together come back.
        #[test]
        fn no_two_ranges_overlap(turns in prop::collection::vec((1usize..40, 1usize..9, any::<prop::sample::Index>()), 1..200)) {
            const BYTES: usize = 200;
            let (mut ranges, mut taken) = (Ranges::new(BYTES), Vec::<(usize, usize)>::new());
            for (bytes, alignment, index) in turns {
                match ranges.take(bytes, alignment) {
                    Some(start) => {
                        prop_assert!(start + bytes <= BYTES && start.is_multiple_of(alignment));
                        let apart = |&(other, length): &(usize, usize)| start + bytes <= other || other + length <= start;
                        prop_assert!(taken.iter().all(apart));
                        taken.push((start, bytes));
                    }
                    None => {
                        prop_assert!(!taken.is_empty(), "an empty arena has {bytes} bytes");
                        let (start, bytes) = taken.swap_remove(index.index(taken.len()));
                        ranges.put(start, bytes);
                    }
                }
            }
            taken.drain(..).for_each(|(start, bytes)| ranges.put(start, bytes));
            prop_assert_eq!(ranges.take(BYTES, 1), Some(0));
        }
    }
}
