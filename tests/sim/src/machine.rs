//! The machine on which one start of a task runs. It can be stopped for a time, as by SIGSTOP: its links stay
//! open, but it sends, receives and computes nothing. Its wall clock may be wrong, and may jump.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::LocalBoxFuture;
use parking_lot::Mutex;
use pushpull_messages::observe::WallClock;
use tokio::time::{Instant, Sleep, sleep_until};

/// A machine; clones are the same machine.
#[derive(Clone, Debug, Default)]
pub struct Machine(Arc<Mutex<Power>>);

#[derive(Debug, Default)]
struct Power {
    stopped_until: Option<Instant>,
    killed: bool,
    /// What the machine's wall clock shows, and when it was set to that.
    clock: Option<(Duration, Instant)>,
}

impl Machine {
    /// Stops the machine for a time.
    pub fn stop(&self, time: Duration) {
        let power = &mut *self.0.lock();
        power.stopped_until = power.stopped_until.max(Some(Instant::now() + time));
    }

    /// Sets the wall clock to a time since 1970.
    pub fn set_clock(&self, time: Duration) {
        self.0.lock().clock = Some((time, Instant::now()));
    }

    /// Returns the machine's wall clock. It shows 1970 if it was never set.
    pub fn wall_clock(&self) -> WallClock {
        let machine = self.clone();
        WallClock::new(move || machine.time())
    }

    fn time(&self) -> SystemTime {
        let since = |(time, set): (Duration, Instant)| time + set.elapsed();
        UNIX_EPOCH + self.0.lock().clock.map_or(Duration::ZERO, since)
    }

    /// Ends everything on the machine for good.
    pub fn kill(&self) {
        self.0.lock().killed = true;
    }

    /// Returns whether the machine was killed.
    pub fn is_killed(&self) -> bool {
        self.0.lock().killed
    }

    /// Returns until when the machine is stopped; `None` if it runs.
    pub fn stopped_until(&self) -> Option<Instant> {
        let power = self.0.lock();
        power.stopped_until.filter(|&until| until > Instant::now() && !power.killed)
    }

    /// Waits until the machine is not stopped.
    pub async fn running(&self) {
        while let Some(until) = self.stopped_until() {
            sleep_until(until).await;
        }
    }

    /// Runs a future on the machine, so that it makes no progress while the machine is stopped.
    pub fn run<T>(&self, work: LocalBoxFuture<'static, T>) -> OnMachine<T> {
        OnMachine { machine: self.clone(), work, pause: None }
    }
}

/// A future that makes no progress while its machine is stopped.
pub struct OnMachine<T> {
    machine: Machine,
    work: LocalBoxFuture<'static, T>,
    pause: Option<Pin<Box<Sleep>>>,
}

impl<T> Future for OnMachine<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        while let Some(until) = self.machine.stopped_until() {
            let pause = self.pause.insert(Box::pin(sleep_until(until)));
            if pause.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
        self.work.as_mut().poll(cx)
    }
}
