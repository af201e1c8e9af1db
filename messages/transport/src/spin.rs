//! Bounded spinning: after it has sent a message, the end of a link looks for the next one for a short time,
//! before its thread sleeps, which takes longer than most small messages. Must not depend on frames.
//!
//! Wanted properties: (A) an end without a limit never spins; (B) an end spins no longer than its limit after
//! it has sent something last; (C) what an end waits for is found in any case; (D) an end whose spinning
//! finds nothing spins after one of 64 messages.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pushpull_messages::observe;
use tokio::sync::Notify;
use tokio::task::yield_now;

/// For how long an end of a link spins by default. A thread of a virtual machine takes about 50 µs to wake,
/// and the other end may have to wake before it answers.
pub(crate) const SPIN: Duration = Duration::from_micros(100);
/// After this number of spins in a row that found nothing, an end spins no more rarely.
const MISSES_MAX: u32 = 6;

/// The spinning of one end of a link. Clones belong to the same end.
#[derive(Clone, Debug)]
pub(crate) struct Spin(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    limit: Duration,
    habit: Mutex<Habit>,
    sent: Notify,
}

/// Whether an end spins, and how often its spinning found something.
#[derive(Debug)]
struct Habit {
    /// When to stop spinning; `None` if the end does not spin.
    until: Option<Instant>,
    /// The number of spins in a row that found nothing, up to [`MISSES_MAX`].
    misses: u32,
    /// The number of messages to send before the next spin.
    skip: u32,
}

impl Habit {
    /// Records that the end has sent something. An answer may come soon.
    fn sent(&mut self, until: Instant) {
        self.until = (self.skip == 0).then_some(until);
        self.skip = self.skip.saturating_sub(1);
    }

    /// Records that the end has found what it waits for.
    fn found(&mut self) {
        self.misses = 0;
    }

    /// Records that the time to spin is over. The more often this happens, the more messages pass before the
    /// next spin: 1, 3, 7 and so on.
    fn missed(&mut self) {
        self.until = None;
        self.misses = MISSES_MAX.min(self.misses + 1);
        self.skip = (1 << self.misses) - 1;
    }
}

impl Spin {
    /// Returns the spinning of an end that spins for at most `limit`.
    pub(crate) fn new(limit: Duration) -> Self {
        let habit = || Mutex::new(Habit { until: Some(observe::now() + limit), misses: 0, skip: 0 });
        Self((!limit.is_zero()).then(|| Arc::new(Shared { limit, habit: habit(), sent: Notify::new() })))
    }

    /// Records that the end has sent something. An answer may come soon, so a wait may spin again.
    pub(crate) fn sent(&self) {
        if let Some(Shared { limit, habit, sent }) = self.0.as_deref() {
            habit.lock().sent(observe::now() + *limit);
            sent.notify_one();
        }
    }

    /// Waits for `wait`, and may spin meanwhile. While it spins, the other tasks of the thread and the other
    /// threads of the core go on, but the thread does not sleep.
    pub(crate) async fn wait<T>(&self, wait: impl Future<Output = T>) -> T {
        let Some(Shared { habit, sent, .. }) = self.0.as_deref() else { return wait.await };
        let (mut wait, mut spun) = (pin!(wait), false);
        loop {
            let looked = poll_fn(|context| Poll::Ready(wait.as_mut().poll(context)));
            if let Poll::Ready(done) = looked.await {
                if spun {
                    habit.lock().found();
                }
                return done;
            }
            let until = habit.lock().until;
            match until {
                Some(until) if observe::now() < until => {
                    spun = true;
                    // What is waited for may need this core.
                    std::thread::yield_now();
                    yield_now().await;
                    continue;
                }
                Some(_) => habit.lock().missed(),
                None => {}
            }
            spun = false;
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
    use proptest::prelude::*;
    use tokio::time::timeout;

    use super::*;

    /// Waits for something that never comes, for a fifth of a second, and returns when it was looked for.
    /// Sends this number of messages at half time.
    async fn looked(spin: &Spin, sends: u32) -> Vec<Instant> {
        let mut looked = Vec::new();
        let never = poll_fn(|_| {
            looked.push(observe::now());
            Poll::<()>::Pending
        });
        let time = Duration::from_millis(100);
        let mut wait = Box::pin(spin.wait(never));
        assert!(timeout(time, &mut wait).await.is_err());
        (0..sends).for_each(|_| spin.sent());
        assert!(timeout(time, wait).await.is_err());
        looked
    }

    #[tokio::test]
    async fn an_end_without_a_limit_never_spins() {
        let looked = looked(&Spin::new(Duration::ZERO), 1).await;
        // Once at first, and once when each of the two time limits has expired.
        assert!(looked.len() <= 4, "{}", looked.len());
    }

    #[tokio::test]
    async fn an_end_spins_up_to_its_limit() {
        let limit = Duration::from_millis(5);
        let began = observe::now();
        let looked = looked(&Spin::new(limit), 0).await;
        assert!(looked.len() > 4, "{}", looked.len());
        // One more look after the last yield, one before the sleep, and those of the time limits.
        let late = looked.iter().filter(|&&at| at > looked[0].max(began) + limit).count();
        assert!(late <= 6, "{late} of {}", looked.len());
    }

    #[tokio::test]
    async fn an_end_that_missed_once_spins_after_two_messages() {
        let spins = async |sends| {
            let looked = looked(&Spin::new(Duration::from_millis(5)), sends).await;
            let half = looked[0] + Duration::from_millis(50);
            looked.iter().filter(|&&at| at > half).count() > 6
        };
        assert_eq!((spins(0).await, spins(1).await, spins(2).await), (false, false, true));
    }

    #[tokio::test]
    async fn an_end_that_finds_messages_spins_after_each() {
        let limit = Duration::from_secs(60);
        let spin = Spin::new(limit);
        for message in 0..100 {
            spin.sent();
            let mut looks = 3;
            let soon = poll_fn(|_| {
                looks -= 1;
                if looks == 0 { Poll::Ready(()) } else { Poll::Pending }
            });
            // Without spinning, nothing wakes the wait.
            assert!(timeout(limit, spin.wait(soon)).await.is_ok(), "message {message}");
        }
    }

    proptest! {
        /// An end sends messages, and its spins find something or not. (D)
        #[test]
        fn spins_that_miss_become_rare(finds in prop::collection::vec(any::<bool>(), 0..20), misses in 200u32..1000) {
            let now = observe::now();
            let mut habit = Habit { until: None, misses: 0, skip: 0 };
            for find in finds {
                habit.sent(now);
                match habit.until {
                    Some(_) if find => habit.found(),
                    Some(_) => habit.missed(),
                    None => {}
                }
            }
            let mut spins = 0;
            for _ in 0..misses {
                habit.sent(now);
                if habit.until.is_some() {
                    spins += 1;
                    habit.missed();
                }
            }
            prop_assert!(spins <= MISSES_MAX + misses / (1 << MISSES_MAX) + 1, "{spins} of {misses}");
            // It still tries again, so it notices when spinning pays.
            prop_assert!(spins >= misses / (1 << MISSES_MAX), "{spins} of {misses}");
        }
    }
}
