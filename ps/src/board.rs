//! Shows a shard's newest values to the replies that wait to be written. A reply takes the newest values when
//! its connection is ready to write them, so a reply that is not being written keeps no values in memory.
//!
//! The verdict in a reply is the one that was reached when its request was handled. The values in a reply all
//! have one version, which may be later than the shard's version at that time.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use pushpull_messages::id::Version;
use pushpull_messages::message::Message;
use pushpull_messages::observe;
use pushpull_transport::{AnswerGuard, DecidedAnswer, LateAnswer};
use tokio::sync::Notify;

use crate::shard::{Newest, PinnedVersions, ShardState, ValuesKind};

/// A reply's wait for memory is logged if it takes at least this number of seconds.
const WAIT_S_MAX: u64 = 5;

/// The newest values of one shard, for the replies whose values have not been chosen yet.
#[derive(Clone, Debug)]
pub(crate) struct ValueBoard(Arc<Board>);

#[derive(Debug)]
struct Board {
    state: Mutex<State>,
    /// Notified when a reply that waits for memory may be able to go on.
    changed: Notify,
    /// Notified when a reply has been written.
    written: Arc<Notify>,
}

#[derive(Debug)]
struct State {
    /// The number of undecided replies, whose values have not been chosen yet. If it is 0, the board keeps no
    /// values.
    undecided: usize,
    newest: Newest,
    pinned: PinnedVersions,
    /// The number of replies that wait until a version is released.
    waiting: usize,
    /// No draft waits for the replies of versions older than this one.
    given_up_before: Version,
}

impl ValueBoard {
    /// Returns the board of a shard with `bytes` bytes of values. The replies that are being written may keep
    /// `bytes_max` bytes of values in memory, and two versions of the values in any case. Notifies `written`
    /// when a reply has been written.
    pub(crate) fn new(bytes: u64, bytes_max: u64, written: Arc<Notify>) -> Self {
        let pinned = PinnedVersions::new(bytes, bytes_max);
        let newest = Newest::default();
        let state = State { undecided: 0, newest, pinned, waiting: 0, given_up_before: Version::default() };
        Self(Arc::new(Board { state: Mutex::new(state), changed: Notify::new(), written }))
    }

    /// Returns whether a reply of a version older than `version` is being written. Ignores replies on slow
    /// connections, and those that were given up.
    pub(crate) fn is_read_before(&self, version: Version) -> bool {
        let state = self.0.state.lock();
        state.pinned.has_fast(state.given_up_before..version)
    }

    /// Gives up the wait for the replies of versions older than `version`.
    pub(crate) fn give_up_before(&self, version: Version) {
        let mut state = self.0.state.lock();
        state.given_up_before = state.given_up_before.max(version);
    }

    /// Pins a version that is about to be made, for values that are sent while they are made. Returns `None`
    /// if there is no memory for them.
    pub(crate) fn pin(&self, version: Version, slow: bool) -> Option<Box<dyn AnswerGuard>> {
        let board = Arc::clone(&self.0);
        let is_pinned = board.state.lock().pinned.pin(version, slow);
        is_pinned.then(|| Box::new(Pin { board, version, slow }) as _)
    }

    /// Shows the shard's current values to the replies that have not been decided, if there are any.
    pub(crate) fn refresh<R>(&self, shard: &ShardState<R>) {
        if self.0.state.lock().undecided == 0 {
            return;
        }
        shard.encode_values();
        let mut state = self.0.state.lock();
        if state.undecided > 0 {
            shard.refill(&mut state.newest);
        }
    }

    /// Returns a late answer with the values of this shard. `message` describes the current values. If the
    /// answer is decided after later updates, it gets newer values, and the message gets their version.
    pub(crate) fn answer<R>(
        &self,
        shard: &ShardState<R>,
        message: Message,
        kind: ValuesKind,
    ) -> Box<dyn LateAnswer> {
        shard.encode_values();
        let mut state = self.0.state.lock();
        state.undecided += 1;
        shard.refill(&mut state.newest);
        Box::new(LateValues { board: Arc::clone(&self.0), message: Some(message), kind, waits: false })
    }
}

/// An answer with the newest values of a shard.
struct LateValues {
    board: Arc<Board>,
    /// The message; `None` once the answer is decided.
    message: Option<Message>,
    kind: ValuesKind,
    /// Whether the answer is counted in `State::waiting`.
    waits: bool,
}

impl LateValues {
    /// Takes the newest values, if there is memory for them.
    fn take(&mut self, slow: bool) -> Option<DecidedAnswer> {
        let mut state = self.board.state.lock();
        let (version, last_step) = state.newest.at().expect("an undecided answer finds values");
        if !state.pinned.pin(version, slow) {
            state.waiting += usize::from(!std::mem::replace(&mut self.waits, true));
            return None;
        }
        let payload = state.newest.payload(self.kind);
        let mut message = self.message.take().expect("an answer is decided once");
        state.decided(self.waits);
        drop(state);
        match &mut message {
            Message::Pushed(pushed) => (pushed.version, pushed.last_step) = (version, last_step),
            Message::Pulled(pulled) => (pulled.version, pulled.last_step) = (version, last_step),
            other => unreachable!("{} has no values", other.name()),
        }
        // Other waiting replies may share the version that is pinned now, so they check again.
        self.board.changed.notify_waiters();
        let pin = Pin { board: Arc::clone(&self.board), version, slow };
        Some(DecidedAnswer { message, payload, guard: Box::new(pin) })
    }

    async fn decided(mut self, slow: bool) -> DecidedAnswer {
        let board = Arc::clone(&self.board);
        let began = observe::now();
        let mut changed = std::pin::pin!(board.changed.notified());
        loop {
            changed.as_mut().enable();
            if let Some(answer) = self.take(slow) {
                let waited_s = observe::since(began).as_secs();
                if waited_s >= WAIT_S_MAX {
                    tracing::debug!(waited_s, "a reply waited until slower clients had read older values");
                }
                return answer;
            }
            changed.as_mut().await;
            changed.set(board.changed.notified());
        }
    }
}

impl State {
    /// Stops counting an answer as undecided, because it was decided or dropped. `waited` tells whether it
    /// was counted as waiting. Releases the values if no undecided answer is left.
    fn decided(&mut self, waited: bool) {
        self.undecided -= 1;
        self.waiting -= usize::from(waited);
        if self.undecided == 0 {
            self.newest.clear();
        }
    }
}

impl LateAnswer for LateValues {
    fn decide(self: Box<Self>, slow: bool) -> BoxFuture<'static, DecidedAnswer> {
        Box::pin((*self).decided(slow))
    }
}

impl Drop for LateValues {
    fn drop(&mut self) {
        if self.message.is_some() {
            self.board.state.lock().decided(self.waits);
        }
    }
}

/// Keeps a version pinned while a reply is written.
struct Pin {
    board: Arc<Board>,
    version: Version,
    slow: bool,
}

impl AnswerGuard for Pin {
    fn is_awaited(&self) -> bool {
        self.board.state.lock().waiting > 0
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.board.state.lock().pinned.release(self.version, self.slow);
        self.board.changed.notify_waiters();
        self.board.written.notify_waiters();
    }
}
