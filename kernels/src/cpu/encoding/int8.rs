//! Blocks of numbers with a scale each and one byte for each number. A block stays in the first cache between
//! the search for its largest number and the division by its scale.

use pulp::{Simd, WithSimd};

use crate::cpu::dispatch::dispatch;
use crate::cpu::threads::{ELEMENTS_PER_TASK, Strided, Threads, share};

/// The number of numbers in a block. The last block may have fewer.
pub(super) const BLOCK: usize = 128;
/// The greatest magnitude of a code.
const CODE_MAX: f32 = 127.0;
/// A block whose numbers all have a smaller magnitude is stored as zeros, because the reciprocal of its scale
/// would not be finite: 2⁻¹¹⁹.
const LEAST: f32 = f32::from_bits((127 - 119) << 23);
/// The greatest magnitude for which a scale is computed; 127 times the scale of `f32::MAX` could be infinite.
const GREATEST: f32 = 3.4e38;
/// 1.5 · 2²³. A number of a small magnitude that is added to it is rounded to a whole number, which is then
/// in the last bits of the sum.
const ROUNDER: f32 = 12_582_912.0;

/// Stores `from` in `to`. The threads share the blocks.
pub(super) fn encode(to: &mut [u8], from: &[f32], threads: Threads) {
    let (scales, codes) = split_mut(to, from.len());
    let (blocks, tasks) = (scales.len(), threads.tasks(from.len(), ELEMENTS_PER_TASK));
    let written = (Strided { data: scales, width: 1 }, Strided { data: codes, width: BLOCK });
    share(written, 0..blocks, tasks, &|(scales, codes), blocks| {
        let (scales, codes) = (scales.data, codes.data);
        let from = &from[blocks.start * BLOCK..][..codes.len()];
        dispatch(Encode { scales, codes, from });
    });
}

/// Stores `from + remainder` in `to`, and leaves what is dropped in `remainder`.
pub(super) fn encode_with_remainder(to: &mut [u8], from: &[f32], remainder: &mut [f32]) {
    let (scales, codes) = split_mut(to, from.len());
    dispatch(EncodeWithRemainder { scales, codes, from, remainder });
}

/// Computes the numbers `to`. The threads share the blocks.
pub(super) fn decode(to: &mut [f32], from: &[u8], threads: Threads) {
    let (scales, codes) = from.split_at(4 * to.len().div_ceil(BLOCK));
    let (scales, tasks) = (scales.as_chunks().0, threads.tasks(to.len(), ELEMENTS_PER_TASK));
    share(Strided { data: to, width: BLOCK }, 0..scales.len(), tasks, &|to, blocks| {
        let codes = &codes[blocks.start * BLOCK..][..to.data.len()];
        dispatch(Decode { scales: &scales[blocks], codes, to: to.data });
    });
}

/// Returns the memory of the scales and of the codes of `elements` numbers. Clears the padding.
fn split_mut(to: &mut [u8], elements: usize) -> (&mut [[u8; 4]], &mut [u8]) {
    let (scales, codes) = to.split_at_mut(4 * elements.div_ceil(BLOCK));
    let (codes, padding) = codes.split_at_mut(elements);
    padding.fill(0);
    (scales.as_chunks_mut().0, codes)
}

/// Stores one block, and returns its scale. A block that is not finite has the scale NaN, so all of its
/// numbers are decoded to NaN.
#[inline(always)]
fn encode_block(codes: &mut [u8], block: &[f32]) -> f32 {
    // As bits without sign, NaN is greater than infinity, and infinity is greater than every number.
    let largest = block.iter().fold(0, |largest, x| (x.to_bits() & (u32::MAX >> 1)).max(largest));
    let largest = f32::from_bits(largest);
    if !largest.is_finite() || largest < LEAST {
        codes.fill(0);
        return if largest.is_finite() { 0.0 } else { f32::NAN };
    }
    let largest = largest.min(GREATEST);
    let inverse = CODE_MAX / largest;
    for (code, x) in codes.iter_mut().zip(block) {
        // The last byte is the whole number as a signed byte.
        *code = (x * inverse + ROUNDER).to_bits() as u8;
    }
    largest / CODE_MAX
}

#[inline(always)]
fn number(code: u8, scale: f32) -> f32 {
    f32::from(code as i8) * scale
}

struct Encode<'a> {
    scales: &'a mut [[u8; 4]],
    codes: &'a mut [u8],
    from: &'a [f32],
}

impl WithSimd for Encode<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let blocks = self.codes.chunks_mut(BLOCK).zip(self.from.chunks(BLOCK));
        for (scale, (codes, block)) in self.scales.iter_mut().zip(blocks) {
            *scale = encode_block(codes, block).to_le_bytes();
        }
    }
}

struct EncodeWithRemainder<'a> {
    scales: &'a mut [[u8; 4]],
    codes: &'a mut [u8],
    from: &'a [f32],
    remainder: &'a mut [f32],
}

impl WithSimd for EncodeWithRemainder<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let blocks = self.from.chunks(BLOCK).zip(self.remainder.chunks_mut(BLOCK));
        let blocks = self.codes.chunks_mut(BLOCK).zip(blocks);
        for (stored, (codes, (from, block))) in self.scales.iter_mut().zip(blocks) {
            for (x, from) in block.iter_mut().zip(from) {
                *x += from;
            }
            let scale = encode_block(codes, block);
            *stored = scale.to_le_bytes();
            if scale.is_nan() {
                block.fill(0.0);
                continue;
            }
            for (x, &code) in block.iter_mut().zip(&*codes) {
                *x -= number(code, scale);
            }
        }
    }
}

struct Decode<'a> {
    scales: &'a [[u8; 4]],
    codes: &'a [u8],
    to: &'a mut [f32],
}

impl WithSimd for Decode<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let blocks = self.to.chunks_mut(BLOCK).zip(self.codes.chunks(BLOCK));
        for (&scale, (to, codes)) in self.scales.iter().zip(blocks) {
            let scale = f32::from_le_bytes(scale);
            for (x, &code) in to.iter_mut().zip(codes) {
                *x = number(code, scale);
            }
        }
    }
}
