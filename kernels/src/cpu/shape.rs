//! The shape checks that kernels share. A mismatch is the caller's bug, so the checks panic, and the panic
//! names the caller's line.

/// Checks that `slice` has `len` elements.
#[track_caller]
pub(super) fn expect_len<T>(name: &str, slice: &[T], len: usize) {
    assert!(slice.len() == len, "{name} has {} elements, expected {len}", slice.len());
}

/// Reads `x` as a row-major matrix with `cols` columns, and returns the number of its rows. An empty `x` is
/// valid for any number of columns.
#[track_caller]
pub(super) fn expect_rows(name: &str, x: &[f32], cols: usize) -> usize {
    let rows = x.len().checked_div(cols).unwrap_or(0);
    assert!(
        rows * cols == x.len(),
        "{name} has {} elements, which is not a multiple of the row length {cols}",
        x.len()
    );
    rows
}
