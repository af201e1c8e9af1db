//! Numbers for tests, and how close to each other they must be.

/// A generator of numbers that depend only on its seed (splitmix64).
pub(crate) struct Numbers(pub u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Returns numbers between `low` and `high`.
    pub(crate) fn between(&mut self, low: f32, high: f32, count: usize) -> Vec<f32> {
        let one = |_| low + (high - low) * (self.next() >> 40) as f32 / (1 << 24) as f32;
        (0..count).map(one).collect()
    }
}

/// Checks that each number is within `tolerance` of the expected one, relative to it if it is large, and is
/// NaN exactly if the expected one is.
pub(crate) fn assert_close(what: &str, got: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (at, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let wide = f64::from(got);
        let close = match expected {
            expected if expected.is_nan() => got.is_nan(),
            // The largest `f32` is rounded to infinity, and the other way round.
            expected if expected.abs() > 3e38 => wide.abs() > 3e38 && wide.signum() == expected.signum(),
            expected => (wide - expected).abs() <= tolerance * expected.abs().max(1.0),
        };
        assert!(close, "{what}: element {at} is {got}, expected {expected}");
    }
}
