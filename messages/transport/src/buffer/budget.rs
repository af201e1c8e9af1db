//! Bytes that may be on their way at once. Taken before memory is, given back when the memory is.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes are counted in so many, so that budgets of any size fit.
const UNIT_BYTES: u64 = 1 << 10;

/// A shared number of bytes.
#[derive(Clone, Debug)]
pub struct Budget {
    units: Arc<Semaphore>,
    units_max: u32,
}

/// Bytes taken from a budget; dropped, they are there again.
#[derive(Debug)]
pub struct Credit {
    _units: OwnedSemaphorePermit,
}

impl Budget {
    /// Of so many bytes; at least 1 KiB, at most 4 TiB.
    pub fn new(bytes: u64) -> Self {
        let units_max = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).max(1);
        let units_max = units_max.min(Semaphore::MAX_PERMITS as u32);
        Self { units: Arc::new(Semaphore::new(units_max as usize)), units_max }
    }

    /// Waits for that many bytes, behind whoever came before. More than there are in all counts as all: it waits
    /// until nobody else has any, and goes alone.
    pub async fn take(&self, bytes: u64) -> Credit {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).min(self.units_max);
        let units = Arc::clone(&self.units).acquire_many_owned(units).await.expect("never closed");
        Credit { _units: units }
    }

    /// Bytes that could be taken now.
    pub fn available(&self) -> u64 {
        self.units.available_permits() as u64 * UNIT_BYTES
    }

    /// Bytes that are taken now.
    pub fn taken(&self) -> u64 {
        self.bytes_max().saturating_sub(self.available())
    }

    /// Bytes that there are in all.
    pub const fn bytes_max(&self) -> u64 {
        self.units_max as u64 * UNIT_BYTES
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn what_is_taken_is_not_there_until_it_is_dropped() {
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
