//! [`MatRef`]: a slice seen as a matrix. It must not know what is computed with it.

use super::shape::expect_len;

/// A borrowed `[rows, cols]` matrix, stored row-major or, after [`MatRef::transpose`], column-major.
#[derive(Clone, Copy, Debug)]
pub struct MatRef<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    /// The data are stored as a row-major `[cols, rows]` matrix.
    transposed: bool,
}

impl<'a> MatRef<'a> {
    /// Reads `data` as a row-major `[rows, cols]` matrix.
    ///
    /// # Panics
    /// If `data` does not have `rows * cols` elements.
    #[track_caller]
    pub fn new(data: &'a [f32], rows: usize, cols: usize) -> Self {
        let len = rows.checked_mul(cols).expect("rows * cols overflows");
        expect_len("matrix data", data, len);
        Self { data, rows, cols, transposed: false }
    }

    /// The transposed view of the same data, `[cols, rows]`; nothing moves.
    pub fn transpose(self) -> Self {
        Self { data: self.data, rows: self.cols, cols: self.rows, transposed: !self.transposed }
    }

    /// Number of (logical) rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of (logical) columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The elements as they are stored: `rows * cols` of them, always.
    pub(super) fn data(&self) -> &'a [f32] {
        self.data
    }

    pub(super) fn is_transposed(&self) -> bool {
        self.transposed
    }

    /// Distance in elements from one row to the next, and from one column to the next.
    pub(super) fn strides(&self) -> (usize, usize) {
        if self.transposed { (1, self.rows) } else { (self.cols, 1) }
    }

    /// The rows `start..start + len` of a matrix that is not transposed.
    pub(super) fn row_range(&self, start: usize, len: usize) -> Self {
        debug_assert!(!self.transposed);
        Self::new(&self.data[start * self.cols..(start + len) * self.cols], len, self.cols)
    }
}
