//! A stream of pseudorandom numbers, which a seed determines.

/// A stream of pseudorandom numbers (SplitMix64; Steele, Lea and Flood, 2014).
#[derive(Clone, Debug)]
pub struct Numbers(u64);

impl Numbers {
    /// Returns the stream of this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the stream of one of many inputs. The streams of different inputs or seeds are unrelated.
    pub fn of_input(seed: u64, input: u64) -> Self {
        let first = Self(seed).next();
        Self(Self(first ^ input).next())
    }

    /// Returns the next number.
    #[expect(clippy::should_implement_trait, reason = "the stream never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns the next number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Returns the next byte.
    pub fn byte(&mut self) -> u8 {
        self.next() as u8
    }

    /// Returns one of these, of which there must be at least one.
    pub fn choose<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// Returns a number of changes, from 1 to `max`. Few are the most likely: they leave most of an input
    /// valid.
    pub fn changes(&mut self, max: usize) -> usize {
        let most = 1 + self.below(max);
        1 + self.below(most)
    }
}
