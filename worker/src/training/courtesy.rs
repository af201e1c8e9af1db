//! Whether the threads of a worker give way to other threads of their core. This pays in synchronous jobs of
//! one host, because the ps task then answers all workers before one of them computes. But a program that
//! computes would get most of the core. The threads would then wait for it, and so they stop giving way.
//!
//! Wanted properties: (A) threads that wait long stop giving way; (B) they try it again, ever more seldom.

use std::sync::Weak;
use std::time::{Duration, Instant};

use pushpull_kernels::cpu::{BatchThreads, become_batch_work};
use pushpull_messages::observe;
use tokio::time::sleep;
use tracing::Instrument;

/// How often the threads' waits are looked at.
const PERIOD: Duration = Duration::from_secs(1);
/// The largest part of the time for which the threads that give way may wait, together. Alone with a ps task
/// and other workers on cores of their own, those of a worker wait for 0.05 to 0.06 of the time; beside one
/// program that computes, for 0.3 to 0.55.
const WAITED_MAX: f64 = 0.15;
/// How long the threads do not give way after they have waited too long for the first time, and at most.
const PAUSES: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(30 * 60)];

/// Decides whether threads give way, from the times for which they have waited.
#[derive(Debug)]
struct Decision {
    /// When the threads were looked at last, and for how long they had waited until then.
    last: (Instant, Duration),
    /// When the threads give way again; `None` if they do now.
    until: Option<Instant>,
    /// The next pause.
    pause: Duration,
}

impl Decision {
    /// Returns the decision of threads that give way, and have waited for this time until now.
    const fn new(now: Instant, waited: Duration) -> Self {
        Self { last: (now, waited), until: None, pause: PAUSES[0] }
    }

    /// Returns whether the threads give way from now on. They have waited for the time `waited` so far.
    fn gives_way(&mut self, now: Instant, waited: Duration) -> bool {
        let (at, before) = std::mem::replace(&mut self.last, (now, waited));
        match self.until {
            Some(until) if now < until => {}
            Some(_) => self.until = None,
            None => {
                let share = waited.saturating_sub(before).as_secs_f64() / (now - at).as_secs_f64();
                if share > WAITED_MAX {
                    self.until = Some(now + self.pause);
                    self.pause = PAUSES[1].min(2 * self.pause);
                }
            }
        }
        self.until.is_none()
    }
}

/// Makes this thread, and the threads that it starts, give way. Returns whether they do.
pub(super) fn begin() -> bool {
    let begun = become_batch_work();
    if let Err(error) = &begun {
        tracing::debug!(%error, "the threads of this worker may interrupt others");
    }
    begun.is_ok()
}

/// Lets the threads of this process that give way stop giving way while they wait for other programs. This
/// goes on as long as `worker` exists.
pub(super) fn watch<T: Send + Sync + 'static>(worker: Weak<T>) {
    tokio::spawn(watch_threads(move || worker.strong_count() > 0).in_current_span());
}

async fn watch_threads(goes_on: impl Fn() -> bool) {
    // By then, the devices have begun their threads.
    sleep(PERIOD).await;
    let Ok(threads) = BatchThreads::of_process() else { return };
    let Ok(waited) = threads.waited() else {
        // Nobody would notice that another program computes.
        return threads.set(false);
    };
    let (mut decision, mut gave) = (Decision::new(observe::now(), waited), true);
    while goes_on() {
        sleep(PERIOD).await;
        let Ok(waited) = threads.waited() else { continue };
        let gives = decision.gives_way(observe::now(), waited);
        if gives != std::mem::replace(&mut gave, gives) {
            match gives {
                true => tracing::debug!("gives way again to other threads of its core"),
                false => tracing::debug!("no longer gives way: another program computes on its core"),
            }
            threads.set(gives);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks at threads every second for a time. Those that give way wait for a part of it, as `share` says.
    /// Returns in which seconds they give way.
    fn course(seconds: u64, share: impl Fn(u64) -> f64) -> Vec<bool> {
        let (began, mut waited) = (observe::now(), Duration::ZERO);
        let (mut decision, mut gives) = (Decision::new(began, waited), true);
        let looks = (1..=seconds).map(|second| {
            waited += Duration::from_secs_f64(if gives { share(second) } else { 0.9 });
            gives = decision.gives_way(began + Duration::from_secs(second), waited);
            gives
        });
        looks.collect()
    }

    #[test]
    fn threads_that_wait_little_give_way() {
        assert!(
            course(1000, |second| if second % 2 == 0 { 0.0 } else { 0.14 }).into_iter().all(|gives| gives)
        );
    }

    #[test]
    fn threads_that_wait_long_try_ever_more_seldom() {
        let gives = course(24 * 3600, |_| 0.16);
        assert!(!gives[0], "(A)");
        let tries: Vec<usize> = (0..gives.len()).filter(|&second| gives[second]).collect();
        let pauses: Vec<usize> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(pauses[..5], [61, 121, 241, 481, 961], "(B)");
        assert!(pauses[6..].iter().all(|&pause| pause == 1801), "(B): {pauses:?}");
    }

    #[test]
    fn threads_give_way_again_when_a_program_ends() {
        let gives = course(300, |second| if second < 100 { 0.5 } else { 0.05 });
        // The third pause has begun before, and takes two minutes.
        assert!(!gives[200] && gives[220..].iter().all(|&gives| gives), "{gives:?}");
    }
}
