//! Counts the memory of containers against the limits of the task and of each client. Memory that was counted
//! is given back when its guard is dropped.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::ContainerLimits;
use super::error::ContainerError;

/// The bytes that the containers of a task take.
#[derive(Debug)]
pub(super) struct Memory {
    limits: ContainerLimits,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: u64,
    by_client: HashMap<u64, u64>,
}

/// Bytes that a variable of a client takes. They are given back when this value is dropped.
#[derive(Debug)]
pub(super) struct Share {
    memory: Arc<Memory>,
    client: u64,
    bytes: u64,
}

impl Memory {
    pub fn new(limits: ContainerLimits) -> Self {
        Self { limits, taken: Mutex::default() }
    }

    /// Returns the bytes that are taken, and their limit.
    pub fn bytes(&self) -> (u64, u64) {
        (self.taken.lock().all, self.limits.bytes_max)
    }

    /// Takes bytes for the variable `name` of a client.
    ///
    /// # Errors
    /// If a limit would be exceeded.
    pub fn take(self: &Arc<Self>, client: u64, name: &str, bytes: u64) -> Result<Share, ContainerError> {
        let mut share = Share { memory: Arc::clone(self), client, bytes: 0 };
        share.resize(name, bytes)?;
        Ok(share)
    }
}

impl Share {
    /// Changes the number of bytes.
    ///
    /// # Errors
    /// If a limit would be exceeded. The number is then unchanged.
    pub fn resize(&mut self, name: &str, bytes: u64) -> Result<(), ContainerError> {
        let ContainerLimits { bytes_max, client_bytes_max } = self.memory.limits;
        let mut taken = self.memory.taken.lock();
        let of_client = taken.by_client.get(&self.client).copied().unwrap_or_default();
        let limits = [
            (taken.all, bytes_max, "the task", "--memory-limit"),
            (of_client, client_bytes_max, "the client", "--client-memory-limit"),
        ];
        for (before, max, whose, flag) in limits {
            if before - self.bytes + bytes > max && bytes > self.bytes {
                let (name, bytes, left) = (name.to_owned(), bytes - self.bytes, max.saturating_sub(before));
                return Err(ContainerError::NoMemory { name, bytes, left, max, whose, flag });
            }
        }
        taken.all = taken.all - self.bytes + bytes;
        match of_client - self.bytes + bytes {
            0 => drop(taken.by_client.remove(&self.client)),
            left => drop(taken.by_client.insert(self.client, left)),
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.resize("", 0).expect("fewer bytes exceed no limit");
    }
}
