//! Counts what one actor is sent, while it waits and while it is handled. Shared between whoever sends and the actor, so
//! that an actor which is stuck can be seen, too. Knows no message.
//!
//! Wanted properties: (A) every message is in the queue from when it is sent until it is handled or dropped, and in neither
//! afterwards; (B) what is handled is counted once, what is dropped is not; (C) what nobody sent has waited nowhere.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::actor::ActorSnapshot;
use super::times::TimeHistogram;

/// Of one actor.
#[derive(Debug, Default)]
pub struct Meter(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    queue: u64,
    waited: TimeHistogram,
    handling: TimeHistogram,
    /// Since when the one that is handled now is.
    since: Option<Instant>,
}

impl Meter {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A message is about to be sent: what this gives travels with it.
    pub fn queue(self: &Arc<Self>) -> Queued {
        self.lock().queue += 1;
        Queued { meter: Some(Arc::clone(self)), since: Instant::now() }
    }

    /// The actor does something whose waiting is not counted, until what this gives is dropped: nobody has sent it, or its own
    /// task has, a few times in its life.
    pub fn begin(self: &Arc<Self>) -> Handling {
        let began = Instant::now();
        self.lock().since = Some(began);
        Handling { meter: Arc::clone(self), began }
    }

    /// What is known of the actor of that name.
    pub fn snapshot(&self, name: impl ToString, state: impl ToString) -> ActorSnapshot {
        let counts = self.lock();
        let busy = counts.since.map(|since| since.elapsed());
        ActorSnapshot {
            name: name.to_string(),
            state: state.to_string(),
            queue: counts.queue,
            waited: counts.waited,
            handling: counts.handling,
            busy_us: busy.map(|busy| u64::try_from(busy.as_micros()).unwrap_or(u64::MAX)),
        }
    }
}

/// A message in a mailbox.
#[derive(Debug)]
pub struct Queued {
    /// `None` when it is taken up.
    meter: Option<Arc<Meter>>,
    since: Instant,
}

impl Queued {
    /// When it was sent.
    pub const fn since(&self) -> Instant {
        self.since
    }

    /// The actor has taken it up; it is at it until what this gives is dropped.
    pub fn handle(mut self) -> Handling {
        let began = Instant::now();
        let meter = self.meter.take().expect("a message is taken up once");
        {
            let mut counts = meter.lock();
            counts.queue -= 1;
            counts.waited.record(began.saturating_duration_since(self.since));
            counts.since = Some(began);
        }
        Handling { meter, began }
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        if let Some(meter) = &self.meter {
            meter.lock().queue -= 1;
        }
    }
}

/// A message that is being handled.
#[derive(Debug)]
pub struct Handling {
    meter: Arc<Meter>,
    began: Instant,
}

impl Handling {
    /// When that began.
    pub const fn began(&self) -> Instant {
        self.began
    }

    /// How long it has taken so far.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}

impl Drop for Handling {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        let mut counts = self.meter.lock();
        counts.handling.record(took);
        counts.since = None;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// (A)–(C), for one actor that handles one message at a time.
        #[test]
        fn what_is_sent_is_queued_until_it_is_handled(turns in prop::collection::vec(0u8..5, 1..100)) {
            let meter = Arc::new(Meter::default());
            let (mut queue, mut handling, mut handled, mut waited) = (Vec::new(), None, 0, 0);
            for turn in turns {
                match turn {
                    0 | 1 => queue.push(meter.queue()),
                    2 => drop(queue.pop()),
                    _ if handling.is_some() => {
                        handling = None;
                        handled += 1;
                    }
                    3 => {
                        handling = queue.pop().map(Queued::handle);
                        waited += u64::from(handling.is_some());
                    }
                    _ => handling = Some(meter.begin()),
                }
                let seen = meter.snapshot("a", "b");
                prop_assert_eq!(seen.queue, queue.len() as u64);
                prop_assert_eq!(seen.handling.count(), handled);
                prop_assert_eq!(seen.waited.count(), waited, "(C)");
                prop_assert_eq!(seen.busy_us.is_some(), handling.is_some());
            }
        }
    }
}
