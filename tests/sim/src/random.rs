//! The random numbers of a simulation.

/// A generator of random numbers: SplitMix64 of Steele, Lea and Flood, OOPSLA 2014. Two generators with the
/// same seed yield the same numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns a generator with this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns 64 random bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from `first` to `last`, both included.
    ///
    /// # Panics
    /// If `first` is greater than `last`.
    pub const fn between(&mut self, first: u64, last: u64) -> u64 {
        assert!(first <= last);
        first + self.bits() % (last - first + 1)
    }

    /// Returns true with a probability of one in `chances`.
    pub const fn one_in(&mut self, chances: u64) -> bool {
        self.bits().is_multiple_of(chances)
    }
}
