//! A bound on the bytes in flight. Credit is taken from the budget before memory is allocated, and goes back
//! to the budget when the memory is released.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The unit in which bytes are counted. The semaphore counts in `u32`; if it counted single bytes, a budget
/// could have at most 4 GiB.
const UNIT_BYTES: u64 = 1 << 10;

/// A shared budget of bytes.
#[derive(Clone, Debug)]
pub struct Budget {
    units: Arc<Semaphore>,
    units_max: u32,
}

/// Bytes taken from a budget. They go back to the budget when the credit is dropped.
#[derive(Debug)]
pub struct Credit {
    _units: OwnedSemaphorePermit,
}

impl Budget {
    /// Returns a budget of `bytes` bytes. A number below 1 KiB becomes 1 KiB, and a number above 4 TiB
    /// becomes 4 TiB.
    pub fn new(bytes: u64) -> Self {
        let units_max = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).max(1);
        let units_max = units_max.min(Semaphore::MAX_PERMITS as u32);
        Self { units: Arc::new(Semaphore::new(units_max as usize)), units_max }
    }

    /// Takes `bytes` bytes from the budget; waits until they are available. Calls are served in order. A call
    /// for more than the whole budget takes the whole budget, and so waits until all other credits have been
    /// dropped.
    pub async fn take(&self, bytes: u64) -> Credit {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).min(self.units_max);
        let units = Arc::clone(&self.units).acquire_many_owned(units).await.expect("never closed");
        Credit { _units: units }
    }

    /// Returns the number of bytes that are available now.
    pub fn available(&self) -> u64 {
        self.units.available_permits() as u64 * UNIT_BYTES
    }

    /// Returns the number of bytes that are taken now.
    pub fn taken(&self) -> u64 {
        self.bytes_max().saturating_sub(self.available())
    }

    /// Returns the size of the budget in bytes.
    pub const fn bytes_max(&self) -> u64 {
        self.units_max as u64 * UNIT_BYTES
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn taken_bytes_return_when_their_credit_is_dropped() {
        let budget = Budget::new(10 << 10);
        let most = budget.take(9 << 10).await;
        assert_eq!(budget.available(), 1 << 10);
        assert_eq!((budget.taken(), budget.bytes_max()), (9 << 10, 10 << 10));
        assert!(budget.take(2 << 10).now_or_never().is_none());
        drop(most);
        let huge = budget.take(u64::MAX).await;
        assert_eq!(budget.available(), 0);
        drop(huge);
        assert_eq!((budget.available(), budget.taken()), (10 << 10, 0));
        drop(budget.take(0).await);
        assert_eq!(Budget::new(0).bytes_max(), 1 << 10);
        assert!(Budget::new(0).take(5).now_or_never().is_some());
        assert!(Budget::new(u64::MAX).take(u64::MAX).now_or_never().is_some());
    }
}
