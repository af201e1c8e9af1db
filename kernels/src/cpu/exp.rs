//! Functions of one number: the exponential, the logarithm and functions built from them. The compiler
//! vectorises them inside the loop of a kernel. They use only plain arithmetic, and so give the same bits on
//! every instruction set.
//!
//! This module must not depend on slices.

/// Returns `eˣ`, with an error of at most 2 units in the last place (1.1 was measured); a subnormal result is
/// off by at most one subnormal step. A NaN stays a NaN.
///
/// The method is that of Cephes' `expf` (Moshier): with `x = n · ln 2 + r`, a polynomial in `r` is
/// multiplied by `2ⁿ`.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    /// Adding this constant to a small number rounds the number and leaves the integer in the low bits.
    /// Subtracting the constant again gives the rounded number.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 as the sum of two numbers. The first has only the upper bits of ln 2, so that its product with
    /// `n` is exact; the second has the rest.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    // Beyond these bounds the result is infinity or 0. The comparisons leave a NaN unchanged.
    let x = if x > 90.0 { 90.0 } else { x };
    let x = if x < -105.0 { -105.0 } else { x };
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = x - n * LN_2[0] - n * LN_2[1];
    let mut p = 1.987_569_1e-4;
    for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p * r + c;
    }
    let p = p * r * r + r + 1.0;
    // The factor is applied in two steps, because 2ⁿ may overflow or underflow although the result does not.
    let n = rounded.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let half = n >> 1;
    p * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// Returns `2ⁿ` for `n` in −126..128.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) << 23) as u32)
}

/// Returns `1 / (1 + e⁻ˣ)`, with an error of at most 4 units in the last place. Below −88.7, where the exact
/// value is less than 10⁻³⁸, the result is 0.
#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Returns the hyperbolic tangent, with an error of at most 4 units in the last place. The method is that of
/// Cephes' `tanhf` (Moshier): near 0, where the formula with the exponential would lose digits, a polynomial
/// is used.
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    let square = x * x;
    let mut p = -5.704_988_7e-3;
    for c in [2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
        p = p * square + c;
    }
    let near = p * square * x + x;
    let far = (1.0 - 2.0 / (exp(2.0 * x.abs()) + 1.0)).copysign(x);
    if x.abs() < 0.625 { near } else { far }
}

/// Returns the natural logarithm, with an error of at most 2 units in the last place. The logarithm of 0 is
/// −∞; the logarithm of a negative number or a NaN is NaN.
///
/// The method is that of Cephes' `logf` (Moshier): with `x = m · 2ⁿ` and `m` in √½..√2, `n · ln 2` is added
/// to a polynomial in `m − 1`.
#[inline(always)]
pub(super) fn ln(x: f32) -> f32 {
    /// 2²³: the factor that makes a subnormal number normal.
    const SCALE: f32 = 8_388_608.0;
    let is_small = x < f32::MIN_POSITIVE;
    let scaled = if is_small { x * SCALE } else { x };
    // The bits of √½ are subtracted, so that the exponent of the difference is `n`.
    const ROOT: u32 = 0x3f35_04f3;
    let offset = scaled.to_bits().wrapping_sub(ROOT);
    let n = (offset as i32) >> 23;
    let m = f32::from_bits((offset & 0x007f_ffff).wrapping_add(ROOT));
    let n = n as f32 - if is_small { 23.0 } else { 0.0 };
    let f = m - 1.0;
    let square = f * f;
    let mut p = 7.037_683_6e-2;
    for c in [
        -1.151_461e-1,
        1.167_699_9e-1,
        -1.242_014_1e-1,
        1.424_932_3e-1,
        -1.666_805_8e-1,
        2.000_071_5e-1,
        -2.499_999_4e-1,
        3.333_333e-1,
    ] {
        p = p * f + c;
    }
    // ln 2 is split in two parts, as in [`exp`].
    let y = p * f * square + n * -2.121_944_4e-4 - 0.5 * square;
    let y = f + y + n * 0.693_359_4;
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    let y = if x == f32::INFINITY { x } else { y };
    // A NaN takes the second branch too, since every comparison with it is false.
    if x >= 0.0 { y } else { f32::NAN }
}

/// Returns `ln(1 + x)` for `x` in 0..=1, with an error of at most 3 units in the last place.
#[inline(always)]
pub(super) fn ln_1p(x: f32) -> f32 {
    let sum = 1.0 + x;
    // The second term corrects the rounding error of `sum`.
    ln(sum) + (x - (sum - 1.0)) / sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the largest difference between `f` and `want`, in units in the last place of `want`. Compares
    /// them at evenly spaced arguments from `low` to `high`.
    fn worst(f: impl Fn(f32) -> f32, want: impl Fn(f64) -> f64, low: f32, high: f32) -> f64 {
        const STEPS: usize = 2_000_000;
        let xs = (0..=STEPS).map(|i| low + (high - low) * (i as f32 / STEPS as f32));
        xs.fold(0.0, |worst, x| {
            let want = want(x.into());
            let unit = f64::from((want as f32).next_up()) - f64::from(want as f32);
            ((f64::from(f(x)) - want).abs() / unit.abs()).max(worst)
        })
    }

    #[test]
    fn errors_are_as_documented() {
        for (low, high) in [(-87.3, 88.7), (-1.0, 1.0)] {
            assert!(worst(exp, f64::exp, low, high) < 2.0);
        }
        assert!(worst(exp, f64::exp, -103.0, -87.3) <= 1.5);
        for (low, high) in [(-87.0, 20.0), (-2.0, 2.0)] {
            assert!(worst(sigmoid, |x| 1.0 / (1.0 + (-x).exp()), low, high) < 4.0);
        }
        for (low, high) in [(-20.0, 20.0), (-1.0, 1.0), (1e-6, 1e-3)] {
            assert!(worst(tanh, f64::tanh, low, high) < 4.0);
        }
    }

    #[test]
    fn errors_of_logarithms_are_as_documented() {
        for (low, high) in [(1e-38, 1e-36), (0.5, 2.0), (1e-3, 10.0), (1e30, 3e38), (1e-44, 1e-38)] {
            assert!(worst(ln, f64::ln, low, high) < 2.0);
        }
        for (low, high) in [(1e-30, 1.0), (1e-9, 1e-3)] {
            assert!(worst(ln_1p, f64::ln_1p, low, high) < 3.0);
        }
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        assert_eq!([ln(1.0), ln(0.0), ln(-0.0), ln(inf), ln_1p(0.0)], [0.0, -inf, -inf, inf, 0.0]);
        assert!([nan, -nan, -1.0, -inf, -1e-40].into_iter().all(|x| ln(x).is_nan()));
    }

    #[test]
    fn special_values() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        assert_eq!([exp(0.0), exp(-0.0), exp(inf), exp(-inf)], [1.0, 1.0, inf, 0.0]);
        assert_eq!([exp(88.73), exp(f32::MAX), exp(-104.1), exp(f32::MIN)], [inf, inf, 0.0, 0.0]);
        assert_eq!([sigmoid(0.0), sigmoid(inf), sigmoid(-inf), sigmoid(f32::MIN)], [0.5, 1.0, 0.0, 0.0]);
        assert_eq!([tanh(inf), tanh(-inf), tanh(50.0), tanh(f32::MIN)], [1.0, -1.0, 1.0, -1.0]);
        assert_eq!([tanh(0.0), tanh(-0.0)], [0.0, 0.0]);
        assert!(exp(nan).is_nan() && sigmoid(nan).is_nan() && tanh(nan).is_nan() && tanh(-nan).is_nan());
    }
}
