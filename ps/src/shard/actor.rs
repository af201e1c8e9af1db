//! The actor around a shard's state: takes a request, lets the state machine decide, sends what it says.

use std::panic::{AssertUnwindSafe, catch_unwind};

use actix::{Actor, ActorContext, Context, Handler};
use messages::buffer::Payload;
use messages::message::{Message, Refusal, RefusalCode};
use messages::transport::Reply;

use super::state::{Reader, ShardState};
use super::waiting::Answer;

/// Requests that may wait in a shard's mailbox; each connection has its own, smaller bound.
pub const SHARD_REQUESTS_MAX: usize = 1 << 14;

/// The actor that owns slices.
pub struct Shard {
    state: ShardState<Reply>,
    on_panic: Box<dyn Fn(String) + Send>,
}

impl Shard {
    /// Around that state. `on_panic` hears of a bug of ours, once; the shard is of no use after that.
    pub fn new(state: ShardState<Reply>, on_panic: Box<dyn Fn(String) + Send>) -> Self {
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
    /// The worker that asks, where it is one.
    pub reader: Option<Reader>,
    /// On which of the task's connections; later ones have greater numbers.
    pub connection: u64,
    /// Where the answer goes.
    pub reply: Reply,
}

impl Handler<ShardRequest> for Shard {
    type Result = ();

    fn handle(&mut self, request: ShardRequest, ctx: &mut Self::Context) {
        let state = &mut self.state;
        // A half-applied update must not be trained on: whatever panics here takes the whole task down.
        match catch_unwind(AssertUnwindSafe(|| answer(state, request))) {
            Ok(answers) => answers.into_iter().for_each(|Answer { reply, result }| match result {
                Ok((message, payload)) => reply.send(message, payload),
                Err(refusal) => {
                    // Not yet, or no longer: nobody has to act on that.
                    if matches!(refusal.code, RefusalCode::Unavailable | RefusalCode::Superseded) {
                        tracing::debug!("{}: refused: {refusal}", state.id());
                    } else {
                        tracing::warn!("{}: refused: {refusal}", state.id());
                    }
                    reply.send(refusal, Payload::EMPTY);
                }
            }),
            Err(panic) => {
                let reason = panic
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| panic.downcast_ref::<&str>().map(|&reason| reason.to_owned()))
                    .unwrap_or_else(|| "no message".to_owned());
                tracing::error!("{} panicked, and takes its task down: {reason}", state.id());
                (self.on_panic)(reason);
                ctx.terminate();
            }
        }
    }
}

/// What is due to be answered after a request.
fn answer(state: &mut ShardState<Reply>, request: ShardRequest) -> Vec<Answer<Reply>> {
    let ShardRequest { message, payload, reader, connection, reply } = request;
    let plain = |message: Message| Ok((message, Payload::EMPTY));
    let result = match message {
        Message::Push(push) => return state.push(&push, payload, connection, reply),
        Message::Pull(pull) => return state.pull(&pull, reader, reply),
        Message::Leave(leave) => return state.leave(&leave, reply),
        Message::Observe(_) => plain(state.observe().into()),
        Message::CreateShard(create) => state.create(*create).and_then(|created| plain(created.into())),
        other => {
            let reason = format!("{} takes no {}", state.id(), other.name());
            Err(Refusal::new(RefusalCode::Malformed, reason))
        }
    };
    vec![Answer { reply, result }]
}
