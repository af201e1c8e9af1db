//! Tests of a learning rate that changes while workers push.

use std::sync::Arc;

use proptest::prelude::*;
use pushpull_messages::id::*;
use pushpull_messages::message::*;
use pushpull_messages::optimizer::RateChange;
use pushpull_messages::sync::SyncSpec;
use pushpull_transport::buffer::{Buffer, BufferPool, Payload, Segment};

use super::workers::create;
use crate::shard::{Answer, Reader, ShardLimits, ShardState};

/// The reply handle of the chief's requests; a worker's handle is its index.
const CHIEF: u32 = 99;
const WORKERS: u32 = 3;

/// A shard with one variable, and workers whose gradients are always 1.
struct Trial {
    state: ShardState<u32>,
    digest: u32,
    /// For each worker, the version of its values, and the number of its pushes.
    workers: Vec<(Option<u64>, u64)>,
    held: Option<u64>,
    /// The version of the values from which the latest push was computed.
    version_read: u64,
}

impl Trial {
    fn new(sync: SyncSpec) -> Self {
        let create = create(sync, false, WORKERS, 1000);
        let limits = ShardLimits { values_bytes_max: 1 << 20, gradients_bytes_max: 1 << 20 };
        let mut state = ShardState::new(create.shard, BufferPool::default(), limits);
        let digest = create.placement.digest();
        assert!(state.create(create, 1, CHIEF).remove(0).result.is_ok());
        let mut trial =
            Self { state, digest, workers: vec![(None, 0); WORKERS as usize], held: None, version_read: 0 };
        for worker in 0..WORKERS {
            let at = PullAt::Step(GlobalStep(0));
            let (epoch, placement_digest) = (PlacementEpoch(1), digest);
            let pull = Pull { shard: 0, epoch, placement_digest, at, averages: false };
            let reader = Reader { worker, incarnation: Incarnation(1), connection: 1 };
            let answers = trial.state.pull(&pull, Some(reader), worker);
            trial.receive(answers);
        }
        trial
    }

    fn receive(&mut self, answers: Vec<Answer<u32>>) {
        for Answer { reply, result } in answers {
            let version = match result.expect("nothing is refused").0 {
                Message::Pushed(pushed) => pushed.version,
                Message::Pulled(pulled) => pulled.version,
                _ => continue,
            };
            self.workers[reply as usize].0 = Some(version.0);
        }
    }

    fn push(&mut self, worker: u32) {
        let (read, pushes) = &mut self.workers[worker as usize];
        let Some(version) = read.take() else { return };
        *pushes += 1;
        self.version_read = version;
        let answers = self.repeat(worker, 1);
        self.receive(answers);
    }

    /// Sends the latest push of a worker on a connection.
    fn repeat(&mut self, worker: u32, connection: u64) -> Vec<Answer<u32>> {
        let (pushes, version) = (&self.workers[worker as usize].1, self.version_read);
        let push = Push {
            shard: 0,
            id: PushId { worker, incarnation: Incarnation(1), sequence: Sequence(*pushes) },
            local_step: LocalStep(*pushes),
            epoch: PlacementEpoch(1),
            placement_digest: self.digest,
            version: Version(version),
            slices: vec![SliceId(0)],
            drawn: *pushes,
            pull: true,
            traced: false,
        };
        let payload = Payload::new(vec![Segment::whole(Arc::new(Buffer::from_f32(&[1.0])))]);
        self.state.push(&push, payload, connection, worker)
    }

    fn version(&self) -> u64 {
        self.state.observe().version.0
    }

    /// Lets the shard hold at a version, and returns whether it does.
    fn hold(&mut self, version: u64) -> bool {
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

    fn set(&mut self, factor: f32) -> Option<RateChange> {
        let change = RateChange { from: Version(self.held.take()?), factor };
        let answers = self.state.set_learning_rate(&SetLearningRate { shard: 0, change }, CHIEF);
        self.receive(answers);
        Some(change)
    }

    fn value(&mut self) -> f32 {
        let (epoch, placement_digest, at) = (PlacementEpoch(1), self.digest, PullAt::Latest);
        let pull = Pull { shard: 0, epoch, placement_digest, at, averages: false };
        let (_, payload) = self.state.pull(&pull, None, CHIEF).remove(0).result.unwrap();
        payload.segments()[0].as_f32()[0]
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Push(u32),
    /// Holds at this number of versions after the current one, minus one.
    Hold(u64),
    Set(u8),
    /// The requests of an earlier change arrive again.
    Late(prop::sample::Index),
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (0..WORKERS).prop_map(Event::Push),
        1 => (0u64..6).prop_map(Event::Hold),
        1 => (1u8..5).prop_map(Event::Set),
        1 => any::<prop::sample::Index>().prop_map(Event::Late),
    ]
}

proptest! {
    /// The shard never passes a version at which it holds, each update has the factor of its version, and no
    /// push is lost.
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
        }
        changes.extend(trial.set(2.0));
        let snapshot = trial.state.observe();
        let pushes: u64 = trial.workers.iter().map(|(_, pushes)| pushes).sum();
        prop_assert_eq!((snapshot.pushes.received, snapshot.pushes.refused), (pushes, 0));
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
    assert_eq!((trial.version(), trial.workers[1].0), (1, None), "the second push waits");
    trial.set(0.5);
    assert_eq!((trial.version(), trial.workers[1].0), (2, Some(2)));
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
    trial.set(1.0);
    assert_eq!((trial.version(), trial.workers[0].0), (1, Some(1)));
    assert_eq!(trial.state.observe().pushes.received, 1);
}

#[test]
fn a_shard_that_stops_answers_the_pushes_that_wait() {
    let mut trial = Trial::new(SyncSpec::ASYNC);
    assert!(trial.hold(1));
    (0..2).for_each(|worker| trial.push(worker));
    let answers = trial.state.stop_at(&StopAt { shard: 0, step: GlobalStep(1) }, CHIEF);
    assert_eq!(answers.len(), 2, "the chief and the second worker");
    assert_eq!((trial.version(), trial.value()), (1, -1.0));
}
