//! The actor around a shard's state: takes a request, lets the state machine decide, sends what it says, and passes on
//! what it orders.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use actix::{Actor, ActorContext, AsyncContext, Context, Handler};
use pushpull_messages::message::{Message, Refusal, RefusalCode, SaveResult, ShardSnapshot};
use pushpull_messages::observe::{ActorSnapshot, Clock, Queued, TimeHistogram};
use pushpull_transport::Reply;
use pushpull_transport::buffer::Payload;
use tokio_util::sync::CancellationToken;

use super::state::{Reader, ShardState};
use super::ticket::{Ticket, Trace};
use super::waiting::Answer;
use crate::checkpoint::{Checkpoints, Done, Outcome};
use crate::view::{Look, Showing};

/// Requests that may wait in a shard's mailbox; each connection has its own, smaller bound.
const SHARD_REQUESTS_MAX: usize = 1 << 14;

/// The actor that owns slices.
pub(crate) struct Shard {
    state: ShardState<Ticket>,
    checkpoints: Checkpoints,
    clock: Clock,
    showing: Showing,
    leaving: CancellationToken,
    on_panic: Box<dyn Fn(String) + Send>,
    /// Since when a part of a checkpoint is being written, if one is.
    saving: TimeHistogram,
    saves_failed: u64,
}

impl Shard {
    /// Around that state. Its files are the matter of `checkpoints`; when a push was where is told on `clock`. Once `leaving`
    /// is cancelled its snapshots say so. `on_panic` hears of a bug of ours, once; the shard is of no use after that.
    pub(crate) fn new(
        state: ShardState<Ticket>,
        checkpoints: Checkpoints,
        clock: Clock,
        showing: Showing,
        leaving: CancellationToken,
        on_panic: Box<dyn Fn(String) + Send>,
    ) -> Self {
        let state = state.measured_by(|work| {
            let began = Instant::now();
            work();
            began.elapsed()
        });
        Self {
            state,
            checkpoints,
            clock,
            showing,
            leaving,
            on_panic,
            saving: TimeHistogram::default(),
            saves_failed: 0,
        }
    }

    /// Its state. It is at nothing but the question.
    fn snapshot(&self) -> ShardSnapshot {
        let actor = self.showing.meter().snapshot(self.state.id(), self.state.stage().as_str());
        ShardSnapshot {
            leaving: self.leaving.is_cancelled(),
            saving: self.saving,
            saves_failed: self.saves_failed,
            actor: ActorSnapshot { busy_us: None, ..actor },
            ..self.state.observe()
        }
    }

    /// Has the state machine do something, and does what it says.
    fn act(
        &mut self,
        ctx: &mut Context<Self>,
        change: impl FnOnce(&mut ShardState<Ticket>) -> Vec<Answer<Ticket>>,
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
            self.checkpoints.order(order, ctx.address().recipient(), self.showing.meter());
        }
    }

    fn send(&self, Answer { reply, result }: Answer<Ticket>) {
        match result {
            Ok((message, payload)) => reply.send(message, payload),
            Err(refusal) => {
                // Not yet, or no longer: nobody has to act on that.
                if matches!(refusal.code, RefusalCode::Unavailable | RefusalCode::Superseded) {
                    tracing::debug!("{}: refused: {refusal}", self.state.id());
                } else {
                    tracing::warn!("{}: refused: {refusal}", self.state.id());
                }
                reply.send(refusal.into(), Payload::EMPTY);
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

impl Drop for Shard {
    /// What it has come to stays to be seen.
    fn drop(&mut self) {
        self.showing.show(self.state.stage(), self.snapshot());
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
    /// Since when it waits.
    pub queued: Queued,
}

impl Handler<ShardRequest> for Shard {
    type Result = ();

    fn handle(&mut self, request: ShardRequest, ctx: &mut Self::Context) {
        let ShardRequest { message, payload, reader, connection, reply, queued } = request;
        let (clock, received) = (self.clock, queued.since());
        let handling = queued.handle();
        let trace = match &message {
            Message::Observe(_) => return reply.send(self.snapshot(), Payload::EMPTY),
            Message::Push(push) if push.traced => Some(Trace::new(clock, received, handling.began())),
            _ => None,
        };
        let ticket = Ticket::new(reply, trace.clone());
        self.act(ctx, |state| {
            let answers = answer(state, message, payload, reader, connection, ticket);
            if let Some(trace) = trace {
                trace.done();
            }
            answers
        });
    }
}

impl Handler<Look> for Shard {
    type Result = ();

    fn handle(&mut self, _: Look, _: &mut Self::Context) {
        self.showing.show(self.state.stage(), self.snapshot());
    }
}

impl Handler<Done> for Shard {
    type Result = ();

    fn handle(&mut self, Done { outcome, queued }: Done, ctx: &mut Self::Context) {
        let _handling = queued.handle();
        if let Outcome::Written(result) = &outcome {
            match result {
                SaveResult::Written { took_ms, .. } => self.saving.record(Duration::from_millis(*took_ms)),
                SaveResult::Past(_) | SaveResult::Replaced | SaveResult::Failed(_) => self.saves_failed += 1,
            }
        }
        self.act(ctx, |state| match outcome {
            Outcome::Read(result) => state.restored(result),
            Outcome::Written(result) => state.written(result),
        });
    }
}

/// What is due to be answered after a request.
fn answer(
    state: &mut ShardState<Ticket>,
    message: Message,
    payload: Payload,
    reader: Option<Reader>,
    connection: u64,
    reply: Ticket,
) -> Vec<Answer<Ticket>> {
    match message {
        Message::Push(push) => state.push(&push, payload, connection, reply),
        Message::Pull(pull) => state.pull(&pull, reader, reply),
        Message::Leave(leave) => state.leave(&leave, reply),
        Message::CreateShard(create) => state.create(*create, connection, reply),
        Message::Save(save) => state.save(*save, connection, reply),
        Message::StopAt(stop) => state.stop_at(&stop, reply),
        other => {
            let reason = format!("{} takes no {}", state.id(), other.name());
            vec![Answer { reply, result: Err(Refusal::new(RefusalCode::Malformed, reason)) }]
        }
    }
}
