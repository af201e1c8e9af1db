//! The actor of a shard. A shard with large values works on a thread of its own. One with small values works
//! on the thread of the task's sessions: its updates take less time than to wake another thread.
//!
//! Wanted properties: (A) one actor has the shard at a time; (B) whatever reaches an actor that the shard has
//! left is passed on to where the shard is now, and nothing is lost.

#[cfg(test)]
mod tests;

use std::time::Duration;

use actix::dev::SendError;
use actix::{Actor, ActorContext, ActorState, AsyncContext, Context, Handler, Recipient};
use actix_rt::ArbiterHandle;

use crate::address::{Address, WeakAddress};
use crate::checkpoint::FileDone;
use crate::drafts::DraftOver;
use crate::requests::{ShardRequest, StopShard};
use crate::serving::{Host, Serving};
use crate::view::Refresh;

/// The capacity of a shard's mailbox, in requests. Each connection has its own, smaller limit on its
/// requests in flight.
const SHARD_REQUESTS_MAX: usize = 1 << 14;

/// The actor that owns the slices of one shard, until the shard moves to another thread.
pub(crate) struct Shard {
    /// `None` once the shard has moved.
    serving: Option<Box<Serving>>,
    address: WeakAddress<Shard>,
    /// `None` if the shard stays where it is.
    threads: Option<ShardThreads>,
}

/// The two threads between which a shard moves.
#[derive(Clone)]
pub(crate) struct ShardThreads {
    /// The thread of the task's sessions.
    pub sessions: ArbiterHandle,
    /// The shard's own thread.
    pub own: ArbiterHandle,
    /// Whether the shard is on its own thread.
    pub on_own: bool,
    /// The size in bytes of the smallest shard that works on its own thread.
    pub own_bytes_min: u64,
}

impl Shard {
    /// Returns the actor of a shard. Its requests come through `address`. If there are `threads`, the actor
    /// must be started on the one that they name.
    pub(crate) fn new(serving: Serving, address: &Address<Shard>, threads: Option<ShardThreads>) -> Self {
        Self { serving: Some(Box::new(serving)), address: address.downgrade(), threads }
    }

    /// Lets the shard handle a message, and then moves it if its size has changed. If the shard is somewhere
    /// else, hands the message back, with the shard's address; if the task has ended, drops it.
    fn serve<M>(
        &mut self,
        message: M,
        ctx: &mut Context<Self>,
        handle: impl FnOnce(&mut Serving, M, &mut dyn Host),
    ) -> Option<(Address<Shard>, M)> {
        let Some(serving) = &mut self.serving else { return Some((self.address.upgrade()?, message)) };
        handle(serving, message, ctx);
        if ctx.state() == ActorState::Running {
            self.settle();
        }
        None
    }

    /// Moves the shard to the thread that suits the size of its values. Only a creation changes that size,
    /// and workers know of the creation later, so no two of a worker's pushes overtake each other.
    fn settle(&mut self) {
        let (Some(serving), Some(threads)) = (&self.serving, &mut self.threads) else { return };
        // An empty shard may get large values.
        let large = !serving.is_created() || serving.value_bytes() >= threads.own_bytes_min;
        let Some(address) = self.address.upgrade().filter(|_| large != threads.on_own) else { return };
        threads.on_own = large;
        let (serving, threads) = (self.serving.take(), threads.clone());
        let thread = if large { threads.own.clone() } else { threads.sessions.clone() };
        let moved = Self { serving, address: self.address.clone(), threads: Some(threads) };
        address.set(Self::start_in_arbiter(&thread, move |_| moved));
    }
}

impl Actor for Shard {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(SHARD_REQUESTS_MAX);
    }
}

impl Host for Context<Shard> {
    fn end(&mut self) {
        self.terminate();
    }

    fn files(&self) -> Recipient<FileDone> {
        self.address().recipient()
    }

    fn remind(&mut self, over: DraftOver, after: Duration) {
        self.notify_later(over, after);
    }
}

impl Handler<StopShard> for Shard {
    type Result = ();

    fn handle(&mut self, stop: StopShard, ctx: &mut Self::Context) {
        if let Some((address, stop)) = self.serve(stop, ctx, |_, _, host| host.end()) {
            // If the mailbox is full, the shard ends with its arbiter, or with the task.
            let _ = address.try_send(stop);
        }
    }
}

impl Handler<ShardRequest> for Shard {
    type Result = ();

    fn handle(&mut self, request: ShardRequest, ctx: &mut Self::Context) {
        if let Some((address, request)) = self.serve(request, ctx, Serving::request) {
            address.request(request);
        }
    }
}

impl Handler<DraftOver> for Shard {
    type Result = ();

    fn handle(&mut self, over: DraftOver, ctx: &mut Self::Context) {
        if let Some((address, over)) = self.serve(over, ctx, Serving::draft_over) {
            // If the mailbox is full, the shard frees the turn with its next change.
            let _ = address.try_send(over);
        }
    }
}

impl Handler<Refresh> for Shard {
    type Result = ();

    fn handle(&mut self, refresh: Refresh, ctx: &mut Self::Context) {
        if let Some((address, refresh)) = self.serve(refresh, ctx, |serving, _, _| serving.publish()) {
            // A request that cannot be sent is dropped, and the view can make another one.
            let _ = address.try_send(refresh);
        }
    }
}

impl Handler<FileDone> for Shard {
    type Result = ();

    fn handle(&mut self, done: FileDone, ctx: &mut Self::Context) {
        let Some((address, done)) = self.serve(done, ctx, Serving::file_done) else { return };
        if let Err(SendError::Full(done)) = address.try_send(done) {
            // A save without its result would never end.
            ctx.notify(done);
        }
    }
}
