//! Decisions that the bytes of an input make, one after the other. When the bytes end, every decision is the
//! first one, and [`Script::is_over`] returns true.

/// Numbers at which something overflows or ends.
const ABSURD: [u64; 8] =
    [0, 1, u32::MAX as u64, 1 << 32, i64::MAX as u64, u64::MAX / 2 + 1, u64::MAX - 1, u64::MAX];

/// The decisions of an input.
#[derive(Clone, Debug)]
pub(crate) struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    /// Begins with the first byte.
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns whether no byte is left.
    pub(crate) const fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the next byte.
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// Returns a number below `bound`, which is not 0 and at most 256.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound
    }

    /// Returns one of these, of which there must be at least one.
    pub(crate) fn choose<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Returns true about once in `times` decisions.
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == times - 1
    }

    /// Returns mostly `number`, else one near it or an absurd one.
    pub(crate) fn about(&mut self, number: u64) -> u64 {
        match self.byte() {
            240..=243 => number.wrapping_add(1),
            244..=246 => number.wrapping_sub(1),
            247..=249 => number.wrapping_add(u64::from(self.byte())),
            250..=255 => self.choose(&ABSURD),
            _ => number,
        }
    }

    /// Returns what [`about`](Self::about) returns, as a smaller number.
    pub(crate) fn about_u32(&mut self, number: u32) -> u32 {
        self.about(number.into()) as u32
    }
}
