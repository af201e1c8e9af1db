//! Random numbers that are the same on every machine, for the order of examples and for generated data. Does
//! not use the clock or the operating system, and is not suitable for secrets.

/// A SplitMix64 generator of pseudorandom numbers.
///
/// From G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, with the
/// constants of S. Vigna's `splitmix64.c` (public domain, <https://prng.di.unimi.it/splitmix64.c>).
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    state: u64,
}

/// The odd number nearest to 2⁶⁴ divided by the golden ratio.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

impl SplitMix64 {
    /// Returns the random stream that `numbers` identify: a constant for the stream's purpose, a seed and
    /// indices.
    ///
    /// The numbers are mixed in order, so seed 1 with index 0 and seed 0 with index 1 give unrelated
    /// streams. Two streams whose lists of numbers are equal except for the last number always begin in
    /// different states.
    pub fn stream(numbers: &[u64]) -> Self {
        Self { state: numbers.iter().fold(0, |state, &number| mix(state.wrapping_add(GAMMA) ^ number)) }
    }

    /// Returns the next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GAMMA);
        mix(self.state)
    }

    /// Returns an integer from 0 to `end` − 1. All are equally likely.
    ///
    /// Multiplies instead of dividing, and rejects the few random values that would make some integers more
    /// likely than others. Source: D. Lemire, "Fast random integer generation in an interval", 2019.
    ///
    /// # Panics
    /// If `end` is 0.
    pub(super) fn below(&mut self, end: u32) -> u32 {
        assert!(end > 0, "there is no number below 0");
        let unfair = end.wrapping_neg() % end;
        loop {
            let product = (self.bits() >> 32) * u64::from(end);
            if product as u32 >= unfair {
                return (product >> 32) as u32;
            }
        }
    }

    /// Returns a number from 0 (inclusive) to 1 (exclusive). It is a multiple of 2⁻²⁴, which an `f32`
    /// represents exactly.
    pub(super) fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 * (1.0 / 16_777_216.0)
    }

    /// Returns a number between `low` and `high`, uniformly distributed.
    pub(super) fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.unit()
    }

    /// Returns a number between −`reach` and `reach`, with a triangular distribution around 0.
    pub(super) fn about_zero(&mut self, reach: f32) -> f32 {
        (self.unit() - self.unit()) * reach
    }
}

/// Maps 64 bits to 64 bits bijectively. Flipping an input bit flips about half of the output bits.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::SplitMix64;

    #[test]
    fn generates_the_published_numbers() {
        let mut random = SplitMix64 { state: 1_234_567 };
        let first: Vec<u64> = (0..5).map(|_| random.bits()).collect();
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(first, published);
    }

    #[test]
    fn integers_are_uniform_and_below_the_end() {
        let mut random = SplitMix64::stream(&[3]);
        let mut counts = [0u32; 7];
        for _ in 0..70_000 {
            counts[random.below(7) as usize] += 1;
        }
        // 10 000 of each are expected, with a standard deviation of 93.
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
        assert_eq!(random.below(1), 0);
    }

    #[test]
    fn reals_have_the_right_range_and_mean() {
        let mut random = SplitMix64::stream(&[4]);
        let mut sums = [0.0f64; 2];
        for _ in 0..10_000 {
            let (unit, near) = (random.unit(), random.about_zero(2.0));
            assert!((0.0..1.0).contains(&unit) && (-2.0..=2.0).contains(&near));
            sums[0] += f64::from(unit);
            sums[1] += f64::from(near);
        }
        assert!((sums[0] / 10_000.0 - 0.5).abs() < 0.02 && (sums[1] / 10_000.0).abs() < 0.05, "{sums:?}");
    }

    #[test]
    fn streams_depend_on_each_number_and_their_order() {
        let mut firsts: Vec<u64> = [&[0, 1][..], &[1, 0], &[0, 0], &[1, 1], &[0], &[1], &[0, 0, 0]]
            .map(|n| SplitMix64::stream(n).bits())
            .into();
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts.len(), 7);
    }
}
