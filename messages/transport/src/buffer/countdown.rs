//! Waits for several futures, and wakes the waiting task once, when the last of them is done. Each wake-up
//! takes the processor from the thread that works for these futures.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// Counts the futures that have to wake the waiting task.
#[derive(Default)]
struct Countdown {
    left: AtomicUsize,
    task: AtomicWaker,
}

impl Countdown {
    /// Counts one future. Returns whether it was the last one.
    fn count(&self) -> bool {
        self.left.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

impl Wake for Countdown {
    fn wake(self: Arc<Self>) {
        if self.count() {
            self.task.wake();
        }
    }
}

/// Waits until all `futures` are done. A future that is not done when it is polled must wake its task once,
/// and be done then.
///
/// # Errors
/// Returns the error of a future that has failed, once all are done.
pub(super) async fn all_done<F, E>(futures: impl Iterator<Item = F>) -> Result<(), E>
where
    F: Future<Output = Result<(), E>>,
{
    let mut waits: Vec<_> = futures.map(Box::pin).collect();
    if waits.is_empty() {
        return Ok(());
    }
    let mut result = Ok(());
    let countdown = Arc::new(Countdown::default());
    let waker = Waker::from(Arc::clone(&countdown));
    poll_fn(|context| {
        countdown.task.register(context.waker());
        while countdown.left.load(Ordering::Acquire) == 0 {
            // One more than there are, so that the count does not end before all of them have been polled.
            countdown.left.store(waits.len() + 1, Ordering::Release);
            waits.retain_mut(|wait| match wait.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Pending => true,
                Poll::Ready(done) => {
                    result = std::mem::replace(&mut result, Ok(())).and(done);
                    countdown.count();
                    false
                }
            });
            if waits.is_empty() {
                return Poll::Ready(());
            }
            countdown.count();
        }
        Poll::Pending
    })
    .await;
    result
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use proptest::prelude::*;
    use tokio::sync::oneshot;

    use super::super::promise::BrokenPromise;
    use super::super::wakes::Wakes;
    use super::*;

    /// Futures end on other threads while they are polled.
    #[tokio::test]
    async fn no_wake_up_is_lost_among_threads() {
        for _ in 0..300 {
            let (senders, receivers): (Vec<_>, Vec<_>) = (0..4).map(|_| oneshot::channel()).unzip();
            let end = |send: oneshot::Sender<_>| std::thread::spawn(move || send.send(Ok(())).unwrap());
            let threads: Vec<_> = senders.into_iter().map(end).collect();
            let all = all_done(receivers.into_iter().map(|wait| async { wait.await.unwrap() }));
            let ended: Result<(), BrokenPromise> =
                tokio::time::timeout(Duration::from_secs(60), all).await.expect("a wake-up is lost");
            assert_eq!(ended, Ok(()));
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        }
    }

    proptest! {
        /// Some futures are done before the wait, and the others during it, in any order. Some fail. The task
        /// may also look without having been woken.
        #[test]
        fn the_last_future_wakes_the_task_once(
            futures in prop::collection::vec((any::<bool>(), any::<u8>(), any::<bool>(), any::<bool>()), 0..12),
        ) {
            let (mut senders, mut receivers) = (Vec::new(), Vec::new());
            for &(late, turn, fails, looks) in &futures {
                let (send, receive) = oneshot::channel();
                let outcome = if fails { Err(BrokenPromise) } else { Ok(()) };
                senders.push((late, turn, looks, move || send.send(outcome).unwrap()));
                receivers.push(receive);
            }
            senders.sort_by_key(|&(late, turn, ..)| (late, turn));
            let mut waits = pin!(all_done(receivers.into_iter().map(|wait| async { wait.await.unwrap() })));
            let wakes = Arc::new(Wakes::default());
            let waker = Waker::from(Arc::clone(&wakes));
            let mut context = Context::from_waker(&waker);
            let (mut is_first, mut late_ones) = (true, 0);
            for (late, _, looks, end) in senders {
                if late && (looks || is_first) {
                    prop_assert!(waits.as_mut().poll(&mut context).is_pending());
                    is_first = false;
                }
                prop_assert_eq!(wakes.count(), 0);
                end();
                late_ones += usize::from(late);
            }
            prop_assert_eq!(wakes.count(), late_ones.min(1));
            let any_fails = futures.iter().any(|&(_, _, fails, _)| fails);
            let expected = if any_fails { Err(BrokenPromise) } else { Ok(()) };
            prop_assert_eq!(waits.as_mut().poll(&mut context), Poll::Ready(expected));
        }
    }
}
