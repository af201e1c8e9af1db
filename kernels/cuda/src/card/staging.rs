//! Pinned memory through which bytes go to a card and come from it: the card copies it while the processor
//! and the kernels go on. Uploads use a ring of a fixed size. Downloads use as much as the caller has in
//! flight, and a bounded part of it is kept for later ones.

use super::cuda::{Asked, Mark, Pinned, Queue};
use super::error::CopyFault;
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
    /// The largest number of bytes that are put in at once.
    const PIECE: usize = 16 << 20;
    /// The largest number of pieces that are under way.
    const COPIES: usize = 256;

    pub const fn new() -> Self {
        Self { memory: None, ring: Ring::new(Self::BYTES) }
    }

    /// Begins to copy bytes to an address on the card. They may change when this returns.
    pub fn upload(
        &mut self,
        marks: &mut Marks,
        queue: &Queue,
        to: u64,
        bytes: &[u8],
    ) -> Result<(), CopyFault> {
        let memory = match &mut self.memory {
            Some(memory) => memory,
            none => none.insert(pin(Self::BYTES)?),
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
            let first = to + (number * Self::PIECE) as u64;
            let begun = memory.write(&range, piece, |there| {
                queue.upload(first + (there.start - range.start) as u64, memory, &there)
            });
            // After an error, a part of the piece may be under way.
            self.ring.add(range, marks.mark(queue)?);
            begun?;
        }
        Ok(())
    }
}

/// Returns new pinned memory.
fn pin(bytes: usize) -> Result<Pinned, CopyFault> {
    Pinned::allocate(bytes).map_err(|fault| CopyFault::Pin(bytes, fault))
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

/// Memory for downloads, which is used again. A step that has the same downloads in flight as the one before
/// allocates nothing: to pin memory, and to free it, takes longer than many copies, and may wait for the
/// card.
#[derive(Debug, Default)]
pub(super) struct Downloads {
    /// The memory that is not in flight. What was given back first comes first.
    free: Vec<Pinned>,
    /// The number of bytes in flight, and the largest one so far.
    in_flight: usize,
    most: usize,
}

impl Downloads {
    /// The largest number of bytes that are kept, counted with those in flight. A step that has more of them
    /// in flight allocates the rest each time.
    const KEPT_BYTES_MAX: usize = 4 << 30;
    /// The number of bytes that are kept beyond the largest number in flight, for downloads of other sizes
    /// that are not in flight at the same time.
    const MORE_BYTES: usize = 256 << 20;
    /// The smallest size of a piece of memory. Sizes are powers of two up to the larger one, and its
    /// multiples above.
    const SMALL: usize = 64 << 10;
    const LARGE: usize = 16 << 20;

    /// Returns memory with at least this number of bytes. [`give`](Self::give) takes it back.
    pub fn take(&mut self, bytes: usize) -> Result<Pinned, CopyFault> {
        let size = bytes.max(Self::SMALL);
        let size = match size <= Self::LARGE {
            true => size.next_power_of_two(),
            false => size.next_multiple_of(Self::LARGE),
        };
        let fits = |memory: &Pinned| memory.length() == size;
        let memory = match self.free.iter().rposition(fits) {
            Some(at) => self.free.remove(at),
            None => {
                self.shrink(size);
                pin(size).or_else(|_| {
                    // The host may lack just what is kept here.
                    self.free.clear();
                    pin(size)
                })?
            }
        };
        self.in_flight += size;
        self.most = self.most.max(self.in_flight);
        Ok(memory)
    }

    /// Takes memory back that no copy uses.
    pub fn give(&mut self, memory: Pinned) {
        self.in_flight -= memory.length();
        self.free.push(memory);
        self.shrink(0);
    }

    /// Frees what has not been used for the longest time, until there is room for new memory of this size.
    fn shrink(&mut self, size: usize) {
        let in_flight = self.in_flight + size;
        let kept_max = (self.most.max(in_flight) + Self::MORE_BYTES).min(Self::KEPT_BYTES_MAX);
        let mut kept = in_flight + self.free.iter().map(Pinned::length).sum::<usize>();
        let mut freed = 0;
        while kept > kept_max
            && let Some(memory) = self.free.get(freed)
        {
            kept -= memory.length();
            freed += 1;
        }
        self.free.drain(..freed);
    }
}
