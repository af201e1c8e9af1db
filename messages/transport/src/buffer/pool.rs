//! A pool of buffers for reuse. A training loop needs buffers of the same sizes in every step. With a pool,
//! it does not allocate memory in each step, and has no page faults for fresh memory.

use super::aligned::Buffer;
use super::free_list::{FreeList, fresh_lines, lines_for};

/// A shared pool of buffers. The pool limits the memory of its unused buffers. It does not limit the buffers
/// in use.
#[derive(Clone)]
pub struct BufferPool(FreeList);

impl BufferPool {
    /// Returns a pool that keeps at most `bytes_max` bytes of unused buffers.
    pub fn new(bytes_max: usize) -> Self {
        Self(FreeList::new(bytes_max))
    }

    /// Takes a buffer of `bytes` bytes from the pool, or allocates one. The buffer may contain data from an
    /// earlier use, so the caller must overwrite all of it.
    pub fn take(&self, bytes: usize) -> Buffer {
        let lines = lines_for(bytes);
        let kept = self.0.take(lines);
        Buffer::from_lines(kept.unwrap_or_else(|| fresh_lines(lines)), bytes, Some(self.0.clone()))
    }

    /// Returns the number of bytes in the pool's unused buffers.
    pub fn bytes_kept(&self) -> usize {
        self.0.bytes()
    }

    /// Returns the number of bytes in the buffers that were taken from the pool and are in use.
    pub fn bytes_used(&self) -> usize {
        self.0.bytes_used()
    }
}

impl Default for BufferPool {
    /// Returns a pool that keeps at most 4 GiB of unused buffers.
    fn default() -> Self {
        Self::new(4 << 30)
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
