//! [`Threads`], and the division of rows among tasks. This module must not depend on the work of a task.
//!
//! Inside a rayon pool, nothing here allocates memory: tasks are made by halving the rows recursively.

use std::ops::Range;

/// The number of threads that one kernel may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// The calling thread only.
    One,
    /// The threads of the rayon pool in which the caller runs, that is, inside the pool's `install`. The
    /// value is the number of these threads. A small amount of work stays on one thread.
    Pool(usize),
}

impl Threads {
    /// Returns the number of tasks into which `work` should be divided. `least` is the least work for one
    /// task, in the same unit as `work`. There are several tasks for each thread, since other work may delay
    /// a thread. Work that takes less time than waking a thread becomes a single task.
    pub(super) fn tasks(self, work: usize, least: usize) -> usize {
        match self {
            Self::Pool(threads) if threads > 1 => threads.saturating_mul(4).min(work / least).max(1),
            _ => 1,
        }
    }
}

/// The least number of elements for a task that is limited by memory bandwidth. Processing this number of
/// elements takes about as long as waking a thread.
pub(super) const ELEMENTS_PER_TASK: usize = 1 << 15;

/// Slices to which tasks write. They can be split between two rows.
pub(super) trait Rows: Send + Sized {
    /// Splits the slices before the row at index `row`.
    fn split(self, row: usize) -> (Self, Self);
}

/// A slice whose rows have a fixed number of elements.
pub(super) struct Strided<'a, T> {
    /// The rows, one after the other in memory.
    pub data: &'a mut [T],
    /// The number of elements in a row.
    pub width: usize,
}

impl<T: Send> Rows for Strided<'_, T> {
    fn split(self, row: usize) -> (Self, Self) {
        let Self { data, width } = self;
        let (before, behind) = data.split_at_mut(row * width);
        (Strided { data: before, width }, Strided { data: behind, width })
    }
}

impl<A: Rows, B: Rows> Rows for (A, B) {
    fn split(self, row: usize) -> (Self, Self) {
        let (a, b) = (self.0.split(row), self.1.split(row));
        ((a.0, b.0), (a.1, b.1))
    }
}

impl<R: Rows, const W: usize> Rows for [R; W] {
    fn split(self, row: usize) -> (Self, Self) {
        let mut second = [const { None }; W];
        let mut rest = second.iter_mut();
        let first = self.map(|rows| {
            let (before, behind) = rows.split(row);
            *rest.next().expect("one for each") = Some(behind);
            before
        });
        (first, second.map(|rows| rows.expect("one for each")))
    }
}

/// A function that does the work of one task. It takes the task's part of each of `W` slices, and the range
/// of the task's rows.
type Work<'a, const W: usize> = dyn Fn([&mut [f32]; W], Range<usize>) + Sync + 'a;

/// Divides `rows` rows into tasks. Calls `work` for each task, with the task's part of every slice in
/// `written` and the range of the task's rows. Each slice in `written` is paired with the number of elements
/// in one of its rows.
pub(super) fn share_rows<const W: usize>(
    written: [(&mut [f32], usize); W],
    rows: usize,
    tasks: usize,
    work: &Work<'_, W>,
) {
    if tasks < 2 {
        return work(written.map(|(data, _)| data), 0..rows);
    }
    let written = written.map(|(data, width)| Strided { data, width });
    share(written, 0..rows, tasks, &|written, rows| work(written.map(|slice| slice.data), rows));
}

/// Divides `rows` into tasks. Calls `work` for each task, with the task's part of `written` and the range of
/// the task's rows.
///
/// `work` is called through a pointer, so that the code that runs tasks is compiled once for all kernels.
pub(super) fn share<R: Rows>(
    written: R,
    rows: Range<usize>,
    tasks: usize,
    work: &(dyn Fn(R, Range<usize>) + Sync),
) {
    if tasks < 2 || rows.len() < 2 {
        return work(written, rows);
    }
    let half = tasks / 2;
    let count = rows.len() * half / tasks;
    // If a row is a single element, two tasks could write to the same cache line. Dividing the rows at
    // multiples of 16 prevents this.
    let count = if count >= 64 { count & !15 } else { count };
    let (first, second) = written.split(count);
    let mid = rows.start + count;
    rayon::join(
        || share(first, rows.start..mid, half, work),
        || share(second, mid..rows.end, tasks - half, work),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::tests::{bits, floats};
    use crate::cpu::{
        Binary, Broadcast, Unary, accumulate, add_into, binary, clip_in_place, gather_rows,
        global_average_pool, global_average_pool_grad, log_softmax, scale_in_place, scatter_add_rows,
        softmax, softmax_grad, sum_rows, transpose, unary, unary_grad,
    };

    #[test]
    fn parts_are_in_order_and_cover_the_rows() {
        for (rows, tasks) in [(0, 1), (0, 4), (1, 4), (3, 8), (1000, 7), (4096, 8)] {
            let (mut first, mut second) = (vec![0.0; rows], vec![0.0; 3 * rows]);
            share_rows([(&mut first, 1), (&mut second, 3)], rows, tasks, &|[first, second], part| {
                assert_eq!((first.len(), second.len()), (part.len(), 3 * part.len()));
                first.iter_mut().zip(part).for_each(|(x, row)| *x += row as f32);
                second.iter_mut().for_each(|x| *x += 1.0);
            });
            assert!(first.iter().enumerate().all(|(row, &x)| x == row as f32));
            assert!(second.iter().all(|&x| x == 1.0));
        }
    }

    /// Tests the kernels whose own modules have no test with several threads.
    #[test]
    fn threads_do_not_change_the_bits() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        let (rows, n) = (1003, 301);
        let (x, dy, row) = (floats(rows * n, 1), floats(rows * n, 2), floats(n, 3));
        let column = floats(rows, 4);
        let ids: Vec<i32> = (0..rows as i32).map(|i| i * 7 % 400).collect();
        let all = |threads| {
            let mut out = vec![];
            let mut whole = |work: &dyn Fn(&mut [f32])| {
                let mut dst = dy.clone();
                work(&mut dst);
                out.push(bits(&dst));
            };
            whole(&|dst| unary(dst, &x, Unary::Tanh, threads));
            whole(&|dst| unary_grad(dst, &x, &dy, Unary::Gelu, threads));
            whole(&|dst| accumulate(dst, &x, threads));
            whole(&|dst| add_into(dst, &x, &dy, threads));
            whole(&|dst| scale_in_place(dst, 0.3, threads));
            whole(&|dst| clip_in_place(dst, 0.5, threads));
            whole(&|dst| sum_rows(&mut dst[..n], &x, threads));
            whole(&|dst| softmax(dst, &x, n, threads));
            whole(&|dst| softmax_grad(dst, &x, &dy, n, threads));
            whole(&|dst| log_softmax(dst, &x, n, threads));
            whole(&|dst| gather_rows(dst, &x, &ids, n, threads).unwrap());
            whole(&|dst| scatter_add_rows(dst, &ids, &x, n, threads).unwrap());
            whole(&|dst| transpose(dst, &x, &[rows, n], &[1, 0], threads));
            whole(&|dst| transpose(dst, &x, &[17, 59, 7, 43], &[0, 2, 1, 3], threads));
            whole(&|dst| transpose(dst, &x, &[17, 59, 7, 43], &[3, 2, 0, 1], threads));
            whole(&|dst| global_average_pool(&mut dst[..17 * 7 * 43], &x, [17, 59, 7 * 43], threads));
            whole(&|dst| global_average_pool_grad(dst, &x[..17 * 7 * 43], [17, 59, 7 * 43], threads));
            for shape in [vec![rows, n], vec![n], vec![1], vec![rows, 1]] {
                let b = [&row[..], &column, &x].into_iter().find(|b| b.len() == shape.iter().product());
                let shapes = Broadcast::new(&[rows, n], &shape).unwrap();
                whole(&|dst| binary(dst, &dy, b.unwrap_or(&row[..1]), Binary::Div, &shapes, threads));
            }
            out
        };
        let one = all(Threads::One);
        for threads in [0, 1, 2, 3, 8] {
            let many = pool.install(|| all(Threads::Pool(threads)));
            let differs = one.iter().zip(&many).position(|(one, many)| one != many);
            assert_eq!(differs, None, "kernel of the list, {threads} threads");
        }
    }
}
