//! A pool of buffers for reuse. A training loop needs buffers of the same sizes in every step. With a pool,
//! it does not allocate memory in each step, and has no page faults for fresh memory.

use std::sync::Arc;

use super::aligned::Buffer;
use super::free_list::{FreeList, Lines, lines_for};
use super::shared_memory::Arena;

/// A shared pool of buffers. The pool limits the memory of its unused buffers. It does not limit the buffers
/// in use.
#[derive(Clone)]
pub struct BufferPool {
    free: FreeList,
    /// The memory of large buffers that can be lent, with its own list; `None` if there is no such memory.
    shared: Option<(Arc<Arena>, FreeList)>,
}

/// The number of bytes of unused buffers that a pool keeps by default.
const KEPT_BYTES_MAX: usize = 4 << 30;
/// The size of the smallest buffer, in bytes, that comes from an arena. To copy a smaller one takes less time
/// than to lend it.
pub(crate) const SHARED_BYTES_MIN: usize = 64 << 10;

impl BufferPool {
    /// Returns a pool that keeps at most `bytes_max` bytes of unused buffers.
    pub fn new(bytes_max: usize) -> Self {
        Self { free: FreeList::new(bytes_max), shared: None }
    }

    /// Returns a pool like [`default`](Self::default), whose large buffers other tasks of the host can read.
    /// It keeps 4 GiB of them in addition. If the system does not offer such memory, the pool is like any
    /// other.
    pub fn shared() -> Self {
        let arena = Arena::new();
        if let Err(error) = &arena {
            tracing::debug!(%error, "this system offers no memory that tasks can share");
        }
        let shared = arena.ok().map(|arena| (arena, FreeList::new(KEPT_BYTES_MAX)));
        Self { shared, ..Self::default() }
    }

    /// Returns the memory that other tasks of the host can read, if the pool has such memory.
    pub(crate) fn arena(&self) -> Option<&Arc<Arena>> {
        self.shared.as_ref().map(|(arena, _)| arena)
    }

    /// Takes a buffer of `bytes` bytes from the pool, or allocates one. The buffer may contain data from an
    /// earlier use, so the caller must overwrite all of it.
    pub fn take(&self, bytes: usize) -> Buffer {
        let Some((arena, free)) = self.shared.as_ref().filter(|_| bytes >= SHARED_BYTES_MIN) else {
            return self.take_private(bytes);
        };
        let lines = lines_for(bytes);
        let fresh = || arena.take(lines).map_or_else(|| Lines::fresh(lines), Lines::Shared);
        let taken = free.take(lines).unwrap_or_else(fresh);
        Buffer::from_lines(taken, bytes, Some(free.clone()))
    }

    /// Takes a buffer as [`take`](Self::take) does, but one that other tasks cannot read. Its memory is used
    /// only as it is written, so a peer may determine its size.
    pub(crate) fn take_private(&self, bytes: usize) -> Buffer {
        let lines = lines_for(bytes);
        let taken = self.free.take(lines).unwrap_or_else(|| Lines::fresh(lines));
        Buffer::from_lines(taken, bytes, Some(self.free.clone()))
    }

    /// Returns the number of bytes in the pool's unused buffers.
    pub fn bytes_kept(&self) -> usize {
        self.lists().map(FreeList::bytes).sum()
    }

    /// Returns the number of bytes in the buffers that were taken from the pool and are in use.
    pub fn bytes_used(&self) -> usize {
        self.lists().map(FreeList::bytes_used).sum()
    }

    fn lists(&self) -> impl Iterator<Item = &FreeList> {
        let shared = self.shared.as_ref().map(|(_, free)| free);
        [&self.free].into_iter().chain(shared)
    }
}

impl Default for BufferPool {
    /// Returns a pool that keeps at most 4 GiB of unused buffers.
    fn default() -> Self {
        Self::new(KEPT_BYTES_MAX)
    }
}

impl std::fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BufferPool({} bytes kept)", self.bytes_kept())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_buffer_is_taken_again() {
        let pool = BufferPool::new(1 << 20);
        let mut buffer = pool.take(1000);
        buffer.as_bytes_mut().fill(7);
        let address = buffer.as_bytes().as_ptr();
        drop(buffer);
        assert_eq!(pool.bytes_kept(), 1024);
        let again = pool.take(1001);
        assert_eq!(again.as_bytes().as_ptr(), address);
        assert_eq!(again.len(), 1001);
        assert_eq!(pool.bytes_kept(), 0);
    }

    #[test]
    fn a_pool_keeps_no_more_than_its_bound() {
        let pool = BufferPool::new(1024);
        let many: Vec<_> = (1..20).map(|lines| pool.take(lines * 64)).collect();
        for buffer in many {
            drop(buffer);
            assert!(pool.bytes_kept() <= 1024);
        }
        drop(pool.take(4096));
        assert!(pool.bytes_kept() <= 1024);
    }
}
