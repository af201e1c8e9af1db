//! The numbers of the largest magnitudes, each with its index. They are found by the digits of their bits, in
//! three passes that only read, so the memory for a sorted copy is not needed.

use pulp::{Simd, WithSimd};

use super::BadIndex;
use crate::cpu::dispatch::dispatch;
use crate::cpu::elementwise::accumulate;
use crate::cpu::threads::Threads;

/// The digits of a magnitude of 31 bits, the highest first: the place of each, and its number of bits.
const DIGITS: [(u32, u32); 3] = [(20, 11), (10, 10), (0, 10)];
/// The number of values of the longest digit.
const VALUES_MAX: usize = 1 << 11;
/// The bits of infinity.
const INFINITY: u32 = 0xff << 23;

/// Returns how many of `elements` numbers are stored: at least one, if there is any.
pub(super) fn kept(elements: usize, fraction: f64) -> usize {
    ((elements as f64 * fraction).ceil() as usize).clamp(elements.min(1), elements)
}

/// Stores the largest numbers of `from + remainder` in `to`, as many as fit, and leaves the others in
/// `remainder`. Of equal magnitudes, those with the least indices are stored.
///
/// # Panics
/// If there are more numbers than a `u32` can count.
pub(super) fn encode(to: &mut [u8], from: &[f32], remainder: &mut [f32]) {
    assert!(u32::try_from(from.len()).is_ok(), "{} numbers have no indices of 32 bits", from.len());
    accumulate(remainder, from, Threads::One);
    let (indices, numbers) = to.split_at_mut(to.len() / 2);
    let (indices, numbers) = (indices.as_chunks_mut().0, numbers.as_chunks_mut().0);
    if !indices.is_empty() {
        let (threshold, ties) = dispatch(Select { numbers: remainder, count: indices.len() });
        dispatch(Take { from: remainder, threshold, ties, indices, numbers });
        if threshold >= INFINITY {
            // More numbers are not finite than are stored.
            remainder.iter_mut().filter(|x| !x.is_finite()).for_each(|x| *x = 0.0);
        }
    }
}

/// Computes the numbers `to`: 0, except at the stored indices.
pub(super) fn decode(to: &mut [f32], from: &[u8]) -> Result<(), BadIndex> {
    let (indices, numbers) = from.split_at(from.len() / 2);
    let (indices, numbers) = (indices.as_chunks().0, numbers.as_chunks().0);
    to.fill(0.0);
    let (mut least, elements) = (0, to.len());
    for (position, (&index, &number)) in indices.iter().zip(numbers).enumerate() {
        let index = u32::from_le_bytes(index);
        let at = index as usize;
        if at < least || at >= elements {
            return Err(BadIndex { position, index, least, elements });
        }
        to[at] = f32::from_le_bytes(number);
        least = at + 1;
    }
    Ok(())
}

/// Returns the magnitude of a number as bits. They have the order of the magnitudes; infinity and NaN are the
/// greatest.
#[inline(always)]
const fn magnitude(x: f32) -> u32 {
    x.to_bits() & (u32::MAX >> 1)
}

/// Finds the threshold of the `count` largest magnitudes. Returns it with the number of magnitudes that equal
/// it and are among the largest; all greater ones are.
struct Select<'a> {
    numbers: &'a [f32],
    /// At least 1, and at most the number of numbers.
    count: usize,
}

impl WithSimd for Select<'_> {
    type Output = (u32, u32);

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> (u32, u32) {
        let (mut higher, mut missing) = (0, self.count as u32);
        for (place, bits) in DIGITS {
            let mut counts = [0u32; VALUES_MAX];
            for &x in self.numbers {
                let x = magnitude(x) >> place;
                if x >> bits == higher {
                    counts[x as usize % (1 << bits)] += 1;
                }
            }
            let mut digit = (1usize << bits) - 1;
            while counts[digit] < missing {
                missing -= counts[digit];
                digit -= 1;
            }
            higher = (higher << bits) | digit as u32;
        }
        (higher, missing)
    }
}

/// Moves the largest numbers out of `from`.
struct Take<'a> {
    from: &'a mut [f32],
    threshold: u32,
    ties: u32,
    indices: &'a mut [[u8; 4]],
    numbers: &'a mut [[u8; 4]],
}

impl WithSimd for Take<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { from, threshold, mut ties, indices, numbers } = self;
        let mut stored = indices.iter_mut().zip(numbers);
        for (index, x) in from.iter_mut().enumerate() {
            let magnitude = magnitude(*x);
            if magnitude < threshold || (magnitude == threshold && ties == 0) {
                continue;
            }
            ties -= u32::from(magnitude == threshold);
            let (at, number) = stored.next().expect("as many numbers as were counted");
            (*at, *number) = ((index as u32).to_le_bytes(), x.to_le_bytes());
            *x = 0.0;
        }
    }
}
