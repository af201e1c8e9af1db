//! [`Region`]: a rectangle of a matrix that one task may write. This module must not depend on what is
//! computed.
//!
//! The columns of a row-major matrix do not form a slice, so safe code could give a task only whole rows.
//! The unsafe code has a safe interface: the two regions that result from a split have no element in common.

use std::marker::PhantomData;

/// A rectangle of a row-major matrix, borrowed mutably.
pub(super) struct Region<'a> {
    /// A pointer to the element at the upper left; dangling if the region is empty.
    first: *mut f32,
    /// The distance between the starts of two consecutive rows, in elements.
    stride: usize,
    rows: usize,
    cols: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: a region borrows its elements mutably, no other region has any of them, and `f32` is `Send`.
#[allow(unsafe_code)]
unsafe impl Send for Region<'_> {}

impl<'a> Region<'a> {
    /// Returns the region of a whole `[rows, cols]` matrix.
    pub fn new(matrix: &'a mut [f32], rows: usize, cols: usize) -> Self {
        assert!(rows.checked_mul(cols) == Some(matrix.len()), "the region fills the matrix");
        Self { first: matrix.as_mut_ptr(), stride: cols, rows, cols, borrow: PhantomData }
    }

    /// Splits the region into the rows before `at` and the rest.
    pub fn split_rows(self, at: usize) -> (Self, Self) {
        assert!(at <= self.rows, "the split lies in the region");
        // The pointer may wrap, since a region without rows may start beyond the matrix.
        let second = self.first.wrapping_add(at * self.stride);
        (Self { rows: at, ..self }, Self { first: second, rows: self.rows - at, ..self })
    }

    /// Splits the region into the columns before `at` and the rest.
    pub fn split_cols(self, at: usize) -> (Self, Self) {
        assert!(at <= self.cols, "the split lies in the region");
        let second = self.first.wrapping_add(at);
        (Self { cols: at, ..self }, Self { first: second, cols: self.cols - at, ..self })
    }

    /// Returns a row of the region.
    #[inline(always)]
    pub fn row(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows, "the row lies in the region");
        // SAFETY: `new` has borrowed the matrix that contains this region for `'a`, and splits only make
        // regions smaller. So the row's elements are initialised floats inside one slice. If the row is
        // empty, its pointer is still aligned and not null, because it derives from that slice. Nothing else
        // refers to the elements: other parts of a split have different rows or columns, and the row is
        // borrowed from the region mutably.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts_mut(self.first.wrapping_add(row * self.stride), self.cols)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_disjoint_and_cover_the_matrix() {
        for (rows, cols) in [(0, 0), (0, 3), (3, 0), (1, 1), (4, 5)] {
            for (row, col) in (0..=rows).flat_map(|row| (0..=cols).map(move |col| (row, col))) {
                let mut matrix = vec![0.0; rows * cols];
                let (above, below) = Region::new(&mut matrix, rows, cols).split_rows(row);
                let (left, right) = below.split_cols(col);
                for (mut part, size) in
                    [(above, (row, cols)), (left, (rows - row, col)), (right, (rows - row, cols - col))]
                {
                    for row in 0..size.0 {
                        assert_eq!(part.row(row).len(), size.1);
                        part.row(row).iter_mut().for_each(|x| *x += 1.0);
                    }
                }
                assert!(matrix.iter().all(|&x| x == 1.0));
            }
        }
    }

    #[test]
    #[should_panic(expected = "the row lies in the region")]
    fn rows_lie_inside() {
        Region::new(&mut [0.0; 4], 2, 2).row(2);
    }
}
