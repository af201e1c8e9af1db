//! The actor around a shard's state: takes a request, lets the state machine decide, sends what it says, and passes on
//! what it orders.

use std::panic::{AssertUnwindSafe, catch_unwind};

use actix::{Actor, ActorContext, AsyncContext, Context, Handler};
use messages::buffer::Payload;
use messages::message::{Message, Refusal, RefusalCode, ShardSnapshot};
use messages::transport::Reply;
use tokio_util::sync::CancellationToken;

use super::state::{Reader, ShardState};
use super::waiting::Answer;
use crate::checkpoint::{Checkpoints, Done};

/// Requests that may wait in a shard's mailbox; each connection has its own, smaller bound.
const SHARD_REQUESTS_MAX: usize = 1 << 14;

/// The actor that owns slices.
pub(crate) struct Shard {
    state: ShardState<Reply>,
    checkpoints: Checkpoints,
    leaving: CancellationToken,
    on_panic: Box<dyn Fn(String) + Send>,
}

impl Shard {
    /// Around that state. Its files are the matter of `checkpoints`. Once `leaving` is cancelled its snapshots say so.
    /// `on_panic` hears of a bug of ours, once; the shard is of no use after that.
    pub(crate) fn new(
        state: ShardState<Reply>,
        checkpoints: Checkpoints,
        leaving: CancellationToken,
        on_panic: Box<dyn Fn(String) + Send>,
    ) -> Self {
        Self { state, checkpoints, leaving, on_panic }
    }

    /// Has the state machine do something, and does what it says.
    fn act(
        &mut self,
        ctx: &mut Context<Self>,
        change: impl FnOnce(&mut ShardState<Reply>) -> Vec<Answer<Reply>>,
    ) {
        let state = &mut self.state;
        // A half-applied update must not be trained on: whatever panics here takes the whole task down.
        match catch_unwind(AssertUnwindSafe(|| change(state))) {
            Ok(answers) => answers.into_iter().for_each(|answer| self.send(answer)),
            Err(panic) => {
                let reason = panic
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| panic.downcast_ref::<&str>().map(|&reason| reason.to_owned()))
                    .unwrap_or_else(|| "no message".to_owned());
                tracing::error!("{} panicked, and takes its task down: {reason}", self.state.id());
                (self.on_panic)(reason);
                return ctx.terminate();
            }
        }
        while let Some(order) = self.state.take_order() {
            self.checkpoints.order(order, ctx.address().recipient());
        }
    }

    fn send(&self, Answer { reply, result }: Answer<Reply>) {
        match result {
            Ok((message, payload)) => reply.send(message, payload),
            Err(refusal) => {
                // Not yet, or no longer: nobody has to act on that.
                if matches!(refusal.code, RefusalCode::Unavailable | RefusalCode::Superseded) {
                    tracing::debug!("{}: refused: {refusal}", self.state.id());
                } else {
                    tracing::warn!("{}: refused: {refusal}", self.state.id());
                }
                reply.send(refusal, Payload::EMPTY);
            }
        }
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
pub(crate) struct ShardRequest {
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
        let leaving = self.leaving.is_cancelled();
        self.act(ctx, |state| answer(state, request, leaving));
    }
}

impl Handler<Done> for Shard {
    type Result = ();

    fn handle(&mut self, done: Done, ctx: &mut Self::Context) {
        self.act(ctx, |state| match done {
            Done::Read(result) => state.restored(result),
            Done::Written(result) => state.written(result),
        });
    }
}

/// What is due to be answered after a request.
fn answer(state: &mut ShardState<Reply>, request: ShardRequest, leaving: bool) -> Vec<Answer<Reply>> {
    let ShardRequest { message, payload, reader, connection, reply } = request;
    let result = match message {
        Message::Push(push) => return state.push(&push, payload, connection, reply),
        Message::Pull(pull) => return state.pull(&pull, reader, reply),
        Message::Leave(leave) => return state.leave(&leave, reply),
        Message::CreateShard(create) => return state.create(*create, connection, reply),
        Message::Save(save) => return state.save(*save, connection, reply),
        Message::StopAt(stop) => return state.stop_at(&stop, reply),
        Message::Observe(_) => {
            let snapshot = ShardSnapshot { leaving, ..state.observe() };
            Ok((snapshot.into(), Payload::EMPTY))
        }
        other => {
            let reason = format!("{} takes no {}", state.id(), other.name());
            Err(Refusal::new(RefusalCode::Malformed, reason))
        }
    };
    vec![Answer { reply, result }]
}
