//! Gradient descent. This module must not know what the numbers stand for.

use super::{GradientTerms, update};
use crate::cpu::past_caches::map_past_caches;
use crate::cpu::reduce::is_below;

/// Applies gradient descent: `next = value − learning_rate · gradient`.
///
/// If `value` is `None`, `next` has the value, which is replaced.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn sgd(
    next: &mut [f32],
    value: Option<&[f32]>,
    gradient: &[f32],
    terms: GradientTerms,
    learning_rate: f32,
) {
    update([next], value, gradient, terms, move |_, value, gradient| [value - learning_rate * gradient]);
}

/// Does what [`sgd`] does, with the same bits but for those of NaN, and writes `next` past the caches. This
/// is faster if nothing reads `next` before other numbers have replaced it in the caches. Returns what
/// [`all_below`](crate::cpu::all_below) returns for the gradient and the bound.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn sgd_past_caches(
    next: &mut [f32],
    value: &[f32],
    gradient: &[f32],
    GradientTerms { scale, weight_decay }: GradientTerms,
    learning_rate: f32,
    bound: f32,
) -> bool {
    let read = [value, gradient];
    // As in `update`, a decay of 0 is skipped, because it could change bits.
    let largest = if weight_decay == 0.0 {
        map_past_caches(next, read, move |value, gradient| value - learning_rate * (scale * gradient))
    } else {
        map_past_caches(next, read, move |value, gradient| {
            value - learning_rate * (scale * gradient + weight_decay * value)
        })
    };
    is_below(largest, bound)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::all_below;
    use crate::cpu::tests::{bits_but_of_nan, floats};

    proptest! {
        #[test]
        fn past_the_caches_are_the_same_bits(
            elements in 0usize..100,
            seed: u64,
            (at, odd) in (0usize..100, prop_oneof![Just(f32::NAN), Just(2.0), Just(-1e38), Just(0.5)]),
            weight_decay in prop_oneof![Just(0.0), Just(0.125f32)],
        ) {
            let terms = GradientTerms { scale: 0.25, weight_decay };
            let (value, mut gradient) = (floats(elements, seed), floats(elements, seed ^ 1));
            gradient.iter_mut().skip(at).take(1).for_each(|element| *element = odd);
            let (mut next, mut past) = (vec![0.0; value.len()], vec![0.0; value.len()]);
            sgd(&mut next, Some(&value), &gradient, terms, 0.3);
            let is_below = sgd_past_caches(&mut past, &value, &gradient, terms, 0.3, 2.0);
            prop_assert_eq!(is_below, all_below(&gradient, 2.0));
            prop_assert_eq!(bits_but_of_nan(&past), bits_but_of_nan(&next));
        }
    }
}
