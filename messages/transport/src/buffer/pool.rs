//! A pool of buffers for reuse: a steady training loop allocates no memory, and touches none for the first
//! time.

use super::aligned::Buffer;
use super::stock::{Stock, fresh_lines, lines_for};

/// A shared pool of buffers. It bounds the memory it keeps, not the memory it hands out.
#[derive(Clone)]
pub struct BufferPool(Stock);

impl BufferPool {
    /// Returns a pool that keeps at most `bytes_max` bytes of unused buffers.
    pub fn new(bytes_max: usize) -> Self {
        Self(Stock::new(bytes_max))
    }

    /// Takes a buffer of `bytes` bytes. Its content is left over from earlier use: the caller must write all
    /// of it.
    pub fn take(&self, bytes: usize) -> Buffer {
        let lines = lines_for(bytes);
        let kept = self.0.take(lines);
        Buffer::from_lines(kept.unwrap_or_else(|| fresh_lines(lines)), bytes, Some(self.0.clone()))
    }

    /// Returns the bytes of the unused buffers in the pool.
    pub fn bytes_kept(&self) -> usize {
        self.0.bytes()
    }
}

impl Default for BufferPool {
    /// Returns a pool that keeps up to 4 GiB.
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
