//! Pinned memory through which bytes go to a card and come from it: the card copies it while the processor
//! and the kernels go on. Its size is bounded.

use super::cuda::{Asked, Mark, Pinned, Queue};
use super::marks::Marks;
use super::ring::Ring;

/// Memory for uploads. It is allocated at the first one.
#[derive(Debug)]
pub(super) struct Uploads {
    memory: Option<Pinned>,
    /// The pieces that are being copied, each with a mark after its copy.
    ring: Ring<Mark>,
}

impl Uploads {
    /// The size of the memory. Uploads that are larger wait for a part of themselves.
    const BYTES: usize = 64 << 20;
    /// The largest number of bytes that are copied at once. While a card copies them, the next ones are put
    /// in.
    const PIECE: usize = 8 << 20;
    /// The largest number of copies that are under way.
    const COPIES: usize = 256;

    pub const fn new() -> Self {
        Self { memory: None, ring: Ring::new(Self::BYTES) }
    }

    /// Begins to copy bytes to an address on the card. They may change when this returns.
    pub fn upload(&mut self, marks: &mut Marks, queue: &Queue, to: u64, bytes: &[u8]) -> Asked<()> {
        let memory = match &mut self.memory {
            Some(memory) => memory,
            none => none.insert(Pinned::allocate(Self::BYTES)?),
        };
        for (number, piece) in bytes.chunks(Self::PIECE).enumerate() {
            let mut most = Self::COPIES - 1;
            let range = loop {
                forget(&mut self.ring, marks, most)?;
                match self.ring.find(piece.len()) {
                    Some(range) => break range,
                    None => most = self.ring.pieces() - 1,
                }
            };
            memory.write(range.clone(), piece);
            queue.upload(to + (number * Self::PIECE) as u64, memory, &range)?;
            self.ring.add(range, marks.mark(queue)?);
        }
        Ok(())
    }
}

/// Removes the pieces whose copies are done. Waits for the oldest ones if more than `most` are left.
fn forget(ring: &mut Ring<Mark>, marks: &mut Marks, most: usize) -> Asked<()> {
    while let Some(oldest) = ring.oldest() {
        if !oldest.is_done()? {
            if ring.pieces() <= most {
                break;
            }
            oldest.synchronise()?;
        }
        ring.remove().into_iter().for_each(|mark| marks.give(mark));
    }
    Ok(())
}

/// Memory for downloads, which is used again.
#[derive(Debug, Default)]
pub(super) struct Downloads {
    free: Vec<Pinned>,
}

impl Downloads {
    /// The largest number of bytes that are kept for later downloads.
    const KEPT_BYTES: usize = 256 << 20;
    /// The smallest size of a piece of memory. Sizes are powers of two up to the larger one, and its
    /// multiples above.
    const SMALL: usize = 64 << 10;
    const LARGE: usize = 16 << 20;

    /// Returns memory with at least this number of bytes.
    pub fn take(&mut self, bytes: usize) -> Asked<Pinned> {
        let size = bytes.max(Self::SMALL);
        let size = match size <= Self::LARGE {
            true => size.next_power_of_two(),
            false => size.next_multiple_of(Self::LARGE),
        };
        match self.free.iter().position(|memory| memory.length() == size) {
            Some(at) => Ok(self.free.swap_remove(at)),
            None => Pinned::allocate(size),
        }
    }

    /// Takes memory back that no copy uses.
    pub fn give(&mut self, memory: Pinned) {
        self.free.push(memory);
        let mut kept: usize = self.free.iter().map(Pinned::length).sum();
        while kept > Self::KEPT_BYTES && !self.free.is_empty() {
            kept -= self.free.remove(0).length();
        }
    }
}
