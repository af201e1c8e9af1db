//! Routes each request of a peer to the shard that the request names. Refuses requests that this kind of peer
//! may not send.

use std::sync::Arc;

use actix::Addr;
use pushpull_messages::id::{JobName, TaskId};
use pushpull_messages::message::{Message, Refusal, RefusalCode, Stopped};
use pushpull_messages::observe::Meter;
use pushpull_transport::buffer::Payload;
use pushpull_transport::{Peer, Reply, Service};

use crate::actor::{Shard, ShardRequest};
use crate::lifecycle::{End, Lifecycle};
use crate::shard::Reader;

/// The service that routes requests from all connections to the shards.
pub(crate) struct Router {
    pub task: TaskId,
    /// The shards' actors, each with the meter of its mailbox.
    pub shards: Vec<(Addr<Shard>, Arc<Meter>)>,
    pub lifecycle: Lifecycle,
}

/// Returns the index of the shard that a request is for; `None` if this peer may not send the request.
fn shard_of(peer: &Peer, message: &Message) -> Option<u32> {
    let from_chief = peer.task.job == JobName::Chief;
    match message {
        Message::CreateShard(create) if from_chief => Some(create.shard.shard),
        Message::Leave(leave) if from_chief => Some(leave.shard),
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

impl Service for Router {
    fn admit(&self, peer: &Peer) -> Result<(), Refusal> {
        self.lifecycle.connected(peer.task);
        Ok(())
    }

    fn call(&self, peer: &Peer, message: Message, payload: Payload, reply: Reply) {
        if let Message::Stop(stop) = &message
            && peer.task.job == JobName::Chief
        {
            let end = End::Stop(stop.reason.clone());
            reply.send(Stopped {}, Payload::EMPTY);
            return self.lifecycle.end(end);
        }
        let Some(shard) = shard_of(peer, &message) else {
            let reason = format!("{} does not accept {} from {}", self.task, message.name(), peer.task);
            return reply.refuse(RefusalCode::Malformed, reason);
        };
        let Some((address, meter)) = self.shards.get(shard as usize) else {
            let reason = format!("{} has {} shard(s), but no shard {shard}", self.task, self.shards.len());
            return reply.refuse(RefusalCode::Misfit, reason);
        };
        let (task, incarnation, connection) = (peer.task, peer.incarnation, peer.connection);
        let reader =
            (task.job == JobName::Worker).then_some(Reader { worker: task.index, incarnation, connection });
        let queued = meter.queue();
        match address.try_send(ShardRequest { message, payload, reader, connection, reply, queued }) {
            Ok(()) => {}
            Err(actix::dev::SendError::Full(request)) => {
                let reason = format!("the queue of {}/shard/{shard} is full", self.task);
                request.reply.refuse(RefusalCode::Overloaded, reason);
            }
            Err(actix::dev::SendError::Closed(request)) => {
                let reason = format!("{}/shard/{shard} has ended", self.task);
                request.reply.refuse(RefusalCode::Unavailable, reason);
            }
        }
    }

    fn disconnected(&self, peer: &Peer) {
        self.lifecycle.disconnected(peer.task);
    }
}
