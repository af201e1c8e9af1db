//! The rows of a table by their ids, and the gradient with respect to the table.

use super::axes::index_type;
use super::{Operation, Slot, block_for_each, count, thread_for_each};
use crate::source::Library;

impl Operation {
    /// A table with rows of `width` elements, integer ids → the rows with these ids. An id that is no row
    /// makes its row NaN.
    pub fn gather(table_rows: usize, width: usize, ids: usize) -> Self {
        let elements = ids * width;
        if elements == 0 {
            return Self::nothing();
        }
        let index = index_type(elements.max(table_rows * width));
        let body = format!("    gather_rows<{index}>(to, table, ids, {elements}, {table_rows}, {width});\n");
        let text = ["float* to, const float* table, const int* ids", &*body];
        let arguments = [Slot::Output(0), Slot::Input(0), Slot::Input(1)];
        let grid = thread_for_each(elements);
        Self::default().then_generated(Library::Embeddings, "gather", text, grid, &arguments)
    }

    /// Integer ids, the adjoints of the rows with these ids → the adjoint of the table. The rows of equal ids
    /// are added in their order. An id that is no row is left out.
    pub fn scatter(table_rows: usize, width: usize, ids: usize) -> Self {
        let zeros = Self::fill(0.0, table_rows * width);
        if table_rows * width * ids == 0 {
            return zeros;
        }
        let sizes = [ids, table_rows, width].map(count);
        let arguments = [&[Slot::Output(0), Slot::Input(0), Slot::Input(1)], &sizes[..]].concat();
        zeros.then(Library::Embeddings, "scatter_rows", block_for_each(table_rows), &arguments)
    }
}
