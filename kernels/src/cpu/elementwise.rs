//! Adding one slice to another. It must not know what the numbers stand for. Threads share long slices.

use super::dispatch::zip_map;
use super::threads::Threads;

/// `dst[i] += src[i]`.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn accumulate(dst: &mut [f32], src: &[f32], threads: Threads) {
    zip_map([dst], [src], |[dst], [src]| [dst + src], threads);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::testing::{assert_close, floats};

    proptest! {
        #[test]
        fn agrees_with_f64(len in 0usize..200, seed: u32) {
            let (a, b) = (floats(len, seed.into()), floats(len, 1));
            let mut sum = a.clone();
            accumulate(&mut sum, &b, Threads::One);
            assert_close(&sum, (0..len).map(|i| f64::from(a[i]) + f64::from(b[i])), 0.0);
        }
    }
}
