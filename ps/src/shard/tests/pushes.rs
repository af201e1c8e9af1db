//! Tests a shard's invariants under pushes of every kind: the version never decreases (V1), every push is
//! counted under exactly one verdict (V2), and exactly `last_step` updates are applied (V3).

use std::sync::Arc;

use proptest::prelude::*;
use pushpull_messages::checkpoint::StartSpec;
use pushpull_messages::id::*;
use pushpull_messages::message::*;
use pushpull_messages::optimizer::{OptimizerSpec, ScheduleSpec};
use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
use pushpull_messages::sync::SyncSpec;
use pushpull_messages::tensor::DType;
use pushpull_messages::variable::{InitializerSpec, VariableSpec};
use pushpull_transport::buffer::{Buffer, BufferPool, Payload, Segment};

use super::workers::appoint;
use crate::shard::{Answer, ShardLimits, ShardState};

/// A shard under test. Its functions assert that each request gets exactly one answer, at once.
pub(crate) struct Tested(pub(crate) ShardState<()>);

pub(super) fn only<T: TryFrom<Message, Error = Message>>(
    mut answers: Vec<Answer<()>>,
) -> Result<(T, Payload), Refusal> {
    assert_eq!(answers.len(), 1, "{answers:?}");
    let (message, payload) = answers.remove(0).result?;
    Ok((message.try_into().unwrap(), payload))
}

impl Tested {
    pub(crate) fn new(bytes_max: u64) -> Self {
        let limits = ShardLimits { values_bytes_max: bytes_max, gradients_bytes_max: bytes_max };
        Self(ShardState::new(ShardId::new(0, 0), BufferPool::default(), limits))
    }

    /// Creates the shard, and lets the first incarnation of every worker join.
    pub(crate) fn create(&mut self, create: CreateShard) -> Result<ShardCreated, Refusal> {
        let workers = create.workers;
        let (created, _) = only(self.0.create(create, 1, ()))?;
        (0..workers).for_each(|worker| appoint(&mut self.0, worker, 1, ()));
        Ok(created)
    }

    fn push(&mut self, push: &Push, gradients: Payload) -> Result<(Pushed, Payload), Refusal> {
        only(self.0.push(push, gradients, 1, ()))
    }

    pub(super) fn pull(&mut self, pull: &Pull) -> Result<(Pulled, Payload), Refusal> {
        only(self.0.pull(pull, None, ()))
    }

    fn observe(&self) -> ShardSnapshot {
        self.0.observe()
    }
}

fn variable(name: &str, rows: usize, initializer: InitializerSpec) -> VariableSpec {
    VariableSpec {
        name: name.into(),
        shape: [rows, 2].into(),
        dtype: DType::F32,
        initializer,
        trainable: true,
        device: None,
    }
}

/// Returns the request to create `ps/0/shard/0` of a job with two variables. The shard owns the first two
/// rows of the first variable and the whole second variable; another shard owns the rest.
pub(crate) fn create(optimizer: OptimizerSpec, last_step: u64) -> CreateShard {
    let placed = |variable, row, rows, ps| PlacedSlice {
        slice: SliceSpec { variable: VariableId(variable), row, rows },
        shard: ShardId::new(ps, 0),
    };
    CreateShard {
        job: 0,
        shard: ShardId::new(0, 0),
        placement: Placement {
            epoch: PlacementEpoch(1),
            shards: vec![ShardId::new(0, 0), ShardId::new(1, 0)],
            slices: vec![placed(0, 0, 2, 0), placed(0, 2, 3, 1), placed(1, 0, 1, 0)],
        },
        variables: vec![
            variable("a", 5, InitializerSpec::Normal { mean: 0.0, stddev: 1.0 }),
            variable("b", 1, InitializerSpec::Constant { value: 3.0 }),
        ],
        update: optimizer.into(),
        compression: Vec::new(),
        sync: SyncSpec::ASYNC,
        pipeline: 1,
        deterministic: false,
        workers: 3,
        last_step: GlobalStep(last_step),
        seed: 7,
        start: StartSpec::Initialise,
    }
}

pub(crate) fn latest(placement_digest: u32) -> Pull {
    let epoch = PlacementEpoch(1);
    Pull { shard: 0, epoch, placement_digest, at: PullAt::Latest, averages: false }
}

fn shard(optimizer: OptimizerSpec, last_step: u64) -> Tested {
    let mut state = Tested::new(1 << 20);
    let created = state.create(create(optimizer, last_step)).unwrap();
    assert_eq!(created, ShardCreated { slices: 2, bytes: 24, version: Version(0), appointed: 0 });
    state
}

pub(crate) fn push(sequence: u64) -> Push {
    let placement = create(OptimizerSpec::sgd(1.0), 1).placement;
    Push {
        shard: 0,
        id: PushId { worker: 0, incarnation: Incarnation(1), sequence: Sequence(sequence) },
        local_step: LocalStep(sequence),
        epoch: placement.epoch,
        placement_digest: placement.digest(),
        version: Version(0),
        slices: vec![SliceId(2), SliceId(0)],
        drawn: 0,
        pull: true,
        traced: false,
        with: Vec::new(),
    }
}

pub(crate) fn payload(segments: &[&[f32]]) -> Payload {
    Payload::new(segments.iter().map(|values| Segment::whole(Arc::new(Buffer::from_f32(values)))).collect())
}

fn gradients(a: f32, b: f32) -> Payload {
    payload(&[&[b; 2], &[a; 4]])
}

pub(super) fn floats(payload: &Payload) -> Vec<Vec<f32>> {
    payload.segments().iter().map(|segment| segment.as_f32().to_vec()).collect()
}

#[test]
fn sgd_is_applied_and_the_reply_has_the_values() {
    let mut state = shard(OptimizerSpec::sgd(0.5), 10);
    let pull = latest(push(1).placement_digest);
    let (pulled, before) = state.pull(&pull).unwrap();
    assert_eq!((pulled.version, pulled.slices), (Version(0), vec![SliceId(0), SliceId(2)]));
    let before_values = floats(&before);
    assert_eq!(before_values[1], [3.0, 3.0]);
    let (pushed, after) = state.push(&push(1), gradients(2.0, -4.0)).unwrap();
    assert_eq!((pushed.verdict, pushed.version), (Verdict::Applied, Version(1)));
    let expected: Vec<f32> = before_values[0].iter().map(|value| value - 1.0).collect();
    assert_eq!(floats(&after), [expected, vec![5.0, 5.0]]);
    // The values pulled earlier have not changed: no read is torn.
    assert_eq!(floats(&before), before_values);
}

#[test]
fn initial_values_do_not_depend_on_the_split() {
    let mut whole = Tested::new(1 << 20);
    let mut create_whole = create(OptimizerSpec::sgd(1.0), 1);
    create_whole.placement.slices[0].slice.rows = 5;
    create_whole.placement.slices.remove(1);
    let digest = create_whole.placement.digest();
    whole.create(create_whole).unwrap();
    let (_, all) = whole.pull(&latest(digest)).unwrap();
    let mut part = shard(OptimizerSpec::sgd(1.0), 1);
    let (_, some) = part.pull(&latest(push(1).placement_digest)).unwrap();
    assert_eq!(all.segments()[0].as_f32()[..4], *some.segments()[0].as_f32());
}

#[test]
fn the_learning_rate_follows_the_schedule() {
    let mut state = Tested::new(1 << 20);
    let mut create = create(OptimizerSpec::sgd(1.0), 2);
    create.update.schedule = ScheduleSpec::Cosine;
    state.create(create).unwrap();
    let (_, first) = state.push(&push(1), gradients(0.0, 1.0)).unwrap();
    let (_, second) = state.push(&push(2), gradients(0.0, 1.0)).unwrap();
    // The first update subtracts 1. The second subtracts 0.5, because the learning rate is halved at half
    // the steps.
    assert_eq!((floats(&first)[1][0], floats(&second)[1][0]), (2.0, 1.5));
}

#[test]
fn pulled_averages_have_the_version_of_the_values() {
    let mut state = Tested::new(1 << 20);
    let mut create = create(OptimizerSpec::sgd(1.0), 5);
    create.update.average = Some(0.5);
    create.variables[0].trainable = false;
    state.create(create).unwrap();
    state.push(&push(1), gradients(1.0, 1.0)).unwrap();
    let pull = latest(push(1).placement_digest);
    let (_, values) = state.pull(&pull).unwrap();
    let (pulled, averages) = state.pull(&Pull { averages: true, ..pull }).unwrap();
    assert_eq!((pulled.version, pulled.slices.len()), (Version(1), 2));
    // The value goes from 3 to 2, and the average follows with a decay of 1/10. An untrained variable has no
    // average.
    assert_eq!((floats(&values)[1][0], floats(&averages)[1][0]), (2.0, 2.1));
    assert_eq!(floats(&values)[0], floats(&averages)[0]);
}

#[test]
fn momentum_and_adam_keep_their_slots() {
    let mut state = shard(OptimizerSpec::momentum(1.0, 0.5), 10);
    state.push(&push(1), gradients(0.0, 1.0)).unwrap();
    let (_, after) = state.push(&push(2), gradients(0.0, 1.0)).unwrap();
    // The velocity is 1 and then 1.5, so the value is 3 − 1 − 1.5.
    assert_eq!(floats(&after)[1], [0.5, 0.5]);
    let mut state = shard(OptimizerSpec::adam(0.1), 10);
    for sequence in 1..=3 {
        let (pushed, after) = state.push(&push(sequence), gradients(0.0, 5.0)).unwrap();
        // With a constant gradient, every step of Adam changes the value by the learning rate.
        let expected = 3.0 - 0.1 * sequence as f32;
        assert!(
            (floats(&after)[1][0] - expected).abs() < 1e-4,
            "{:?} at {:?}",
            floats(&after),
            pushed.version
        );
    }
}

#[test]
fn a_push_that_does_not_fit_changes_nothing() {
    let mut state = shard(OptimizerSpec::sgd(1.0), 10);
    let refused = |state: &mut Tested, change: fn(&mut Push), payload: Payload| {
        let mut push = push(1);
        change(&mut push);
        let refusal = state.push(&push, payload).unwrap_err();
        assert_eq!(state.observe().version, Version(0));
        refusal
    };
    let state = &mut state;
    assert!(refused(state, |p| p.epoch = PlacementEpoch(2), gradients(1.0, 1.0)).reason.contains("epoch 1"));
    assert!(
        refused(state, |p| p.placement_digest ^= 1, gradients(1.0, 1.0))
            .reason
            .contains("expected placement")
    );
    assert!(
        refused(state, |p| p.slices[0] = SliceId(1), gradients(1.0, 1.0)).reason.contains("all 2 slices")
    );
    assert!(refused(state, |p| p.version = Version(4), gradients(1.0, 1.0)).reason.contains("version 4"));
    assert!(refused(state, |p| p.id.sequence = Sequence(2), gradients(1.0, 1.0)).reason.contains("number 1"));
    let wrong_size = refused(state, |_| {}, payload(&[&[1.0; 3], &[1.0; 4]]));
    assert!(wrong_size.reason.contains("variable 'b' must have 8 bytes, but has 12"));
    for bad in [f32::NAN, f32::INFINITY] {
        let refusal = refused(state, |_| {}, gradients(1.0, bad));
        assert_eq!(refusal.code, RefusalCode::NotFinite);
        assert!(refusal.reason.contains("variable 'b' from worker/0"));
    }
    let counters = state.observe().pushes;
    assert_eq!((counters.received, counters.refused), (8, 8));
    state.push(&push(1), gradients(1.0, 1.0)).unwrap();
}

#[test]
fn a_shard_too_large_for_a_frame_is_not_allocated() {
    let mut state = Tested::new(100);
    let mut huge = create(OptimizerSpec::sgd(1.0), 5);
    huge.variables[1].shape = [1, 1 << 39].into();
    let refusal = state.create(huge).unwrap_err();
    assert!(refusal.reason.contains("may hold at most 100"), "{refusal}");
    assert_eq!(state.observe().slices, 0);
}

#[test]
fn a_shard_that_a_worker_used_refuses_another_job() {
    let mut state = Tested::new(1 << 20);
    assert_eq!(state.push(&push(1), gradients(1.0, 1.0)).unwrap_err().code, RefusalCode::RolledBack);
    state.create(create(OptimizerSpec::sgd(1.0), 5)).unwrap();
    state.create(create(OptimizerSpec::sgd(1.0), 5)).unwrap();
    state.create(create(OptimizerSpec::sgd(0.5), 5)).unwrap();
    state.pull(&latest(push(1).placement_digest)).unwrap();
    state.create(create(OptimizerSpec::sgd(2.0), 5)).unwrap();
    let (_, values) = state.push(&push(1), gradients(0.0, 1.0)).unwrap();
    assert_eq!(floats(&values)[1], [1.0, 1.0], "the last creation counts");
    state.create(create(OptimizerSpec::sgd(2.0), 5)).unwrap();
    let refusal = state.create(create(OptimizerSpec::sgd(1.0), 5)).unwrap_err();
    assert!(refusal.reason.contains("already serves another job"), "{refusal}");
    assert_eq!(state.observe().version, Version(1));
}

proptest! {
    /// Checks the invariants of a shard (V1 to V3, see the head of this file) under pushes that are new,
    /// repeated, early, invalid or sent after the shard's last step, in any order.
    #[test]
    fn versions_never_decrease_and_counts_add_up(
        last_step in 1u64..20,
        pipeline in 1u32..4,
        pushes in prop::collection::vec((0u32..3, 0u8..10, 0u64..3), 0..120),
    ) {
        let mut state = Tested::new(1 << 20);
        state.create(CreateShard { pipeline, ..create(OptimizerSpec::sgd(0.1), last_step) }).unwrap();
        let pipeline = u64::from(pipeline);
        let mut next = [1u64; 3];
        let mut version = Version(0);
        let (mut applied, mut not_finite) = (0, 0);
        for (worker, kind, other) in pushes {
            let other = 1 + other % pipeline;
            let mut push = push(next[worker as usize]);
            push.id.worker = worker;
            let gradients = if kind == 0 { gradients(f32::NAN, 0.0) } else { gradients(1.0, 1.0) };
            if kind == 1 && push.id.sequence.0 > other {
                push.id.sequence.0 -= other;
            } else if kind == 2 {
                push.id.sequence.0 += other;
            }
            let again = push.id.sequence.0 < next[worker as usize];
            match state.push(&push, gradients) {
                Ok((pushed, _)) => {
                    prop_assert!(pushed.version >= version);
                    prop_assert_eq!(pushed.staleness, if again { 0 } else { version.0 });
                    if again {
                        prop_assert_eq!(pushed.version, version);
                    } else {
                        next[worker as usize] += 1;
                        applied += u64::from(pushed.verdict == Verdict::Applied);
                    }
                    version = pushed.version;
                }
                Err(refusal) => {
                    prop_assert!(kind == 0 || kind == 2);
                    let early = push.id.sequence.0 > next[worker as usize] && other < pipeline;
                    prop_assert_eq!(refusal.code == RefusalCode::Again, early, "{}", refusal);
                    not_finite += u64::from(refusal.code == RefusalCode::NotFinite);
                }
            }
            let snapshot = state.observe();
            prop_assert!(snapshot.pushes.add_up());
            prop_assert_eq!(snapshot.version, Version(applied));
            prop_assert_eq!(snapshot.staleness.count(), applied);
            prop_assert_eq!(snapshot.applying.count(), applied);
            prop_assert_eq!(snapshot.not_finite, not_finite);
            prop_assert!(applied <= last_step);
        }
    }
}

#[test]
fn a_push_that_overtakes_another_is_asked_for_again() {
    let mut state = Tested::new(1 << 20);
    state.create(CreateShard { pipeline: 2, ..create(OptimizerSpec::sgd(1.0), 10) }).unwrap();
    let refusal = state.push(&push(2), gradients(0.0, 2.0)).unwrap_err();
    assert_eq!((refusal.code, state.observe().version), (RefusalCode::Again, Version(0)));
    state.push(&push(1), gradients(0.0, 1.0)).unwrap();
    let (pushed, values) = state.push(&push(2), gradients(0.0, 2.0)).unwrap();
    assert_eq!((pushed.verdict, pushed.version, floats(&values)[1][0]), (Verdict::Applied, Version(2), 0.0));
    // Both may still be unanswered, so both may arrive again.
    for sequence in [1, 2] {
        let (pushed, values) = state.push(&push(sequence), gradients(0.0, 9.0)).unwrap();
        assert_eq!((pushed.verdict, pushed.version, pushed.staleness), (Verdict::Applied, Version(2), 0));
        assert_eq!(floats(&values)[1][0], 0.0, "it counts once");
    }
    assert_eq!(state.push(&push(5), gradients(0.0, 1.0)).unwrap_err().code, RefusalCode::Misfit);
    let counters = state.observe().pushes;
    assert_eq!((counters.applied, counters.duplicate, counters.refused), (2, 2, 2));
}

#[test]
fn a_push_is_subtracted_from_an_untrained_variable() {
    for optimizer in [OptimizerSpec::sgd(0.1), OptimizerSpec::momentum(0.1, 0.9), OptimizerSpec::adam(0.1)] {
        let mut create = create(optimizer, 3);
        create.variables[1].trainable = false;
        create.update.schedule = ScheduleSpec::Cosine;
        let mut state = Tested::new(1 << 20);
        state.create(create).unwrap();
        for (sequence, expected) in [(1, 2.75), (2, 2.5), (3, 2.25)] {
            let (pushed, values) = state.push(&push(sequence), gradients(0.0, 0.25)).unwrap();
            assert_eq!(pushed.verdict, Verdict::Applied);
            assert_eq!(values.segments()[1].as_f32(), [expected; 2]);
        }
    }
}
