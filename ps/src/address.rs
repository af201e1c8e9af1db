//! The address of a shard, which stays valid when the shard moves to another actor on another thread.

use std::sync::{Arc, Weak};

use actix::dev::{SendError, ToEnvelope};
use actix::{Actor, Addr, Handler, Recipient};
use parking_lot::Mutex;
use pushpull_messages::id::ShardId;
use pushpull_messages::message::RefusalCode;
use pushpull_messages::observe::Meter;

use crate::requests::ShardRequest;
use crate::view::Refresh;

/// Where the messages for one shard go. The shard is in an actor of type `A`.
pub(crate) struct Address<A: Actor>(Arc<Place<A>>);

impl<A: Actor> Clone for Address<A> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// An address that does not keep the shard alive. The shard itself has it.
pub(crate) struct WeakAddress<A: Actor>(Weak<Place<A>>);

impl<A: Actor> Clone for WeakAddress<A> {
    fn clone(&self) -> Self {
        Self(Weak::clone(&self.0))
    }
}

struct Place<A: Actor> {
    id: ShardId,
    meter: Arc<Meter>,
    /// The actor that has the shard; `None` until the shard starts.
    actor: Mutex<Option<Addr<A>>>,
}

impl<A: Actor> Address<A> {
    /// Returns the address of a shard that has not started. `meter` is the meter of its mailbox.
    pub(crate) fn new(id: ShardId, meter: Arc<Meter>) -> Self {
        Self(Arc::new(Place { id, meter, actor: Mutex::new(None) }))
    }

    /// Sets the actor that has the shard from now on.
    pub(crate) fn set(&self, actor: Addr<A>) {
        *self.0.actor.lock() = Some(actor);
    }

    /// Returns the meter of the shard's mailbox.
    pub(crate) fn meter(&self) -> &Arc<Meter> {
        &self.0.meter
    }

    /// Returns an address that does not keep the shard alive.
    pub(crate) fn downgrade(&self) -> WeakAddress<A> {
        WeakAddress(Arc::downgrade(&self.0))
    }

    /// Returns where the shard's snapshots can be requested; `None` if it has not started.
    pub(crate) fn recipient(&self) -> Option<Recipient<Refresh>>
    where
        A: Handler<Refresh>,
        A::Context: ToEnvelope<A, Refresh>,
    {
        self.0.actor.lock().clone().map(Addr::recipient)
    }

    /// Sends a message to the shard.
    ///
    /// # Errors
    /// Hands the message back if the shard has ended, or if its mailbox is full.
    pub(crate) fn try_send<M>(&self, message: M) -> Result<(), SendError<M>>
    where
        M: actix::Message<Result = ()> + Send + 'static,
        A: Handler<M>,
        A::Context: ToEnvelope<A, M>,
    {
        match &*self.0.actor.lock() {
            Some(actor) => actor.try_send(message),
            None => Err(SendError::Closed(message)),
        }
    }

    /// Sends a request to the shard. Refuses it if the shard has ended, or if its mailbox is full.
    pub(crate) fn request(&self, request: ShardRequest)
    where
        A: Handler<ShardRequest>,
        A::Context: ToEnvelope<A, ShardRequest>,
    {
        let id = self.0.id;
        match self.try_send(request) {
            Ok(()) => {}
            Err(SendError::Full(request)) => {
                request.reply.refuse(RefusalCode::Overloaded, format!("the queue of {id} is full"));
            }
            Err(SendError::Closed(request)) => {
                request.reply.refuse(RefusalCode::Unavailable, format!("{id} has ended"));
            }
        }
    }
}

impl<A: Actor> WeakAddress<A> {
    /// Returns the address; `None` if the task has ended.
    pub(crate) fn upgrade(&self) -> Option<Address<A>> {
        self.0.upgrade().map(Address)
    }
}
