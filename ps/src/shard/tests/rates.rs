//! Tests of a learning rate that changes while workers push.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use pushpull_messages::id::*;
use pushpull_messages::message::*;
use pushpull_messages::optimizer::RateChange;
use pushpull_messages::sync::SyncSpec;
use pushpull_transport::buffer::{Buffer, BufferPool, Payload, Segment};

use super::workers::create;
use crate::shard::{Answer, Reader, ShardLimits, ShardState};

/// A reply handle: the worker's index, and its incarnation.
type Handle = (u32, u64);

/// The reply handle of the chief's requests.
pub(super) const CHIEF: Handle = (99, 0);
pub(super) const WORKERS: u32 = 3;

/// A worker. It waits for the answer to its join, is a member, or is gone.
#[derive(Clone, Default)]
pub(super) struct Worker {
    life: u64,
    /// The version of the worker's values; `None` while the worker waits for an answer, and when it is gone.
    pub(super) read: Option<u64>,
    /// The number of pushes that this incarnation has sent.
    pushes: u64,
    /// The worker's first step; `None` until its join is answered.
    pub(super) joined: Option<GlobalStep>,
    pub(super) gone: bool,
}

/// A shard with one variable, and workers whose gradients are always 1.
pub(super) struct Trial {
    pub(super) state: ShardState<Handle>,
    digest: u32,
    pub(super) workers: Vec<Worker>,
    /// The workers' requests that have not been answered yet.
    open: Vec<Handle>,
    /// The number of pushes that all workers have sent.
    pub(super) pushes: u64,
    /// True if each worker pulls the values for its first step as soon as it has joined. If false, a worker
    /// pulls them when the test calls [`Trial::begin`].
    alone: bool,
    held: Option<u64>,
    /// The version of the values from which the latest push was computed.
    version_read: u64,
}

impl Trial {
    fn new(sync: SyncSpec) -> Self {
        let mut trial = Self { alone: true, ..Self::without_workers(sync) };
        (0..WORKERS).for_each(|worker| trial.join(worker));
        trial
    }

    /// Returns a shard that no worker has joined. Its workers pull the values for their first step only when
    /// [`begin`](Self::begin) is called.
    pub(super) fn without_workers(sync: SyncSpec) -> Self {
        let create = create(sync, false, WORKERS, 1000);
        let limits = ShardLimits { values_bytes_max: 1 << 20, gradients_bytes_max: 1 << 20 };
        let mut state = ShardState::new(create.shard, BufferPool::default(), limits);
        let digest = create.placement.digest();
        assert!(state.create(create, 1, CHIEF).remove(0).result.is_ok());
        let (workers, open) = (vec![Worker::default(); WORKERS as usize], Vec::new());
        Self { state, digest, workers, open, pushes: 0, alone: false, held: None, version_read: 0 }
    }

    fn pull(&mut self, worker: u32, at: PullAt, connection: u64) -> Vec<Answer<Handle>> {
        let life = self.workers[worker as usize].life;
        let (epoch, placement_digest) = (PlacementEpoch(1), self.digest);
        let pull = Pull { shard: 0, epoch, placement_digest, at, averages: false };
        let reader = Reader { worker, incarnation: Incarnation(life), connection };
        self.open.push((worker, life));
        self.state.pull(&pull, Some(reader), (worker, life))
    }

    /// Lets a new incarnation of a worker join.
    pub(super) fn join(&mut self, worker: u32) {
        let life = self.workers[worker as usize].life + 1;
        self.workers[worker as usize] = Worker { life, ..Worker::default() };
        self.appoint(worker);
        let answers = self.pull(worker, PullAt::Join, 1);
        self.receive(answers);
    }

    /// Lets the chief appoint the current incarnation of a worker.
    pub(super) fn appoint(&mut self, worker: u32) {
        let life = self.workers[worker as usize].life;
        let appoint = Appoint { shard: 0, worker, incarnation: Incarnation(life), number: life };
        let answers = self.state.appoint(&appoint, CHIEF);
        assert!(matches!(answers[0].result, Ok((Message::Appointed(_), _))), "the chief never waits");
        self.receive(answers);
    }

    /// Lets a worker pull the values for its first step.
    pub(super) fn begin(&mut self, worker: u32, step: GlobalStep) {
        let answers = self.pull(worker, PullAt::Step(step), 1);
        self.receive(answers);
    }

    pub(super) fn leave(&mut self, worker: u32) {
        let entry = &mut self.workers[worker as usize];
        (entry.gone, entry.read) = (true, None);
        let leave =
            Leave { shard: 0, worker, incarnation: Incarnation(entry.life), epoch: PlacementEpoch(1) };
        let answers = self.state.leave(&leave, CHIEF);
        assert!(matches!(answers[0].result, Ok((Message::Left(_), _))), "the chief never waits");
        self.receive(answers);
    }

    pub(super) fn receive(&mut self, answers: Vec<Answer<Handle>>) {
        for Answer { reply, result, .. } in answers {
            if reply == CHIEF {
                assert!(result.is_ok());
                continue;
            }
            let position = self.open.iter().position(|open| *open == reply).expect("it is answered once");
            self.open.remove(position);
            let entry = &mut self.workers[reply.0 as usize];
            if entry.gone || entry.life != reply.1 {
                continue;
            }
            match result.expect("nothing of a member is refused").0 {
                Message::Pushed(pushed) => entry.read = Some(pushed.version.0),
                // The first pull of a worker is its join, and the second is for its first step.
                Message::Pulled(pulled) if entry.joined.is_some() => entry.read = Some(pulled.version.0),
                Message::Pulled(pulled) => {
                    entry.joined = Some(pulled.step);
                    if self.alone {
                        self.begin(reply.0, pulled.step);
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }

    pub(super) fn push(&mut self, worker: u32) {
        let entry = &mut self.workers[worker as usize];
        let Some(version) = entry.read.take() else { return };
        entry.pushes += 1;
        (self.version_read, self.pushes) = (version, self.pushes + 1);
        let answers = self.repeat(worker, 1);
        self.receive(answers);
    }

    /// Sends the latest push of a worker over the connection with the number `connection`, even if the push
    /// was sent before.
    fn repeat(&mut self, worker: u32, connection: u64) -> Vec<Answer<Handle>> {
        let Worker { life, pushes, .. } = self.workers[worker as usize];
        let push = Push {
            shard: 0,
            id: PushId { worker, incarnation: Incarnation(life), sequence: Sequence(pushes) },
            local_step: LocalStep(pushes),
            epoch: PlacementEpoch(1),
            placement_digest: self.digest,
            version: Version(self.version_read),
            slices: vec![SliceId(0)],
            drawn: pushes,
            pull: true,
            traced: false,
            with: Vec::new(),
        };
        let payload = Payload::new(vec![Segment::whole(Arc::new(Buffer::from_f32(&[1.0])))]);
        self.open.push((worker, life));
        self.state.push(&push, payload, connection, (worker, life))
    }

    /// Returns the number of workers that wait for an answer.
    fn waiting(&self) -> u32 {
        self.open.iter().map(|(worker, _)| worker).collect::<BTreeSet<_>>().len() as u32
    }

    pub(super) fn version(&self) -> u64 {
        self.state.observe().version.0
    }

    /// Asks the shard to hold at a version. Returns false if the shard has already passed that version and
    /// therefore goes on.
    pub(super) fn hold(&mut self, version: u64) -> bool {
        let seen = self.version();
        let answers = self.state.hold_at(&HoldAt { shard: 0, version: Version(version) }, CHIEF);
        let holds = seen <= version;
        assert!(
            matches!(&answers[0].result, Ok((Message::Holding(holding), _)) if holding.version.0 == seen)
        );
        self.held = holds.then_some(version);
        self.receive(answers);
        holds
    }

    pub(super) fn set(&mut self, factor: f32) -> Option<RateChange> {
        let change = RateChange { from: Version(self.held.take()?), factor };
        let answers = self.state.set_learning_rate(&SetLearningRate { shard: 0, change }, CHIEF);
        self.receive(answers);
        Some(change)
    }

    pub(super) fn value(&mut self) -> f32 {
        let (epoch, placement_digest, at) = (PlacementEpoch(1), self.digest, PullAt::Latest);
        let pull = Pull { shard: 0, epoch, placement_digest, at, averages: false };
        let (_, payload) = self.state.pull(&pull, None, CHIEF).remove(0).result.unwrap();
        payload.segments()[0].as_f32()[0]
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Push(u32),
    /// The chief asks the shard to hold at a version: the shard's current version, plus this field's value,
    /// minus one. If the value is 0, the shard may have passed that version.
    Hold(u64),
    Set(u8),
    Leave(u32),
    /// The worker leaves, if it has not left yet, and joins as a new incarnation.
    Join(u32),
    /// The two requests of an earlier change of the learning rate, one to hold and one to set the rate,
    /// arrive again. The index chooses the change.
    Late(prop::sample::Index),
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        16 => (0..WORKERS).prop_map(Event::Push),
        2 => (0u64..6).prop_map(Event::Hold),
        2 => (1u8..5).prop_map(Event::Set),
        1 => (0..WORKERS).prop_map(Event::Leave),
        1 => (0..WORKERS).prop_map(Event::Join),
        2 => any::<prop::sample::Index>().prop_map(Event::Late),
    ]
}

proptest! {
    /// Checks that the shard never passes a version at which it holds, and that each update has the factor
    /// of the learning rate that was set for its version. No push that has arrived is lost, even if its
    /// worker leaves while the push waits.
    #[test]
    fn every_update_has_the_rate_of_its_version(
        sync in prop::sample::select(vec!["async", "bounded:1", "sync", "sync:2", "sync:5"]),
        events in prop::collection::vec(any_event(), 0..200),
    ) {
        let mut trial = Trial::new(sync.parse().unwrap());
        let mut changes: Vec<RateChange> = Vec::new();
        for event in events {
            match event {
                Event::Push(worker) => trial.push(worker),
                Event::Hold(further) => {
                    // The chief decides on a change only when all shards have made the one before.
                    let last = changes.last().map_or(0, |change| change.from.0 + 1);
                    let version = (trial.version() + further).saturating_sub(1);
                    let grows = trial.held.is_none_or(|held| held <= version);
                    if version >= last && trial.version() >= last && grows {
                        trial.hold(version);
                    }
                }
                Event::Leave(worker) => trial.leave(worker),
                Event::Join(worker) => {
                    trial.leave(worker);
                    trial.join(worker);
                }
                Event::Set(number) => changes.extend(trial.set(f32::from(number) / 4.0)),
                Event::Late(index) if !changes.is_empty() => {
                    let change = changes[index.index(changes.len())];
                    let hold = HoldAt { shard: 0, version: change.from };
                    let answers = trial.state.hold_at(&hold, CHIEF);
                    trial.receive(answers);
                    let answers = trial.state.set_learning_rate(&SetLearningRate { shard: 0, change }, CHIEF);
                    trial.receive(answers);
                }
                Event::Late(_) => {}
            }
            prop_assert!(trial.held.is_none_or(|held| trial.version() <= held));
            prop_assert_eq!(trial.state.observe().waiting, trial.waiting());
        }
        changes.extend(trial.set(2.0));
        let snapshot = trial.state.observe();
        prop_assert_eq!((snapshot.pushes.received, snapshot.pushes.refused), (trial.pushes, 0));
        let members = trial.workers.iter().filter(|worker| !worker.gone).count() as u32;
        prop_assert_eq!((snapshot.members, snapshot.waiting), (members, trial.waiting()));
        prop_assert!(members == 0 || snapshot.waiting < members, "no worker waits for one that has left");
        let factor = |version| {
            let last = changes.iter().rev().find(|change| change.from.0 <= version);
            last.map_or(1.0, |change| change.factor)
        };
        let expected: f32 = -(0..snapshot.version.0).map(factor).sum::<f32>();
        prop_assert!((trial.value() - expected).abs() < 1e-3);
        let known = changes.last().map(|_| factor(snapshot.version.0));
        prop_assert_eq!(snapshot.learning_rate_factor.unwrap_or(1.0), known.unwrap_or(1.0));
    }
}

#[test]
fn a_repeated_hold_does_not_stop_a_shard_again() {
    let mut trial = Trial::new(SyncSpec::ASYNC);
    assert!(trial.hold(1));
    (0..2).for_each(|worker| trial.push(worker));
    assert_eq!((trial.version(), trial.workers[1].read), (1, None), "the second push waits");
    trial.set(0.5);
    assert_eq!((trial.version(), trial.workers[1].read), (2, Some(2)));
    trial.push(0);
    assert_eq!(trial.value(), -2.0);
    // The message of the chief may arrive again on another connection.
    let mut late = Trial::new(SyncSpec::ASYNC);
    assert!(late.hold(1));
    late.set(0.5);
    late.hold(1);
    (0..3).for_each(|worker| late.push(worker));
    assert_eq!(late.value(), -2.0);
    assert!(!late.hold(2), "the shard is past that version");
}

#[test]
fn a_push_that_is_repeated_during_a_hold_waits_once() {
    let mut trial = Trial::new(SyncSpec::ASYNC);
    assert!(trial.hold(0));
    trial.push(0);
    // The worker sends its push again on a later connection.
    let repeated = trial.repeat(0, 2);
    assert_eq!(repeated.len(), 1, "the first copy is refused");
    assert_eq!(repeated[0].result.as_ref().unwrap_err().code, RefusalCode::Superseded);
    trial.open.pop();
    trial.set(1.0);
    assert_eq!((trial.version(), trial.workers[0].read), (1, Some(1)));
    assert_eq!(trial.state.observe().pushes.received, 1);
}

#[test]
fn a_shard_that_stops_answers_the_pushes_that_wait() {
    let mut trial = Trial::new(SyncSpec::ASYNC);
    assert!(trial.hold(1));
    (0..2).for_each(|worker| trial.push(worker));
    let answers = trial.state.stop_at(&StopAt { shard: 0, step: GlobalStep(1), drains: false }, CHIEF);
    assert_eq!(answers.len(), 2, "the chief and the second worker");
    assert_eq!((trial.version(), trial.value()), (1, -1.0));
}

#[test]
fn a_push_counts_although_its_worker_leaves_in_a_hold() {
    // Compares a shard that holds with one that does not.
    for (sync, version) in [("async", 2), ("bounded:0", 2), ("sync", 1)] {
        for holds in [false, true] {
            let mut trial = Trial::new(sync.parse().unwrap());
            assert!(!holds || trial.hold(0));
            (0..2).for_each(|worker| trial.push(worker));
            trial.leave(2);
            (0..2).for_each(|_| trial.leave(0));
            trial.join(0);
            assert_eq!(trial.version(), if holds { 0 } else { version });
            trial.set(1.0);
            let seen = trial.state.observe();
            assert_eq!((seen.version.0, seen.pushes.refused, seen.members), (version, 0, 2), "{sync}");
            assert!(trial.workers[0].read.is_some() && trial.open.len() < 2, "{sync}: it has joined");
        }
    }
}

#[test]
fn the_latest_of_several_joins_in_a_hold_stays() {
    let mut trial = Trial::new(SyncSpec::ASYNC);
    assert!(trial.hold(0));
    trial.push(0);
    trial.leave(0);
    trial.join(0);
    let superseded = |answers: Vec<Answer<Handle>>| {
        assert_eq!(answers.len(), 1);
        assert_eq!(answers[0].result.as_ref().unwrap_err().code, RefusalCode::Superseded);
        answers[0].reply
    };
    let answers = trial.pull(0, PullAt::Join, 2);
    assert_eq!(superseded(answers), (0, 2), "the copy on the later connection stays");
    trial.leave(0);
    trial.workers[0] = Worker { life: 3, ..Worker::default() };
    trial.appoint(0);
    let answers = trial.pull(0, PullAt::Join, 1);
    assert_eq!(superseded(answers), (0, 2), "the later incarnation stays");
    trial.open.retain(|open| open.1 != 2);
    assert_eq!((trial.state.observe().waiting, trial.state.observe().members), (1, 3));
    trial.set(1.0);
    assert_eq!((trial.workers[0].read, trial.open.len()), (Some(1), 0));
    assert_eq!(trial.state.observe().members, 3);
}

#[test]
fn a_push_that_waits_for_a_learning_rate_is_shown() {
    let mut trial = Trial::new(SyncSpec::ASYNC);
    assert!(trial.hold(0));
    (0..2).for_each(|worker| trial.push(worker));
    let seen = trial.state.observe();
    assert_eq!((seen.waiting, seen.held_bytes), (2, 8));
    trial.set(1.0);
    let seen = trial.state.observe();
    assert_eq!((seen.waiting, seen.held_bytes), (0, 0));
}
