//! A bound on the bytes in flight. Credit is taken from the budget before memory is allocated, and goes back
//! to the budget when the memory is released. A share bounds the part of the budget that one connection may
//! take.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

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
    units: OwnedSemaphorePermit,
    share: Option<ShareCredit>,
}

/// The part of a budget that one connection may take.
#[derive(Debug)]
pub struct Share {
    budget: Budget,
    bytes_max: u64,
    taken: Arc<Taken>,
}

/// The bytes of a share that are in use.
#[derive(Debug, Default)]
struct Taken {
    bytes: AtomicU64,
    /// Notified when bytes go back. At most one caller waits, because [`Share::take`] has exclusive access.
    freed: Notify,
}

/// Bytes taken from a share. They go back to the share when this is dropped.
#[derive(Debug)]
struct ShareCredit {
    taken: Arc<Taken>,
    bytes: u64,
}

impl Drop for ShareCredit {
    fn drop(&mut self) {
        self.taken.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        self.taken.freed.notify_one();
    }
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
        Credit { units, share: None }
    }

    /// Returns a share of this budget, of `bytes_max` bytes.
    pub fn share(&self, bytes_max: u64) -> Share {
        Share { budget: self.clone(), bytes_max, taken: Arc::default() }
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

impl Share {
    /// Takes `bytes` bytes from the share and from its budget; waits until both have them. A call for more
    /// than the whole share waits until all other credits of the share have been dropped.
    ///
    /// While the call waits for its share, it holds nothing of the budget, so other connections can go on.
    pub async fn take(&mut self, bytes: u64) -> Credit {
        loop {
            let taken = self.taken.bytes.load(Ordering::Acquire);
            if taken == 0 || taken.saturating_add(bytes) <= self.bytes_max {
                break;
            }
            self.taken.freed.notified().await;
        }
        self.taken.bytes.fetch_add(bytes, Ordering::AcqRel);
        // If this future is dropped while it waits for the budget, the bytes go back to the share.
        let share = ShareCredit { taken: Arc::clone(&self.taken), bytes };
        Credit { share: Some(share), ..self.budget.take(bytes).await }
    }
}

impl Credit {
    /// Splits a credit for `bytes` bytes off this credit, so that the two can be dropped at different times.
    /// Returns `None` if this credit is for fewer bytes.
    pub fn split(&mut self, bytes: u64) -> Option<Self> {
        if self.share.as_ref().is_some_and(|share| share.bytes < bytes) {
            return None;
        }
        let units = usize::try_from(bytes.div_ceil(UNIT_BYTES)).ok()?;
        let units = self.units.split(units)?;
        let share = self.share.as_mut().map(|share| {
            share.bytes -= bytes;
            ShareCredit { taken: Arc::clone(&share.taken), bytes }
        });
        Some(Self { units, share })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use proptest::prelude::*;

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

    #[tokio::test]
    async fn a_share_leaves_the_rest_to_others() {
        let budget = Budget::new(10 << 10);
        let [mut greedy, mut modest] = [6 << 10, 6 << 10].map(|bytes| budget.share(bytes));
        let first = greedy.take(5 << 10).await;
        assert!(greedy.take(2 << 10).now_or_never().is_none(), "its share is used up");
        let other = modest.take(4 << 10).now_or_never().expect("the rest is free");
        drop(first);
        // More than the whole share is taken when the share has nothing else.
        let whole = greedy.take(6 << 10).now_or_never().expect("the share is free again");
        assert!(greedy.take(0).now_or_never().is_some());
        drop((whole, other));
        let huge = greedy.take(9 << 10).now_or_never().expect("nothing else is taken");
        assert!(greedy.take(1).now_or_never().is_none());
        drop(huge);
        // A call that is dropped while it waits for the budget leaves nothing behind.
        let all = budget.take(10 << 10).await;
        assert!(greedy.take(1 << 10).now_or_never().is_none());
        drop(all);
        assert!(greedy.take(6 << 10).now_or_never().is_some());
        assert_eq!(budget.taken(), 0);
    }

    #[tokio::test]
    async fn a_waiting_taker_has_its_turn_before_later_ones() {
        let budget = Budget::new(10 << 10);
        let [mut one, mut two, mut three] = [(); 3].map(|()| budget.share(10 << 10));
        let held = one.take(6 << 10).await;
        let mut large = std::pin::pin!(two.take(8 << 10));
        assert!(large.as_mut().now_or_never().is_none());
        let mut small = std::pin::pin!(three.take(1 << 10));
        assert!(small.as_mut().now_or_never().is_none(), "it would fit, but it came later");
        drop(held);
        let large = large.now_or_never().expect("its turn");
        assert!(small.now_or_never().is_some());
        drop(large);
    }

    proptest! {
        /// Checks that a credit that is split in two gives back all that was taken, in any order.
        #[test]
        fn both_parts_of_a_credit_return(bytes in 0u64..20 << 10, part in 0u64..20 << 10, first: bool) {
            let budget = Budget::new(32 << 10);
            let mut share = budget.share(16 << 10);
            let mut credit = share.take(bytes).now_or_never().unwrap();
            let part = credit.split(part);
            if first { drop(part); drop(credit) } else { drop(credit); drop(part) }
            prop_assert_eq!((budget.taken(), share.taken.bytes.load(Ordering::Relaxed)), (0, 0));
        }
    }
}
