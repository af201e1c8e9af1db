//! Matches the replies on a connection to the requests that wait for them. The caller sends the requests and
//! sets time limits.
//!
//! Wanted properties: (A) a reply reaches only the call that made its request; (B) once the connection is
//! lost, no call waits any more, and every call gets the reason.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use pushpull_messages::id::RequestId;
use pushpull_messages::message::{Drafted, Message, RefusalCode};
use tokio::sync::oneshot;

use crate::buffer::Payload;
use crate::counters::CallCounters;

/// The requests of one connection.
#[derive(Debug)]
pub(crate) struct Pending(Mutex<Requests>);

#[derive(Debug)]
struct Requests {
    next: u64,
    waiting: BTreeMap<u64, Waiting>,
    /// Whether the peer has sent anything since the handshake.
    heard: bool,
    /// The reason why the connection is lost; `None` while it is not lost.
    lost: Option<String>,
    /// Whether a request was waiting for its reply when the connection was lost.
    missed: bool,
}

#[derive(Debug)]
struct Waiting {
    reply: oneshot::Sender<(Message, Payload)>,
    /// Whether the transport has taken all of the request.
    written: bool,
    /// The values that have arrived ahead of the reply.
    drafted: Option<(Drafted, Payload)>,
}

impl Waiting {
    /// Hands over the reply. If it has the version of the values that have arrived ahead of it, and none of
    /// its own, it gets these.
    fn answer(self, mut message: Message, mut payload: Payload) {
        if let (Message::Pushed(pushed), Some((drafted, values))) = (&mut message, self.drafted)
            && pushed.slices.is_empty()
            && pushed.version == drafted.version
        {
            (pushed.slices, payload) = (drafted.slices, values);
        }
        // Sending fails only if the call has just been dropped, and so does not need the reply.
        drop(self.reply.send((message, payload)));
    }
}

/// A request that waits for its reply. If this handle is dropped, the reply will be ignored.
pub(crate) struct PendingRequest<'a> {
    pending: &'a Pending,
    pub id: RequestId,
    pub reply: oneshot::Receiver<(Message, Payload)>,
}

impl PendingRequest<'_> {
    /// Returns whether the transport has taken all of the request.
    pub(crate) fn is_written(&self) -> bool {
        self.pending.0.lock().waiting.get(&self.id.0).is_none_or(|waiting| waiting.written)
    }
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        self.pending.0.lock().waiting.remove(&self.id.0);
    }
}

impl Pending {
    pub(crate) fn new() -> Self {
        let waiting = BTreeMap::new();
        Self(Mutex::new(Requests { next: 1, waiting, heard: false, lost: None, missed: false }))
    }

    /// Registers a new request.
    ///
    /// # Errors
    /// Returns the reason if the connection is lost.
    pub(crate) fn register(&self) -> Result<PendingRequest<'_>, String> {
        let mut requests = self.0.lock();
        if let Some(reason) = &requests.lost {
            return Err(reason.clone());
        }
        let id = requests.next;
        requests.next += 1;
        let (sender, reply) = oneshot::channel();
        requests.waiting.insert(id, Waiting { reply: sender, written: false, drafted: None });
        Ok(PendingRequest { pending: self, id: RequestId(id), reply })
    }

    /// Records that the transport has taken all of a request.
    pub(crate) fn written(&self, id: RequestId) {
        if let Some(waiting) = self.0.lock().waiting.get_mut(&id.0) {
            waiting.written = true;
        }
    }

    /// Records that the peer has sent something since the handshake.
    pub(crate) fn heard(&self) {
        self.0.lock().heard = true;
    }

    /// Hands a reply to the call that waits for it. Returns false if no request with this id was ever made.
    pub(crate) fn reply(
        &self,
        id: RequestId,
        message: Message,
        payload: Payload,
        counters: &CallCounters,
    ) -> bool {
        let mut requests = self.0.lock();
        requests.heard = true;
        let made = (1..requests.next).contains(&id.0);
        let message = match message {
            Message::Drafted(drafted) => {
                match requests.waiting.get_mut(&id.0) {
                    // Only the first one counts: a peer must not make this end work without limit.
                    Some(waiting) => drop(waiting.drafted.get_or_insert((*drafted, payload))),
                    None if made => counters.ignore(),
                    None => {}
                }
                return made;
            }
            other => other,
        };
        // A refusal with the code `Superseded` answers an earlier copy of the request. The reply to the
        // later copy is still to come.
        let superseded =
            matches!(&message, Message::Refusal(refusal) if refusal.code == RefusalCode::Superseded);
        match requests.waiting.remove(&id.0) {
            Some(waiting) if superseded => drop(requests.waiting.insert(id.0, waiting)),
            Some(waiting) => {
                drop(requests);
                waiting.answer(message, payload);
            }
            None if made => counters.ignore(),
            None => {}
        }
        made
    }

    /// Records that the connection is lost, for this reason, and ends the wait of every request.
    pub(crate) fn lose(&self, reason: String) {
        let mut requests = self.0.lock();
        requests.lost = Some(reason);
        requests.missed = !requests.waiting.is_empty();
        requests.waiting.clear();
    }

    /// Returns whether the connection is lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.0.lock().lost.is_some()
    }

    /// Returns whether the peer has sent anything since the handshake.
    pub(crate) fn was_heard(&self) -> bool {
        self.0.lock().heard
    }

    /// Returns whether a request was waiting for its reply when the connection was lost.
    pub(crate) fn was_missed(&self) -> bool {
        self.0.lock().missed
    }

    /// Returns the reason why the connection is lost.
    pub(crate) fn reason(&self) -> String {
        self.0.lock().lost.clone().unwrap_or_else(|| "closed".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pushpull_messages::id::{GlobalStep, SliceId, Version};
    use pushpull_messages::message::{Pushed, Verdict};

    use super::*;
    use crate::buffer::{Buffer, Segment};

    fn drafted(value: f32) -> (Message, Payload) {
        let values = Segment::whole(Arc::new(Buffer::from_f32(&[value])));
        let drafted = Drafted { version: Version(1), slices: vec![SliceId(0)] };
        (drafted.into(), Payload::new(vec![values]))
    }

    #[tokio::test]
    async fn only_the_first_values_ahead_of_a_reply_count() {
        let (pending, counters) = (Pending::new(), CallCounters::default());
        let mut request = pending.register().unwrap();
        for value in [1.0, 2.0] {
            let (message, payload) = drafted(value);
            assert!(pending.reply(request.id, message, payload, &counters));
        }
        let (verdict, version, last_step) = (Verdict::Applied, Version(1), GlobalStep(9));
        let pushed = Pushed { verdict, version, last_step, staleness: 0, times: None, slices: Vec::new() };
        assert!(pending.reply(request.id, pushed.into(), Payload::EMPTY, &counters));
        let (_, values) = (&mut request.reply).await.unwrap();
        assert_eq!(values.segments()[0].as_f32(), [1.0]);
        assert_eq!(counters.snapshot().ignored, 0);
    }

    #[test]
    fn values_ahead_of_no_reply_are_ignored() {
        let (pending, counters) = (Pending::new(), CallCounters::default());
        let id = pending.register().unwrap().id;
        let (message, payload) = drafted(1.0);
        assert!(pending.reply(id, message, payload, &counters), "the request was made");
        assert_eq!(counters.snapshot().ignored, 1);
        let (message, payload) = drafted(1.0);
        assert!(!pending.reply(RequestId(7), message, payload, &counters), "no such request was made");
    }
}
