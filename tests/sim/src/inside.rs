//! The links between the tasks of one process. They have no latency, and last as long as the process.

use std::io::ErrorKind;
use std::sync::{Arc, OnceLock};

use futures_util::future::{BoxFuture, FutureExt};
use pushpull_messages::id::{JobName, TaskId};
use pushpull_messages::message::Message;
use pushpull_transport::buffer::Share;
use pushpull_transport::wire::{Envelope, Limits, WireError};
use pushpull_transport::{FrameReceiver, FrameSender, Link, Listener, Transport, TransportError};
use tokio::time::{Duration, sleep};
use tokio_util::sync::CancellationToken;

use crate::network::{Host, reset};

/// The shortest time that tokio's timers know.
const TICK: Duration = Duration::from_millis(1);

/// The transport of a task that shares its process. The links within the process are seen by the witness, as
/// all others are.
pub struct Inside {
    /// The transport of the shared port.
    pub inner: Arc<dyn Transport>,
    /// The task, on its machine.
    pub host: Host,
    /// The address of the process.
    pub own: String,
}

impl Transport for Inside {
    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Box<dyn Listener>, TransportError>> {
        self.inner.listen(address)
    }

    fn streams(&self) -> bool {
        self.inner.streams()
    }

    fn dial<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Link, TransportError>> {
        if address != self.own {
            return self.inner.dial(address);
        }
        async move {
            self.host.machine().running().await;
            if self.host.machine().is_killed() {
                return Err(TransportError::io(address, ErrorKind::NetworkDown.into()));
            }
            let Link { sender, receiver, peer, proven } = self.inner.dial(address).await?;
            let (host, broken) = (self.host.clone(), self.host.begin_link());
            let end = End { host, broken, peer: Arc::default() };
            let sender = Box::new(Sender { inner: sender, end: end.clone() });
            Ok(Link {
                sender,
                receiver: Box::new(Receiver { inner: receiver, end, next: None }),
                peer,
                proven,
            })
        }
        .boxed()
    }
}

/// The end of a link at the task that has dialled.
#[derive(Clone)]
struct End {
    host: Host,
    broken: CancellationToken,
    /// The task that was dialled, once it was named.
    peer: Arc<OnceLock<TaskId>>,
}

impl End {
    fn peer(&self) -> TaskId {
        self.peer.get().copied().unwrap_or(self.host.task())
    }
}

struct Sender {
    inner: Box<dyn FrameSender>,
    end: End,
}

impl FrameSender for Sender {
    fn send(&mut self, envelope: Envelope) -> BoxFuture<'_, Result<(), WireError>> {
        let Self { inner, end } = self;
        async move {
            let sent = async {
                end.host.machine().running().await;
                envelope.payload.ready().await?;
                if let Message::Hello(hello) = &envelope.message {
                    hello.to.map(|to| end.peer.set(to));
                }
                let (from, to) = (end.host.task(), end.peer());
                if end.host.network().is_hung(to, &envelope.message) {
                    return Ok(());
                }
                end.host.network().saw(from, to, Some(&envelope));
                inner.send(envelope).await
            };
            tokio::select! {
                biased;
                () = end.broken.cancelled() => Err(reset()),
                sent = sent => sent,
            }
        }
        .boxed()
    }
}

struct Receiver {
    inner: Box<dyn FrameReceiver>,
    end: End,
    /// What has arrived, while the machine is stopped.
    next: Option<Result<Option<Envelope>, WireError>>,
}

impl FrameReceiver for Receiver {
    fn receive(&mut self) -> BoxFuture<'_, Result<Option<Envelope>, WireError>> {
        let Self { inner, end, next } = self;
        async move {
            // The chief asks its shards again as soon as they have answered. Without a pause, the time would
            // stand still.
            if end.host.task().job == JobName::Chief {
                sleep(TICK).await;
            }
            if next.is_none() {
                *next = Some(tokio::select! {
                    biased;
                    () = end.broken.cancelled() => Err(reset()),
                    received = inner.receive() => received,
                });
            }
            end.host.machine().running().await;
            let envelope = next.take().expect("something has arrived")?;
            end.host.network().saw(end.peer(), end.host.task(), envelope.as_ref());
            Ok(envelope)
        }
        .boxed()
    }

    fn trust(&mut self, limits: Limits, share: Option<Share>) {
        self.inner.trust(limits, share);
    }
}
