//! Tests that no gradient that a shard accepts, and no sum of such gradients, makes a value infinite or NaN.

use std::sync::Arc;

use proptest::prelude::*;
use pushpull_messages::checkpoint::StartSpec;
use pushpull_messages::gradient::GRADIENT_LIMIT;
use pushpull_messages::id::*;
use pushpull_messages::message::*;
use pushpull_messages::optimizer::OptimizerSpec;
use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
use pushpull_messages::sync::SyncSpec;
use pushpull_messages::tensor::DType;
use pushpull_messages::variable::{InitializerSpec, VariableSpec};
use pushpull_transport::buffer::{Buffer, BufferPool, Payload, Segment};

use super::workers::appoint;
use crate::shard::{ShardLimits, ShardState};

/// The number of elements of the variable.
const ROWS: usize = 3;
/// The number of workers, each of which gives one gradient to each update.
const WORKERS: u32 = 4;

fn create(optimizer: OptimizerSpec, deterministic: bool) -> CreateShard {
    let (shard, slice) =
        (ShardId::new(0, 0), SliceSpec { variable: VariableId(0), row: 0, rows: ROWS as u64 });
    let slices = vec![PlacedSlice { slice, shard }];
    let initializer = InitializerSpec::Constant { value: 1.0 };
    let (name, shape) = ("v".to_owned(), [ROWS].into());
    CreateShard {
        job: 0,
        shard,
        placement: Placement { epoch: PlacementEpoch(1), shards: vec![shard], slices },
        variables: vec![VariableSpec {
            name,
            shape,
            dtype: DType::F32,
            initializer,
            trainable: true,
            device: None,
        }],
        update: optimizer.into(),
        compression: Vec::new(),
        sync: SyncSpec::SYNC,
        pipeline: 1,
        deterministic,
        workers: WORKERS,
        last_step: GlobalStep(100),
        seed: 1,
        start: StartSpec::Initialise,
    }
}

fn optimizers() -> Vec<OptimizerSpec> {
    vec![
        OptimizerSpec::sgd(0.1),
        OptimizerSpec::momentum(0.1, 0.9),
        OptimizerSpec::adam(0.1),
        OptimizerSpec::adamw(0.1),
        OptimizerSpec::adagrad(0.1),
        OptimizerSpec::rmsprop(0.1),
        OptimizerSpec::ftrl(0.1),
        OptimizerSpec::lamb(0.1),
        OptimizerSpec::lion(0.1),
    ]
}

/// Draws an element of a gradient: usual, near the limit, or any finite number.
fn element() -> impl Strategy<Value = f32> {
    let largest = f32::from_bits(GRADIENT_LIMIT.to_bits() - 1);
    let extreme = vec![largest, -largest, GRADIENT_LIMIT, f32::MAX, f32::MIN, f32::MIN_POSITIVE];
    prop_oneof![
        -10f32..10.0,
        prop::sample::select(extreme),
        any::<f32>().prop_filter("finite", |x| x.is_finite())
    ]
}

fn payload(gradient: &[f32]) -> Payload {
    Payload::new(vec![Segment::whole(Arc::new(Buffer::from_f32(gradient)))])
}

proptest! {
    /// A worker whose gradient is refused pushes zeros instead.
    #[test]
    fn large_gradients_are_refused_and_values_stay_finite(
        optimizer in prop::sample::select(optimizers()),
        deterministic: bool,
        updates in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(element(), ROWS), WORKERS as usize),
            1..12,
        ),
    ) {
        let create = create(optimizer, deterministic);
        let limits = ShardLimits { values_bytes_max: 1 << 20, gradients_bytes_max: 1 << 20 };
        let mut state = ShardState::new(create.shard, BufferPool::default(), limits);
        let (epoch, placement_digest) = (PlacementEpoch(1), create.placement.digest());
        prop_assert!(state.create(create, 1, ()).remove(0).result.is_ok());
        (0..WORKERS).for_each(|worker| appoint(&mut state, worker, 1, ()));
        for (version, gradients) in (0..).zip(updates) {
            for (worker, gradient) in (0..).zip(gradients) {
                let push = Push {
                    shard: 0,
                    id: PushId { worker, incarnation: Incarnation(1), sequence: Sequence(version + 1) },
                    local_step: LocalStep(version),
                    epoch,
                    placement_digest,
                    version: Version(version),
                    slices: vec![SliceId(0)],
                    drawn: 0,
                    pull: true,
                    traced: false,
                    with: Vec::new(),
                };
                let before = state.observe().not_finite;
                let answers = state.push(&push, payload(&gradient), 1, ());
                let refused = state.observe().not_finite > before;
                prop_assert_eq!(refused, gradient.iter().any(|x| x.abs() >= GRADIENT_LIMIT));
                if refused {
                    let refusal = answers[0].result.as_ref().unwrap_err();
                    prop_assert!(refusal.reason.contains("variable 'v'"), "{}", refusal);
                    prop_assert!(refusal.reason.contains("is too large"), "{}", refusal);
                    state.push(&push, payload(&[0.0; ROWS]), 1, ());
                }
            }
            let pull = Pull { shard: 0, epoch, placement_digest, at: PullAt::Latest, averages: false };
            let (_, values) = state.pull(&pull, None, ()).remove(0).result.unwrap();
            prop_assert_eq!(state.observe().version, Version(version + 1));
            let values = values.segments()[0].as_f32();
            prop_assert!(values.iter().all(|value| value.is_finite()), "{:?}", values);
        }
    }
}
