//! Compares a shard with a plain model, while workers push alone and in sums, repeat pushes, leave and rejoin
//! in any order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use pushpull_messages::id::*;
use pushpull_messages::message::*;
use pushpull_messages::sync::SyncSpec;
use pushpull_transport::buffer::{Buffer, BufferPool, Payload, Segment};

use super::workers::{appoint, create};
use crate::shard::{Answer, Reader, ShardLimits, ShardState};

/// A simulated worker.
#[derive(Clone, Debug)]
struct Worker {
    life: u64,
    sequence: u64,
    /// The version of the worker's values; `None` while it waits for them.
    read: Option<u64>,
    /// The push that is to be sent, and its gradient; `None` while the worker computes.
    push: Option<Push>,
}

/// The key of a push: worker, incarnation and number.
type Key = (u32, u64, u64);

fn key(id: PushId) -> Key {
    (id.worker, id.incarnation.0, id.sequence.0)
}

/// Returns a gradient that differs between workers, and between the pushes of one incarnation.
fn gradient(id: PushId) -> f32 {
    (id.worker + 1) as f32 * 0.25 + (id.sequence.0 % 16) as f32
}

/// A shard, its workers, and what it must have counted.
struct Trial {
    state: ShardState<usize>,
    digest: u32,
    workers: BTreeMap<u32, Worker>,
    /// All pushes that were sent. The reply handle of a push is its position.
    sent: Vec<Push>,
    counted: BTreeSet<Key>,
    /// The gradients that are held for the next update.
    held: Vec<f64>,
    value: f64,
    lives: u64,
}

impl Trial {
    fn new(sync: SyncSpec, deterministic: bool, workers: u32, last_step: u64) -> Self {
        let create = create(sync, deterministic, workers, last_step);
        let limits = ShardLimits { values_bytes_max: 1 << 20, gradients_bytes_max: 1 << 20 };
        let mut state = ShardState::new(create.shard, BufferPool::default(), limits);
        let digest = create.placement.digest();
        assert!(state.create(create, 1, usize::MAX).remove(0).result.is_ok());
        let mut trial = Self {
            state,
            digest,
            workers: BTreeMap::new(),
            sent: Vec::new(),
            counted: BTreeSet::new(),
            held: Vec::new(),
            value: 0.0,
            lives: 0,
        };
        (0..workers).for_each(|worker| trial.join(worker));
        trial
    }

    fn pull(&mut self, worker: u32, at: PullAt) -> Vec<Answer<usize>> {
        let pull =
            Pull { shard: 0, epoch: PlacementEpoch(1), placement_digest: self.digest, at, averages: false };
        let reader = Reader { worker, incarnation: Incarnation(self.workers[&worker].life), connection: 1 };
        // Pulls have handles of their own, beyond those of all pushes.
        self.state.pull(&pull, Some(reader), 1_000_000 + worker as usize)
    }

    fn join(&mut self, worker: u32) {
        self.lives += 1;
        self.workers.insert(worker, Worker { life: self.lives, sequence: 0, read: None, push: None });
        appoint(&mut self.state, worker, self.lives, usize::MAX);
        let answers = self.pull(worker, PullAt::Join);
        let first = answers.iter().find_map(|answer| match &answer.result {
            Ok((Message::Pulled(pulled), _)) => Some(pulled.step),
            _ => None,
        });
        let answers = self.pull(worker, PullAt::Step(first.expect("a join is answered at once")));
        self.receive(answers);
    }

    fn leave(&mut self, worker: u32) {
        let Some(Worker { life, .. }) = self.workers.remove(&worker) else { return };
        let version = self.state.observe().version.0;
        let leave = Leave { shard: 0, worker, incarnation: Incarnation(life), epoch: PlacementEpoch(1) };
        let answers = self.state.leave(&leave, usize::MAX);
        self.note_update(version);
        self.receive(answers);
    }

    /// Lets a worker that has values compute its gradients.
    fn compute(&mut self, worker: u32) {
        let digest = self.digest;
        let Some(own) = self.workers.get_mut(&worker).filter(|own| own.push.is_none()) else { return };
        let Some(read) = own.read.take() else { return };
        own.sequence += 1;
        own.push = Some(Push {
            shard: 0,
            id: PushId { worker, incarnation: Incarnation(own.life), sequence: Sequence(own.sequence) },
            local_step: LocalStep(own.sequence),
            epoch: PlacementEpoch(1),
            placement_digest: digest,
            version: Version(read),
            slices: vec![SliceId(0)],
            drawn: own.sequence,
            pull: true,
            traced: false,
            with: Vec::new(),
        });
    }

    /// Returns the push of a worker together with those of the workers in `mask` that have the same version.
    fn sum(&self, worker: u32, mask: u32) -> Option<Push> {
        let mut push = self.workers.get(&worker)?.push.clone()?;
        let others = self.workers.iter().filter(|&(&other, _)| other != worker && mask & (1 << other) != 0);
        let others = others.filter_map(|(_, other)| other.push.as_ref());
        push.with = others.filter(|other| other.version == push.version).map(Push::own).collect();
        Some(push)
    }

    fn send(&mut self, push: Push) {
        let before = self.state.observe();
        let handle = self.sent.len();
        let numbers = push.contributions().map(|own| gradient(own.id));
        let payload = Buffer::from_f32(&[numbers.sum()]);
        let payload = Payload::new(vec![Segment::whole(Arc::new(payload))]);
        self.sent.push(push.clone());
        let answers = self.state.push(&push, payload, 1, handle);
        self.note(&push, &before);
        self.receive(answers);
    }

    /// Compares how the shard has counted a push with what it should have done.
    fn note(&mut self, push: &Push, before: &ShardSnapshot) {
        let (old, new) = (before.pushes, self.state.observe().pushes);
        let count = push.count();
        let known: Vec<bool> = push.contributions().map(|own| self.counted.contains(&key(own.id))).collect();
        let lives = |own: Contribution| {
            self.workers.get(&own.id.worker).is_some_and(|other| other.life == own.id.incarnation.0)
        };
        let all_live = push.contributions().all(lives);
        assert_eq!(new.received, old.received + count);
        assert!(new.add_up(), "V2: {new:?}");
        let grown = [
            new.held - old.held,
            new.stale - old.stale,
            new.stopped - old.stopped,
            new.duplicate - old.duplicate,
            new.refused - old.refused,
        ];
        assert!(grown.iter().all(|&grown| grown == 0 || grown == count), "(A): as a whole or not: {grown:?}");
        let version = before.version.0;
        match grown.iter().position(|&grown| grown > 0) {
            Some(verdict @ 0..=2) => {
                assert!(all_live && known.iter().all(|known| !known), "(A): once: {push:?}");
                self.counted.extend(push.contributions().map(|own| key(own.id)));
                if verdict == 0 {
                    assert_eq!(push.version.0, version, "S1");
                    self.held.extend(push.contributions().map(|own| f64::from(gradient(own.id))));
                }
                self.note_update(version);
            }
            Some(3) => assert!(all_live && known.iter().all(|&known| known), "a duplicate: {push:?}"),
            _ => {
                let mixed = known.iter().any(|&known| known) && known.iter().any(|known| !known);
                let later = push.contributions().any(|own| {
                    self.workers.get(&own.id.worker).is_some_and(|other| other.sequence > own.id.sequence.0)
                });
                // Parts that were counted alone may have different verdicts.
                let parts = known.iter().all(|&known| known) && count > 1;
                assert!(!all_live || mixed || later || parts, "refused without a reason: {push:?}");
                assert_eq!(self.state.observe().version, before.version);
                assert_eq!(self.state.observe().held_bytes, before.held_bytes);
            }
        }
    }

    /// Follows an update that the shard has made since it was at `version`.
    fn note_update(&mut self, version: u64) {
        let seen = self.state.observe();
        if seen.version.0 > version {
            assert_eq!(seen.version.0, version + 1);
            self.value -= self.held.iter().sum::<f64>() / self.held.len() as f64;
            self.held.clear();
        }
        let placement_digest = self.digest;
        let epoch = PlacementEpoch(1);
        let pull = Pull { shard: 0, epoch, placement_digest, at: PullAt::Latest, averages: false };
        let (_, payload) = self.state.pull(&pull, None, usize::MAX).remove(0).result.unwrap();
        let value = f64::from(payload.segments()[0].as_f32()[0]);
        assert!((value - self.value).abs() < 1e-2, "{value}, expected {}", self.value);
    }

    /// Passes the answers on. The answer to a sum is that of all its workers.
    fn receive(&mut self, answers: Vec<Answer<usize>>) {
        for Answer { reply, result, .. } in answers {
            let Ok((message, _)) = result else { continue };
            match message {
                Message::Pushed(pushed) => {
                    for own in self.sent[reply].contributions() {
                        let Some(worker) = self.workers.get_mut(&own.id.worker) else { continue };
                        if worker.push.as_ref().is_some_and(|push| push.id == own.id) {
                            (worker.push, worker.read) = (None, Some(pushed.version.0));
                        }
                    }
                }
                Message::Pulled(pulled) if reply >= 1_000_000 => {
                    if let Some(worker) = self.workers.get_mut(&(reply as u32 - 1_000_000)) {
                        worker.read = Some(pulled.version.0);
                    }
                }
                _ => {}
            }
        }
    }

    /// Lets every worker take its step alone. Returns whether the shard has got further.
    fn step_alone(&mut self) -> bool {
        let version = self.state.observe().version;
        for worker in self.workers.keys().copied().collect::<Vec<_>>() {
            self.compute(worker);
            if let Some(push) = self.sum(worker, 0) {
                self.send(push);
            }
        }
        self.state.observe().version > version
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Compute(u32),
    Alone(u32),
    Sum(u32, u32),
    Repeat(prop::sample::Index),
    Leave(u32),
    Rejoin(u32),
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => (0u32..4).prop_map(Event::Compute),
        4 => (0u32..4).prop_map(Event::Alone),
        8 => (0u32..4, 0u32..16).prop_map(|(worker, mask)| Event::Sum(worker, mask)),
        4 => any::<prop::sample::Index>().prop_map(Event::Repeat),
        1 => (0u32..4).prop_map(Event::Leave),
        1 => (0u32..4).prop_map(Event::Rejoin),
    ]
}

proptest! {
    /// Checks (A), V1, V2 and S1, and that workers that push alone always get further.
    #[test]
    fn a_gradient_counts_once_alone_or_in_a_sum(
        workers in 1u32..5,
        deterministic: bool,
        last_step in 1u64..30,
        events in prop::collection::vec(any_event(), 0..200),
    ) {
        let mut trial = Trial::new(SyncSpec::SYNC, deterministic, workers, last_step);
        for event in events {
            match event {
                Event::Compute(worker) => trial.compute(worker % workers),
                Event::Alone(worker) => {
                    if let Some(push) = trial.sum(worker % workers, 0) {
                        trial.send(push);
                    }
                }
                Event::Sum(worker, mask) => {
                    if let Some(push) = trial.sum(worker % workers, mask) {
                        trial.send(push);
                    }
                }
                Event::Repeat(which) if !trial.sent.is_empty() => {
                    let push = trial.sent[which.index(trial.sent.len())].clone();
                    trial.send(push);
                }
                Event::Repeat(_) => {}
                Event::Leave(worker) => trial.leave(worker % workers),
                Event::Rejoin(worker) => {
                    trial.leave(worker % workers);
                    trial.join(worker % workers);
                }
            }
        }
        let further = trial.step_alone() | trial.step_alone();
        prop_assert!(
            further || trial.workers.is_empty() || trial.state.observe().version.0 == last_step,
            "no worker waits for a gradient that is counted"
        );
    }
}

/// Returns the codes of the refusals among some answers.
fn refusals(answers: Vec<Answer<usize>>) -> Vec<RefusalCode> {
    answers.into_iter().filter_map(|answer| answer.result.err()).map(|refusal| refusal.code).collect()
}

#[test]
fn a_sum_of_which_a_part_is_counted_is_refused() {
    let mut trial = Trial::new(SyncSpec::SYNC, false, 3, 9);
    (0..3).for_each(|worker| trial.compute(worker));
    let (sum, alone) = (trial.sum(0, 0b110).unwrap(), trial.sum(1, 0).unwrap());
    trial.send(alone);
    let payload = || Payload::new(vec![Segment::whole(Arc::new(Buffer::from_f32(&[1.0])))]);
    let answers = trial.state.push(&sum, payload(), 1, 7);
    assert_eq!(refusals(answers), [RefusalCode::Alone]);
    let seen = trial.state.observe();
    assert_eq!((seen.pushes.held, seen.pushes.refused, seen.version), (1, 3, Version(0)));
    // A worker that has left cannot be counted, either.
    let rest = trial.sum(0, 0b100).unwrap();
    trial.leave(2);
    assert_eq!(refusals(trial.state.push(&rest, payload(), 1, 8)), [RefusalCode::Alone]);
}

#[test]
fn only_the_policy_sync_takes_sums() {
    for sync in ["async", "bounded:1", "sync:2"] {
        let mut trial = Trial::new(sync.parse().unwrap(), false, 2, 9);
        (0..2).for_each(|worker| trial.compute(worker));
        let sum = trial.sum(0, 0b10).unwrap();
        let payload = Payload::new(vec![Segment::whole(Arc::new(Buffer::from_f32(&[1.0])))]);
        let answer = trial.state.push(&sum, payload, 1, 7).remove(0).result.unwrap_err();
        assert_eq!(answer.code, RefusalCode::Misfit);
        assert!(answer.reason.contains(&format!("but the policy is {sync}")), "{answer}");
        assert_eq!(trial.state.observe().version, Version(0));
    }
}
