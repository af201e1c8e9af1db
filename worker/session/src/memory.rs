//! Counts the memory of graphs, plans and runs against the limits of the task and of each client. What was
//! counted is given back when its guard is dropped.
//!
//! Required properties: (A) the bytes of a client and of all clients never exceed their limits; (B) bytes
//! that were given back can be taken again.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::SessionError;

/// The memory that a server's graphs, plans and runs take.
#[derive(Debug)]
pub(crate) struct Memory {
    bytes_max: u64,
    client_bytes_max: u64,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: u64,
    by_client: HashMap<u64, u64>,
}

/// Bytes that count against a client's limit. They are given back when this value is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    memory: Arc<Memory>,
    client: u64,
    bytes: u64,
}

impl Memory {
    pub fn new(bytes_max: u64, client_bytes_max: u64) -> Self {
        Self { bytes_max, client_bytes_max, taken: Mutex::default() }
    }

    /// Takes bytes for a client. `what` is what they are for, such as `the graph`.
    ///
    /// # Errors
    /// If a limit would be exceeded.
    pub fn take(self: &Arc<Self>, client: u64, what: &str, bytes: u64) -> Result<Share, SessionError> {
        let mut taken = self.taken.lock();
        let of_client = taken.by_client.get(&client).copied().unwrap_or_default();
        let limits = [
            (of_client, self.client_bytes_max, "the client", "--client-memory-limit"),
            (taken.all, self.bytes_max, "the task", "--run-memory-limit"),
        ];
        for (before, max, whose, flag) in limits {
            if before.saturating_add(bytes) > max {
                let (what, left) = (what.to_owned(), max.saturating_sub(before));
                return Err(SessionError::NoMemory { what, bytes, left, max, whose, flag });
            }
        }
        taken.all += bytes;
        *taken.by_client.entry(client).or_default() += bytes;
        Ok(Share { memory: Arc::clone(self), client, bytes })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.memory.taken.lock();
        taken.all -= self.bytes;
        let left = taken.by_client.get_mut(&self.client).map(|own| {
            *own -= self.bytes;
            *own
        });
        if left == Some(0) {
            taken.by_client.remove(&self.client);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Takes and gives back bytes at random, and compares the outcome with sums. (A), (B)
        #[test]
        fn no_limit_is_exceeded(steps in prop::collection::vec((0u64..3, 0u64..60, any::<bool>()), 0..60)) {
            let (all, each) = (100, 50);
            let memory = Arc::new(Memory::new(all, each));
            let mut held: Vec<Share> = Vec::new();
            for (client, bytes, free) in steps {
                if free && !held.is_empty() {
                    held.swap_remove(bytes as usize % held.len());
                }
                let of = |client: Option<u64>| -> u64 {
                    let own = held.iter().filter(|share| client.is_none_or(|client| client == share.client));
                    own.map(|share| share.bytes).sum()
                };
                let fits = of(None) + bytes <= all && of(Some(client)) + bytes <= each;
                let share = memory.take(client, "the graph", bytes);
                prop_assert_eq!(share.is_ok(), fits);
                held.extend(share.ok());
            }
            drop(held);
            let taken = memory.taken.lock();
            prop_assert_eq!((taken.all, taken.by_client.len()), (0, 0));
        }
    }

    #[test]
    fn a_refusal_names_the_limit() {
        let memory = Arc::new(Memory::new(1000, 100));
        let _held = memory.take(1, "the graph", 60).unwrap();
        let error = memory.take(1, "the values of the run", 50).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the values of the run need 50 bytes, but 40 of the 100 bytes of the client are left: wait until \
             some runs have ended, close graphs, or raise --client-memory-limit"
        );
    }
}
