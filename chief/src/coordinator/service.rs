//! Passes requests and events of the workers' connections to the coordinator's mailbox. Decides nothing.

use std::sync::Arc;

use actix::Addr;
use actix::dev::SendError;
use pushpull_messages::id::JobName;
use pushpull_messages::message::{Message, Refusal, RefusalCode};
use pushpull_messages::observe::Meter;
use pushpull_transport::buffer::Payload;
use pushpull_transport::{Peer, Reply, Service};

use super::actor::Coordinator;
use super::event::{JobEvent, PeerEvent};

/// The service that workers connect to.
pub(crate) struct CoordinatorService {
    pub coordinator: Addr<Coordinator>,
    pub meter: Arc<Meter>,
}

impl CoordinatorService {
    fn queued(&self, event: JobEvent) -> PeerEvent {
        PeerEvent { event, queued: self.meter.queue() }
    }
}

impl Service for CoordinatorService {
    fn admit(&self, peer: &Peer) -> Result<(), Refusal> {
        match peer.task.job {
            JobName::Worker => {
                // The events for the start and the end of a connection must not be lost, so both bypass the
                // mailbox limit. Each occurs once per connection, and the number of connections is bounded.
                self.coordinator.do_send(self.queued(JobEvent::Connected(peer.clone())));
                Ok(())
            }
            _ => Err(Refusal::new(
                RefusalCode::Mismatch,
                format!("the chief accepts connections only from workers, but the peer is {}", peer.task),
            )),
        }
    }

    fn call(&self, peer: &Peer, message: Message, _: Payload, reply: Reply) {
        let event = self.queued(JobEvent::Request { peer: peer.clone(), message, reply });
        if let Err(SendError::Full(PeerEvent { event: JobEvent::Request { reply, .. }, .. })) =
            self.coordinator.try_send(event)
        {
            reply.refuse(RefusalCode::Overloaded, "the chief's queue is full");
        }
    }

    fn disconnected(&self, peer: &Peer) {
        self.coordinator.do_send(self.queued(JobEvent::Disconnected(peer.clone())));
    }
}
