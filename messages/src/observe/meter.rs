//! Measures how long an actor's messages wait and how long they take to be handled. The senders and the
//! actor share the meter, so an actor that is stuck can still be observed.
//!
//! Properties: (A) a message is counted in the queue from when it is sent until it is taken up or dropped;
//! (B) the number of handled messages includes each handled message once, and no dropped message; (C) no
//! waiting time is recorded for work that was not sent as a message.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::actor::ActorSnapshot;
use super::time_source;
use super::times::TimeHistogram;

/// A meter of one actor's messages.
#[derive(Debug, Default)]
pub struct Meter(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    queue: u64,
    waited: TimeHistogram,
    handling: TimeHistogram,
    /// The time at which the actor took up the current message; `None` if it handles none.
    since: Option<Instant>,
}

impl Meter {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a message that is about to be sent. The caller must send the returned value along with the
    /// message.
    pub fn queue(self: &Arc<Self>) -> Queued {
        self.lock().queue += 1;
        Queued { meter: Some(Arc::clone(self)), since: time_source::now() }
    }

    /// Begins work whose waiting time is not recorded. Such work was not sent as a message, or is a rare
    /// message from the actor's own task. The work lasts until the returned value is dropped.
    pub fn begin(self: &Arc<Self>) -> Handling {
        let began = time_source::now();
        self.lock().since = Some(began);
        Handling { meter: Arc::clone(self), began }
    }

    /// Returns a snapshot of the actor. The caller supplies the actor's name and state.
    pub fn snapshot(&self, name: impl ToString, state: impl ToString) -> ActorSnapshot {
        let counts = self.lock();
        let busy = counts.since.map(time_source::since);
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

/// The measurement of a message that waits in a mailbox.
#[derive(Debug)]
pub struct Queued {
    /// The meter of the actor; `None` after the message has been taken up.
    meter: Option<Arc<Meter>>,
    since: Instant,
}

impl Queued {
    /// Returns the time at which the message was sent.
    pub const fn since(&self) -> Instant {
        self.since
    }

    /// Takes up the message. It counts as being handled until the returned value is dropped.
    pub fn handle(mut self) -> Handling {
        let began = time_source::now();
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

/// The measurement of a message that is being handled.
#[derive(Debug)]
pub struct Handling {
    meter: Arc<Meter>,
    began: Instant,
}

impl Handling {
    /// Returns the time at which the message was taken up.
    pub const fn began(&self) -> Instant {
        self.began
    }

    /// Returns the time spent on the message so far.
    pub fn elapsed(&self) -> Duration {
        time_source::since(self.began)
    }
}

impl Drop for Handling {
    fn drop(&mut self) {
        let took = time_source::since(self.began);
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
        /// Checks the length of the queue (A), the number of handled messages (B) and the number of waiting
        /// times (C), for one actor that handles one message at a time.
        #[test]
        fn messages_are_queued_until_they_are_handled(turns in prop::collection::vec(0u8..5, 1..100)) {
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
