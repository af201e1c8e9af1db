//! Routes each request of a peer to the shard that the request names. Refuses requests that this kind of peer
//! may not send, and orders of a chief that the task does not obey.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};
use pushpull_messages::id::{JobName, TaskId};
use pushpull_messages::message::{Claimed, Message, Refusal, RefusalCode, Stopped, Withdrawn};
use pushpull_transport::buffer::Payload;
use pushpull_transport::{Arriving, Peer, Reply, Service, Sink, Warnings};

use crate::drafts::is_slow;
use crate::files::PsFiles;
use crate::lifecycle::{End, Lifecycle};
use crate::requests::ShardRequest;
use crate::shard::Reader;
use crate::shards::Shards;

/// The service that routes requests from all connections to the shards.
pub(crate) struct Router {
    pub task: TaskId,
    pub shards: Arc<Shards>,
    pub lifecycle: Lifecycle,
    /// The files that the task keeps in its memory.
    pub memory: PsFiles,
    pub warnings: Warnings,
}

/// Returns the index of the shard that a request is for; `None` if this peer may not send the request.
pub(crate) fn shard_of(peer: &Peer, message: &Message) -> Option<u32> {
    let from_chief = peer.task.job == JobName::Chief;
    match message {
        Message::CreateShard(create) if from_chief => Some(create.shard.shard),
        Message::Inspect(inspect) if from_chief => Some(inspect.shard),
        Message::Leave(leave) if from_chief => Some(leave.shard),
        Message::Appoint(appoint) if from_chief => Some(appoint.shard),
        Message::Save(save) if from_chief => Some(save.shard),
        Message::StopAt(stop) if from_chief => Some(stop.shard),
        Message::HoldAt(hold) if from_chief => Some(hold.shard),
        Message::SetLearningRate(set) if from_chief => Some(set.shard),
        Message::Push(push)
            if peer.task == TaskId::worker(push.id.worker) && peer.incarnation == push.id.incarnation =>
        {
            Some(push.shard)
        }
        Message::Pull(pull) => Some(pull.shard),
        Message::Observe(observe) => Some(observe.shard),
        _ => None,
    }
}

/// Returns whether a request is an order to the shards, or concerns the files in the task's memory. Of
/// chiefs, only the one that the task obeys may send such a request.
pub(crate) const fn is_order(message: &Message) -> bool {
    matches!(
        message,
        Message::CreateShard(_)
            | Message::Inspect(_)
            | Message::Leave(_)
            | Message::Appoint(_)
            | Message::Save(_)
            | Message::StopAt(_)
            | Message::HoldAt(_)
            | Message::SetLearningRate(_)
            | Message::AccessFiles(_)
    )
}

impl Router {
    /// Handles a chief's request that concerns the whole task, or that the task must refuse. Returns every
    /// other request, with its reply handle.
    fn rule(&self, chief: &Peer, message: Message, reply: Reply) -> Option<(Message, Reply)> {
        let ruled = match &message {
            Message::Claim(claim) => self.lifecycle.claim(chief, claim.attempt),
            Message::Stop(_) => self.lifecycle.stop(chief),
            Message::Observe(_) => self.lifecycle.observe(chief),
            order if is_order(order) => self.lifecycle.order(chief),
            _ => Ok(()),
        };
        if let Err(error) = ruled {
            // A chief that waits for another chief to end repeats its claim. Only its first claim is logged
            // as a warning.
            match &message {
                Message::Claim(claim) if claim.attempt > 1 => tracing::debug!("refused a claim: {error}"),
                other => self.warnings.limit(&chief.address, "term", || {
                    tracing::warn!(from = chief.address, "refused {}: {error}", other.name());
                }),
            }
            reply.refuse(RefusalCode::Term, format!("{} refuses {}: {error}", self.task, message.name()));
            return None;
        }
        match &message {
            Message::Claim(_) => reply.send(Claimed {}, Payload::EMPTY),
            Message::Withdraw(withdraw) => {
                self.lifecycle.withdraw(chief, withdraw.attempt);
                reply.send(Withdrawn {}, Payload::EMPTY);
            }
            Message::Stop(stop) => {
                let end = End::Stop(stop.reason.clone());
                reply.send(Stopped {}, Payload::EMPTY);
                self.lifecycle.end(end);
            }
            _ => return Some((message, reply)),
        }
        None
    }
}

impl Service for Router {
    fn admit(&self, peer: &Peer) -> Result<(), Refusal> {
        self.lifecycle.connected(peer);
        Ok(())
    }

    fn sink<'a>(&'a self, peer: &'a Peer, arriving: Arriving<'a>) -> BoxFuture<'a, Option<Box<dyn Sink>>> {
        async move {
            let Message::Push(push) = arriving.message else { return None };
            if arriving.last.is_some_and(is_slow) {
                return None;
            }
            let (address, drafts) = self.shards.get(shard_of(peer, arriving.message)?)?;
            // On a connection that may be slow, so much time may pass between two values that the worker
            // would take it for lost.
            let ahead = arriving.ahead.filter(|_| arriving.last.is_some());
            // If the mailbox is full, the shard frees the turn with its next change.
            let on_lost = Box::new(move |over| drop(address.try_send(over)));
            let sink = drafts.begin(push, arriving.lengths, (peer.connection, ahead), on_lost).await?;
            Some(Box::new(sink) as Box<dyn Sink>)
        }
        .boxed()
    }

    fn call(&self, peer: &Peer, mut message: Message, payload: Payload, mut reply: Reply) {
        if peer.task.job == JobName::Chief {
            match self.rule(peer, message, reply) {
                Some(rest) => (message, reply) = rest,
                None => return,
            }
        }
        if let Message::AccessFiles(request) = message {
            return self.memory.serve(peer, *request, &payload, reply);
        }
        let Some(shard) = shard_of(peer, &message) else {
            let reason = format!("{} does not accept {} from {}", self.task, message.name(), peer.task);
            return reply.refuse(RefusalCode::Malformed, reason);
        };
        // The chief that the task obeys may use more shards than the task has announced. Another chief may
        // observe, but it cannot start a shard.
        let observes = matches!(&message, Message::Observe(_));
        let ordered = is_order(&message) || (observes && self.lifecycle.order(peer).is_ok());
        let address = match peer.task.job == JobName::Chief && ordered {
            true => self.shards.address_or_start(shard),
            false => self.shards.address(shard),
        };
        let Some(address) = address else {
            let reason = format!("{} has {} shard(s), but no shard {shard}", self.task, self.shards.count());
            return reply.refuse(RefusalCode::Misfit, reason);
        };
        let (task, incarnation, connection) = (peer.task, peer.incarnation, peer.connection);
        let reader =
            (task.job == JobName::Worker).then_some(Reader { worker: task.index, incarnation, connection });
        let queued = address.meter().queue();
        address.request(ShardRequest { message, payload, reader, connection, reply, queued });
    }

    fn disconnected(&self, peer: &Peer) {
        self.lifecycle.disconnected(peer);
    }
}
