//! Copies a part of one axis out of a tensor or into a tensor. This module must not know what the axis
//! stands for.

/// A part of one axis of a shape: `start..start + len` of axis `axis`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AxisPart {
    /// The index of the axis in the shape.
    pub axis: usize,
    /// The first index of the part along the axis.
    pub start: usize,
    /// The number of indices in the part.
    pub len: usize,
}

/// Copies the `part` of `x` to `dst`; `x` has the shape `shape`.
///
/// # Panics
/// If a slice does not have the length that the shapes require, or the part is not inside the axis.
#[track_caller]
pub fn copy_part(dst: &mut [f32], x: &[f32], shape: &[usize], part: AxisPart) {
    let (row, from, len) = rows(x.len(), dst.len(), shape, part);
    if len > 0 {
        for (dst, x) in dst.chunks_exact_mut(len).zip(x.chunks_exact(row)) {
            dst.copy_from_slice(&x[from..from + len]);
        }
    }
}

/// Copies `src` into the `part` of `dst`, and leaves the rest of `dst` unchanged; `dst` has the shape
/// `shape`. Pasting tensors side by side concatenates them. Pasting a gradient into zeros is the gradient of
/// [`copy_part`].
///
/// # Panics
/// If a slice does not have the length that the shapes require, or the part is not inside the axis.
#[track_caller]
pub fn paste_part(dst: &mut [f32], src: &[f32], shape: &[usize], part: AxisPart) {
    let (row, to, len) = rows(dst.len(), src.len(), shape, part);
    if len > 0 {
        for (dst, src) in dst.chunks_exact_mut(row).zip(src.chunks_exact(len)) {
            dst[to..to + len].copy_from_slice(src);
        }
    }
}

/// Views the tensor as rows; a row spans the axis and all axes after it. Returns the length of a row, and
/// the start and the length of the part within a row.
#[track_caller]
fn rows(whole: usize, piece: usize, shape: &[usize], part: AxisPart) -> (usize, usize, usize) {
    let AxisPart { axis, start, len } = part;
    let fits = axis < shape.len() && start.checked_add(len).is_some_and(|end| end <= shape[axis]);
    assert!(fits, "{part:?} is not a part of {shape:?}");
    let inner: usize = shape[axis + 1..].iter().product();
    let outer: usize = shape[..axis].iter().product();
    let (want, want_piece) = (outer * shape[axis] * inner, outer * len * inner);
    assert!(whole == want, "the whole has {whole} elements, expected {want}");
    assert!(piece == want_piece, "the part has {piece} elements, expected {want_piece}");
    (shape[axis] * inner, start * inner, len * inner)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::tests::floats;

    proptest! {
        #[test]
        fn parts_make_the_whole(
            outer in 0usize..5, size in 0usize..9, inner in 0usize..5, cut in any::<prop::sample::Index>(),
        ) {
            let x = floats(outer * size * inner, 1);
            let shape = [outer, size, inner];
            let cut = cut.index(size + 1);
            let mut back = vec![f32::NAN; x.len()];
            for (start, len) in [(0, cut), (cut, size - cut)] {
                let part = AxisPart { axis: 1, start, len };
                let mut piece = vec![f32::NAN; outer * len * inner];
                copy_part(&mut piece, &x, &shape, part);
                for (i, &y) in piece.iter().enumerate() {
                    let (o, j, k) = (i / inner / len, i / inner % len, i % inner);
                    prop_assert_eq!(y, x[(o * size + start + j) * inner + k]);
                }
                paste_part(&mut back, &piece, &shape, part);
            }
            prop_assert_eq!(back, x);
        }
    }

    #[test]
    #[should_panic(expected = "is not a part of [2, 3]")]
    fn parts_must_lie_inside() {
        copy_part(&mut [0.0; 4], &[0.0; 6], &[2, 3], AxisPart { axis: 1, start: 2, len: 2 });
    }
}
