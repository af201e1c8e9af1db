//! Compares a shard with a plain model of its values, while workers push, repeat pushes, leave and rejoin in
//! any order, under every policy.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use pushpull_messages::checkpoint::StartSpec;
use pushpull_messages::id::*;
use pushpull_messages::message::*;
use pushpull_messages::optimizer::OptimizerSpec;
use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
use pushpull_messages::sync::SyncSpec;
use pushpull_messages::tensor::DType;
use pushpull_messages::variable::{InitializerSpec, VariableSpec};
use pushpull_transport::buffer::{Buffer, BufferPool, Payload, Segment};

use crate::shard::{Answer, Reader, ShardLimits, ShardState};

/// Returns the request to create one shard with a variable of one element.
pub(super) fn create(sync: SyncSpec, deterministic: bool, workers: u32, last_step: u64) -> CreateShard {
    let shard = ShardId::new(0, 0);
    let slice = SliceSpec { variable: VariableId(0), row: 0, rows: 1 };
    CreateShard {
        job: 0,
        shard,
        placement: Placement {
            epoch: PlacementEpoch(1),
            shards: vec![shard],
            slices: vec![PlacedSlice { slice, shard }],
        },
        variables: vec![VariableSpec {
            name: "x".into(),
            shape: [1].into(),
            dtype: DType::F32,
            initializer: InitializerSpec::Zeros,
            trainable: true,
            device: None,
        }],
        update: OptimizerSpec::sgd(1.0).into(),
        compression: Vec::new(),
        sync,
        pipeline: 1,
        deterministic,
        workers,
        last_step: GlobalStep(last_step),
        seed: 0,
        start: StartSpec::Initialise,
    }
}

/// Lets the chief appoint an incarnation of a worker whose earlier incarnation has left. The number of the
/// appointment is that of the incarnation.
pub(super) fn appoint<R>(state: &mut ShardState<R>, worker: u32, life: u64, reply: R) {
    let appoint = Appoint { shard: 0, worker, incarnation: Incarnation(life), number: life };
    let answers = state.appoint(&appoint, reply);
    assert!(answers.len() == 1 && answers[0].result.is_ok(), "no other request is answered");
}

/// A simulated worker.
#[derive(Clone, Debug)]
struct Worker {
    life: u64,
    sequence: u64,
    /// The version of the worker's values; `None` while the worker waits for an answer.
    read: Option<u64>,
    last: Option<Push>,
    /// The verdict on the worker's last push; `None` until the push is answered.
    told: Option<Verdict>,
}

/// A reply handle: the worker's index, its incarnation, and the number of the request.
type Handle = (u32, u64, u64);

/// A shard, its simulated workers, and the value that the test expects of it.
struct Shard {
    state: ShardState<Handle>,
    digest: u32,
    workers: BTreeMap<u32, Worker>,
    handles: u64,
    /// The handles of the requests that have not been answered yet.
    open: Vec<Handle>,
    /// The gradients of all pushes that were applied or held, and of unanswered pushes, which may have been
    /// applied. The integer in each entry is the version of the values from which the gradient was computed.
    gradients: Vec<(u64, f64)>,
    lives: u64,
}

/// Returns a gradient that differs between workers, and between the pushes of one incarnation.
fn gradient(worker: u32, sequence: u64) -> f32 {
    (worker + 1) as f32 * 0.25 + sequence as f32
}

impl Shard {
    fn new(create: CreateShard) -> Self {
        Self::within(ShardLimits { values_bytes_max: 1 << 20, gradients_bytes_max: 1 << 20 }, create)
    }

    fn within(limits: ShardLimits, create: CreateShard) -> Self {
        let mut state = ShardState::new(create.shard, BufferPool::default(), limits);
        let (digest, workers) = (create.placement.digest(), create.workers);
        assert!(state.create(create, 1, (0, 0, 0)).remove(0).result.is_ok());
        let mut shard = Self {
            state,
            digest,
            workers: BTreeMap::new(),
            handles: 0,
            open: Vec::new(),
            gradients: Vec::new(),
            lives: 0,
        };
        (0..workers).for_each(|worker| shard.join(worker));
        shard
    }

    fn handle(&mut self, worker: u32) -> Handle {
        self.handles += 1;
        let handle = (worker, self.workers[&worker].life, self.handles);
        self.open.push(handle);
        handle
    }

    fn join(&mut self, worker: u32) {
        self.lives += 1;
        let new = Worker { life: self.lives, sequence: 0, read: None, last: None, told: None };
        self.workers.insert(worker, new);
        let handle = self.handle(worker);
        let reader = Reader { worker, incarnation: Incarnation(self.lives), connection: 1 };
        appoint(&mut self.state, worker, self.lives, (u32::MAX, 0, 0));
        let answers = self.state.pull(&self.ask(PullAt::Join), Some(reader), handle);
        let first = answers.iter().find_map(|answer| match &answer.result {
            Ok((Message::Pulled(pulled), _)) if answer.reply == handle => Some(pulled.step),
            _ => None,
        });
        self.receive(answers);
        // The values for the worker's first step may not exist yet.
        self.workers.get_mut(&worker).unwrap().read = None;
        let handle = self.handle(worker);
        let at = PullAt::Step(first.expect("a join is answered at once"));
        let answers = self.state.pull(&self.ask(at), Some(reader), handle);
        self.receive(answers);
    }

    fn ask(&self, at: PullAt) -> Pull {
        let placement_digest = self.digest;
        Pull { shard: 0, epoch: PlacementEpoch(1), placement_digest, at, averages: false }
    }

    fn push(&mut self, worker: u32) {
        let digest = self.digest;
        let Some(entry) = self.workers.get_mut(&worker) else { return };
        let Some(read) = entry.read.take() else { return };
        entry.sequence += 1;
        let push = Push {
            shard: 0,
            id: PushId { worker, incarnation: Incarnation(entry.life), sequence: Sequence(entry.sequence) },
            local_step: LocalStep(entry.sequence),
            epoch: PlacementEpoch(1),
            placement_digest: digest,
            version: Version(read),
            slices: vec![SliceId(0)],
            drawn: entry.sequence,
            pull: true,
            traced: false,
            with: Vec::new(),
        };
        (entry.last, entry.told) = (Some(push.clone()), None);
        self.send(&push);
    }

    /// Sends the worker's last push again, even if it has been answered, and checks that the shard's version
    /// and members stay the same.
    fn repeat(&mut self, worker: u32) {
        let last = self.workers.get(&worker).and_then(|entry| entry.last.clone());
        if let Some(push) = last {
            let before = self.state.observe();
            self.send(&push);
            let after = self.state.observe();
            assert_eq!(
                (before.version, before.members),
                (after.version, after.members),
                "a retry changes nothing"
            );
            assert_eq!(before.pushes.duplicate + 1, after.pushes.duplicate);
            // The first answer counts as lost. If the end has been moved meanwhile, the answer to the
            // repeated push may come later.
            let entry = self.workers.get_mut(&worker).unwrap();
            if self.open.iter().any(|&(of, life, _)| (of, life) == (worker, entry.life)) {
                entry.read = None;
            }
        }
    }

    fn send(&mut self, push: &Push) {
        let handle = self.handle(push.id.worker);
        let value = [gradient(push.id.worker, push.id.sequence.0)];
        let payload = Payload::new(vec![Segment::whole(Arc::new(Buffer::from_f32(&value)))]);
        let answers = self.state.push(push, payload, 1, handle);
        self.receive(answers);
    }

    fn leave(&mut self, worker: u32) {
        let Some(Worker { life, .. }) = self.workers.get(&worker).cloned() else { return };
        let handle = self.handle(worker);
        let leave = Leave { shard: 0, worker, incarnation: Incarnation(life), epoch: PlacementEpoch(1) };
        let answers = self.state.leave(&leave, handle);
        self.receive(answers);
        self.count_unanswered(worker);
        self.workers.remove(&worker);
        assert!(
            !self.open.iter().any(|&(index, of, _)| (index, of) == (worker, life)),
            "all its requests are answered"
        );
    }

    /// Adds the worker's unanswered push, if there is one, to `gradients`. The shard may have applied the
    /// push, or the push may have arrived after the last step.
    fn count_unanswered(&mut self, worker: u32) {
        if let Some(Worker { read: None, told: None, last: Some(push), .. }) = self.workers.get(&worker) {
            self.gradients.push((push.version.0, f64::from(gradient(worker, push.id.sequence.0))));
        }
    }

    fn stop_at(&mut self, step: u64) -> Version {
        let handle = (u32::MAX, 0, 0);
        self.open.push(handle);
        let mut answers =
            self.state.stop_at(&StopAt { shard: 0, step: GlobalStep(step), drains: false }, handle);
        let first = answers.remove(0);
        assert_eq!(first.reply, handle);
        self.open.retain(|open| *open != handle);
        self.receive(answers);
        let stopping: StoppingAt = first.result.unwrap().0.try_into().unwrap();
        stopping.version
    }

    /// Returns the shard's last step, as the shard states it in its replies.
    fn last_step(&mut self) -> u64 {
        let mut answers = self.state.pull(&self.ask(PullAt::Latest), None, (u32::MAX, 0, 0));
        let pulled: Pulled = answers.remove(0).result.unwrap().0.try_into().unwrap();
        pulled.last_step.0
    }

    fn receive(&mut self, answers: Vec<Answer<Handle>>) {
        for Answer { reply, result, .. } in answers {
            let position =
                self.open.iter().position(|&open| open == reply).expect("each request is answered once");
            self.open.remove(position);
            let (worker, life, _) = reply;
            let Some(entry) = self.workers.get_mut(&worker).filter(|entry| entry.life == life) else {
                continue;
            };
            match result {
                Ok((Message::Pushed(pushed), payload)) => {
                    assert_eq!(payload.segments().len(), 1);
                    assert!(
                        entry.told.is_none_or(|told| told == pushed.verdict),
                        "a duplicate gets the first verdict"
                    );
                    if entry.told.is_none() {
                        let step = entry.last.as_ref().unwrap();
                        if matches!(pushed.verdict, Verdict::Applied | Verdict::Held) {
                            let value = f64::from(gradient(worker, step.id.sequence.0));
                            self.gradients.push((step.version.0, value));
                        }
                    }
                    entry.told = Some(pushed.verdict);
                    entry.read = Some(pushed.version.0);
                }
                Ok((Message::Pulled(pulled), _)) => entry.read = Some(pulled.version.0),
                Ok((Message::Left(_), _)) => {}
                Ok((other, _)) => panic!("{other:?}"),
                Err(refusal) => assert!(
                    matches!(
                        refusal.code,
                        RefusalCode::Unavailable | RefusalCode::Superseded | RefusalCode::Misfit
                    ),
                    "{refusal}"
                ),
            }
        }
    }

    fn value(&mut self) -> f64 {
        let mut answers = self.state.pull(&self.ask(PullAt::Latest), None, (u32::MAX, 0, 0));
        let (_, payload) = answers.remove(0).result.unwrap();
        f64::from(payload.segments()[0].as_f32()[0])
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Push(u32),
    Repeat(u32),
    Leave(u32),
    Join(u32),
    /// The chief asks the shard to stop at a step: the shard's version, plus this field's value, minus two.
    /// If the value is 0 or 1, the shard may have passed that step.
    StopAt(u64),
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => (0u32..4).prop_map(Event::Push),
        3 => (0u32..4).prop_map(Event::Repeat),
        1 => (0u32..4).prop_map(Event::Leave),
        1 => (0u32..4).prop_map(Event::Join),
        1 => (0u64..6).prop_map(Event::StopAt),
    ]
}

fn any_sync() -> impl Strategy<Value = (SyncSpec, bool)> {
    prop_oneof![
        Just((SyncSpec::ASYNC, false)),
        (0u32..3).prop_map(|staleness| (SyncSpec::Bounded { staleness }, false)),
        any::<bool>().prop_map(|deterministic| (SyncSpec::SYNC, deterministic)),
        (1u32..9, any::<bool>())
            .prop_map(|(k, deterministic)| { (SyncSpec::Sync { aggregate: Some(k) }, deterministic) }),
    ]
}

proptest! {
    /// Checks, for any policy and any order of events, that the version never decreases (V1), every push is
    /// counted exactly once (V2), no update follows the last step (V3), and gradients are no more stale than
    /// the policy allows (S1, S2). At least one worker can always go on.
    #[test]
    fn every_gradient_counts_once_whatever_happens(
        (sync, deterministic) in any_sync(),
        workers in 1u32..5,
        last_step in 1u64..40,
        events in prop::collection::vec(any_event(), 0..200),
    ) {
        let mut shard = Shard::new(create(sync, deterministic, workers, last_step));
        let (mut version, mut end, mut latest) = (0, last_step, 0);
        for event in events {
            match event {
                Event::StopAt(further) => {
                    let step = (version + further).saturating_sub(2);
                    // A request for an earlier step than the one before is a late copy, or the chief does not
                    // know the later step, and must learn it.
                    let promised = shard.stop_at(step);
                    let wanted = step.min(last_step);
                    if wanted >= version.max(latest) {
                        (end, latest) = (wanted, wanted);
                        prop_assert_eq!(promised, shard.state.observe().version);
                    } else {
                        prop_assert!(promised.0 > wanted && promised.0 >= latest, "{}", promised);
                    }
                }
                Event::Push(worker) => shard.push(worker % workers),
                Event::Repeat(worker) => shard.repeat(worker % workers),
                Event::Leave(worker) => shard.leave(worker % workers),
                Event::Join(worker) => {
                    let worker = worker % workers;
                    // The chief admits a new incarnation only when the earlier one has left.
                    shard.leave(worker);
                    shard.join(worker);
                }
            }
            let seen = shard.state.observe();
            prop_assert!(seen.version.0 >= version, "V1");
            version = seen.version.0;
            prop_assert!(seen.pushes.add_up(), "V2: {:?}", seen.pushes);
            prop_assert!(version <= end, "V3");
            prop_assert_eq!(shard.last_step(), end);
            prop_assert_eq!(seen.pushes.refused, 0);
            prop_assert_eq!(seen.applying.count(), version);
            match sync {
                SyncSpec::Async { .. } => prop_assert_eq!(seen.pushes.applied, version),
                SyncSpec::Bounded { staleness } => {
                    prop_assert_eq!(seen.pushes.applied, version);
                    prop_assert!(seen.steps_behind.max <= u64::from(staleness), "S2");
                }
                SyncSpec::Sync { .. } => prop_assert_eq!(seen.staleness.max, 0, "S1"),
            }
            // Every worker is either computing or waiting, and at least one is computing.
            let waiting = shard.workers.values().filter(|worker| worker.read.is_none()).count();
            prop_assert_eq!(waiting, seen.waiting as usize);
            prop_assert_eq!(waiting, shard.open.len());
            prop_assert!(shard.workers.is_empty() || waiting < shard.workers.len());
            prop_assert!(version < end || waiting == 0, "no worker waits at the end");
        }
        (0..workers).for_each(|worker| shard.count_unanswered(worker));
        let held_left = matches!(sync, SyncSpec::Sync { .. });
        if !held_left {
            let expected: f64 = -shard.gradients.iter().map(|(_, gradient)| gradient).sum::<f64>();
            let told = shard.state.observe().pushes.applied as usize;
            // The list contains all applied gradients. If the counts are equal, it contains nothing else, so
            // the sums must be equal.
            prop_assert!(told <= shard.gradients.len());
            if shard.gradients.len() == told {
                let value = shard.value();
                prop_assert!((value - expected).abs() < 1e-2, "{value} and {expected}");
            }
        }
    }

    /// Checks that each update is the mean of the gradients that all workers computed at the same version.
    /// The gradients arrive in any order, and some of them twice. In deterministic mode, the bits of the
    /// update do not depend on the order.
    #[test]
    fn synchronous_updates_are_means_in_any_order(
        workers in 1u32..5,
        rounds in prop::collection::vec(any::<u64>(), 1..20),
    ) {
        let mut value = 0.0;
        let mut shards = [true, true, false]
            .map(|deterministic| Shard::new(create(SyncSpec::SYNC, deterministic, workers, 100)));
        for (round, order) in rounds.into_iter().enumerate() {
            for (which, shard) in shards.iter_mut().enumerate() {
                let first = (order >> (8 * which)) as u32 % workers;
                for turn in 0..workers {
                    let worker = (first + turn) % workers;
                    shard.push(worker);
                    if order & (1 << (32 + turn)) != 0 {
                        shard.repeat(worker);
                    }
                }
            }
            let sum: f64 = (0..workers).map(|worker| f64::from(gradient(worker, round as u64 + 1))).sum();
            value -= sum / f64::from(workers);
        }
        let [one, other, unordered] = shards.each_mut().map(Shard::value);
        prop_assert_eq!(one.to_bits(), other.to_bits());
        for got in [one, unordered] {
            prop_assert!((got - value).abs() < 1e-2, "{got} and {value}");
        }
    }
}

/// Checks updates that need more gradients than there are workers: each worker contributes several gradients
/// to every update. In deterministic mode, the bits of the update do not depend on the order in which
/// gradients arrive.
#[test]
fn repeated_gradients_are_added_in_a_fixed_order() {
    let (sync, workers) = (SyncSpec::Sync { aggregate: Some(5) }, 2);
    let values = [[0, 0, 0, 1, 1], [1, 1, 0, 0, 0], [0, 1, 0, 1, 0]].map(|order| {
        let mut shard = Shard::new(create(sync, true, workers, 100));
        for round in 0..7 {
            for worker in order {
                shard.push(worker);
                shard.repeat(worker);
            }
            let seen = shard.state.observe();
            assert_eq!((seen.version.0, seen.waiting), (round + 1, 0));
            assert_eq!((seen.pushes.held, seen.pushes.stale, seen.pushes.refused), (5 * (round + 1), 0, 0));
        }
        shard.value().to_bits()
    });
    assert!(values.iter().all(|bits| *bits == values[0]), "{values:?}");
    let sum = |worker, count: u64| -> f64 { (1..=count).map(|own| f64::from(gradient(worker, own))).sum() };
    let expected = -(sum(0, 21) + sum(1, 14)) / 5.0;
    assert!((f64::from_bits(values[0]) - expected).abs() < 1e-3);
}

#[test]
fn a_worker_too_far_ahead_waits_for_the_slowest() {
    for leaves in [false, true] {
        let mut shard = Shard::new(create(SyncSpec::Bounded { staleness: 2 }, false, 2, 100));
        (0..5).for_each(|_| shard.push(1));
        // Steps 0, 1 and 2 are within the bound; the worker waits for the values of step 3.
        assert_eq!((shard.state.observe().version, shard.state.observe().waiting), (Version(3), 1));
        if leaves {
            shard.leave(0);
        } else {
            shard.push(0);
        }
        assert_eq!(shard.state.observe().waiting, 0);
        assert!(shard.workers[&1].read.is_some());
    }
}

#[test]
fn a_push_of_a_life_that_is_over_is_refused() {
    let mut shard = Shard::new(create(SyncSpec::SYNC, false, 2, 100));
    shard.push(0);
    let late = shard.workers[&1].clone();
    shard.leave(1);
    assert_eq!(shard.state.observe().version, Version(1), "worker/0 does not wait for worker/1");
    shard.workers.insert(1, late);
    let refused = shard.state.observe().pushes.refused;
    shard.push(1);
    assert_eq!(shard.state.observe().pushes.refused, refused + 1);
    assert_eq!(shard.state.observe().version, Version(1));
}

#[test]
fn the_only_worker_advances_a_shard_that_is_behind_it() {
    let mut shard = Shard::new(create(SyncSpec::SYNC, false, 2, 100));
    shard.push(1);
    let reader = |shard: &Shard, worker: u32| Reader {
        worker,
        incarnation: Incarnation(shard.workers[&worker].life),
        connection: 1,
    };
    // Worker 1 requests step 2, because another shard is at step 2 already. It waits as long as worker 0 may
    // still push step 0.
    let raise = |shard: &mut Shard, worker: u32| {
        let (pull, handle) = (shard.ask(PullAt::Step(GlobalStep(2))), shard.handle(worker));
        let answers = shard.state.pull(&pull, Some(reader(shard, worker)), handle);
        shard.receive(answers);
    };
    raise(&mut shard, 1);
    assert_eq!(shard.state.observe().version, Version(0), "worker/0 has not pushed step 0");
    shard.leave(0);
    assert_eq!(shard.state.observe().version, Version(1));
    for version in 2..5 {
        assert!(shard.workers[&1].read.is_some(), "worker/1 waits for no other worker");
        shard.push(1);
        assert_eq!(shard.state.observe().version, Version(version));
    }
}

#[test]
fn a_second_gradient_for_the_same_update_is_refused() {
    let mut shard = Shard::new(create(SyncSpec::SYNC, false, 2, 100));
    shard.push(0);
    shard.workers.get_mut(&0).unwrap().read = Some(0);
    shard.push(0);
    let seen = shard.state.observe();
    assert_eq!((seen.pushes.held, seen.pushes.refused, seen.version), (1, 1, Version(0)));
}

#[test]
fn a_step_beyond_the_last_is_refused() {
    let mut shard = Shard::new(create(SyncSpec::Bounded { staleness: 1 }, false, 2, 100));
    let reader = Reader { worker: 0, incarnation: Incarnation(shard.workers[&0].life), connection: 1 };
    for (step, taken) in [(100, true), (101, false), (u64::MAX, false)] {
        let pull = shard.ask(PullAt::Step(GlobalStep(step)));
        let answers = shard.state.pull(&pull, Some(reader), (0, 0, step));
        let refused = answers.iter().any(|answer| {
            matches!(&answer.result, Err(refusal) if refusal.reason.contains("beyond the job's last step, 100"))
        });
        assert_eq!(refused, !taken, "{answers:?}");
    }
}

#[test]
fn a_shard_that_would_hold_too_many_gradients_is_refused() {
    let limits = ShardLimits { values_bytes_max: 1 << 20, gradients_bytes_max: 200 };
    let refused = |deterministic| {
        let mut state = ShardState::<()>::new(ShardId::new(0, 0), BufferPool::default(), limits);
        let answer = state.create(create(SyncSpec::SYNC, deterministic, 4, 1), 1, ()).remove(0);
        answer.result.map_err(|refusal| refusal.reason)
    };
    assert!(refused(false).is_ok(), "one gradient of a cache line fits");
    let reason = refused(true).unwrap_err();
    assert!(reason.contains("4 gradient(s) of 64 bytes") && reason.contains("at most 200 bytes"), "{reason}");
}

#[test]
fn two_gradients_are_held_only_if_a_third_can_arrive() {
    for (gradients_bytes_max, held) in [(3 * 64, 2), (3 * 64 - 1, 1)] {
        let limits = ShardLimits { values_bytes_max: 1 << 20, gradients_bytes_max };
        let mut shard = Shard::within(limits, create(SyncSpec::SYNC, false, 4, 9));
        (0..3).for_each(|worker| shard.push(worker));
        let seen = shard.state.observe();
        assert_eq!(seen.held_bytes, held * seen.bytes);
    }
}

#[test]
fn an_end_holds_until_a_later_one_is_named() {
    for sync in [SyncSpec::ASYNC, SyncSpec::Bounded { staleness: 1 }, SyncSpec::SYNC] {
        let mut shard = Shard::new(create(sync, false, 2, 50));
        let round = |shard: &mut Shard| (0..2).for_each(|worker| shard.push(worker));
        (0..3).for_each(|_| round(&mut shard));
        let version = shard.state.observe().version.0;
        assert_eq!(shard.stop_at(version + 4).0, version);
        assert_eq!(shard.stop_at(version + 2).0, version + 4, "it stops later");
        (0..9).for_each(|_| round(&mut shard));
        let seen = shard.state.observe();
        assert_eq!((seen.version.0, seen.waiting, shard.last_step()), (version + 4, 0, version + 4));
        assert!(seen.pushes.stopped > 0);
        assert_eq!(shard.stop_at(version).0, version + 4, "the shard is past that step");
        assert_eq!(shard.last_step(), version + 4);
        // Now the shard continues, up to the job's last step.
        shard.stop_at(1000);
        assert_eq!(shard.last_step(), 50);
        (0..100).for_each(|_| round(&mut shard));
        let seen = shard.state.observe();
        assert_eq!((seen.version, seen.pushes.refused), (Version(50), 0));
    }
}

#[test]
fn reaching_the_end_releases_waiting_workers() {
    for sync in [SyncSpec::Bounded { staleness: 0 }, SyncSpec::SYNC] {
        let mut shard = Shard::new(create(sync, false, 2, 50));
        shard.push(0);
        let seen = shard.state.observe();
        assert_eq!(seen.waiting, 1);
        shard.stop_at(seen.version.0);
        assert_eq!(shard.state.observe().waiting, 0);
        assert!(shard.workers[&0].read.is_some());
        // The worker was released when the shard reached that end. Once the end has been moved, the worker
        // waits for the other worker as before.
        shard.stop_at(40);
        shard.push(0);
        let after = shard.state.observe();
        assert_eq!((after.waiting, after.pushes.stale, after.version), (1, 1, seen.version));
        shard.push(1);
        let after = shard.state.observe();
        assert_eq!((after.waiting, after.pushes.refused), (0, 0));
        assert!(after.version > seen.version);
    }
}

#[test]
fn the_learning_rate_does_not_depend_on_the_end() {
    let values = [None, Some(6)].map(|stop| {
        let mut create = create(SyncSpec::ASYNC, false, 1, 10);
        create.update.schedule = pushpull_messages::optimizer::ScheduleSpec::Linear;
        let mut shard = Shard::new(create);
        stop.map(|step| shard.stop_at(step));
        (0..6).for_each(|_| shard.push(0));
        shard.value().to_bits()
    });
    assert_eq!(values[0], values[1]);
}
