//! Numbers of 16 bits. The conversions have no branches and no tables, so the compiler vectorises their
//! loops. Both round to the nearest number, and to the even one of two.

use std::marker::PhantomData;

use pulp::{Simd, WithSimd};

use crate::cpu::dispatch::dispatch;

/// The bits of the sign, of infinity and of the magnitude of an `f32`.
const SIGN: u32 = 1 << 31;
const INFINITY: u32 = 0xff << 23;

/// A format of 16 bits.
pub(super) trait Format {
    /// Returns the code of a number.
    fn code(x: f32) -> u16;

    /// Returns the number that a code stands for.
    fn number(code: u16) -> f32;
}

/// IEEE 754 binary16.
pub(super) struct Half;

/// The upper half of an `f32`.
pub(super) struct Brain;

/// The difference between the biases of the exponents of `f32` and binary16, as bits of an `f32`.
const REBIAS: u32 = (127 - 15) << 23;
/// The bits of the least `f32` that is a normal number of binary16, 2⁻¹⁴.
const LEAST_NORMAL: u32 = REBIAS + (1 << 23);
/// The bits of 2⁻¹. Its last bit is worth 2⁻²⁴, which is the least number of binary16.
const ALIGNER: u32 = (127 - 1) << 23;
/// The codes of the greatest finite number and of infinity.
const HALF_MAX: u32 = 0x7bff;
const HALF_INFINITY: u32 = 0x7c00;

impl Format for Half {
    #[inline(always)]
    fn code(x: f32) -> u16 {
        let sign = (x.to_bits() & SIGN) >> 16;
        let magnitude = x.to_bits() & !SIGN;
        // The sum puts the last bit of binary16 at the last bit of an `f32`, and thereby rounds.
        let subnormal = (f32::from_bits(magnitude) + f32::from_bits(ALIGNER)).to_bits().wrapping_sub(ALIGNER);
        let even = (magnitude >> 13) & 1;
        let normal = magnitude.wrapping_sub(REBIAS).wrapping_add(0xfff + even) >> 13;
        let finite = if magnitude < LEAST_NORMAL { subnormal } else { normal };
        // A number from 2¹⁶ on has a `normal` that is no code, but that is greater than `HALF_MAX`.
        let finite = if finite < HALF_MAX { finite } else { HALF_MAX };
        let other = if magnitude > INFINITY { HALF_INFINITY | 0x200 } else { HALF_INFINITY };
        (sign | if magnitude < INFINITY { finite } else { other }) as u16
    }

    #[inline(always)]
    fn number(code: u16) -> f32 {
        let sign = (u32::from(code) & 0x8000) << 16;
        let magnitude = (u32::from(code) & 0x7fff) << 13;
        let normal = magnitude + REBIAS;
        // An exponent of 0 means that there is no hidden bit, so the hidden bit is subtracted.
        let subnormal = (f32::from_bits(magnitude + LEAST_NORMAL) - f32::from_bits(LEAST_NORMAL)).to_bits();
        let finite = if magnitude < (1 << 23) { subnormal } else { normal };
        let bits = if magnitude >= HALF_INFINITY << 13 { magnitude | INFINITY } else { finite };
        f32::from_bits(sign | bits)
    }
}

impl Format for Brain {
    #[inline(always)]
    fn code(x: f32) -> u16 {
        let (sign, magnitude) = (x.to_bits() & SIGN, x.to_bits() & !SIGN);
        let even = (magnitude >> 16) & 1;
        let rounded = magnitude.wrapping_add(0x7fff + even) >> 16;
        let max = (INFINITY >> 16) - 1;
        let finite = if rounded < max { rounded } else { max };
        let other = if magnitude > INFINITY { (INFINITY >> 16) | 0x40 } else { INFINITY >> 16 };
        ((sign >> 16) | if magnitude < INFINITY { finite } else { other }) as u16
    }

    #[inline(always)]
    fn number(code: u16) -> f32 {
        f32::from_bits(u32::from(code) << 16)
    }
}

/// Stores the codes of `from` in `to`.
pub(super) fn encode<F: Format>(to: &mut [u8], from: &[f32]) {
    let (codes, padding) = to.split_at_mut(2 * from.len());
    padding.fill(0);
    dispatch(Encode { codes: codes.as_chunks_mut().0, from, format: PhantomData::<F> });
}

/// Computes the numbers `to` from their codes.
pub(super) fn decode<F: Format>(to: &mut [f32], from: &[u8]) {
    dispatch(Decode { codes: from.as_chunks().0, to, format: PhantomData::<F> });
}

struct Encode<'a, F> {
    codes: &'a mut [[u8; 2]],
    from: &'a [f32],
    format: PhantomData<F>,
}

impl<F: Format> WithSimd for Encode<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (code, &x) in self.codes.iter_mut().zip(self.from) {
            *code = F::code(x).to_le_bytes();
        }
    }
}

struct Decode<'a, F> {
    codes: &'a [[u8; 2]],
    to: &'a mut [f32],
    format: PhantomData<F>,
}

impl<F: Format> WithSimd for Decode<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (x, &code) in self.to.iter_mut().zip(self.codes) {
            *x = F::number(u16::from_le_bytes(code));
        }
    }
}
