//! Messages that are sent ahead of the reply to a request, while the request still arrives. The caller gets
//! them together with the reply.
//!
//! Wanted property: (A) values that were sent ahead reach the caller only in a reply that has their version
//! and no values of its own.

use pushpull_messages::id::RequestId;
use tokio::sync::mpsc;

use crate::late::DecidedAnswer;
use crate::reply::Next;

/// Sends a message ahead of the reply to a request that is still arriving.
#[derive(Debug)]
pub struct Ahead {
    request: RequestId,
    outgoing: mpsc::Sender<Next>,
    slow: bool,
}

impl Ahead {
    /// Returns what sends a message ahead of the reply to `request`. `slow` tells whether the peer was slow
    /// to read the last late answer.
    pub(crate) const fn new(request: RequestId, outgoing: mpsc::Sender<Next>, slow: bool) -> Self {
        Self { request, outgoing, slow }
    }

    /// Returns whether the connection is slow, as in [`LateAnswer::decide`](crate::LateAnswer::decide).
    pub const fn is_slow(&self) -> bool {
        self.slow
    }

    /// Sends a message, whose payload may still be promised. Returns whether the connection takes it.
    pub fn send(&self, answer: DecidedAnswer) -> bool {
        self.outgoing.try_send(Next::Ahead(self.request, answer)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use futures_util::future::{BoxFuture, FutureExt};
    use parking_lot::Mutex;
    use pushpull_messages::id::*;
    use pushpull_messages::message::*;
    use tokio::sync::oneshot::{self, error::TryRecvError};
    use tokio::time::timeout;

    use crate::buffer::{Buffer, BufferPool, Credit, Payload, Promise, Segment};
    use crate::tests::{identity, push};
    use crate::*;

    const PS: TaskId = TaskId::ps(0);
    /// The number of floats in a gradient. A payload of this size may go into a sink.
    const FLOATS: usize = 100_000;
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Tells when the transport has taken all of a message.
    struct Taken(Option<oneshot::Sender<()>>);

    impl AnswerGuard for Taken {
        fn is_awaited(&self) -> bool {
            false
        }
    }

    impl Drop for Taken {
        fn drop(&mut self) {
            let _ = self.0.take().unwrap().send(());
        }
    }

    /// Throws away gradients.
    struct Nowhere {
        space: Vec<u8>,
        /// The number of bytes that the current gradient lacks.
        missing: usize,
    }

    impl Sink for Nowhere {
        fn space(&mut self) -> &mut [u8] {
            &mut self.space[..self.missing]
        }

        fn filled(&mut self, bytes: usize) {
            self.missing -= bytes;
            if self.missing == 0 {
                self.missing = self.space.len();
            }
        }

        fn finish(self: Box<Self>) {}

        fn hold(&mut self, _: Credit) {}
    }

    /// A service that sends values ahead of each reply, and then replies with what it was given.
    struct Showing {
        ahead: Mutex<Option<(Drafted, Payload, Taken)>>,
        reply: Mutex<Option<(Message, Payload)>>,
        unanswered: Mutex<Option<Reply>>,
    }

    impl Service for Showing {
        fn sink<'a>(&'a self, _: &'a Peer, arriving: Arriving<'a>) -> BoxFuture<'a, Option<Box<dyn Sink>>> {
            if let Some(ahead) = arriving.ahead
                && let Some((drafted, payload, taken)) = self.ahead.lock().take()
            {
                let answer = DecidedAnswer { message: drafted.into(), payload, guard: Box::new(taken) };
                assert!(ahead.send(answer));
            }
            let sink: Box<dyn Sink> = Box::new(Nowhere { space: vec![0; 4 * FLOATS], missing: 4 * FLOATS });
            std::future::ready(Some(sink)).boxed()
        }

        fn call(&self, _: &Peer, request: Message, _: Payload, reply: Reply) {
            if matches!(request, Message::Observe(_)) {
                return *self.unanswered.lock() = Some(reply);
            }
            let (message, payload) = self.reply.lock().take().unwrap();
            reply.send(message, payload);
        }
    }

    fn floats(value: f32) -> Segment {
        Segment::whole(Arc::new(Buffer::from_f32(&[value; 4])))
    }

    /// Returns the reply that has this version, and values of some slices.
    fn pushed(version: u64, slices: &[u32]) -> Message {
        let slices = slices.iter().copied().map(SliceId).collect();
        let (verdict, last_step) = (Verdict::Applied, GlobalStep(9));
        Pushed { verdict, version: Version(version), last_step, slices, staleness: 0, times: None }.into()
    }

    /// Pushes two gradients. The service sends values of version 1 ahead, and the second gradient is sent
    /// when the transport has taken them. Returns what the caller gets if the service then sends `reply`.
    async fn exchange(reply: (Message, Payload)) -> Result<(Pushed, Payload), CallError> {
        let tcp = Tcp::new(BufferPool::default());
        let listener = tcp.listen("127.0.0.1:0").await.unwrap();
        let (taken, is_taken) = oneshot::channel();
        let values = Promise::new(16);
        let payload = Payload::new(vec![floats(1.0), values.segment(0, 16)]);
        let drafted = Drafted { version: Version(1), slices: vec![SliceId(1), SliceId(0)] };
        let ahead = Mutex::new(Some((drafted, payload, Taken(Some(taken)))));
        let service =
            Arc::new(Showing { ahead, reply: Mutex::new(Some(reply)), unanswered: Mutex::default() });
        let server = serve(listener, identity(PS), service, ServerConfig::default());
        let (address, patience) = (server.address(), Patience::of(PATIENCE));
        let client = dial(&tcp, address, &identity(TaskId::worker(0)), PS, patience).await.unwrap();
        let gradients = [(); 2].map(|()| Promise::new(4 * FLOATS));
        let segments = gradients.iter().map(|gradient| gradient.segment(0, 4 * FLOATS)).collect();
        let call = client.call::<Pushed>(push(0, 2), Payload::new(segments));
        let steps = async {
            let [first, second] = gradients;
            first.keep(Buffer::zeroed(4 * FLOATS));
            values.keep(Buffer::from_f32(&[2.0; 4]));
            timeout(PATIENCE, is_taken).await.expect("they are sent while the request arrives").unwrap();
            second.keep(Buffer::zeroed(4 * FLOATS));
        };
        let (reply, ()) = tokio::join!(call, steps);
        reply
    }

    fn first_floats(payload: &Payload) -> Vec<f32> {
        payload.segments().iter().map(|segment| segment.as_f32()[0]).collect()
    }

    #[tokio::test]
    async fn values_arrive_before_their_push_is_sent() {
        let (pushed, values) = exchange((pushed(1, &[]), Payload::EMPTY)).await.unwrap();
        assert_eq!(pushed.slices, [SliceId(1), SliceId(0)]);
        assert_eq!(first_floats(&values), [1.0, 2.0]);
    }

    #[tokio::test]
    async fn a_reply_with_other_values_counts() {
        let own = Payload::new(vec![floats(5.0)]);
        for (version, slices, own) in [(1, &[0][..], own.clone()), (2, &[0], own), (2, &[], Payload::EMPTY)] {
            let (pushed, values) = exchange((pushed(version, slices), own.clone())).await.unwrap();
            assert_eq!(pushed.slices.len(), slices.len(), "(A)");
            assert_eq!(first_floats(&values), first_floats(&own), "(A)");
        }
    }

    /// The reply to an earlier request must not wait until a later one has arrived.
    #[tokio::test]
    async fn nothing_is_sent_ahead_after_an_unanswered_request() {
        let tcp = Tcp::new(BufferPool::default());
        let listener = tcp.listen("127.0.0.1:0").await.unwrap();
        let (taken, mut is_taken) = oneshot::channel();
        let drafted = Drafted { version: Version(1), slices: vec![SliceId(0)] };
        let ahead = Mutex::new(Some((drafted, Payload::new(vec![floats(1.0)]), Taken(Some(taken)))));
        let reply = Mutex::new(Some((pushed(1, &[0]), Payload::new(vec![floats(5.0)]))));
        let service = Arc::new(Showing { ahead, reply, unanswered: Mutex::default() });
        let server = serve(listener, identity(PS), Arc::clone(&service) as _, ServerConfig::default());
        let (address, patience) = (server.address(), Patience::of(PATIENCE));
        let client = dial(&tcp, address, &identity(TaskId::worker(0)), PS, patience).await.unwrap();
        let gradients = [(); 2].map(|()| Segment::whole(Arc::new(Buffer::zeroed(4 * FLOATS))));
        let first = client.call::<ShardSnapshot>(Observe { shard: 0 }, Payload::EMPTY);
        let second = async {
            let values = client.call::<Pushed>(push(0, 2), Payload::new(gradients.to_vec())).await.unwrap().1;
            drop(service.unanswered.lock().take());
            values
        };
        let (refused, values) = tokio::join!(first, second);
        assert!(refused.is_err(), "{refused:?}");
        assert_eq!(is_taken.try_recv(), Err(TryRecvError::Empty), "it is still to be sent");
        assert_eq!(first_floats(&values), [5.0]);
    }

    #[tokio::test]
    async fn a_push_that_is_refused_has_no_values() {
        let refusal = Refusal::new(RefusalCode::NotFinite, "a gradient is not finite");
        let refused = exchange((refusal.into(), Payload::EMPTY)).await.unwrap_err();
        assert!(matches!(refused, CallError::Refused { .. }), "(A): {refused}");
    }
}
