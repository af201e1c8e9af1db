//! The actor around a shard's state machine. The actor passes each request to the state machine, sends the
//! answers that are due, and passes the machine's file requests to the checkpoint thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use actix::{Actor, ActorContext, AsyncContext, Context, Handler};
use pushpull_messages::message::{Message, Refusal, RefusalCode, SaveResult, ShardSnapshot};
use pushpull_messages::observe::{self, ActorSnapshot, Clock, Queued, TimeHistogram};
use pushpull_transport::Reply;
use pushpull_transport::buffer::Payload;
use tokio_util::sync::CancellationToken;

use crate::board::ValueBoard;
use crate::checkpoint::{Checkpoints, FileDone, FileResult};
use crate::drafts::{DRAFT_TIME_MAX, DraftOver, Drafts};
use crate::shard::{Answer, Gradients, Reader, ShardState};
use crate::traced_reply::{Trace, TracedReply};
use crate::view::{Publisher, Refresh};

/// The capacity of a shard's mailbox, in requests. Each connection has its own, smaller limit on its
/// requests in flight.
const SHARD_REQUESTS_MAX: usize = 1 << 14;

/// The actor that owns the slices of one shard.
pub(crate) struct Shard {
    state: ShardState<TracedReply>,
    board: ValueBoard,
    drafts: Drafts,
    /// The draft for which pushes wait, once there is a limit on their wait.
    awaited: Option<u64>,
    /// How often the shard had been created when `board` was made. If [`ShardState::creations`] is greater
    /// now, the shard needs a new board.
    creation: u64,
    /// The largest size of the values that replies keep in memory while they are written, in bytes.
    reply_bytes_max: u64,
    checkpoints: Checkpoints,
    clock: Clock,
    publisher: Publisher,
    leaving: CancellationToken,
    on_panic: Box<dyn Fn(String) + Send>,
    /// A histogram of the times taken to write the shard's checkpoint files.
    saving: TimeHistogram,
    saves_failed: u64,
}

impl Shard {
    /// Returns the actor around `state`. The replies that are being written may keep `reply_bytes_max` bytes
    /// of values in memory, see [`ValueBoard`]. `checkpoints` reads and writes the shard's files. `clock`
    /// gives the times of traced pushes. Once `leaving` is cancelled, the shard's snapshots say that the task
    /// is leaving. If the state machine panics, which is a bug, `on_panic` is called once and the shard ends.
    pub(crate) fn new(
        state: ShardState<TracedReply>,
        (reply_bytes_max, drafts): (u64, Drafts),
        checkpoints: Checkpoints,
        clock: Clock,
        publisher: Publisher,
        leaving: CancellationToken,
        on_panic: Box<dyn Fn(String) + Send>,
    ) -> Self {
        let state = state.measured_by(|work| {
            let began = observe::now();
            work();
            observe::since(began)
        });
        Self {
            board: ValueBoard::new(state.value_bytes(), reply_bytes_max),
            creation: state.creations(),
            state,
            drafts,
            awaited: None,
            reply_bytes_max,
            checkpoints,
            clock,
            publisher,
            leaving,
            on_panic,
            saving: TimeHistogram::default(),
            saves_failed: 0,
        }
    }

    /// Returns a snapshot of the shard. `busy_us` is `None`, because taking the snapshot does not count as
    /// being busy.
    fn snapshot(&self) -> ShardSnapshot {
        let actor = self.publisher.meter().snapshot(self.state.id(), self.state.stage().as_str());
        ShardSnapshot {
            leaving: self.leaving.is_cancelled(),
            saving: self.saving,
            saves_failed: self.saves_failed,
            actor: ActorSnapshot { busy_us: None, ..actor },
            ..self.state.observe()
        }
    }

    /// Publishes a snapshot of the shard, so that the shard's views show it.
    fn publish(&self) {
        self.publisher.publish(self.state.stage(), self.snapshot());
    }

    /// Changes the state machine with `change`, sends the answers that are due, and passes the machine's
    /// file requests to the checkpoint thread.
    fn act(
        &mut self,
        ctx: &mut Context<Self>,
        change: impl FnOnce(&mut ShardState<TracedReply>) -> Vec<Answer<TracedReply>>,
    ) {
        let state = &mut self.state;
        state.set_drafting(self.drafts.current().is_some());
        // A panic may leave an update half applied. Training must not continue with such values, so the
        // panic ends the whole task.
        match catch_unwind(AssertUnwindSafe(|| change(state))) {
            Ok(answers) => {
                self.show_values();
                answers.into_iter().for_each(|answer| self.send(answer));
            }
            Err(panic) => {
                let reason = panic
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| panic.downcast_ref::<&str>().map(|&reason| reason.to_owned()))
                    .unwrap_or_else(|| "no message".to_owned());
                tracing::error!(shard = %self.state.id(), reason, "shard panicked; ending its task");
                (self.on_panic)(reason);
                return ctx.terminate();
            }
        }
        while let Some(request) = self.state.take_file_request() {
            self.checkpoints.submit(request, ctx.address().recipient(), self.publisher.meter());
        }
    }

    /// Shows the current values to the replies that are still to be written.
    fn show_values(&mut self) {
        if self.creation != self.state.creations() {
            self.creation = self.state.creations();
            // Replies with values of the earlier creation keep the earlier board.
            self.board = ValueBoard::new(self.state.value_bytes(), self.reply_bytes_max);
        }
        self.board.refresh(&self.state);
        self.drafts.refresh(&self.state);
    }

    /// Limits the wait of the pushes that wait for a draft.
    fn limit_wait(&mut self, ctx: &mut Context<Self>) {
        let Some(number) = self.drafts.current().filter(|_| self.state.defers()) else { return };
        if self.awaited != Some(number) {
            self.awaited = Some(number);
            ctx.notify_later(DraftOver { number }, DRAFT_TIME_MAX);
        }
    }

    fn send(&self, Answer { reply, result, values }: Answer<TracedReply>) {
        match (result, values) {
            (Ok((message, _)), Some(kind)) => {
                reply.send_late(message, |message| self.board.answer(&self.state, message, kind));
            }
            (Ok((message, payload)), None) => reply.send(message, payload),
            (Err(refusal), _) => reply.send(refusal.into(), Payload::EMPTY),
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
    /// Publishes the final snapshot. The shard's views show it from then on.
    fn drop(&mut self) {
        self.publish();
    }
}

/// A message that ends a shard. The requests that wait in the shard's mailbox are refused.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub(crate) struct StopShard;

impl Handler<StopShard> for Shard {
    type Result = ();

    fn handle(&mut self, _: StopShard, ctx: &mut Self::Context) {
        ctx.terminate();
    }
}

/// A request for one shard, with the handle to answer it.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub(crate) struct ShardRequest {
    /// The request.
    pub message: Message,
    /// The tensor bytes that came with the request.
    pub payload: Payload,
    /// The worker that sent the request; `None` if the sender is not a worker.
    pub reader: Option<Reader>,
    /// The number that this ps task gave to the connection on which the request arrived. Each connection has
    /// a greater number than all earlier ones.
    pub connection: u64,
    /// The handle to answer the request.
    pub reply: Reply,
    /// Measures how long the request waits in the mailbox.
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
            Message::Inspect(_) => return reply.send(self.state.inspect(), Payload::EMPTY),
            Message::Push(push) if push.traced => Some(Trace::new(clock, received, handling.began())),
            _ => None,
        };
        let reply = TracedReply::new(reply, trace.clone());
        let gradients = match &message {
            Message::Push(push) if payload.is_taken() => match self.drafts.collect(connection, &push.id) {
                Some(draft) => Gradients::Drafted(draft),
                None => return self.act(ctx, |state| vec![state.ask_again(reply)]),
            },
            Message::Push(_) if self.drafts.current().is_none() => {
                // The update can reuse the memory of the values only if no plan has them.
                self.drafts.revoke();
                payload.into()
            }
            Message::CreateShard(_) => {
                self.drafts.revoke();
                payload.into()
            }
            _ => payload.into(),
        };
        let drafted = matches!(gradients, Gradients::Drafted(_));
        self.act(ctx, |state| {
            let mut answers = dispatch(state, message, gradients, reader, connection, reply);
            if let Some(trace) = trace {
                trace.done();
            }
            if drafted && state.defers() {
                answers.extend(state.resume());
            }
            answers
        });
        self.limit_wait(ctx);
    }
}

impl Handler<DraftOver> for Shard {
    type Result = ();

    fn handle(&mut self, DraftOver { number }: DraftOver, ctx: &mut Self::Context) {
        self.awaited = None;
        match self.drafts.current() {
            Some(current) if current == number => self.drafts.revoke(),
            // The pushes wait for another draft now.
            Some(_) => return self.limit_wait(ctx),
            None => {}
        }
        let _handling = self.publisher.meter().begin();
        self.act(ctx, ShardState::resume);
    }
}

impl Handler<Refresh> for Shard {
    type Result = ();

    fn handle(&mut self, _: Refresh, _: &mut Self::Context) {
        self.publish();
    }
}

impl Handler<FileDone> for Shard {
    type Result = ();

    fn handle(&mut self, FileDone { result, queued }: FileDone, ctx: &mut Self::Context) {
        let _handling = queued.handle();
        if let FileResult::Write(result) = &result {
            match result {
                SaveResult::Written { took_ms, .. } => self.saving.record(Duration::from_millis(*took_ms)),
                SaveResult::Past(_) | SaveResult::Replaced | SaveResult::Failed(_) => self.saves_failed += 1,
            }
        }
        self.act(ctx, |state| match result {
            FileResult::Read(result) => state.restored(result),
            FileResult::Write(result) => state.written(result),
        });
    }
}

/// Calls the state machine's function for a request, and returns the answers that are due.
fn dispatch(
    state: &mut ShardState<TracedReply>,
    message: Message,
    gradients: Gradients,
    reader: Option<Reader>,
    connection: u64,
    reply: TracedReply,
) -> Vec<Answer<TracedReply>> {
    match message {
        // The order is a late copy: the chief gave it before the job rolled back.
        Message::StopAt(_) | Message::HoldAt(_) | Message::SetLearningRate(_) | Message::Save(_)
            if state.predates(connection) =>
        {
            vec![Answer::refused(reply, state.too_early())]
        }
        Message::Push(push) => state.push(&push, gradients, connection, reply),
        Message::Pull(pull) => state.pull(&pull, reader, reply),
        Message::Leave(leave) => state.leave(&leave, reply),
        Message::Appoint(appoint) => state.appoint(&appoint, reply),
        Message::CreateShard(create) => state.create(*create, connection, reply),
        Message::Save(save) => state.save(*save, connection, reply),
        Message::StopAt(stop) => state.stop_at(&stop, reply),
        Message::HoldAt(hold) => state.hold_at(&hold, reply),
        Message::SetLearningRate(set) => state.set_learning_rate(&set, reply),
        other => {
            let reason = format!("{} does not accept {}", state.id(), other.name());
            vec![Answer::refused(reply, Refusal::new(RefusalCode::Malformed, reason))]
        }
    }
}
