//! Gives out the turn to draft: one push at a time may be drafted while it arrives. The sessions of a ps task
//! make the draft with the help of other threads, and the shard then applies it.
//!
//! Wanted properties: (A) at most one draft is made at a time, and no update comes between its beginning and
//! its end unless the draft is revoked; (B) the turn comes back when a push is applied, lost or revoked; (C)
//! a draft begins while no fast connection reads an older version than the shard's, unless that takes long.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pushpull_messages::id::Version;
use pushpull_messages::message::{Drafted, Push, PushId};
use pushpull_transport::buffer::{BufferPool, Credit};
use pushpull_transport::{Ahead, Arrived, DecidedAnswer, Sink};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::board::ValueBoard;
use crate::shard::{ArrivedDraft, DraftWriter, Plan, PlanKey, ShardState};

/// The longest time for which a push waits for its turn, if others have the turn again and again. With the
/// default settings, a worker sends a push again after a longer time.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The longest time for which a push waits for an earlier push of its worker that is about to be applied.
const DELAY_MAX: Duration = Duration::from_millis(250);

/// Returns the longest time for which pushes wait for one draft or reply of `bytes` bytes.
pub(crate) fn draft_time_max(bytes: u64) -> Duration {
    const BYTES_PER_SECOND: f64 = (256 << 20) as f64;
    DELAY_MAX + Duration::from_secs_f64(bytes as f64 / BYTES_PER_SECOND)
}

/// Returns whether a connection is too slow for drafts, which would delay others. A single slow push does not
/// count: the first one finds cold memory.
pub(crate) fn is_slow(last: [Arrived; 2]) -> bool {
    last.iter().all(|last| last.took > draft_time_max(last.bytes))
}

/// The turn to draft at one shard.
#[derive(Clone)]
pub(crate) struct Drafts(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Notified when the turn may be free, or when a reply has been written.
    changed: Arc<Notify>,
    pool: BufferPool,
    /// The size of the smallest shard, in bytes, that makes drafts.
    bytes_min: u64,
}

struct State {
    turn: Turn,
    /// The number of the last draft that was begun.
    last: u64,
    /// Tells whether the plan in `turn` is up to date, see [`ShardState::plan_key`].
    key: Option<PlanKey>,
    /// Limits the versions that replies keep in memory.
    board: Option<ValueBoard>,
}

enum Turn {
    /// The shard makes no drafts.
    Off,
    Free(Plan),
    /// A session makes a draft.
    Writing,
    /// The draft is made, and its push is about to reach the shard.
    Written {
        connection: u64,
        push: PushId,
        draft: ArrivedDraft,
    },
    /// The shard is about to change.
    Applying,
}

impl Drafts {
    /// Returns the turn of a shard that makes no drafts yet. Drafts take their memory from `pool`. Shards
    /// with less than `bytes_min` bytes of values make no drafts.
    pub(crate) fn new(pool: BufferPool, bytes_min: u64) -> Self {
        let state = Mutex::new(State { turn: Turn::Off, last: 0, key: None, board: None });
        Self(Arc::new(Shared { state, changed: Arc::default(), pool, bytes_min }))
    }

    /// Waits for the turn, and begins the draft of a push. Waits for each other draft and for replies for at
    /// most [`draft_time_max`], and for [`WAIT_MAX`] in all. Returns `None` if the push is not to be drafted.
    /// If the push is lost while it arrives, calls `on_lost`.
    pub(crate) async fn begin(
        &self,
        push: &Push,
        lengths: &[u64],
        (connection, ahead): (u64, Option<&Ahead>),
        on_lost: OnLost,
    ) -> Option<DraftSink> {
        let began = Instant::now();
        let (mut awaited, mut deadline) = (None, began);
        let (number, writer) = loop {
            // Requested before the turn is checked, so that no notification is missed.
            let changed = self.0.changed.notified();
            let busy = match self.try_begin(push, lengths, ahead) {
                Ok(begun) => break begun?,
                Err(busy) => busy,
            };
            if awaited.replace(busy) != Some(busy) {
                let limit = match busy {
                    Busy::Draft(_) | Busy::Replies(_) => draft_time_max(lengths.iter().sum()),
                    Busy::EarlierPush => DELAY_MAX,
                };
                deadline = (Instant::now() + limit).min(began + WAIT_MAX);
            }
            if timeout_at(deadline, changed).await.is_err() {
                let Busy::Replies(version) = busy else { return None };
                self.give_up_before(version);
            }
        };
        let drafts = self.clone();
        Some(DraftSink { drafts, number, writer: Some(writer), connection, push: push.id, on_lost })
    }

    fn try_begin(
        &self,
        push: &Push,
        lengths: &[u64],
        ahead: Option<&Ahead>,
    ) -> Result<Option<(u64, DraftWriter)>, Busy> {
        let mut state = self.0.state.lock();
        let writer = match &state.turn {
            Turn::Off => None,
            // The shard has yet to apply an earlier push of the worker, and then has another plan.
            Turn::Free(plan) if plan.is_early(push) => return Err(Busy::EarlierPush),
            Turn::Free(plan) if state.awaits_reply(plan) => return Err(Busy::Replies(plan.version())),
            Turn::Free(plan) => plan.begin(push, lengths, &self.0.pool),
            Turn::Writing | Turn::Written { .. } | Turn::Applying => return Err(Busy::Draft(state.last)),
        };
        let Some(mut writer) = writer else { return Ok(None) };
        if let Some((ahead, board)) = ahead.zip(state.board.as_ref()).filter(|_| push.pull) {
            send_ahead(&mut writer, ahead, board);
        }
        state.turn = Turn::Writing;
        state.last += 1;
        Ok(Some((state.last, writer)))
    }

    /// Gives up the wait for the replies of versions older than `version`, for all drafts.
    fn give_up_before(&self, version: Version) {
        let state = self.0.state.lock();
        if let (Turn::Free(plan), Some(board)) = (&state.turn, &state.board)
            && plan.version() == version
        {
            board.give_up_before(version);
        }
    }

    /// Returns what a shard's board must notify when a reply has been written.
    pub(crate) fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.0.changed)
    }

    /// Returns the number of the draft that is being made or about to be applied, if there is one.
    pub(crate) fn current(&self) -> Option<u64> {
        let state = self.0.state.lock();
        matches!(state.turn, Turn::Writing | Turn::Written { .. }).then_some(state.last)
    }

    /// Takes the draft of a push that has reached the shard; `None` if it was revoked.
    pub(crate) fn collect(&self, connection: u64, id: &PushId) -> Option<ArrivedDraft> {
        let mut state = self.0.state.lock();
        match std::mem::replace(&mut state.turn, Turn::Applying) {
            Turn::Written { connection: from, push, draft } if from == connection && push == *id => {
                Some(draft)
            }
            other => {
                state.turn = other;
                None
            }
        }
    }

    /// Takes the turn for the shard itself, which is about to change. Revokes the draft that is being made,
    /// if there is one.
    pub(crate) fn revoke(&self) {
        let mut state = self.0.state.lock();
        if !matches!(state.turn, Turn::Off) {
            state.turn = Turn::Applying;
        }
    }

    /// Takes the turn for the shard itself, unless a draft is being made.
    pub(crate) fn release_plan(&self) {
        let mut state = self.0.state.lock();
        if matches!(state.turn, Turn::Free(_)) {
            state.turn = Turn::Applying;
        }
    }

    /// Makes the turn free after a change of the shard, with what the next draft must know. Leaves a draft
    /// alone that is being made.
    pub(crate) fn refresh<R>(&self, shard: &ShardState<R>, board: &ValueBoard) {
        let mut state = self.0.state.lock();
        state.board = Some(board.clone());
        let key = shard.plan_key();
        match state.turn {
            Turn::Writing | Turn::Written { .. } => return,
            Turn::Off | Turn::Free(_) if state.key == key => return,
            Turn::Off | Turn::Free(_) | Turn::Applying => {}
        }
        let is_large = shard.value_bytes() >= self.0.bytes_min;
        state.turn = shard.plan().filter(|_| is_large).map_or(Turn::Off, Turn::Free);
        state.key = key;
        drop(state);
        self.0.changed.notify_waiters();
    }

    /// Ends a draft that was never completed.
    fn abandon(&self, number: u64) {
        let mut state = self.0.state.lock();
        if state.last == number && matches!(state.turn, Turn::Writing) {
            state.turn = Turn::Applying;
        }
    }

    fn complete(&self, number: u64, connection: u64, push: PushId, draft: ArrivedDraft) {
        let mut state = self.0.state.lock();
        if state.last == number && matches!(state.turn, Turn::Writing) {
            state.turn = Turn::Written { connection, push, draft };
        }
    }
}

impl State {
    /// Returns whether a draft must wait for a reply of an older version than the plan's.
    fn awaits_reply(&self, plan: &Plan) -> bool {
        self.board.as_ref().is_some_and(|board| board.is_read_before(plan.version()))
    }
}

/// Sends the values that a draft makes, each as soon as it is made, unless the reply will have other values,
/// or there is no memory for them.
fn send_ahead(writer: &mut DraftWriter, ahead: &Ahead, board: &ValueBoard) {
    let Some(version) = writer.may_show() else { return };
    let slow = ahead.is_slow();
    let Some(guard) = board.pin(version, slow) else { return };
    writer.show(|slices, payload| {
        ahead.send(DecidedAnswer { message: Drafted { version, slices }.into(), payload, guard })
    });
}

/// Tells a shard that a draft is over: its push was lost, or other pushes have waited for it long enough.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub(crate) struct DraftOver {
    /// The number of the draft.
    pub number: u64,
}

/// Tells the shard that a draft was lost.
type OnLost = Box<dyn Fn(DraftOver) + Send>;

/// Why a draft cannot begin yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Busy {
    /// Another push has the turn, or the shard itself. This is the number of the last draft that was begun.
    Draft(u64),
    /// An earlier push of the same worker is still to be applied.
    EarlierPush,
    /// Replies of older versions than this one are being written.
    Replies(Version),
}

/// Makes the draft of one push from its payload. If it is dropped before all of the payload has arrived, the
/// draft is over.
pub(crate) struct DraftSink {
    drafts: Drafts,
    number: u64,
    /// `None` once the draft is made.
    writer: Option<DraftWriter>,
    connection: u64,
    push: PushId,
    on_lost: OnLost,
}

impl DraftSink {
    fn writer(&mut self) -> &mut DraftWriter {
        self.writer.as_mut().expect("a sink that is not finished has its writer")
    }
}

impl Sink for DraftSink {
    fn space(&mut self) -> &mut [u8] {
        self.writer().space()
    }

    fn filled(&mut self, bytes: usize) {
        self.writer().filled(bytes);
    }

    fn hold(&mut self, credit: Credit) {
        self.writer().hold(credit);
    }

    fn finish(mut self: Box<Self>) {
        if let Some(draft) = self.writer.take().and_then(DraftWriter::finish) {
            self.drafts.complete(self.number, self.connection, self.push, draft);
        }
    }
}

impl Drop for DraftSink {
    fn drop(&mut self) {
        if self.writer.is_some() {
            self.drafts.abandon(self.number);
            (self.on_lost)(DraftOver { number: self.number });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;
    use pushpull_messages::id::PlacementEpoch;
    use pushpull_messages::message::{CreateShard, Pull, PullAt};
    use pushpull_messages::optimizer::OptimizerSpec;
    use pushpull_transport::buffer::Payload;
    use tokio::time::advance;

    use super::*;
    use crate::shard::tests::pushes::{Tested, create, payload, push};
    use crate::shard::{Gradients, Reader};

    const LENGTHS: [u64; 2] = [8, 16];

    /// Returns a shard of a job with a pipeline, whose first worker has joined, and its turn to draft.
    fn shard() -> (Tested, Drafts) {
        let mut shard = Tested::new(1 << 20);
        shard.create(CreateShard { pipeline: 2, ..create(OptimizerSpec::sgd(0.5), 10) }).unwrap();
        let (epoch, placement_digest) = (PlacementEpoch(1), push(1).placement_digest);
        let pull = Pull { shard: 0, epoch, placement_digest, at: PullAt::Join, averages: false };
        let reader = Reader { worker: 0, incarnation: push(1).id.incarnation, connection: 1 };
        shard.0.pull(&pull, Some(reader), ());
        let drafts = Drafts::new(BufferPool::default(), 0);
        drafts.refresh(&shard.0, &board(&drafts));
        (shard, drafts)
    }

    fn board(drafts: &Drafts) -> ValueBoard {
        ValueBoard::new(24, 1 << 20, drafts.changed())
    }

    /// Returns a shard of version 1, its turn to draft and its board.
    fn shard_of_version_1() -> (Tested, Drafts, ValueBoard) {
        let (mut shard, drafts) = shard();
        drafts.revoke();
        let gradients: Payload = payload(&[&[1.0; 2], &[1.0; 4]]);
        apply(&mut shard, &drafts, &push(1), gradients);
        let board = board(&drafts);
        drafts.refresh(&shard.0, &board);
        (shard, drafts, board)
    }

    fn begin(drafts: &Drafts, push: Push) -> impl Future<Output = Option<DraftSink>> {
        let drafts = drafts.clone();
        async move { drafts.begin(&push, &LENGTHS, (1, None), Box::new(|_| {})).await }
    }

    /// Lets the whole payload of a push arrive.
    fn fill(mut sink: DraftSink) {
        for bytes in LENGTHS {
            let space = sink.space();
            space.fill(0);
            assert_eq!(space.len() as u64, bytes, "a small gradient arrives at once");
            sink.filled(bytes as usize);
        }
        Box::new(sink).finish();
    }

    fn apply(shard: &mut Tested, drafts: &Drafts, push: &Push, gradients: impl Into<Gradients>) {
        let answers = shard.0.push(push, gradients, 1, ());
        assert!(answers.len() == 1 && answers[0].result.is_ok(), "{answers:?}");
        drafts.refresh(&shard.0, &board(drafts));
    }

    #[tokio::test]
    async fn pushes_in_flight_are_drafted_one_after_the_other() {
        let (mut shard, drafts) = shard();
        fill(begin(&drafts, push(1)).await.expect("the turn is free"));
        for sequence in 1..=4 {
            let mut next = pin!(begin(&drafts, push(sequence + 1)));
            assert!(next.as_mut().now_or_never().is_none(), "the one before it is still to be applied");
            let id = push(sequence).id;
            let draft = drafts.collect(1, &id).expect("its draft was not revoked");
            apply(&mut shard, &drafts, &push(sequence), Gradients::Drafted(draft.wait()));
            assert_eq!(shard.0.observe().version, Version(sequence));
            fill(next.await.expect("the turn is free again"));
        }
    }

    #[tokio::test]
    async fn a_push_waits_for_one_that_was_not_drafted() {
        let (mut shard, drafts) = shard();
        // The first push has arrived whole and waits for the shard, which has a free turn.
        let mut second = pin!(begin(&drafts, push(2)));
        assert!(second.as_mut().now_or_never().is_none(), "its draft would be in vain");
        drafts.revoke();
        let gradients: Payload = payload(&[&[1.0; 2], &[1.0; 4]]);
        apply(&mut shard, &drafts, &push(1), gradients);
        fill(second.await.expect("it is the next one"));
        let draft = drafts.collect(1, &push(2).id).expect("its draft was not revoked");
        apply(&mut shard, &drafts, &push(2), Gradients::Drafted(draft.wait()));
    }

    /// Lets the turn come back after a draft was lost.
    fn lose(sink: DraftSink, (shard, drafts): (&Tested, &Drafts)) {
        drop(sink);
        drafts.refresh(&shard.0, &board(drafts));
    }

    #[test]
    fn pushes_wait_longer_for_larger_drafts() {
        assert_eq!(draft_time_max(0), Duration::from_millis(250));
        assert_eq!(draft_time_max(1 << 30), Duration::from_millis(4250));
    }

    #[test]
    fn two_pushes_that_took_too_long_make_a_connection_slow() {
        let arrived = |bytes, ms| Arrived { bytes, took: Duration::from_millis(ms) };
        let (slow, fast) = (arrived(1 << 20, 255), arrived(1 << 30, 4250));
        assert!(is_slow([slow, slow]));
        assert!(!is_slow([slow, fast]) && !is_slow([fast, slow]) && !is_slow([fast, fast]));
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_begins_anew_with_each_draft_but_not_forever() {
        let (shard, drafts) = shard();
        let mut other = begin(&drafts, push(1)).await.expect("the turn is free");
        let (began, mut waits) = (Instant::now(), pin!(begin(&drafts, push(1))));
        assert!(waits.as_mut().now_or_never().is_none());
        for _ in 1..50 {
            advance(DELAY_MAX * 4 / 5).await;
            lose(other, (&shard, &drafts));
            other = begin(&drafts, push(1)).await.expect("the turn is free");
            assert!(waits.as_mut().now_or_never().is_none(), "after {:?}", began.elapsed());
        }
        advance(DELAY_MAX * 4 / 5).await;
        assert_eq!(began.elapsed(), WAIT_MAX);
        advance(Duration::from_millis(1)).await;
        assert!(waits.now_or_never().expect("the wait is limited").is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_push_waits_for_a_draft_that_begins_beside_a_long_reply() {
        let (shard, drafts, board) = shard_of_version_1();
        let _long = board.pin(Version(0), false).unwrap();
        let (mut one, mut other) = (pin!(begin(&drafts, push(2))), pin!(begin(&drafts, push(2))));
        assert!(one.as_mut().now_or_never().is_none() && other.as_mut().now_or_never().is_none());
        advance(DELAY_MAX + Duration::from_millis(1)).await;
        let sink = one.now_or_never().flatten().expect("the wait for replies is limited");
        assert!(other.as_mut().now_or_never().is_none(), "it waits for the draft");
        lose(sink, (&shard, &drafts));
        assert!(other.now_or_never().flatten().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_draft_begins_after_the_replies_of_older_versions() {
        let (_shard, drafts, board) = shard_of_version_1();
        let _others = (board.pin(Version(1), false).unwrap(), board.pin(Version(0), true).unwrap());
        let replies = [(); 2].map(|()| board.pin(Version(0), false).unwrap());
        let mut next = pin!(begin(&drafts, push(2)));
        for reply in replies {
            assert!(next.as_mut().now_or_never().is_none(), "a reply of version 0 is being written");
            drop(reply);
        }
        let begun = next.now_or_never().expect("the newest version and slow connections are not waited for");
        assert!(begun.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_reply_that_takes_long_delays_one_draft() {
        let (mut shard, drafts, board) = shard_of_version_1();
        let _long = board.pin(Version(0), false).unwrap();
        let began = Instant::now();
        fill(begin(&drafts, push(2)).await.expect("the wait is limited"));
        assert!(began.elapsed() >= DELAY_MAX);
        let draft = drafts.collect(1, &push(2).id).expect("its draft was not revoked");
        apply(&mut shard, &drafts, &push(2), Gradients::Drafted(draft.wait()));
        drafts.refresh(&shard.0, &board);
        let reply = board.pin(Version(1), false).unwrap();
        let mut next = pin!(begin(&drafts, push(3)));
        assert!(next.as_mut().now_or_never().is_none(), "a later reply is waited for");
        drop(reply);
        assert!(next.now_or_never().flatten().is_some(), "the long reply is not waited for again");
    }

    #[tokio::test]
    async fn a_push_whose_predecessor_never_comes_is_not_drafted() {
        let (_shard, drafts) = shard();
        assert!(begin(&drafts, push(2)).await.is_none(), "the wait is limited");
        assert!(begin(&drafts, push(1)).await.is_some());
    }
}
