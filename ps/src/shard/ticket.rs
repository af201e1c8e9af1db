//! Where the answer to one request goes; with a push that is traced goes when it was where, until it is answered.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use pushpull_messages::message::Message;
use pushpull_messages::observe::{Clock, Micros, PushTimes};
use pushpull_transport::Reply;
use pushpull_transport::buffer::Payload;

/// The right to answer, and what the answer is to tell beside what was asked for.
#[derive(Debug)]
pub(crate) struct Ticket {
    reply: Reply,
    trace: Option<Arc<Trace>>,
}

/// When a push was where. Shared: the push may wait for its answer when the shard is done with it, or be answered already.
#[derive(Debug)]
pub(super) struct Trace {
    clock: Clock,
    received: Instant,
    taken: Instant,
    done_us: OnceLock<Micros>,
}

impl Trace {
    /// Of a push that had come, and was taken up, at these moments.
    pub(super) fn new(clock: Clock, received: Instant, taken: Instant) -> Arc<Self> {
        Arc::new(Self { clock, received, taken, done_us: OnceLock::new() })
    }

    /// The shard is done with it.
    pub(super) fn done(&self) {
        self.done_us.get_or_init(|| self.clock.now());
    }

    /// It is answered now.
    fn times(&self) -> PushTimes {
        let answered_us = self.clock.now();
        PushTimes {
            received_us: self.clock.at(self.received),
            taken_us: self.clock.at(self.taken),
            done_us: self.done_us.get().copied().unwrap_or(answered_us),
            answered_us,
        }
    }
}

impl Ticket {
    pub(super) const fn new(reply: Reply, trace: Option<Arc<Trace>>) -> Self {
        Self { reply, trace }
    }

    /// Answers.
    pub(super) fn send(self, mut message: Message, payload: Payload) {
        if let (Some(trace), Message::Pushed(pushed)) = (self.trace, &mut message) {
            pushed.times = Some(trace.times());
        }
        self.reply.send(message, payload);
    }
}
