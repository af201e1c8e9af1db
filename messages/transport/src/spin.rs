//! Bounded spinning: after a message, an end of a link looks for the next one for a short time before its
//! thread sleeps, because waking a thread takes longer than most small messages. Wanted properties: (A) an
//! end without a limit never spins; (B) an end spins no longer than its limit after a message; (C) what an
//! end waits for is found in any case; (D) an end whose spinning finds nothing in time, or takes longer than
//! sleeping, spins after one of 64 messages; (E) other tasks of the thread have a turn after [`LOOKS`] looks.

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
pub const SPIN: Duration = Duration::from_micros(100);
/// The number of misses in a row after which an end spins after one of 64 messages.
const MISSES_MAX: u32 = 6;
/// The number of hits in a row after which an end sleeps for the first time, to know how long that takes.
const HITS_FIRST: u32 = 63;
/// The number of hits in a row after which it sleeps again. Of 100 messages, fewer than one must wait for
/// that, although both ends do so.
const HITS_MAX: u32 = 511;
/// The number of looks of an end that spins between two turns of the other tasks of its thread.
const LOOKS: u32 = 4;
/// How much the last of some times counts in their mean: one part of this number.
const MEAN_PARTS: u32 = 4;
/// The longest time that counts, in limits: beyond it, it makes no difference how the end has waited.
const LIMITS_MAX: u32 = 4;

/// The spinning of one end of a link. Clones belong to the same end.
#[derive(Clone, Debug)]
pub(crate) struct Spin(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    limit: Duration,
    habit: Mutex<Habit>,
    sent: Notify,
}

/// Whether an end spins, and how often its spinning paid. Its times are those of the system: tokio's clock
/// may be paused, and does not go on while an end spins.
#[derive(Debug, Default)]
struct Habit {
    /// When to stop spinning; `None` if the end does not spin.
    until: Option<Instant>,
    /// The number of spins in a row that did not pay, up to [`MISSES_MAX`].
    misses: u32,
    /// The number of messages to send before the next spin.
    skip: u32,
    /// The number of spins in a row that paid.
    hits: u32,
    /// When the end has sent the last message before the answer, and whether it has begun to spin then.
    sent: Option<(Instant, bool)>,
    /// The mean time from a message to its answer if the end spins.
    spinning: Option<Duration>,
    /// The mean time from a message to its answer if the end sleeps.
    sleeping: Option<Duration>,
}

impl Habit {
    /// Records that the end has sent something, so that an answer may come soon. A spin that has begun is
    /// not extended. Returns whether the end spins.
    fn sent(&mut self, now: Instant, limit: Duration) -> bool {
        match self.until {
            Some(until) if now < until => return true,
            Some(_) => self.missed(),
            None => {}
        }
        let compares = self.hits >= if self.sleeping.is_some() { HITS_MAX } else { HITS_FIRST };
        if compares {
            self.hits = 0;
        }
        let spins = self.skip == 0 && !compares;
        self.until = spins.then_some(now + limit);
        self.skip = self.skip.saturating_sub(1);
        self.sent = Some((now, spins));
        spins
    }

    /// Returns whether to look again. If the time to spin is over, and `spun` is true, counts a miss.
    fn goes_on(&mut self, now: Instant, spun: bool) -> bool {
        match self.until {
            Some(until) if now < until => return true,
            Some(_) if spun => self.missed(),
            _ => self.until = None,
        }
        false
    }

    /// Records that the end has found what it waits for. On a busy core, the last look may have come late:
    /// then it would have been better to sleep.
    fn found(&mut self, now: Instant, limit: Duration) {
        let until = self.until.take();
        if let Some((sent, spun)) = self.sent.take() {
            let took = now.saturating_duration_since(sent).min(limit * LIMITS_MAX);
            let mean = if spun { &mut self.spinning } else { &mut self.sleeping };
            *mean = Some(mean.map_or(took, |mean| (mean * (MEAN_PARTS - 1) + took) / MEAN_PARTS));
        }
        let sleeps_longer = self.spinning.zip(self.sleeping).is_none_or(|(spun, slept)| spun <= slept);
        match until {
            Some(until) if now < until && sleeps_longer => (self.misses, self.hits) = (0, self.hits + 1),
            Some(_) => self.missed(),
            None => {}
        }
    }

    /// Counts a miss. The more often this happens, the more messages pass before the next spin: 1, 3, 7 and
    /// so on.
    fn missed(&mut self) {
        (self.until, self.hits) = (None, 0);
        self.misses = MISSES_MAX.min(self.misses + 1);
        self.skip = (1 << self.misses) - 1;
    }
}

impl Spin {
    /// Returns the spinning of an end that spins for at most `limit`.
    pub(crate) fn new(limit: Duration) -> Self {
        let shared = || Shared { limit, habit: Mutex::default(), sent: Notify::new() };
        Self((!limit.is_zero()).then(|| Arc::new(shared())))
    }

    /// Returns whether the end spins at the moment.
    pub(crate) fn is_spinning(&self) -> bool {
        let until = |shared: &Shared| shared.habit.lock().until;
        self.0.as_deref().and_then(until).is_some_and(|until| observe::now() < until)
    }

    /// Records that the end has sent something. An answer may come soon, so a wait may spin again.
    pub(crate) fn sent(&self) {
        if let Some(Shared { limit, habit, sent }) = self.0.as_deref()
            && habit.lock().sent(observe::now(), *limit)
        {
            sent.notify_one();
        }
    }

    /// Waits for `wait`, and may spin meanwhile. While it spins, the other tasks of the thread and the other
    /// threads of the core go on, but the thread does not sleep.
    pub(crate) async fn wait<T>(&self, wait: impl Future<Output = T>) -> T {
        let Some(Shared { limit, habit, sent }) = self.0.as_deref() else { return wait.await };
        let found = || habit.lock().found(observe::now(), *limit);
        let (mut wait, mut spun, mut looks) = (pin!(wait), false, 0);
        loop {
            let looked = poll_fn(|context| Poll::Ready(wait.as_mut().poll(context)));
            if let Poll::Ready(done) = looked.await {
                match spun {
                    true => found(),
                    // The end has not waited.
                    false => habit.lock().sent = None,
                }
                return done;
            }
            let goes_on = {
                let mut habit = habit.lock();
                habit.until.is_some() && habit.goes_on(observe::now(), spun)
            };
            if goes_on {
                spun = true;
                // What is waited for may need this core.
                std::thread::yield_now();
                looks += 1;
                // A turn of the other tasks takes longer than a look, so it comes only after some looks.
                if looks % LOOKS == 0 {
                    yield_now().await;
                }
                continue;
            }
            spun = false;
            tokio::select! {
                biased;
                done = &mut wait => {
                    found();
                    return done;
                }
                () = sent.notified() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use proptest::prelude::*;
    use tokio::time::timeout;

    use super::*;

    /// Sends a message and waits for an answer that never comes, for four times the limit of the spinning.
    /// Returns when it was looked for.
    async fn looked(spin: &Spin, limit: Duration) -> Vec<Instant> {
        let mut looked = Vec::new();
        let never = poll_fn(|_| {
            looked.push(observe::now());
            Poll::<()>::Pending
        });
        spin.sent();
        assert!(timeout(4 * limit, spin.wait(never)).await.is_err());
        looked
    }

    #[tokio::test]
    async fn an_end_without_a_limit_never_spins() {
        let looked = looked(&Spin::new(Duration::ZERO), Duration::from_millis(50)).await;
        // Once at first, and once when the time limit has expired.
        assert!(looked.len() <= 2, "{}", looked.len());
    }

    #[tokio::test]
    async fn an_end_spins_up_to_its_limit() {
        let limit = Duration::from_millis(100);
        let looked = looked(&Spin::new(limit), limit).await;
        // On a busy core, a look takes some milliseconds.
        assert!(looked.len() > 8, "{}", looked.len());
        // One more look after the last yield, one before the sleep, and those of the time limit.
        let late = looked.iter().filter(|&&at| at > looked[0] + limit).count();
        assert!(late <= 6, "{late} of {}", looked.len());
    }

    #[tokio::test]
    async fn an_end_that_finds_messages_spins_after_each() {
        let limit = Duration::from_secs(60);
        let spin = Spin::new(limit);
        for message in 0..HITS_FIRST {
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

    #[tokio::test]
    async fn the_other_tasks_have_turns_while_an_end_spins() {
        let turns = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&turns);
        let others = tokio::spawn(async move {
            loop {
                counted.fetch_add(1, Ordering::Relaxed);
                yield_now().await;
            }
        });
        let (spin, mut looks) = (Spin::new(Duration::from_secs(600)), 0);
        spin.sent();
        let late = poll_fn(|_| {
            looks += 1;
            if looks == 40 * LOOKS { Poll::Ready(()) } else { Poll::Pending }
        });
        spin.wait(late).await;
        others.abort();
        let turns = turns.load(Ordering::Relaxed);
        assert!((30..=41).contains(&turns), "{turns}");
    }

    const LIMIT: Duration = Duration::from_micros(100);

    #[test]
    fn a_message_found_late_is_a_miss() {
        let (now, mut habit) = (observe::now(), Habit::default());
        habit.sent(now, LIMIT);
        assert!(habit.goes_on(now + LIMIT / 2, false));
        habit.found(now + 3 * LIMIT, LIMIT);
        assert_eq!((habit.until, habit.misses), (None, 1));
    }

    #[test]
    fn an_end_that_found_a_message_does_not_spin_before_the_next() {
        let (now, mut habit) = (observe::now(), Habit::default());
        habit.sent(now, LIMIT);
        habit.found(now + LIMIT / 2, LIMIT);
        assert!(!habit.goes_on(now + LIMIT / 2, false));
        assert_eq!((habit.until, habit.misses), (None, 0));
    }

    #[test]
    fn an_end_that_sends_all_the_time_does_not_spin_for_ever() {
        let (now, mut habit) = (observe::now(), Habit::default());
        let mut spins = |at: u32| {
            habit.sent(now + at * LIMIT / 10, LIMIT);
            habit.goes_on(now + at * LIMIT / 10, true)
        };
        let spun = (0..10_000).filter(|&at| spins(at)).count();
        // A spin takes ten messages, and then 63 are skipped.
        assert!(spun < 10_000 / 5, "{spun}");
    }

    #[test]
    fn a_time_in_which_nothing_waited_is_no_miss() {
        let (now, mut habit) = (observe::now(), Habit::default());
        habit.sent(now, LIMIT);
        assert!(!habit.goes_on(now + 2 * LIMIT, false));
        assert_eq!((habit.until, habit.misses), (None, 0));
    }

    proptest! {
        /// An answer takes one time if the end spins, and another time if it sleeps. Between two answers,
        /// nothing is sent. (D)
        #[test]
        fn an_end_waits_in_the_faster_way(spinning in 1u32..99, sleeping in 1u32..400) {
            let (mut now, mut habit) = (observe::now(), Habit::default());
            let mut spins = |messages: usize| {
                let spins = (0..messages).filter(|_| {
                    let spins = habit.sent(now, LIMIT);
                    now += Duration::from_micros(u64::from(if spins { spinning } else { sleeping }));
                    habit.found(now, LIMIT);
                    spins
                });
                spins.count()
            };
            // It must first learn both times.
            spins(200);
            let spun = spins(640);
            match spinning <= sleeping {
                true => prop_assert!(spun >= 630, "{spun}"),
                false => prop_assert!((9..=11).contains(&spun), "{spun}"),
            }
        }

        /// An end whose spins were slow spins again when they have become faster than sleeping. (D)
        #[test]
        fn a_spin_that_pays_again_is_noticed(slow in 100u32..5000, quick in 1u32..40) {
            let (mut now, mut habit) = (observe::now(), Habit::default());
            let mut spun = 0;
            for message in 0..2000 {
                let spins = habit.sent(now, LIMIT);
                let spinning = if message < 400 { slow } else { quick };
                now += Duration::from_micros(u64::from(if spins { spinning } else { 50 }));
                habit.found(now, LIMIT);
                spun += u32::from(spins && message >= 1500);
            }
            prop_assert!(spun >= 480, "{spun}");
        }

        /// An end sends messages, and its spins find something or not. (D)
        #[test]
        fn spins_that_miss_become_rare(
            finds in prop::collection::vec(any::<bool>(), 0..20),
            misses in 200u32..1000,
        ) {
            let (mut now, mut habit) = (observe::now(), Habit::default());
            for find in finds {
                habit.sent(now, LIMIT);
                match find {
                    true => habit.found(now, LIMIT),
                    false => assert!(!habit.goes_on(now + LIMIT, true)),
                }
                now += 2 * LIMIT;
            }
            let mut spins = 0;
            for _ in 0..misses {
                habit.sent(now, LIMIT);
                spins += u32::from(habit.goes_on(now, false));
                now += 2 * LIMIT;
                assert!(!habit.goes_on(now, true));
            }
            prop_assert!(spins <= MISSES_MAX + misses / (1 << MISSES_MAX) + 1, "{spins} of {misses}");
            // It still tries again, so it notices when spinning pays.
            prop_assert!(spins >= misses / (1 << MISSES_MAX), "{spins} of {misses}");
        }
    }
}
