//! Dropout (Srivastava et al. 2014), inverted: elements that are not dropped are scaled up during training,
//! so that inference needs no scaling.
//!
//! The mask is not stored: it is a function of the key and an element's index. The gradient is therefore
//! computed by the same function, applied to the output's gradient. This module must not depend on layers.

use super::dispatch::zip_map;
use super::random::{Key, fill_uniform};
use super::shape::expect_len;
use super::threads::Threads;

/// Sets `dst[i]` to `x[i] / (1 − rate)` with probability `1 − rate`, and to 0 otherwise. Element `i` of the
/// slice uses element `first_index + i` of the mask under `key`. The gradient is `dropout(dx, dy, …)` with
/// the same key, index and rate.
///
/// # Panics
/// If the slices differ in length, or `rate` is not in `0..1`.
#[track_caller]
pub fn dropout(dst: &mut [f32], x: &[f32], key: Key, first_index: u64, rate: f32) {
    expect_len("dropout: dst", dst, x.len());
    let keep = keep(rate);
    for ((index, dst), x) in (first_index..).step_by(BLOCK).zip(dst.chunks_mut(BLOCK)).zip(x.chunks(BLOCK)) {
        let mut random = [0.0; BLOCK];
        let random = &mut random[..x.len()];
        fill_uniform(random, key, index, 0.0, 1.0);
        zip_map(
            [dst],
            [x, random],
            |_, [x, random]| [if random >= rate { x * keep } else { 0.0 }],
            Threads::One,
        );
    }
}

/// Applies [`dropout`] to `x` in place.
///
/// # Panics
/// If `rate` is not in `0..1`.
#[track_caller]
pub fn dropout_in_place(x: &mut [f32], key: Key, first_index: u64, rate: f32) {
    let keep = keep(rate);
    for (index, x) in (first_index..).step_by(BLOCK).zip(x.chunks_mut(BLOCK)) {
        let mut random = [0.0; BLOCK];
        let random = &mut random[..x.len()];
        fill_uniform(random, key, index, 0.0, 1.0);
        zip_map([x], [random], |[x], [random]| [if random >= rate { x * keep } else { 0.0 }], Threads::One);
    }
}

/// The number of elements that are computed at a time; their random numbers are on the stack.
const BLOCK: usize = 1024;

/// Returns the factor by which the elements that are not dropped are scaled.
#[track_caller]
fn keep(rate: f32) -> f32 {
    assert!((0.0..1.0).contains(&rate), "dropout: the rate is {rate}, expected 0 or more and less than 1");
    1.0 / (1.0 - rate)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::tests::{bits, floats};

    const KEY: Key = Key { seed: 1, stream: 2 };

    proptest! {
        #[test]
        fn a_mask_is_a_function_of_the_index(
            len in 0usize..3000, at: prop::sample::Index, first in 0u64..100, rate in 0f32..0.99,
        ) {
            let x = floats(len, 1);
            let mut whole = vec![f32::NAN; len];
            dropout(&mut whole, &x, KEY, first, rate);
            let mut in_place = x.clone();
            let (head, tail) = in_place.split_at_mut(at.index(len + 1));
            dropout_in_place(head, KEY, first, rate);
            dropout_in_place(tail, KEY, first + head.len() as u64, rate);
            prop_assert_eq!(bits(&whole), bits(&in_place));
            for (y, x) in whole.iter().zip(&x) {
                prop_assert!(*y == 0.0 || (y * (1.0 - rate) - x).abs() <= 1e-6 * x.abs());
            }
        }
    }

    #[test]
    fn the_rate_is_met_and_keys_differ() {
        let ones = vec![1.0; 100_000];
        let masked = |key, rate| {
            let mut y = ones.clone();
            dropout_in_place(&mut y, key, 0, rate);
            y
        };
        for rate in [0.1, 0.5, 0.9] {
            let dropped = masked(KEY, rate).iter().filter(|&&y| y == 0.0).count();
            assert!((dropped as f32 / 1e5 - rate).abs() < 0.01);
        }
        assert_eq!(masked(KEY, 0.0), ones);
        assert_ne!(masked(KEY, 0.5), masked(Key { seed: 2, stream: 2 }, 0.5));
    }

    #[test]
    #[should_panic(expected = "the rate is 1, expected")]
    fn something_must_stay() {
        dropout_in_place(&mut [1.0], KEY, 0, 1.0);
    }
}
