//! The gradients of reductions: the gradient of each result is repeated along the axes that were reduced.
//! This module must not know what the numbers stand for.

use super::broadcast::{Broadcast, Side};
use super::shape::expect_len;

/// Fills `dst` with the elements of `x`, repeated in the same way as `shapes` repeats the operand at `side`.
/// `x` has the shape of this operand, and `dst` has the shape of the broadcast result.
///
/// # Panics
/// If a slice does not have the length that `shapes` requires.
#[track_caller]
pub fn expand(dst: &mut [f32], x: &[f32], shapes: &Broadcast, side: Side) {
    expect_len("expand: dst", dst, shapes.len());
    expect_len("expand: x", x, shapes.operand_len(side));
    let (len, has) = shapes.inner();
    shapes.for_each_row(|row, starts| {
        let start = starts[side as usize];
        let dst = &mut dst[row..row + len];
        if has[side as usize] {
            dst.copy_from_slice(&x[start..start + len]);
        } else {
            dst.fill(x[start]);
        }
    });
}

/// Computes the gradient of a maximum. `x` is the input of the maximum, and `dst` is the gradient of `x`;
/// both have the larger shape of `shapes`. `y` is the maximum, and `dy` its gradient; both have the shape of
/// the operand at `side`. `dy` is divided evenly among
/// the elements of `x` that equal the maximum; all other elements of `dst` are 0. `counts` is scratch memory
/// of the same length as `y`.
///
/// # Panics
/// If a slice does not have the length that `shapes` requires.
#[track_caller]
pub fn reduce_max_grad(
    dst: &mut [f32],
    [x, y, dy]: [&[f32]; 3],
    counts: &mut [f32],
    shapes: &Broadcast,
    side: Side,
) {
    expect_len("reduce_max_grad: dst", dst, shapes.len());
    expect_len("reduce_max_grad: x", x, shapes.len());
    for (what, slice) in [("y", y), ("dy", dy), ("counts", counts)] {
        assert_eq!(slice.len(), shapes.operand_len(side), "reduce_max_grad: length of {what}");
    }
    let (len, has) = shapes.inner();
    // Returns the element's position in the reduced operand. Within a row, the position advances only if the
    // operand has the innermost axis.
    let at = |start: usize, offset: usize| start + if has[side as usize] { offset } else { 0 };
    counts.fill(0.0);
    shapes.for_each_row(|row, starts| {
        for (offset, &x) in x[row..row + len].iter().enumerate() {
            let own = at(starts[side as usize], offset);
            if x == y[own] {
                counts[own] += 1.0;
            }
        }
    });
    shapes.for_each_row(|row, starts| {
        for (offset, dst) in dst[row..row + len].iter_mut().enumerate() {
            let own = at(starts[side as usize], offset);
            *dst = if x[row + offset] == y[own] { dy[own] / counts[own] } else { 0.0 };
        }
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::broadcast::{Reduction, reduce};
    use crate::cpu::tests::floats;

    proptest! {
        /// Checks that expanding is the transpose of summing: ⟨expand x, z⟩ = ⟨x, sum z⟩. Also checks that
        /// the gradient of a maximum is 0 except at the maxima, where it adds up to the incoming gradient.
        #[test]
        fn agree_with_the_reductions(
            extents in prop::collection::vec((1usize..5, any::<bool>()), 0..5),
            coarse: bool,
            seed: u32,
        ) {
            let whole: Vec<usize> = extents.iter().map(|&(extent, _)| extent).collect();
            let kept: Vec<usize> = extents.iter().map(|&(extent, kept)| if kept { extent } else { 1 }).collect();
            let shapes = Broadcast::new(&kept, &whole).unwrap();
            let (all, few) = (shapes.len(), shapes.operand_len(Side::A));
            let mut z = floats(all, seed.into());
            if coarse {
                // Rounding leaves few different numbers, so that many maxima are equal.
                z.iter_mut().for_each(|z| *z = z.round());
            }
            let x = floats(few, 7);
            let mut expanded = vec![f32::NAN; all];
            expand(&mut expanded, &x, &shapes, Side::A);
            let mut summed = vec![f32::NAN; few];
            reduce(&mut summed, &z, Reduction::Sum, &shapes, Side::A);
            let product = |a: &[f32], b: &[f32]| -> f64 {
                a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
            };
            prop_assert!((product(&expanded, &z) - product(&x, &summed)).abs() < 1e-3);

            let (mut maxima, mut counts, mut dz) = (vec![0.0; few], vec![9.0; few], vec![f32::NAN; all]);
            reduce(&mut maxima, &z, Reduction::Max, &shapes, Side::A);
            reduce_max_grad(&mut dz, [&z, &maxima, &x], &mut counts, &shapes, Side::A);
            let mut at = vec![f32::NAN; all];
            expand(&mut at, &maxima, &shapes, Side::A);
            for ((dz, z), max) in dz.iter().zip(&z).zip(&at) {
                prop_assert!(z == max || *dz == 0.0);
            }
            reduce(&mut summed, &dz, Reduction::Sum, &shapes, Side::A);
            for (summed, x) in summed.iter().zip(&x) {
                prop_assert!((summed - x).abs() < 1e-5);
            }
        }
    }
}
