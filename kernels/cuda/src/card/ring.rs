//! Places in a ring of memory, which is used again in the order in which it was used before.

use std::collections::VecDeque;
use std::ops::Range;

/// A ring of memory. Each piece in use has a value of the type `T`.
#[derive(Debug)]
pub(super) struct Ring<T> {
    length: usize,
    /// Where the next piece may begin.
    head: usize,
    /// The pieces that are in use, the oldest one first.
    pieces: VecDeque<(Range<usize>, T)>,
}

impl<T> Ring<T> {
    /// Pieces begin at multiples of this number of bytes.
    const ALIGNMENT: usize = 256;

    pub const fn new(length: usize) -> Self {
        Self { length, head: 0, pieces: VecDeque::new() }
    }

    /// Returns the number of pieces that are in use.
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Returns a piece that is not in use; `None` if the oldest piece must be removed first.
    pub fn find(&self, length: usize) -> Option<Range<usize>> {
        let start = match (self.pieces.front(), self.pieces.back()) {
            (Some((first, _)), Some((last, _))) => {
                // The pieces in use are those from the first one to the head, around the end of the ring if
                // the last one begins before the first one.
                let wraps = last.start < first.start;
                let end = if wraps { first.start } else { self.length };
                match self.head + length <= end {
                    true => self.head,
                    false if !wraps && length <= first.start => 0,
                    false => return None,
                }
            }
            _ if length <= self.length => 0,
            _ => return None,
        };
        Some(start..start + length)
    }

    /// Adds the piece that was found last.
    pub fn add(&mut self, piece: Range<usize>, value: T) {
        self.head = piece.end.next_multiple_of(Self::ALIGNMENT);
        self.pieces.push_back((piece, value));
    }

    /// Returns the value of the oldest piece.
    pub fn oldest(&self) -> Option<&T> {
        self.pieces.front().map(|(_, value)| value)
    }

    /// Removes the oldest piece, and returns its value.
    pub fn remove(&mut self) -> Option<T> {
        self.pieces.pop_front().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_in_use_never_meet(lengths in prop::collection::vec(1_usize..=2048, 1..200)) {
            let mut ring = Ring::new(4096);
            for length in lengths {
                let piece = loop {
                    match ring.find(length) {
                        Some(piece) => break piece,
                        None => prop_assert!(ring.remove().is_some(), "{length} bytes fit into an empty ring"),
                    }
                };
                prop_assert!(piece.end <= 4096 && piece.len() == length);
                let meets = |old: &Range<usize>| old.start < piece.end && piece.start < old.end;
                prop_assert!(!ring.pieces.iter().any(|(old, ())| meets(old)));
                ring.add(piece, ());
            }
        }
    }

    #[test]
    fn a_ring_is_full_before_a_piece_is_used_again() {
        let mut ring = Ring::new(1024);
        for number in 0..4 {
            let piece = ring.find(256).unwrap();
            assert_eq!(piece, 256 * number..256 * (number + 1));
            ring.add(piece, number);
        }
        assert_eq!(ring.find(1), None);
        assert_eq!([ring.pieces(), ring.remove().unwrap(), *ring.oldest().unwrap()], [4, 0, 1]);
        let piece = ring.find(256).unwrap();
        assert_eq!(piece, 0..256);
        ring.add(piece, 4);
        assert_eq!(ring.find(1), None);
        assert_eq!(Ring::<()>::new(1024).find(1025), None);
    }
}
