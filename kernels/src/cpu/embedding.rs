//! Gathers the rows of a table by their ids, and computes the gradient with respect to the table.
//!
//! Ids are data and may be hostile: a bad id is an error, never a panic. This module must not know what the
//! rows stand for.

use std::error::Error;
use std::fmt;

use super::elementwise::accumulate;
use super::shape::{expect_len, expect_rows};
use super::threads::{ELEMENTS_PER_TASK, Threads, share_rows};

/// The error for an id that is not a row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdOutOfRange {
    /// The position in `ids` of the first id that is not a row of the table.
    pub position: usize,
    /// The id at this position.
    pub id: i32,
    /// The number of rows of the table; ids must be in `0..rows`.
    pub rows: usize,
}

impl fmt::Display for IdOutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { position, id, rows } = self;
        write!(f, "id {id} at position {position} is not in 0..{rows}")
    }
}

impl Error for IdOutOfRange {}

/// Computes `dst[i, ·] = table[ids[i], ·]`, where `table` is `[rows, width]`, `ids` is `[count]` and `dst` is
/// `[count, width]`.
///
/// # Errors
/// If an id is not in `0..rows`; `dst` is left unchanged in that case.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn gather_rows(
    dst: &mut [f32],
    table: &[f32],
    ids: &[i32],
    width: usize,
    threads: Threads,
) -> Result<(), IdOutOfRange> {
    expect_len("gather_rows: dst", dst, ids.len() * width);
    check_ids(ids, expect_rows("gather_rows: table", table, width))?;
    let tasks = threads.tasks(dst.len(), ELEMENTS_PER_TASK);
    share_rows([(dst, width)], ids.len(), tasks, &|[dst], part| {
        for (dst, &id) in dst.chunks_exact_mut(width.max(1)).zip(&ids[part]) {
            dst.copy_from_slice(&table[id as usize * width..][..width]);
        }
    });
    Ok(())
}

/// Adds to `dst` the gradient of [`gather_rows`] with respect to the table: computes `dst[ids[i], ·] +=
/// dy[i, ·]` for each `i` in order. `dst` is `[rows, width]`.
///
/// # Errors
/// If an id is not in `0..rows`; `dst` is left unchanged in that case.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn scatter_add_rows(
    dst: &mut [f32],
    ids: &[i32],
    dy: &[f32],
    width: usize,
    threads: Threads,
) -> Result<(), IdOutOfRange> {
    expect_len("scatter_add_rows: dy", dy, ids.len() * width);
    let rows = expect_rows("scatter_add_rows: dst", dst, width);
    check_ids(ids, rows)?;
    // Each task owns some rows of `dst`, and scans all ids for those rows.
    share_rows([(dst, width)], rows, threads.tasks(dy.len(), ELEMENTS_PER_TASK), &|[dst], part| {
        for (dy, &id) in dy.chunks_exact(width.max(1)).zip(ids) {
            if part.contains(&(id as usize)) {
                let row = id as usize - part.start;
                accumulate(&mut dst[row * width..][..width], dy, Threads::One);
            }
        }
    });
    Ok(())
}

/// Checks that every id is a row of a table.
///
/// # Errors
/// If an id is not in `0..rows`.
pub fn check_ids(ids: &[i32], rows: usize) -> Result<(), IdOutOfRange> {
    let in_range = |id: i32| usize::try_from(id).is_ok_and(|id| id < rows);
    match ids.iter().position(|&id| !in_range(id)) {
        Some(position) => Err(IdOutOfRange { position, id: ids[position], rows }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::tests::{assert_close, floats};

    proptest! {
        #[test]
        fn agree_with_f64(
            rows in 1usize..10, width in 1usize..40, picks in prop::collection::vec(any::<prop::sample::Index>(), 0..30),
        ) {
            let ids: Vec<i32> = picks.iter().map(|pick| pick.index(rows) as i32).collect();
            let (table, dy) = (floats(rows * width, 1), floats(ids.len() * width, 2));
            let mut y = vec![f32::NAN; dy.len()];
            gather_rows(&mut y, &table, &ids, width, Threads::One).unwrap();
            let source = |i: usize| ids[i / width] as usize * width + i % width;
            prop_assert!((0..y.len()).all(|i| y[i] == table[source(i)]));

            let mut grad = table.clone();
            scatter_add_rows(&mut grad, &ids, &dy, width, Threads::One).unwrap();
            let mut want: Vec<f64> = table.iter().map(|&x| x.into()).collect();
            (0..dy.len()).for_each(|i| want[source(i)] += f64::from(dy[i]));
            assert_close(&grad, want, 30.0);
        }

        #[test]
        fn a_bad_id_is_an_error(id in prop::sample::select(vec![-1, 3, i32::MIN, i32::MAX])) {
            let want = Err(IdOutOfRange { position: 1, id, rows: 3 });
            let mut dst = [5.0; 6];
            prop_assert_eq!(gather_rows(&mut dst[..4], &[0.0; 6], &[2, id], 2, Threads::One), want);
            prop_assert_eq!(scatter_add_rows(&mut dst, &[2, id], &[1.0; 4], 2, Threads::One), want);
            prop_assert_eq!(dst, [5.0; 6]);
        }
    }

    #[test]
    fn rows_of_nothing() {
        assert_eq!(gather_rows(&mut [], &[], &[], 0, Threads::One), Ok(()));
        assert_eq!(
            gather_rows(&mut [], &[], &[0], 0, Threads::One),
            Err(IdOutOfRange { position: 0, id: 0, rows: 0 })
        );
    }
}
