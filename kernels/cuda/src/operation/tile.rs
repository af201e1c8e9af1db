//! How the kernels of products are divided into tiles of the result and parts of the sums. This module must not
//! depend on what is multiplied.

use super::axes::index_type;
use super::{Operation, Slot, block_for_each};
use crate::source::Library;

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

const fn tile(height: usize, width: usize) -> Tile {
    Tile { height, width, terms: 16, own: [4, 4] }
}

impl Tile {
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
        let parts = self.parts(tile, tiles);
        let Tile { height, width, terms, own: [own_rows, own_columns] } = tile;
        let tile = format!("product::Tile<{height}, {width}, {terms}, {own_rows}, {own_columns}>");
        let (bias_parameter, bias, bias_slot) = match epilogue {
            Epilogue::Bare => ("", "nullptr", None),
            _ => (", const float* bias", "bias", Some(Slot::Input(2))),
        };
        // Of several parts, none is a sum that can be finished.
        let (own_epilogue, own_parameter, own_bias, own_slot, to) = match parts {
            1 => (epilogue, bias_parameter, bias, bias_slot, Slot::Output(0)),
            _ => (Epilogue::Bare, "", "nullptr", None, Slot::Scratch(0)),
        };
        let parameters = format!("float* to, const float* first, const float* second{own_parameter}");
        let body = format!(
            "    __shared__ __align__(16) product::Panels<{tile}> panels;\n    \
             const {products} products = {{first, second}};\n    \
             product::multiply<{tile}, {parts}, product::Epilogue::{own_epilogue:?}>(products, to, {own_bias}, \
             panels);\n"
        );
        let slots: Vec<Slot> = [to, Slot::Input(0), Slot::Input(1)].into_iter().chain(own_slot).collect();
        let grid = block_for_each(tiles * parts);
        let multiplied = Operation::default().then_generated(
            Library::Product,
            self.kind,
            [&parameters, &body],
            grid,
            &slots,
        );
        if parts == 1 {
            return multiplied;
        }
        let Self { elements, columns, .. } = self;
        let parameters = format!("float* to, const float* parts{bias_parameter}");
        let body = format!(
            "    __shared__ float sums[LANES];\n    \
             product::add_parts<{parts}, {elements}, {columns}, product::Epilogue::{epilogue:?}>(to, parts, \
             {bias}, sums);\n"
        );
        let slots: Vec<Slot> = [Slot::Output(0), Slot::Scratch(0)].into_iter().chain(bias_slot).collect();
        let grid = block_for_each(elements.div_ceil(OF_BLOCK_MIN));
        multiplied
            .then_generated(Library::Product, "add_parts", [&parameters, &body], grid, &slots)
            .with_scratch(4 * (parts * elements) as u64)
    }

    /// Returns the tile that fits the results best.
    fn tile(&self) -> Tile {
        let Self { rows, columns, number, .. } = *self;
        let best = TILES.into_iter().min_by_key(|tile| tile.covered(rows, columns)).expect("a tile");
        let fits = LARGE.covered(rows, columns) / 9 <= best.covered(rows, columns) / 8;
        if fits && number * LARGE.count(rows, columns) >= BLOCKS_WANTED { LARGE } else { best }
    }

    /// Returns the number of parts into which the sums are divided, so that there are enough blocks. It depends
    /// on sizes alone, so that the results do as well.
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

/// The number of elements of which one block adds the parts, if there are many parts.
const OF_BLOCK_MIN: usize = 32;
