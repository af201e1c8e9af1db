//! How the kernels of products are divided into tiles of the result and parts of the sums. This module must
//! not depend on what is multiplied.

use super::axes::index_type;
use super::{Operation, Slot, block_for_each, thread_for_each};
use crate::multiplication::Epilogue;
use crate::source::Library;

/// The part of the result that a block computes at once. Its constants are those of `Tile` in product.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tile {
    height: usize,
    width: usize,
    terms: usize,
    own: [usize; 2],
}

/// The tiles for results of any shape; the best one for its shape is taken. Of equally good ones, it is the
/// first, whose threads read least from memory.
const TILES: [Tile; 5] = [tile(64, 64), tile(128, 32), tile(32, 128), tile(256, 16), tile(16, 256)];
/// The tile for large results. A thread does more with a number that it reads.
const LARGE: Tile = Tile { height: 128, width: 64, terms: 8, own: [8, 4] };
/// The number of blocks that keep a large card busy.
const BLOCKS_WANTED: usize = 256;
/// The number of blocks with which a card is busy enough.
const BLOCKS_ENOUGH: usize = 128;
/// The least number of terms of a part of a sum.
const PART_TERMS_MIN: usize = 128;
/// The number of parts from which on several threads share those of one element.
const MANY_PARTS: usize = 16;
/// The number of threads that share the parts of one element, if there are many.
const GROUPS: usize = 8;

const fn tile(height: usize, width: usize) -> Tile {
    Tile { height, width, terms: 16, own: [4, 4] }
}

/// How a kernel gets the bias.
struct Bias {
    /// The parameter of the kernel, behind other ones.
    parameter: &'static str,
    /// The expression of the bias within the kernel.
    argument: &'static str,
    slot: Option<Slot>,
}

impl Epilogue {
    const fn bias(self) -> Bias {
        match self {
            Self::Bare => Bias { parameter: "", argument: "nullptr", slot: None },
            Self::Bias | Self::BiasRelu => {
                Bias { parameter: ", const float* bias", argument: "bias", slot: Some(Slot::Input(2)) }
            }
        }
    }
}

impl Tile {
    /// Returns the type of the kernels.
    fn text(self) -> String {
        let Self { height, width, terms, own: [rows, columns] } = self;
        format!("product::Tile<{height}, {width}, {terms}, {rows}, {columns}>")
    }

    /// Returns the number of tiles in which a matrix lies.
    const fn count(self, rows: usize, columns: usize) -> usize {
        rows.div_ceil(self.height) * columns.div_ceil(self.width)
    }

    /// Returns the number of elements of all tiles in which a matrix lies.
    const fn covered(self, rows: usize, columns: usize) -> usize {
        self.count(rows, columns) * self.height * self.width
    }
}

/// Some products of equal sizes that one kernel computes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Products<'a> {
    /// The name of the kernel.
    pub kind: &'a str,
    /// The number of products.
    pub number: usize,
    /// The number of rows of each result.
    pub rows: usize,
    /// The number of terms of each sum.
    pub terms: usize,
    /// The number of columns of each result.
    pub columns: usize,
    /// The number of elements of all results.
    pub elements: usize,
    /// The number of elements of the largest tensor.
    pub largest: usize,
}

impl Products<'_> {
    /// Returns the type of the kernel's indices.
    pub const fn index(&self) -> &'static str {
        index_type(self.largest)
    }

    /// Returns the operation that writes the products. Its first two inputs are the factors, in the order of
    /// the members of the kernel's type `products`. The third one is the bias, if the epilogue has one.
    pub fn operation(&self, products: &str, epilogue: Epilogue) -> Operation {
        if self.elements == 0 {
            return Operation::nothing();
        }
        let tile = self.tile();
        let tiles = self.number * tile.count(self.rows, self.columns);
        match self.parts(tile, tiles) {
            1 => self.multiplied([products, &tile.text()], 1, tiles, epilogue, Slot::Output(0)),
            parts => self
                .multiplied([products, &tile.text()], parts, tiles, Epilogue::Bare, Slot::Scratch(0))
                .then_parts_added(parts, self, epilogue)
                .with_scratch(4 * (parts * self.elements) as u64),
        }
    }

    /// Returns the operation that writes the products, or parts of them, to `to`.
    fn multiplied(
        &self,
        [products, tile]: [&str; 2],
        parts: usize,
        tiles: usize,
        epilogue: Epilogue,
        to: Slot,
    ) -> Operation {
        let Bias { parameter, argument, slot } = epilogue.bias();
        let parameters = format!("float* to, const float* first, const float* second{parameter}");
        let body = format!(
            "    __shared__ __align__(16) product::Panels<{tile}> panels;\n    \
             const {products} products = {{first, second}};\n    \
             product::multiply<{tile}, {parts}, product::Epilogue::{epilogue:?}>(products, to, {argument}, \
             panels);\n"
        );
        let slots: Vec<Slot> = [to, Slot::Input(0), Slot::Input(1)].into_iter().chain(slot).collect();
        let text = [&*parameters, &*body];
        let grid = block_for_each(tiles * parts);
        Operation::default().then_generated(Library::Product, self.kind, text, grid, &slots)
    }

    /// Returns the tile that fits the results best.
    fn tile(&self) -> Tile {
        let Self { rows, columns, number, .. } = *self;
        let best = TILES.into_iter().min_by_key(|tile| tile.covered(rows, columns)).expect("a tile");
        // A tile that is partly empty takes as long as a full one.
        let fits = 8 * LARGE.covered(rows, columns) <= 9 * best.covered(rows, columns);
        if fits && number * LARGE.count(rows, columns) >= BLOCKS_WANTED { LARGE } else { best }
    }

    /// Returns the number of parts into which the sums are divided, so that there are enough blocks. It
    /// depends on sizes alone, so that the results do as well.
    fn parts(&self, tile: Tile, tiles: usize) -> usize {
        if tiles >= BLOCKS_ENOUGH {
            return 1;
        }
        let wanted = (BLOCKS_WANTED / tiles).min(self.terms / PART_TERMS_MIN).max(1);
        // The parts are rounded up to the terms of a tile, so fewer may do.
        let part = self.terms.div_ceil(wanted).next_multiple_of(tile.terms);
        self.terms.div_ceil(part.max(1)).max(1)
    }
}

impl Operation {
    /// Adds the kernel that adds the parts in the scratch memory.
    fn then_parts_added(self, parts: usize, products: &Products<'_>, epilogue: Epilogue) -> Self {
        let Products { elements, columns, .. } = *products;
        let groups = if parts < MANY_PARTS { 1 } else { GROUPS };
        let Bias { parameter, argument, slot } = epilogue.bias();
        let parameters = format!("float* to, const float* parts{parameter}");
        let body = format!(
            "    __shared__ float sums[LANES];\n    \
             product::add_parts<{parts}, {groups}, {elements}, {columns}, product::Epilogue::{epilogue:?}>(to, \
             parts, {argument}, sums);\n"
        );
        let slots: Vec<Slot> = [Slot::Output(0), Slot::Kept(0)].into_iter().chain(slot).collect();
        let grid = thread_for_each(elements * groups);
        self.then_generated(Library::Product, "add_parts", [&parameters, &body], grid, &slots)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_part_is_empty(tiles in 1usize..200, terms in 1usize..100_000, tile in 0..TILES.len()) {
            let products =
                Products { kind: "", number: 1, rows: 1, terms, columns: 1, elements: 1, largest: terms };
            let parts = products.parts(TILES[tile], tiles);
            // The kernel rounds parts up in this way.
            let part = terms.div_ceil(parts).next_multiple_of(TILES[tile].terms);
            prop_assert!(part * parts >= terms && part * (parts - 1) < terms);
            prop_assert!(parts == 1 || part >= PART_TERMS_MIN);
            prop_assert!(tiles * parts <= BLOCKS_WANTED.max(tiles));
        }
    }

    #[test]
    fn results_of_few_columns_have_narrow_tiles() {
        let tile = |rows, columns| {
            let of = Products { kind: "", number: 1, rows, terms: 9, columns, elements: 1, largest: 1 };
            let Tile { height, width, .. } = of.tile();
            [height, width]
        };
        assert_eq!(tile(64, 10), [64, 64]);
        assert_eq!(tile(1024, 10), [256, 16]);
        assert_eq!(tile(10, 1024), [16, 256]);
        assert_eq!(tile(1000, 32), [128, 32]);
        assert_eq!(tile(4096, 4096), [128, 64]);
    }
}
