//! Buffers used again: a steady training loop asks the system for no memory, and touches none for the first time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::aligned::{Buffer, Line, fresh_lines, lines_for};

/// A shared stock of buffers. What it keeps is bounded; what it hands out is not its matter.
#[derive(Clone)]
pub struct BufferPool(Arc<Mutex<Stock>>);

struct Stock {
    /// By exact length in lines: a training loop asks for the same few sizes again and again.
    free: BTreeMap<usize, Vec<Vec<Line>>>,
    lines: usize,
    lines_max: usize,
}

impl BufferPool {
    /// A pool that keeps at most `bytes_max` bytes of unused buffers.
    pub fn new(bytes_max: usize) -> Self {
        Self(Arc::new(Mutex::new(Stock { free: BTreeMap::new(), lines: 0, lines_max: lines_for(bytes_max) })))
    }

    /// A buffer of so many bytes. What is in it is left over from earlier: whoever takes it writes all of it.
    pub fn take(&self, bytes: usize) -> Buffer {
        let lines = lines_for(bytes);
        let kept = {
            let mut stock = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let kept = stock.free.get_mut(&lines).and_then(Vec::pop);
            if kept.is_some() {
                stock.lines -= lines;
            }
            if stock.free.get(&lines).is_some_and(Vec::is_empty) {
                stock.free.remove(&lines);
            }
            kept
        };
        Buffer::from_lines(kept.unwrap_or_else(|| fresh_lines(lines)), bytes, Some(self.clone()))
    }

    /// Bytes of unused buffers it holds now.
    pub fn bytes_kept(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).lines * pushpull_messages::tensor::ALIGNMENT
    }

    pub(super) fn give_back(&self, lines: Vec<Line>) {
        let count = lines.len();
        // Given back to the system below, when nobody waits for the lock any more.
        let mut unwanted = Vec::new();
        let mut stock = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if count == 0 || count > stock.lines_max {
            drop(stock);
            return;
        }
        while stock.lines + count > stock.lines_max {
            // Full, perhaps of sizes that nobody asks for any more: those go first.
            let other = stock.free.keys().rev().copied().find(|&size| size != count).unwrap_or(count);
            let buffers = stock.free.get_mut(&other).expect("a size in stock");
            unwanted.extend(buffers.pop());
            if buffers.is_empty() {
                stock.free.remove(&other);
            }
            stock.lines -= other;
        }
        stock.lines += count;
        stock.free.entry(count).or_default().push(lines);
    }
}

impl Default for BufferPool {
    /// Keeps up to 4 GiB.
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
    fn keeps_no_more_than_its_bound() {
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
