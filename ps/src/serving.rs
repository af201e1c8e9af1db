//! A shard's state machine with all that its requests need: the values that replies show, the turn to draft,
//! and the checkpoint thread. Sends the answers that are due, and passes on the machine's file requests.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use actix::Recipient;
use pushpull_messages::message::{Message, Refusal, RefusalCode, SaveResult, ShardSnapshot};
use pushpull_messages::observe::{self, ActorSnapshot, Clock, TimeHistogram};
use pushpull_transport::buffer::Payload;
use tokio_util::sync::CancellationToken;

use crate::board::ValueBoard;
use crate::checkpoint::{Checkpoints, FileDone, FileResult};
use crate::drafts::{DraftOver, Drafts, draft_time_max};
use crate::lifecycle::End;
use crate::requests::ShardRequest;
use crate::shard::{Answer, ArrivedDraft, Gradients, Reader, ShardState, Stage};
use crate::traced_reply::{Trace, TracedReply};
use crate::view::Publisher;

/// The actor that a shard works in.
pub(crate) trait Host {
    /// Ends the shard.
    fn end(&mut self);

    /// Returns where the results of file requests go.
    fn files(&self) -> Recipient<FileDone>;

    /// Sends `over` to the shard after a time.
    fn remind(&mut self, over: DraftOver, after: Duration);
}

/// A shard at work.
pub(crate) struct Serving {
    state: ShardState<TracedReply>,
    board: ValueBoard,
    /// The draft for which pushes wait, once there is a limit on their wait.
    awaited: Option<u64>,
    /// How often the shard had been created when `board` was made. If [`ShardState::creations`] is greater
    /// now, the shard needs a new board.
    creation: u64,
    with: Surroundings,
    /// A histogram of the times taken to write the shard's checkpoint files.
    saving: TimeHistogram,
    saves_failed: u64,
}

/// What a shard needs besides its state machine.
pub(crate) struct Surroundings {
    /// The largest size of the values that replies keep in memory while they are written, in bytes, see
    /// [`ValueBoard`].
    pub reply_bytes_max: u64,
    /// The turn to draft.
    pub drafts: Drafts,
    /// Reads and writes the shard's files.
    pub checkpoints: Checkpoints,
    /// Gives the times of traced pushes.
    pub clock: Clock,
    /// Publishes the shard's snapshots.
    pub publisher: Publisher,
    /// Once this is cancelled, the shard's snapshots say that the task is leaving.
    pub leaving: CancellationToken,
    /// Called once if the shard cannot go on: because its device has failed, or because the state machine has
    /// panicked, which is a bug. The shard then ends.
    pub on_failure: Box<dyn Fn(End) + Send>,
}

impl Serving {
    /// Returns a shard that begins to work.
    pub(crate) fn new(state: ShardState<TracedReply>, with: Surroundings) -> Self {
        let state = state.measured_by(|work| {
            let began = observe::now();
            work();
            observe::since(began)
        });
        Self {
            board: ValueBoard::new(state.value_bytes(), with.reply_bytes_max, with.drafts.changed()),
            creation: state.creations(),
            state,
            awaited: None,
            with,
            saving: TimeHistogram::default(),
            saves_failed: 0,
        }
    }

    /// Returns whether the shard has its values.
    pub(crate) fn is_created(&self) -> bool {
        !matches!(self.state.stage(), Stage::Empty | Stage::Restoring)
    }

    /// Returns the size of the shard's values in bytes.
    pub(crate) fn value_bytes(&self) -> u64 {
        self.state.value_bytes()
    }

    /// Returns a snapshot of the shard. `busy_us` is `None`, because taking the snapshot does not count as
    /// being busy.
    fn snapshot(&self) -> ShardSnapshot {
        let actor = self.with.publisher.meter().snapshot(self.state.id(), self.state.stage().as_str());
        ShardSnapshot {
            leaving: self.with.leaving.is_cancelled(),
            saving: self.saving,
            saves_failed: self.saves_failed,
            actor: ActorSnapshot { busy_us: None, ..actor },
            ..self.state.observe()
        }
    }

    /// Publishes a snapshot of the shard, so that the shard's views show it.
    pub(crate) fn publish(&self) {
        self.with.publisher.publish(self.state.stage(), self.snapshot());
    }

    /// Changes the state machine with `change`, sends the answers that are due, and passes the machine's
    /// file requests to the checkpoint thread.
    fn act(
        &mut self,
        host: &mut dyn Host,
        change: impl FnOnce(&mut ShardState<TracedReply>) -> Vec<Answer<TracedReply>>,
    ) {
        let state = &mut self.state;
        state.set_drafting(self.with.drafts.current().is_some());
        // A panic may leave an update half applied. Training must not continue with such values, so the
        // panic ends the whole task.
        match catch_unwind(AssertUnwindSafe(|| change(state))) {
            Ok(answers) => {
                if let Some(error) = self.state.device_error() {
                    // The answers are dropped: they may have values that the shard does not have any more.
                    let shard = self.state.id();
                    tracing::error!(%shard, %error, "device failed; ending the task of its shard");
                    (self.with.on_failure)(End::DeviceFailed(shard, error.clone()));
                    return host.end();
                }
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
                (self.with.on_failure)(End::Panic(self.state.id(), reason));
                return host.end();
            }
        }
        while let Some(request) = self.state.take_file_request() {
            self.with.checkpoints.submit(request, host.files(), self.with.publisher.meter());
        }
    }

    /// Shows the current values to the replies that are still to be written.
    fn show_values(&mut self) {
        if self.creation != self.state.creations() {
            self.creation = self.state.creations();
            // Replies with values of the earlier creation keep the earlier board.
            let Surroundings { reply_bytes_max, drafts, .. } = &self.with;
            self.board = ValueBoard::new(self.state.value_bytes(), *reply_bytes_max, drafts.changed());
        }
        self.board.refresh(&self.state);
        self.with.drafts.refresh(&self.state, &self.board);
    }

    /// Limits the wait of the pushes that wait for a draft.
    fn limit_wait(&mut self, host: &mut dyn Host) {
        let Some(number) = self.with.drafts.current().filter(|_| self.state.defers()) else { return };
        if self.awaited != Some(number) {
            self.awaited = Some(number);
            host.remind(DraftOver { number }, draft_time_max(self.value_bytes()));
        }
    }

    fn send(&self, Answer { reply, result, values, drafted }: Answer<TracedReply>) {
        match (result, values) {
            (Ok((message, _)), Some(kind)) => {
                reply.send_late(message, drafted, |message| self.board.answer(&self.state, message, kind));
            }
            (Ok((message, payload)), None) => reply.send(message, payload),
            (Err(refusal), _) => reply.send(refusal.into(), Payload::EMPTY),
        }
    }

    /// Handles a request of a peer.
    pub(crate) fn request(&mut self, request: ShardRequest, host: &mut dyn Host) {
        let ShardRequest { message, payload, reader, connection, reply, queued } = request;
        let (clock, received) = (self.with.clock, queued.since());
        let handling = queued.handle();
        let trace = match &message {
            Message::Observe(_) => return reply.send(self.snapshot(), Payload::EMPTY),
            Message::Inspect(_) => return reply.send(self.state.inspect(), Payload::EMPTY),
            Message::Push(push) if push.traced => Some(Trace::new(clock, received, handling.began())),
            _ => None,
        };
        let reply = TracedReply::new(reply, trace.clone());
        let drafts = &self.with.drafts;
        let mut arrived = None;
        match &message {
            Message::Push(push) if payload.is_taken() => {
                arrived = drafts.collect(connection, &push.id);
                if arrived.is_none() {
                    return self.act(host, |state| vec![state.ask_again(reply)]);
                }
            }
            Message::Push(_) => {
                // The update can reuse the memory of the values only if no plan has them.
                drafts.release_plan();
            }
            Message::CreateShard(_) => drafts.revoke(),
            _ => {}
        }
        let drafted = arrived.is_some();
        let reply = reply.sent_ahead(arrived.as_ref().and_then(ArrivedDraft::sent_ahead));
        self.act(host, |state| {
            let gradients = arrived.map_or_else(|| payload.into(), |draft| Gradients::Drafted(draft.wait()));
            let mut answers = dispatch(state, message, gradients, reader, connection, reply);
            if let Some(trace) = trace {
                trace.done();
            }
            if drafted && state.defers() {
                answers.extend(state.resume());
            }
            answers
        });
        self.limit_wait(host);
    }

    /// Handles the end of a draft that was lost, or for which other pushes have waited long enough.
    pub(crate) fn draft_over(&mut self, DraftOver { number }: DraftOver, host: &mut dyn Host) {
        self.awaited = None;
        match self.with.drafts.current() {
            Some(current) if current == number => self.with.drafts.revoke(),
            // The pushes wait for another draft now.
            Some(_) => return self.limit_wait(host),
            None => {}
        }
        let _handling = self.with.publisher.meter().begin();
        self.act(host, ShardState::resume);
    }

    /// Handles the result of a file request.
    pub(crate) fn file_done(&mut self, FileDone { result, queued }: FileDone, host: &mut dyn Host) {
        let _handling = queued.handle();
        if let FileResult::Write(_, result) = &result {
            match result {
                SaveResult::Written { took_ms, .. } => self.saving.record(Duration::from_millis(*took_ms)),
                SaveResult::Past(_) | SaveResult::Replaced | SaveResult::Failed(_) => self.saves_failed += 1,
            }
        }
        self.act(host, |state| match result {
            FileResult::Read(result) => state.restored(result),
            FileResult::Write(level, result) => state.written(level, result),
        });
    }
}

impl Drop for Serving {
    /// Publishes the final snapshot. The shard's views show it from then on.
    fn drop(&mut self) {
        self.publish();
    }
}

/// Calls the state machine's function for a request, and returns the answers that are due.
pub(crate) fn dispatch<R>(
    state: &mut ShardState<R>,
    message: Message,
    gradients: Gradients,
    reader: Option<Reader>,
    connection: u64,
    reply: R,
) -> Vec<Answer<R>> {
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
