//! The memory plan: the place of each value in one arena. Values that are never needed at the same time may
//! share memory. This module must not depend on kernels.
//!
//! Required properties: (A) two values that are needed at the same time do not overlap; (B) every value
//! begins on a cache line; (C) the arena is at most as large as all values side by side.

use std::ops::Range;

/// The number of floats in a cache line.
const LINE: usize = 16;

/// The size of a value, and the first and the last instruction at which it is needed.
#[derive(Clone, Debug)]
pub(super) struct Lifetime {
    /// The size, in floats.
    pub elements: usize,
    /// The index of the instruction that writes the value.
    pub first: usize,
    /// The index of the last instruction that reads the value; at least `first`.
    pub last: usize,
}

/// The places of all values.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// The range of each value in the arena, in floats, in the order of the lifetimes.
    pub places: Vec<Range<usize>>,
    /// The size of the arena, in floats.
    pub arena: usize,
}

/// Places each value at the lowest address that is free for the whole lifetime of the value. Larger values
/// are placed first, because small values fit into the gaps between large ones.
pub(super) fn plan(lifetimes: &[Lifetime]) -> Plan {
    let mut order: Vec<usize> = (0..lifetimes.len()).collect();
    order.sort_by_key(|&value| (std::cmp::Reverse(lifetimes[value].elements), value));
    let mut places = vec![0..0; lifetimes.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut arena = 0;
    for value in order {
        let life = &lifetimes[value];
        let mut busy: Vec<Range<usize>> = placed
            .iter()
            .filter(|&&other| lifetimes[other].first <= life.last && life.first <= lifetimes[other].last)
            .map(|&other| places[other].clone())
            .collect();
        busy.sort_by_key(|range| range.start);
        let mut start = 0;
        for range in busy {
            if start + life.elements <= range.start {
                break;
            }
            start = start.max(range.end.next_multiple_of(LINE));
        }
        places[value] = start..start + life.elements;
        arena = arena.max(start + life.elements);
        placed.push(value);
    }
    Plan { places, arena }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn values_that_live_together_do_not_overlap(
            values in prop::collection::vec((0usize..300, 0usize..40, 0usize..10), 0..40),
        ) {
            let lifetimes: Vec<Lifetime> = values
                .into_iter()
                .map(|(elements, first, length)| Lifetime { elements, first, last: first + length })
                .collect();
            let plan = plan(&lifetimes);
            for (position, place) in plan.places.iter().enumerate() {
                let life = &lifetimes[position];
                prop_assert_eq!(place.len(), life.elements);
                prop_assert_eq!(place.start % LINE, 0);
                prop_assert!(place.end <= plan.arena);
                for (theirs, other) in lifetimes.iter().zip(&plan.places).take(position) {
                    let together = life.first <= theirs.last && theirs.first <= life.last;
                    let apart = place.end <= other.start || other.end <= place.start;
                    prop_assert!(!together || apart, "{:?} and {:?}", place, other);
                }
            }
            let side_by_side: usize = lifetimes.iter().map(|life| life.elements.next_multiple_of(LINE)).sum();
            prop_assert!(plan.arena <= side_by_side);
        }
    }

    #[test]
    fn values_that_never_meet_share_memory() {
        let life = |first, last| Lifetime { elements: 64, first, last };
        assert_eq!(plan(&[life(0, 1), life(1, 2), life(2, 3), life(3, 4)]).arena, 128);
    }
}
