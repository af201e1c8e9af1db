//! Transposes a tensor, that is, puts its axes in another order. This module must not know what the axes
//! stand for.

use super::broadcast::Broadcast;
use super::shape::expect_len;
use super::threads::{ELEMENTS_PER_TASK, Threads, share_rows};

/// Copies `x` to `dst` with its axes in another order, like numpy's `transpose`: axis `k` of `dst` is axis
/// `axes[k]` of `x`. `shape` is the shape of `x`.
///
/// # Panics
/// If a slice does not have the length that `shape` requires, if `axes` is not a permutation of the
/// axes of `x`, or if there are more than [`Broadcast::MAX_RANK`] axes.
#[track_caller]
pub fn transpose(dst: &mut [f32], x: &[f32], shape: &[usize], axes: &[usize], threads: Threads) {
    const MAX_RANK: usize = Broadcast::MAX_RANK;
    let rank = shape.len();
    assert!(rank <= MAX_RANK, "transpose: {rank} axes, expected at most {MAX_RANK}");
    let is_permutation = axes.len() == rank && (0..rank).all(|axis| axes.contains(&axis));
    assert!(is_permutation, "transpose: {axes:?} is not a permutation of {rank} axes");
    expect_len("transpose: x", x, shape.iter().product());
    expect_len("transpose: dst", dst, x.len());
    if x.is_empty() {
        return;
    }
    let mut strides = [1; MAX_RANK];
    for axis in (1..rank).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    // The axes of `dst`, the last one first. Each has its size, and the distance from one element to the next
    // in `dst` and in `x`. Axes that are adjacent in both tensors are merged.
    let (mut order, mut count, mut step) = ([Axis { size: 1, to: 1, from: 1 }; MAX_RANK], 0, 1);
    for &axis in axes.iter().rev() {
        let (size, from) = (shape[axis], strides[axis]);
        match count {
            _ if size == 1 => continue,
            1.. if order[count - 1].from * order[count - 1].size == from => order[count - 1].size *= size,
            _ => {
                order[count] = Axis { size, to: step, from };
                count += 1;
            }
        }
        step *= size;
    }
    let order = &mut order[..count.max(1)];
    // The last axis of `x` becomes the second axis of `order`, unless it is the first one already. The first
    // two axes of `order` form the plane that is moved in square blocks.
    if let Some(last) = (1..order.len()).find(|&axis| order[axis].from == 1) {
        order.swap(1, last);
    }
    // The outermost axis of `dst`, which has the largest distance, is divided among the threads.
    let slowest = (0..order.len()).max_by_key(|&axis| order[axis].to).unwrap_or(0);
    let (order, Axis { size, to, from }) = (&*order, order[slowest]);
    share_rows([(dst, to)], size, threads.tasks(x.len(), ELEMENTS_PER_TASK), &|[dst], part| {
        let mut mine = [Axis { size: 1, to: 1, from: 1 }; MAX_RANK];
        let mine = &mut mine[..order.len()];
        mine.copy_from_slice(order);
        mine[slowest].size = part.len();
        let x = &x[part.start * from..];
        let (inner, outer) = mine.split_at(mine.len().min(2));
        for_each_index(outer, |to, from| move_plane(&mut dst[to..], &x[from..], inner));
    });
}

#[derive(Clone, Copy)]
struct Axis {
    size: usize,
    /// The distance from one element to the next along the axis: `to` in the result, `from` in the source.
    to: usize,
    from: usize,
}

/// Calls `f` for each index of `axes`, with the element's position in the result and in the source.
fn for_each_index(axes: &[Axis], mut f: impl FnMut(usize, usize)) {
    let mut index = [0; Broadcast::MAX_RANK];
    let (mut to, mut from) = (0, 0);
    loop {
        f(to, from);
        let mut wrapped = true;
        for (axis, index) in axes.iter().zip(&mut index) {
            *index += 1;
            to += axis.to;
            from += axis.from;
            wrapped = *index == axis.size;
            if !wrapped {
                break;
            }
            to -= axis.to * axis.size;
            from -= axis.from * axis.size;
            *index = 0;
        }
        if wrapped {
            return;
        }
    }
}

/// Moves a plane of one or two axes. `axes[0]` is the last axis of the result.
fn move_plane(dst: &mut [f32], x: &[f32], axes: &[Axis]) {
    /// The side of a square block. The source and destination of a block both fit into the first-level
    /// cache.
    const BLOCK: usize = 16;
    let col = axes[0];
    let row = axes.get(1).copied().unwrap_or(Axis { size: 1, to: 0, from: 0 });
    if col.from == 1 {
        for r in 0..row.size {
            dst[r * row.to..][..col.size].copy_from_slice(&x[r * row.from..][..col.size]);
        }
        return;
    }
    for rows in (0..row.size).step_by(BLOCK) {
        for cols in (0..col.size).step_by(BLOCK) {
            let width = BLOCK.min(col.size - cols);
            for r in rows..row.size.min(rows + BLOCK) {
                let x = x[r * row.from + cols * col.from..].iter().step_by(col.from);
                dst[r * row.to + cols..][..width].iter_mut().zip(x).for_each(|(dst, &x)| *dst = x);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::tests::floats;

    proptest! {
        #[test]
        fn transposes(
            sized in prop::collection::vec(prop_oneof![1usize..5, 15usize..19], 0..5)
                .prop_flat_map(|shape| {
                    let axes: Vec<usize> = (0..shape.len()).collect();
                    (Just(shape), Just(axes).prop_shuffle())
                }),
        ) {
            let (shape, axes) = sized;
            let x = floats(shape.iter().product(), 1);
            let mut dst = vec![f32::NAN; x.len()];
            transpose(&mut dst, &x, &shape, &axes, Threads::One);
            for (i, &y) in dst.iter().enumerate() {
                let (mut rest, mut at) = (i, 0);
                for &axis in axes.iter().rev() {
                    at += rest % shape[axis] * shape[axis + 1..].iter().product::<usize>();
                    rest /= shape[axis];
                }
                prop_assert_eq!(y, x[at]);
            }
        }
    }

    #[test]
    fn empty_tensors() {
        transpose(&mut [], &[], &[3, 0, 2], &[2, 0, 1], Threads::One);
    }

    #[test]
    #[should_panic(expected = "[0, 0] is not a permutation of 2 axes")]
    fn axes_must_be_a_permutation() {
        transpose(&mut [0.0; 4], &[0.0; 4], &[2, 2], &[0, 0], Threads::One);
    }
}
