//! The actor around a shard's state: takes a request, lets the state machine decide, sends what it says.

use std::panic::{AssertUnwindSafe, catch_unwind};

use actix::{Actor, ActorContext, Context, Handler};
use messages::buffer::Payload;
use messages::message::{Message, Refusal, RefusalCode};
use messages::transport::Reply;

use super::state::ShardState;

/// Requests that may wait in a shard's mailbox; each connection has its own, smaller bound.
pub const SHARD_REQUESTS_MAX: usize = 1 << 14;

/// The actor that owns slices.
pub struct Shard {
    state: ShardState,
    on_panic: Box<dyn Fn(String) + Send>,
}

impl Shard {
    /// Around that state. `on_panic` hears of a bug of ours, once; the shard is of no use after that.
    pub fn new(state: ShardState, on_panic: Box<dyn Fn(String) + Send>) -> Self {
        Self { state, on_panic }
    }
}

impl Actor for Shard {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(SHARD_REQUESTS_MAX);
    }
}

/// A request for one shard, with the right to answer it.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct ShardRequest {
    /// What is asked.
    pub message: Message,
    /// The tensor bytes beside it.
    pub payload: Payload,
    /// Where the answer goes.
    pub reply: Reply,
}

impl Handler<ShardRequest> for Shard {
    type Result = ();

    fn handle(&mut self, request: ShardRequest, ctx: &mut Self::Context) {
        let ShardRequest { message, payload, reply } = request;
        let state = &mut self.state;
        // A half-applied update must not be trained on: whatever panics here takes the whole task down.
        match catch_unwind(AssertUnwindSafe(|| answer(state, message, payload))) {
            Ok(Ok((message, payload))) => reply.send(message, payload),
            Ok(Err(refusal)) => {
                tracing::warn!("{}: refused: {refusal}", state.id());
                reply.send(refusal, Payload::EMPTY);
            }
            Err(panic) => {
                let reason = panic
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| panic.downcast_ref::<&str>().map(|&reason| reason.to_owned()))
                    .unwrap_or_else(|| "no message".to_owned());
                tracing::error!("{} panicked, and takes its task down: {reason}", state.id());
                reply.refuse(RefusalCode::Unavailable, format!("{} panicked: {reason}", state.id()));
                (self.on_panic)(reason);
                ctx.terminate();
            }
        }
    }
}

/// Drops the request's payload before it returns, so that the buffer is free again by the time the reply is read.
fn answer(state: &mut ShardState, message: Message, payload: Payload) -> Result<(Message, Payload), Refusal> {
    match message {
        Message::Push(push) => state.push(&push, payload).map(|(pushed, values)| (pushed.into(), values)),
        Message::Pull(pull) => state.pull(&pull).map(|(pulled, values)| (pulled.into(), values)),
        Message::Observe(_) => Ok((state.observe().into(), Payload::EMPTY)),
        Message::CreateShard(create) => state.create(*create).map(|created| (created.into(), Payload::EMPTY)),
        other => {
            Err(Refusal::new(RefusalCode::Malformed, format!("{} takes no {}", state.id(), other.name())))
        }
    }
}
