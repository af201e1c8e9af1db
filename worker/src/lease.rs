//! A limit on the time that a worker spends on its own work: on waiting for its input, and on computing.
//! This module must not depend on shards or on the chief.
//!
//! While input or devices hang, the worker still sends heartbeats, so no other task notices. Without a
//! limit, the other workers would wait for this worker for ever under most policies.

use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::error::WorkerError;

/// A factor for the lower bound of the limit. It applies to the first computation, which may load libraries,
/// and to every wait for input. Some of these waits are much longer than all earlier ones: at the end of an
/// epoch, or when a buffer is filled again.
const LONG: u32 = 10;
/// The limit is at least this many times the duration of the longest work so far.
const LONGEST: u32 = 20;
/// The time is measured in intervals of at most this length. If the process is suspended for longer, only
/// this much of the pause counts towards the limit.
const TICK: Duration = Duration::from_secs(1);

/// A limit on the time of one kind of work. The limit grows with the longest work so far.
#[derive(Debug)]
pub(crate) struct Lease {
    /// The kind of work, for the error.
    what: &'static str,
    /// The lower bound of the limit; zero if there is no limit.
    least: Duration,
    /// How long the longest work took; `None` if there was none.
    longest: Option<Duration>,
}

impl Lease {
    /// Returns a lease for waits for the input that `what` names. `least` is the lower bound that applies to
    /// computations. The lower bound for these waits is [`LONG`] times as long.
    pub(crate) const fn of_input(what: &'static str, least: Duration) -> Self {
        Self { what, least: least.saturating_mul(LONG), longest: Some(Duration::ZERO) }
    }

    /// Returns a lease for computations, which `what` names. `least` is the lower bound of the limit.
    pub(crate) const fn of_computation(what: &'static str, least: Duration) -> Self {
        Self { what, least, longest: None }
    }

    /// Returns how long the next work may take.
    fn limit(&self) -> Duration {
        match self.longest {
            _ if self.least.is_zero() => Duration::MAX,
            None => self.least.saturating_mul(LONG),
            Some(longest) => self.least.max(longest.saturating_mul(LONGEST)),
        }
    }

    /// Awaits `work`, within the limit.
    ///
    /// # Errors
    /// [`WorkerError::Hung`] if `work` takes longer than the limit. `work` is then dropped. If another thread
    /// does the work, this function does not wait until that thread ends.
    pub(crate) async fn hold<T>(&mut self, work: impl Future<Output = T>) -> Result<T, WorkerError> {
        let limit = self.limit();
        let (mut work, mut counted) = (pin!(work), Duration::ZERO);
        let done = loop {
            let (began, tick) = (Instant::now(), limit.saturating_sub(counted).min(TICK));
            let done = timeout(tick, &mut work).await;
            counted += began.elapsed().min(tick);
            if let Ok(done) = done {
                break done;
            }
            if counted >= limit {
                return Err(WorkerError::Hung { what: self.what, seconds: limit.as_secs_f32() });
            }
        };
        self.longest = self.longest.max(Some(counted));
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn after(least: Duration, longest: Option<Duration>) -> Lease {
        Lease { longest, ..Lease::of_computation("the computation", least) }
    }

    proptest! {
        /// Checks that (A) the limit is 20 times the longest work so far, but at least the lower bound;
        /// before any work, it is 10 times the lower bound. Also checks that (B) there is no limit if the
        /// lower bound is zero.
        #[test]
        fn a_lease_follows_the_longest_work(least in 0u64..1 << 40, longest in any::<Option<u32>>()) {
            let least = Duration::from_millis(least);
            let longest = longest.map(|ms| Duration::from_millis(ms.into()));
            let limit = after(least, longest).limit();
            if least.is_zero() {
                prop_assert_eq!(limit, Duration::MAX);
            } else {
                let expected = longest.map_or(10 * least, |longest| least.max(20 * longest));
                prop_assert_eq!(limit, expected);
            }
            let input = Lease::of_input("the input", least).limit();
            prop_assert_eq!(input, if least.is_zero() { Duration::MAX } else { 10 * least });
        }
    }

    #[actix_rt::test]
    async fn work_that_hangs_is_given_up_and_named() {
        let mut lease = after(Duration::from_millis(1), Some(Duration::ZERO));
        let error = lease.hold(std::future::pending::<()>()).await.unwrap_err().to_string();
        assert!(error.contains("computation") && error.contains("0.001 s"), "{error}");
        assert_eq!(lease.hold(std::future::ready(7)).await.unwrap(), 7);
    }
}
