//! Tasks of one process: envelopes change hands through bounded queues, payloads are shared, nothing is encoded.

use std::io;
use std::sync::Arc;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::mpsc;

use super::connection::{Connection, FrameReceiver, FrameSender, Listener, Transport, TransportError};
use crate::buffer::Budget;
use crate::wire::{Envelope, Limits, WireError};

/// Envelopes that wait in one direction of a connection; beyond that the sender waits.
const QUEUE_MAX: usize = 4;
/// Connections that wait to be accepted.
const BACKLOG_MAX: usize = 64;

/// The addresses of one embedded cluster. Two of them in one process do not see each other.
#[derive(Clone, Default)]
pub struct InProcess {
    listeners: Arc<DashMap<String, mpsc::Sender<Connection>>>,
}

impl InProcess {
    /// A new set of addresses.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Transport for InProcess {
    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Box<dyn Listener>, TransportError>> {
        let (sender, connections) = mpsc::channel(BACKLOG_MAX);
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
            Ok(Box::new(Queue { address, connections }))
        };
        std::future::ready(listener).boxed()
    }

    fn streams(&self) -> bool {
        false
    }

    fn dial<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Connection, TransportError>> {
        // The guard must not live across the await below.
        let listener = self.listeners.get(address).map(|entry| entry.value().clone());
        async move {
            let refused = || TransportError::io(address, io::ErrorKind::ConnectionRefused.into());
            let listener = listener.ok_or_else(refused)?;
            let (near_sender, far_receiver) = mpsc::channel(QUEUE_MAX);
            let (far_sender, near_receiver) = mpsc::channel(QUEUE_MAX);
            let connection = |sender, receiver, peer: &str| Connection {
                sender: Box::new(Sender(sender)),
                receiver: Box::new(Receiver(receiver)),
                peer: peer.to_owned(),
            };
            let far = connection(far_sender, far_receiver, "this process");
            listener.send(far).await.map_err(|_| refused())?;
            Ok(connection(near_sender, near_receiver, address))
        }
        .boxed()
    }
}

struct Queue {
    address: String,
    connections: mpsc::Receiver<Connection>,
}

impl Listener for Queue {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Connection>> {
        async move {
            match self.connections.recv().await {
                Some(connection) => Ok(connection),
                // Nobody is left who could dial.
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

    fn trust(&mut self, _: Limits, _: Option<Budget>) {
        // Nothing is allocated here for what the other end sends: it is there already, and it is our own.
    }
}
