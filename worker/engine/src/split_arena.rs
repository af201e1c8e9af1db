//! The arena while an instruction runs: the ranges that the instruction writes are split off, and the rest
//! can be read. This module must not depend on instructions.

use std::ops::Range;

/// The maximum number of outputs of one kernel.
pub(super) const OUTPUTS: usize = 3;

/// Splits the arena into the ranges that an instruction writes, and the rest, which the instruction may
/// read.
///
/// # Panics
/// If the ranges overlap, which the memory plan prevents.
pub(super) fn carve<'a, const N: usize>(
    arena: &'a mut [f32],
    wanted: &[Range<usize>; N],
) -> ([&'a mut [f32]; N], Rest<'a>) {
    let mut order: [usize; N] = std::array::from_fn(|position| position);
    order.sort_unstable_by_key(|&position| wanted[position].start);
    let mut cut: [&'a mut [f32]; N] = std::array::from_fn(|_| Default::default());
    let mut gaps: [(usize, &'a [f32]); GAPS] = [(0, &[]); GAPS];
    let (mut behind, mut start, mut gap) = (arena, 0, 0);
    for position in order {
        let range = &wanted[position];
        if range.is_empty() {
            continue;
        }
        let (before, at) = behind.split_at_mut(range.start - start);
        let (taken, after) = at.split_at_mut(range.len());
        gaps[gap] = (start, before);
        cut[position] = taken;
        (behind, start, gap) = (after, range.end, gap + 1);
    }
    gaps[gap] = (start, behind);
    (cut, Rest { gaps })
}

/// The maximum number of gaps: those between the ranges that are split off, one before the first range, and
/// one after the last.
const GAPS: usize = OUTPUTS + 2;

/// The arena without the ranges that are being written.
pub(super) struct Rest<'a> {
    /// The gaps in order: the position of each in the arena, and its floats.
    gaps: [(usize, &'a [f32]); GAPS],
}

impl<'a> Rest<'a> {
    pub fn get(&self, range: &Range<usize>) -> &'a [f32] {
        let holds = |(start, gap): &&(usize, &[f32])| *start <= range.start && range.end <= start + gap.len();
        let (start, gap) = self.gaps.iter().find(holds).expect("what is read is not being written");
        &gap[range.start - start..range.end - start]
    }
}
