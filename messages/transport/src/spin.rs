//! Bounded spinning: after it has sent a message, the end of a link looks for the next one again and again
//! for a short time, before its thread sleeps. To wake a thread that sleeps takes longer than most small
//! messages. This module must not depend on frames.
//!
//! Wanted properties: (A) an end without a limit never spins; (B) an end spins no longer than its limit after
//! it has sent something last; (C) what an end waits for is found in any case.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::Instant;

/// The spinning of one end of a link. Clones belong to the same end.
#[derive(Clone, Debug)]
pub(crate) struct Spin(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    limit: Duration,
    /// When the end sent something last, or began.
    last: Mutex<Instant>,
    sent: Notify,
}

impl Spin {
    /// Returns the spinning of an end that spins for at most `limit`.
    pub(crate) fn new(limit: Duration) -> Self {
        let shared = || Shared { limit, last: Mutex::new(Instant::now()), sent: Notify::new() };
        Self((!limit.is_zero()).then(|| Arc::new(shared())))
    }

    /// Records that the end has sent something. An answer may come soon, so a wait spins again.
    pub(crate) fn sent(&self) {
        if let Some(shared) = &self.0 {
            *shared.last.lock() = Instant::now();
            shared.sent.notify_one();
        }
    }

    /// Waits for `wait`, and spins meanwhile. While it spins, the other tasks of the thread go on, and the
    /// thread does not sleep.
    pub(crate) async fn wait<T>(&self, wait: impl Future<Output = T>) -> T {
        let Some(Shared { limit, last, sent }) = self.0.as_deref() else { return wait.await };
        let mut wait = pin!(wait);
        loop {
            let looked = poll_fn(|context| Poll::Ready(wait.as_mut().poll(context)));
            if let Poll::Ready(done) = looked.await {
                return done;
            }
            let idle = last.lock().elapsed();
            if idle < *limit {
                yield_now().await;
                continue;
            }
            tokio::select! {
                biased;
                done = &mut wait => return done,
                () = sent.notified() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    /// Waits for something that never comes, for a fifth of a second, and returns when it was looked for.
    async fn looked(spin: &Spin, sends: bool) -> Vec<Instant> {
        let mut looked = Vec::new();
        let never = poll_fn(|_| {
            looked.push(Instant::now());
            Poll::<()>::Pending
        });
        let time = Duration::from_millis(100);
        let mut wait = Box::pin(spin.wait(never));
        assert!(timeout(time, &mut wait).await.is_err());
        if sends {
            spin.sent();
        }
        assert!(timeout(time, wait).await.is_err());
        looked
    }

    #[tokio::test]
    async fn an_end_without_a_limit_never_spins() {
        let looked = looked(&Spin::new(Duration::ZERO), true).await;
        // Once at first, and once when each of the two time limits has expired.
        assert!(looked.len() <= 4, "{}", looked.len());
    }

    #[tokio::test]
    async fn an_end_spins_up_to_its_limit() {
        let limit = Duration::from_millis(5);
        let began = Instant::now();
        let looked = looked(&Spin::new(limit), false).await;
        assert!(looked.len() > 4, "{}", looked.len());
        // One more look after the last yield, one before the sleep, and those of the time limits.
        let late = looked.iter().filter(|&&at| at > looked[0].max(began) + limit).count();
        assert!(late <= 6, "{late} of {}", looked.len());
    }

    #[tokio::test]
    async fn an_end_that_has_sent_spins_again() {
        let spin = Spin::new(Duration::from_millis(5));
        let (silent, sent) = (looked(&spin, false).await, looked(&spin, true).await);
        let after = |looked: &[Instant]| {
            let half = looked[0] + Duration::from_millis(50);
            looked.iter().filter(|&&at| at > half).count()
        };
        assert!(after(&silent) <= 6 && after(&sent) > 6, "{}, {}", after(&silent), after(&sent));
    }
}
