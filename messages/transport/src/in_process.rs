//! The transport between tasks of one process: envelopes pass through bounded queues, payloads are shared,
//! and nothing is encoded.

use std::io;
use std::sync::Arc;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::mpsc;

use crate::accepted::Accepted;
use crate::buffer::Share;
use crate::error::TransportError;
use crate::link::{FrameReceiver, FrameSender, Link};
use crate::listener::Listener;
use crate::transport::Transport;
use crate::wire::{Envelope, Limits, WireError};

/// The largest number of envelopes queued in one direction of a link; when the queue is full, the sender
/// waits.
const QUEUE_MAX: usize = 4;
/// The largest number of links that wait to be accepted; when this number is reached, a task that dials
/// waits.
pub(crate) const BACKLOG_MAX: usize = 64;

/// The in-process transport, with the addresses of one embedded cluster. Two such transports in one process
/// are independent: each has its own addresses.
#[derive(Clone, Default)]
pub struct InProcess {
    listeners: Arc<DashMap<String, mpsc::Sender<Link>>>,
}

impl InProcess {
    /// Returns a transport without listeners.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Transport for InProcess {
    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Box<dyn Listener>, TransportError>> {
        let (sender, links) = mpsc::channel(BACKLOG_MAX);
        let taken = match self.listeners.entry(address.to_owned()) {
            Entry::Occupied(mut entry) if entry.get().is_closed() => {
                entry.insert(sender);
                false
            }
            Entry::Occupied(_) => true,
            Entry::Vacant(entry) => {
                entry.insert(sender);
                false
            }
        };
        let address = address.to_owned();
        let listener: Result<Box<dyn Listener>, _> = if taken {
            Err(TransportError::InUse { address })
        } else {
            Ok(Box::new(Queue { address, links }))
        };
        std::future::ready(listener).boxed()
    }

    fn streams(&self) -> bool {
        false
    }

    fn dial<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Link, TransportError>> {
        // The map's guard must be dropped before the await below.
        let listener = self.listeners.get(address).map(|entry| entry.value().clone());
        async move {
            let refused = || TransportError::io(address, io::ErrorKind::ConnectionRefused.into());
            let listener = listener.ok_or_else(refused)?;
            let (near, far) = link_pair(address);
            listener.send(far).await.map_err(|_| refused())?;
            Ok(near)
        }
        .boxed()
    }
}

/// Returns both ends of a link within this process: the end of the task that dials `address`, and the end of
/// the task that listens there.
pub(crate) fn link_pair(address: &str) -> (Link, Link) {
    let (near_sender, far_receiver) = mpsc::channel(QUEUE_MAX);
    let (far_sender, near_receiver) = mpsc::channel(QUEUE_MAX);
    let link = |sender, receiver, peer: &str| Link {
        sender: Box::new(Sender(sender)),
        receiver: Box::new(Receiver(receiver)),
        peer: peer.to_owned(),
        proven: None,
    };
    (link(near_sender, near_receiver, address), link(far_sender, far_receiver, "this process"))
}

/// A listener that takes links from a queue.
pub(crate) struct Queue {
    pub address: String,
    pub links: mpsc::Receiver<Link>,
}

impl Listener for Queue {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Accepted>> {
        async move {
            match self.links.recv().await {
                Some(link) => Ok(link.into()),
                // The other end of the queue is gone, so no link can come any more.
                None => std::future::pending().await,
            }
        }
        .boxed()
    }

    fn address(&self) -> String {
        self.address.clone()
    }
}

struct Sender(mpsc::Sender<Envelope>);

impl FrameSender for Sender {
    fn send(&mut self, envelope: Envelope) -> BoxFuture<'_, Result<(), WireError>> {
        async move {
            envelope.payload.ready().await?;
            let closed = |_| WireError::Io(io::ErrorKind::ConnectionReset.into());
            self.0.send(envelope).await.map_err(closed)
        }
        .boxed()
    }
}

struct Receiver(mpsc::Receiver<Envelope>);

impl FrameReceiver for Receiver {
    fn receive(&mut self) -> BoxFuture<'_, Result<Option<Envelope>, WireError>> {
        async move { Ok(self.0.recv().await) }.boxed()
    }

    fn trust(&mut self, _: Limits, _: Option<Share>) {
        // The limits and the share do not apply: a payload from the other end is already in this process's
        // memory, so nothing is allocated here for it.
    }
}
