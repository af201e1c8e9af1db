//! The reply to a request that a shard has received. For a traced push, the reply also reports when the push
//! arrived, left the mailbox, was applied and was answered.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use pushpull_messages::id::Version;
use pushpull_messages::message::Message;
use pushpull_messages::observe::{Clock, Micros, PushTimes};
use pushpull_transport::buffer::Payload;
use pushpull_transport::{LateAnswer, Reply};

/// A handle to answer a request. If the request is a traced push, the handle adds the times of the push to
/// the answer.
#[derive(Debug)]
pub(crate) struct TracedReply {
    reply: Reply,
    trace: Option<Arc<Trace>>,
    /// The version whose values were sent ahead of the answer.
    ahead: Option<Version>,
}

/// The times of a traced push. They are shared between the shard and the reply, because a push may be
/// answered either before or after the shard has finished with it.
#[derive(Debug)]
pub(crate) struct Trace {
    clock: Clock,
    received: Instant,
    taken: Instant,
    done_us: OnceLock<Micros>,
}

impl Trace {
    /// Returns the trace of a push that arrived at `received` and left the mailbox at `taken`.
    pub(crate) fn new(clock: Clock, received: Instant, taken: Instant) -> Arc<Self> {
        Arc::new(Self { clock, received, taken, done_us: OnceLock::new() })
    }

    /// Records that the shard has finished with the push.
    pub(crate) fn done(&self) {
        self.done_us.get_or_init(|| self.clock.now());
    }

    /// Returns the times of the push. The time of the answer is the current time.
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

impl TracedReply {
    pub(crate) const fn new(reply: Reply, trace: Option<Arc<Trace>>) -> Self {
        Self { reply, trace, ahead: None }
    }

    /// Records that the values of a version were sent ahead of the answer.
    pub(crate) fn sent_ahead(self, ahead: Option<Version>) -> Self {
        Self { ahead, ..self }
    }

    /// Sends the reply.
    pub(crate) fn send(self, mut message: Message, payload: Payload) {
        self.add_times(&mut message);
        self.reply.send(message, payload);
    }

    /// Sends an answer whose content is decided only when it is written. `answer` makes it from `message`. If
    /// the draft of the push has become the version `drafted`, which is that of the answer, and its values
    /// were sent ahead, the answer has no values.
    pub(crate) fn send_late(
        self,
        mut message: Message,
        drafted: Option<Version>,
        answer: impl FnOnce(Message) -> Box<dyn LateAnswer>,
    ) {
        self.add_times(&mut message);
        match &mut message {
            Message::Pushed(pushed) if self.ahead == drafted && drafted == Some(pushed.version) => {
                pushed.slices.clear();
                self.reply.send(message, Payload::EMPTY);
            }
            _ => self.reply.send_late(answer(message)),
        }
    }

    fn add_times(&self, message: &mut Message) {
        if let (Some(trace), Message::Pushed(pushed)) = (&self.trace, message) {
            pushed.times = Some(trace.times());
        }
    }
}
