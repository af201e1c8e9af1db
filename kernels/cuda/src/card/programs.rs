//! The programs that the compiler has made in this process, so that replicas and cards of one kind share
//! them: to compile the kernels of a large program takes tens of seconds.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::driver::DriverError;

/// The programs of this process.
pub(super) static PROGRAMS: Programs = Programs::new(64 << 20);

/// The input that decides what the compiler makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// The text of the source.
    pub text: String,
    /// The compiler's name for the architecture, which also tells programs from PTX.
    pub architecture: String,
    /// The version of the compiler.
    pub version: [i32; 2],
}

/// A program that is being made, or the result.
type Cell = Arc<OnceLock<Result<Arc<[u8]>, DriverError>>>;

/// Programs, up to a number of bytes. The oldest ones leave first.
#[derive(Debug)]
pub(super) struct Programs {
    bytes_max: usize,
    all: Mutex<VecDeque<(Key, Cell)>>,
}

impl Programs {
    /// Returns a cache for this number of bytes, which counts the texts as well.
    const fn new(bytes_max: usize) -> Self {
        Self { bytes_max, all: Mutex::new(VecDeque::new()) }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(Key, Cell)>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the program for a key, which `make` makes if there is none. A thread that asks for it
    /// meanwhile waits and gets the same result. Only a program is kept for later, not an error.
    pub fn get(
        &self,
        key: Key,
        make: impl FnOnce() -> Result<Vec<u8>, DriverError>,
    ) -> Result<Arc<[u8]>, DriverError> {
        let cell = {
            let mut all = self.lock();
            match all.iter().find(|(other, _)| *other == key) {
                Some((_, cell)) => Arc::clone(cell),
                None => {
                    let cell = Cell::default();
                    all.push_back((key, Arc::clone(&cell)));
                    cell
                }
            }
        };
        // The cache is not locked here, so threads with other keys compile at the same time.
        let result = cell.get_or_init(|| make().map(Arc::from)).clone();
        self.shrink();
        result
    }

    /// Removes errors, and the oldest programs if there are too many bytes.
    fn shrink(&self) {
        let mut all = self.lock();
        all.retain(|(_, cell)| !matches!(cell.get(), Some(Err(_))));
        let bytes = |(key, cell): &(Key, Cell)| match cell.get() {
            Some(Ok(program)) => key.text.len() + program.len(),
            _ => 0,
        };
        let mut total: usize = all.iter().map(bytes).sum();
        while total > self.bytes_max
            && let Some(oldest) = all.iter().position(|one| bytes(one) > 0)
        {
            total -= all.remove(oldest).as_ref().map_or(0, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn key(text: &str) -> Key {
        Key { text: text.to_owned(), architecture: "sm_90".to_owned(), version: [13, 0] }
    }

    /// Returns whether a program must be made for a key. It has this number of bytes then.
    fn makes(programs: &Programs, key: Key, bytes: usize) -> bool {
        let mut made = false;
        let program = programs.get(key, || {
            made = true;
            Ok(vec![7; bytes])
        });
        assert_eq!(&*program.unwrap(), vec![7; bytes]);
        made
    }

    #[test]
    fn a_program_is_made_once_for_each_key() {
        let programs = Programs::new(1000);
        let keys = [
            key("a"),
            key("b"),
            Key { architecture: "compute_90".to_owned(), ..key("a") },
            Key { version: [12, 0], ..key("a") },
        ];
        assert!(keys.iter().all(|key| makes(&programs, key.clone(), 10)));
        assert!(!keys.iter().any(|key| makes(&programs, key.clone(), 10)));
    }

    #[test]
    fn the_oldest_program_leaves_first() {
        let programs = Programs::new(100);
        // The texts have 1 byte.
        assert!(makes(&programs, key("a"), 49) && makes(&programs, key("b"), 49));
        assert!(!makes(&programs, key("a"), 49) && !makes(&programs, key("b"), 49));
        assert!(makes(&programs, key("c"), 0));
        assert!(!makes(&programs, key("b"), 49) && makes(&programs, key("a"), 49));
        // A program that is larger than the cache leaves at once, with all others.
        assert!(makes(&programs, key("d"), 100) && makes(&programs, key("d"), 100));
        assert!(programs.lock().is_empty());
    }

    #[test]
    fn an_error_is_not_kept() {
        let programs = Programs::new(100);
        let error = DriverError::Refused("no".to_owned());
        assert_eq!(programs.get(key("a"), || Err(error.clone())), Err(error));
        assert!(makes(&programs, key("a"), 10));
    }

    #[test]
    fn threads_that_want_the_same_wait_for_the_first() {
        const THREADS: usize = 8;
        let (programs, barrier, count) = (Programs::new(100), Barrier::new(THREADS), AtomicUsize::new(0));
        let make = || {
            count.fetch_add(1, Ordering::Relaxed);
            // Long enough for the other threads to ask as well.
            thread::sleep(Duration::from_millis(50));
            Ok(vec![7; 10])
        };
        thread::scope(|scope| {
            let get = || {
                barrier.wait();
                programs.get(key("a"), make)
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(get)).collect();
            assert!(threads.into_iter().all(|thread| thread.join().unwrap().unwrap().len() == 10));
        });
        assert_eq!(count.into_inner(), 1);
    }

    #[test]
    fn a_program_that_is_being_made_is_kept() {
        let programs = Programs::new(10);
        programs
            .get(key("a"), || {
                // The second program is too large, so the cache shrinks while the first one is made.
                assert!(makes(&programs, key("b"), 20));
                assert_eq!(programs.lock().len(), 1);
                Ok(Vec::new())
            })
            .unwrap();
    }
}
