//! Means over many items, which are added in two stages. This module must not depend on what the items are.

use super::{Operation, Slot, block_for_each, count};
use crate::driver::Grid;
use crate::source::Library;

impl Operation {
    /// Returns an operation whose output is a mean over `items` items, at least one. The kernel of the
    /// library writes the sum of each part to its first argument. It reads two inputs, and its other
    /// arguments are the number of items, the number of items of a part, and the settings. A part has at
    /// least `of_part` items.
    ///
    /// The parts depend only on the number of items, so the bits of the mean do not depend on the blocks.
    pub(super) fn mean(
        library: Library,
        kernel: &str,
        items: usize,
        of_part: usize,
        settings: &[Slot],
    ) -> Self {
        let of_part = items.div_ceil(Grid::BLOCKS_MAX as usize).max(of_part);
        let parts = items.div_ceil(of_part);
        let fixed = [Slot::Scratch(0), Slot::Input(0), Slot::Input(1), count(items), count(of_part)];
        let to_mean = [Slot::Output(0), Slot::Kept(0), count(parts), count(items)];
        Self::default()
            .then(library, kernel, block_for_each(parts), &[&fixed, settings].concat())
            .then(Library::Means, "mean_of_parts", block_for_each(1), &to_mean)
            .with_scratch(8 * parts as u64)
    }
}
