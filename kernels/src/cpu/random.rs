//! Random fills for initial values. An element depends only on the key and its own index, so parts of a
//! variable can be filled anywhere and in any order, with the same numbers as in the whole variable.
//!
//! This module must not depend on variables or shapes; the caller gives every variable its own stream.
//! Logarithm and cosine are computed in `f64` and rounded once, so different math libraries almost always
//! give the same bits.

use std::f64::consts::TAU;

use super::philox::{philox4x32, words};

/// The identity of one sequence of random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The seed of the run.
    pub seed: u64,
    /// The number of the sequence. The sequences of a run are independent; each variable has its own
    /// sequence.
    pub stream: u64,
}

impl Key {
    /// Returns the random words of one block. In Philox's terms, the counter consists of the block's number
    /// and the stream, and the key is the seed.
    #[inline(always)]
    fn block(self, number: u64) -> [u32; 4] {
        let ([n0, n1], [s0, s1]) = (words(number), words(self.stream));
        philox4x32([n0, n1, s0, s1], words(self.seed))
    }
}

/// Fills `dst` with consecutive elements of a sequence that is uniformly distributed on `[low, high)`. The
/// first of them is element `first_index` of the sequence. Neighbouring possible numbers differ by 2⁻²⁴ of
/// the interval's width.
///
/// If `low` equals `high`, every element has this value.
///
/// # Panics
/// If `low > high`, or if `low` or `high` is not finite.
#[track_caller]
pub fn fill_uniform(dst: &mut [f32], key: Key, first_index: u64, low: f32, high: f32) {
    assert!(
        low <= high && low.is_finite() && high.is_finite(),
        "fill_uniform: {low}..{high} is not a finite range"
    );
    let width = f64::from(high) - f64::from(low);
    // The sum can round up to `high`, which is excluded.
    let last = high.next_down().max(low);
    fill_by_fours(dst, first_index, |number| {
        key.block(number).map(|word| {
            let unit = f64::from(word >> 8) / f64::from(1 << 24);
            ((f64::from(low) + width * unit) as f32).min(last)
        })
    });
}

/// Fills `dst` with consecutive elements of a normally distributed sequence. The first of them is element
/// `first_index` of the sequence.
#[track_caller]
pub fn fill_normal(dst: &mut [f32], key: Key, first_index: u64, mean: f32, stddev: f32) {
    fill_by_fours(dst, first_index, |number| {
        let [a, b, c, d] = key.block(number);
        let ([z0, z1], [z2, z3]) = (box_muller(a, b), box_muller(c, d));
        [z0, z1, z2, z3].map(|z| at(z, mean, stddev))
    });
}

/// Fills `dst` with consecutive elements of a sequence whose normal distribution is truncated at two
/// standard deviations. The first of them is element `first_index` of the sequence. A number beyond two
/// standard deviations is drawn again, with random bits that belong to this element only.
///
/// If all 32 draws are beyond this bound, the element is the mean. This happens to one element in 10⁴³.
///
/// # Panics
/// If an index reaches 2⁵⁶.
#[track_caller]
pub fn fill_truncated_normal(dst: &mut [f32], key: Key, first_index: u64, mean: f32, stddev: f32) {
    /// The number of low bits of a block's number that hold the index of the element. The bits above hold
    /// the number of the attempt for this element. Each attempt makes up to four draws.
    const INDEX_BITS: u32 = 56;
    const ATTEMPTS: u64 = 8;
    assert!(
        first_index.checked_add(dst.len() as u64).is_some_and(|end| end <= 1 << INDEX_BITS),
        "fill_truncated_normal: an index is 2^{INDEX_BITS} or more"
    );
    for (index, dst) in (first_index..).zip(dst) {
        let z = (0..ATTEMPTS)
            .flat_map(|attempt| {
                let [a, b, c, d] = key.block(attempt << INDEX_BITS | index);
                // The second pair is computed lazily, since one of the first numbers is nearly always
                // accepted.
                [(a, b), (c, d)].into_iter().flat_map(|(a, b)| box_muller(a, b))
            })
            .find(|z| z.abs() <= 2.0);
        *dst = at(z.unwrap_or(0.0), mean, stddev);
    }
}

/// Returns two independent standard normal numbers from two random words (Box & Muller 1958).
#[inline(always)]
fn box_muller(a: u32, b: u32) -> [f64; 2] {
    let unit = 1.0 / (1u64 << 32) as f64;
    // The argument of the logarithm is in (0, 1], and so is never 0.
    let radius = (-2.0 * ((f64::from(a) + 1.0) * unit).ln()).sqrt();
    let (sin, cos) = (TAU * unit * f64::from(b)).sin_cos();
    [radius * cos, radius * sin]
}

/// Returns the number that lies `z` standard deviations above the mean.
#[inline(always)]
fn at(z: f64, mean: f32, stddev: f32) -> f32 {
    (f64::from(mean) + f64::from(stddev) * z) as f32
}

/// Fills `dst` with consecutive elements of a sequence, beginning with the element `first_index`. The
/// sequence is computed four elements at a time: `four(n)` returns the elements `4n..4n + 4`.
#[inline(always)]
fn fill_by_fours(dst: &mut [f32], first_index: u64, four: impl Fn(u64) -> [f32; 4]) {
    let into_group = (first_index % 4) as usize;
    let (head, body) = dst.split_at_mut(dst.len().min((4 - into_group) % 4));
    let mut number = first_index / 4;
    if !head.is_empty() {
        head.copy_from_slice(&four(number)[into_group..][..head.len()]);
        number += 1;
    }
    for (number, group) in (number..).zip(body.chunks_mut(4)) {
        group.copy_from_slice(&four(number)[..group.len()]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::tests::bits;

    const KEY: Key = Key { seed: 42, stream: 7 };

    type Fill = fn(&mut [f32], Key, u64, f32, f32);
    const FILLS: [Fill; 3] = [fill_uniform, fill_normal, fill_truncated_normal];

    fn filled(fill: Fill, len: usize, key: Key, first_index: u64, a: f32, b: f32) -> Vec<f32> {
        let mut x = vec![f32::NAN; len];
        fill(&mut x, key, first_index, a, b);
        x
    }

    proptest! {
        #[test]
        fn a_part_is_that_part_of_the_whole(
            seed: u64, stream: u64, start in 0usize..40, len in 0usize..40, base in 0u64..1 << 55,
        ) {
            let key = Key { seed, stream };
            for fill in FILLS {
                let whole = filled(fill, 80, key, base, -1.0, 2.0);
                let part = filled(fill, len, key, base + start as u64, -1.0, 2.0);
                prop_assert_eq!(bits(&part), bits(&whole[start..start + len]));
            }
        }

        #[test]
        fn uniform_stays_in_range(seed: u64, low in -1e6f32..1e6, width in 0f32..10.0) {
            let high = low + width;
            let x = filled(fill_uniform, 100, Key { seed, stream: 0 }, 0, low, high);
            prop_assert!(x.iter().all(|&x| x >= low && (x < high || low == high)));
        }
    }

    /// Compares the mean, the variance and the fraction of elements beyond ±1 with their theoretical values.
    /// The tolerance is at least five standard errors.
    #[test]
    fn moments() {
        const N: usize = 200_000;
        // The variance of the standard normal distribution truncated at ±2, and the fraction beyond ±1.
        let (cut_variance, cut_tail) = (0.7737, 0.2847);
        for (fill, (a, b), [mean, variance, tail]) in [
            (FILLS[0], (-3f32.sqrt(), 3f32.sqrt()), [0.0, 1.0, 1.0 - 1.0 / 3f64.sqrt()]),
            (FILLS[1], (0.0, 1.0), [0.0, 1.0, 0.3173]),
            (FILLS[2], (0.0, 1.0), [0.0, cut_variance, cut_tail]),
        ] {
            let x = filled(fill, N, KEY, 0, a, b);
            let average = |f: &dyn Fn(f64) -> f64| x.iter().map(|&x| f(x.into())).sum::<f64>() / N as f64;
            assert!((average(&|x| x) - mean).abs() < 0.012);
            assert!((average(&|x| x * x) - variance).abs() < 0.02);
            assert!((average(&|x| f64::from(x.abs() > 1.0)) - tail).abs() < 0.006);
        }
    }

    #[test]
    fn truncated_normal_is_cut_off() {
        let x = filled(fill_truncated_normal, 100_000, KEY, 0, 5.0, 0.1);
        assert!(x.iter().all(|x| (4.8..=5.2).contains(x)));
        // Few elements are exactly the mean, which is the value if every draw fails.
        assert!(x.iter().filter(|&&x| x == 5.0).count() < 20);
    }

    #[test]
    fn seeds_and_streams_differ() {
        for fill in FILLS {
            let of = |seed, stream| filled(fill, 16, Key { seed, stream }, 0, -1.0, 1.0);
            let base = of(1, 1);
            for other in [of(2, 1), of(1, 2), of(1 << 32 | 1, 1), of(1, 1 << 32 | 1)] {
                assert!(base.iter().zip(&other).all(|(a, b)| a != b));
            }
        }
    }

    #[test]
    fn indices_beyond_32_bits_are_new_numbers() {
        for fill in FILLS {
            let of = |index| filled(fill, 16, KEY, index, -1.0, 1.0);
            assert!(of(0).iter().zip(&of(1 << 40)).all(|(a, b)| a != b));
        }
    }
}
