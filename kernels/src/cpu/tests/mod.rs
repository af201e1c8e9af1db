//! Fixtures for the tests of several kernels: inputs, comparisons, and the instruction sets of this machine.

use pulp::Arch;

use super::random::{Key, fill_normal};

/// Returns `len` numbers with the standard normal distribution. The same `stream` always gives the same
/// numbers.
pub fn floats(len: usize, stream: u64) -> Vec<f32> {
    let mut x = vec![0.0; len];
    fill_normal(&mut x, Key { seed: 0, stream }, 0, 0.0, 1.0);
    x
}

/// Returns the bits of each element of `x`, for comparisons in which 0 and -0 differ, and NaNs with the same
/// bits are equal.
pub fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Returns the bits of each element of `x`, and the same number for each NaN: which NaN an operation returns
/// is not defined.
pub fn bits_but_of_nan(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }).collect()
}

/// Checks that each element of `got` differs from the `f64` reference `want` by at most 1e-6 times the sum
/// of `|want|` and `scale`. This is a few units in the last place of an `f32`.
#[track_caller]
pub fn assert_close(got: &[f32], want: impl IntoIterator<Item = f64>, scale: f64) {
    let want: Vec<f64> = want.into_iter().collect();
    assert_eq!(got.len(), want.len());
    for (i, (&got, &want)) in got.iter().zip(&want).enumerate() {
        let error = (f64::from(got) - want).abs();
        assert!(error <= 1e-6 * (want.abs() + scale), "element {i} is {got}, expected {want}");
    }
}

/// Returns the instruction sets that kernels can use on this machine, including the scalar one.
pub fn each_arch() -> Vec<Arch> {
    #[cfg(target_arch = "x86_64")]
    let more = [pulp::x86::V3::try_new().map(Arch::V3), pulp::x86::V4::try_new().map(Arch::V4)];
    #[cfg(not(target_arch = "x86_64"))]
    let more = [Some(Arch::new())];
    more.into_iter().flatten().chain([Arch::Scalar]).collect()
}
