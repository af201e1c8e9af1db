//! Pushes with encoded gradients, and replies with encoded values.

use std::sync::Arc;

use proptest::prelude::*;
use pushpull_kernels::cpu::{Encoding, Threads};
use pushpull_messages::compression::{CompressionSpec, EncodingSpec};
use pushpull_messages::id::*;
use pushpull_messages::message::*;
use pushpull_messages::optimizer::OptimizerSpec;
use pushpull_messages::sync::SyncSpec;
use pushpull_transport::buffer::{Buffer, BufferPool, Payload, Segment};

use super::pushes::{create as small, floats, latest, payload};
use super::workers::appoint;
use crate::device::MakeDevice;
use crate::shard::{Answer, Newest, Reader, ShardLimits, ShardState, ValuesKind};

const TOP: EncodingSpec = EncodingSpec::TopK { fraction: 0.1 };
/// The numbers of elements of the slices of the shard, in the order of a push. The last one is so small that
/// `int8` would not make it smaller.
const ELEMENTS: [usize; 3] = [300, 2, 400];

/// Returns the request to create a shard with one half of the variable `a`, all of `b`, and all of `c`.
pub(super) fn create(compression: Vec<CompressionSpec>, sync: SyncSpec) -> CreateShard {
    let mut create = small(OptimizerSpec::sgd(0.5), 100);
    create.variables[0].shape = [500, 2].into();
    let mut last = create.variables[0].clone();
    (last.name, last.shape) = ("c".into(), [150, 2].into());
    create.variables.push(last);
    let slices = &mut create.placement.slices;
    (slices[0].slice.rows, slices[1].slice.row, slices[1].slice.rows) = (200, 200, 300);
    let mut last = slices[2];
    (last.slice.variable, last.slice.rows) = (VariableId(2), 150);
    slices.push(last);
    CreateShard { compression, sync, workers: 2, ..create }
}

pub(super) fn entry(gradients: Option<EncodingSpec>, values: Option<EncodingSpec>) -> Vec<CompressionSpec> {
    vec![CompressionSpec { variables: "*".into(), gradients, values }]
}

/// A shard whose two workers have joined. A reply handle is the index of the worker.
fn shard(create: CreateShard) -> ShardState<u32> {
    shard_with(create, BufferPool::default())
}

fn shard_with(create: CreateShard, pool: BufferPool) -> ShardState<u32> {
    shard_on(None, create, pool)
}

/// Returns such a shard that keeps its slots on a device.
pub(super) fn shard_on(device: Option<MakeDevice>, create: CreateShard, pool: BufferPool) -> ShardState<u32> {
    let limits = ShardLimits { values_bytes_max: 1 << 20, gradients_bytes_max: 1 << 20 };
    let mut state = ShardState::new(create.shard, pool, limits).on_device(device);
    let digest = create.placement.digest();
    assert!(state.create(create, 1, 9).remove(0).result.is_ok());
    for worker in 0..2 {
        appoint(&mut state, worker, 1, 9);
        let reader = Reader { worker, incarnation: Incarnation(1), connection: 1 };
        let join = Pull { at: PullAt::Join, ..latest(digest) };
        assert!(state.pull(&join, Some(reader), worker).remove(0).result.is_ok());
    }
    state
}

pub(super) fn push(create: &CreateShard, worker: u32, round: u64) -> Push {
    Push {
        shard: 0,
        id: PushId { worker, incarnation: Incarnation(1), sequence: Sequence(round + 1) },
        local_step: LocalStep(round),
        epoch: create.placement.epoch,
        placement_digest: create.placement.digest(),
        version: Version(round),
        slices: vec![SliceId(3), SliceId(2), SliceId(0)],
        drawn: 0,
        pull: true,
        traced: false,
        with: Vec::new(),
    }
}

fn kernel(spec: EncodingSpec) -> Encoding {
    match spec {
        EncodingSpec::Fp16 => Encoding::Fp16,
        EncodingSpec::Bf16 => Encoding::Bf16,
        EncodingSpec::Int8 => Encoding::Int8,
        EncodingSpec::TopK { fraction } => Encoding::TopK { fraction },
    }
}

/// Encodes slices, and returns them with what they are decoded to.
pub(super) fn encoded(spec: Option<EncodingSpec>, slices: &[Vec<f32>]) -> (Payload, Payload) {
    let (mut sent, mut decoded) = (Vec::new(), Vec::new());
    for numbers in slices {
        let encoding = spec.map(kernel).filter(|encoding| encoding.shrinks(numbers.len()));
        let (bytes, back) = match encoding {
            None => (Buffer::from_f32(numbers), numbers.clone()),
            Some(encoding) => {
                let mut bytes = Buffer::zeroed(encoding.bytes(numbers.len()));
                match encoding.has_remainder() {
                    true => {
                        let mut remainder = vec![0.0; numbers.len()];
                        encoding.encode_with_remainder(bytes.as_bytes_mut(), numbers, &mut remainder);
                    }
                    false => encoding.encode(bytes.as_bytes_mut(), numbers, Threads::One),
                }
                let mut back = vec![0.0; numbers.len()];
                encoding.decode(&mut back, bytes.as_bytes(), Threads::One).unwrap();
                (bytes, back)
            }
        };
        sent.push(Segment::whole(Arc::new(bytes)));
        decoded.push(back);
    }
    (Payload::new(sent), payload(&decoded.iter().map(Vec::as_slice).collect::<Vec<_>>()))
}

/// Returns gradients that differ with the seed.
pub(super) fn gradients(seed: u64) -> Vec<Vec<f32>> {
    let number = |at: usize| ((at as u64 * 37 + seed * 101) % 211) as f32 / 100.0 - 1.0;
    ELEMENTS.map(|elements| (0..elements).map(number).collect()).into()
}

fn bits(payload: &Payload) -> Vec<Vec<u8>> {
    payload.segments().iter().map(|segment| segment.as_bytes().to_vec()).collect()
}

pub(super) fn exact(state: &mut ShardState<u32>, digest: u32) -> Payload {
    state.pull(&latest(digest), None, 9).remove(0).result.unwrap().1
}

fn any_gradients() -> impl Strategy<Value = Option<EncodingSpec>> {
    prop::sample::select(vec![
        None,
        Some(EncodingSpec::Fp16),
        Some(EncodingSpec::Bf16),
        Some(EncodingSpec::Int8),
        Some(TOP),
    ])
}

proptest! {
    /// Drives a shard with compression and one without through the same rounds of both workers. The second
    /// one gets what the gradients are decoded to.
    #[test]
    fn an_encoded_push_is_the_push_that_it_is_decoded_to(
        pushes in any_gradients(),
        values in any_gradients(),
        sync in prop::sample::select(vec!["async", "bounded:1", "sync", "sync:1", "async:staleness-lr"]),
        seeds in prop::collection::vec(any::<[u8; 2]>(), 1..4),
    ) {
        let sync: SyncSpec = sync.parse().unwrap();
        let values = values.filter(|values| values.is_dense());
        let (own, plain) = (create(entry(pushes, values), sync), create(Vec::new(), sync));
        let digest = own.placement.digest();
        let (mut tested, mut model) = (shard(own.clone()), shard(plain));
        for (round, seeds) in (0..).zip(seeds) {
            for (worker, seed) in (0..).zip(seeds) {
                let push = push(&own, worker, round);
                let (sent, decoded) = encoded(pushes, &gradients(seed.into()));
                let got = tested.push(&push, sent, 1, worker);
                let expected = model.push(&push, decoded, 1, worker);
                prop_assert_eq!(got.len(), expected.len());
                for (got, expected) in got.into_iter().zip(expected) {
                    prop_assert_eq!(got.reply, expected.reply);
                    let ((got, sent), (expected, exact)) = (got.result.unwrap(), expected.result.unwrap());
                    prop_assert_eq!(got, expected);
                    prop_assert_eq!(bits(&sent), bits(&encoded(values, &floats(&exact)).0));
                }
            }
            prop_assert_eq!(bits(&exact(&mut tested, digest)), bits(&exact(&mut model, digest)), "(A)");
        }
    }
}

fn refused(answers: Vec<Answer<u32>>) -> Refusal {
    answers.into_iter().next().unwrap().result.unwrap_err()
}

/// Returns the segments of a valid push, with another one in the place of the first.
fn with_first(valid: &Payload, bytes: &[u8]) -> Payload {
    let mut first = Buffer::zeroed(bytes.len());
    first.as_bytes_mut().copy_from_slice(bytes);
    let first = Segment::whole(Arc::new(first));
    Payload::new(std::iter::once(first).chain(valid.segments()[1..].iter().cloned()).collect())
}

#[test]
fn a_hostile_push_is_refused_and_changes_nothing() {
    for gradients_as in [EncodingSpec::Fp16, EncodingSpec::Int8, TOP] {
        let own = create(entry(Some(gradients_as), None), SyncSpec::ASYNC);
        let mut state = shard(own.clone());
        let before = bits(&exact(&mut state, own.placement.digest()));
        let (valid, _) = encoded(Some(gradients_as), &gradients(1));
        let first = valid.segments()[0].as_bytes().to_vec();
        let mut push_first = |bytes: &[u8]| {
            let answers = state.push(&push(&own, 0, 0), with_first(&valid, bytes), 1, 0);
            refused(answers)
        };
        for bytes in [&first[4..], &[][..], &[0; 1200][..]] {
            let refusal = push_first(bytes);
            let words = format!("variable 'c' must have {} bytes, but has {}", first.len(), bytes.len());
            assert!(refusal.code == RefusalCode::Misfit && refusal.reason.contains(&words), "{refusal}");
        }
        let mut bad = first.clone();
        match gradients_as {
            EncodingSpec::TopK { .. } => {
                for (index, words) in [
                    (300u32, "slice 3 of variable 'c' cannot be decoded: index 29 is 300, expected at least"),
                    (u32::MAX, "and less than 300"),
                    (0, "index 29 is 0, expected at least"),
                ] {
                    bad[4 * 29..][..4].copy_from_slice(&index.to_le_bytes());
                    let refusal = push_first(&bad);
                    assert!(
                        refusal.code == RefusalCode::Misfit && refusal.reason.contains(words),
                        "{refusal}"
                    );
                }
                bad.clone_from(&first);
                bad[4 * 30..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
            }
            EncodingSpec::Int8 => bad[..4].copy_from_slice(&f32::NAN.to_le_bytes()),
            _ => bad[..2].copy_from_slice(&[0xff, 0xff]),
        }
        let refusal = push_first(&bad);
        assert!(refusal.code == RefusalCode::NotFinite && refusal.reason.contains("'c'"), "{refusal}");
        if gradients_as == EncodingSpec::Int8 {
            bad[..4].copy_from_slice(&1e30f32.to_le_bytes());
            assert!(push_first(&bad).reason.contains("'c' from worker/0 at its step 0 is too large"));
        }
        assert_eq!(bits(&exact(&mut state, own.placement.digest())), before);
        let answers = state.push(&push(&own, 0, 0), valid, 1, 0);
        assert!(answers[0].result.is_ok(), "the refused pushes left no trace in the ledger");
    }
}

#[test]
fn values_are_encoded_once_for_each_version() {
    let own = create(entry(None, Some(EncodingSpec::Int8)), SyncSpec::SYNC);
    let mut state = shard(own.clone());
    let mut places = Vec::new();
    for round in 0..2 {
        let (_, gradients) = encoded(None, &gradients(round));
        assert!(state.push(&push(&own, 0, round), gradients.clone(), 1, 0).is_empty(), "it waits");
        let answers = state.push(&push(&own, 1, round), gradients, 1, 1);
        let mut newest = Newest::default();
        state.refill(&mut newest);
        let payloads = answers.into_iter().map(|answer| answer.result.unwrap().1);
        let payloads: Vec<_> = payloads.chain([newest.payload(ValuesKind::Sent)]).collect();
        assert_eq!(payloads.len(), 3);
        let place = |payload: &Payload| payload.segments()[0].as_bytes().as_ptr();
        assert!(payloads.iter().all(|payload| place(payload) == place(&payloads[0])));
        assert_eq!(
            bits(&newest.payload(ValuesKind::Current)),
            bits(&exact(&mut state, push(&own, 0, 0).placement_digest))
        );
        assert_ne!(bits(&payloads[0]), bits(&newest.payload(ValuesKind::Current)));
        places.push(bits(&payloads[0]));
    }
    assert_ne!(places[0], places[1]);
}

#[test]
fn encoded_gradients_are_not_drafted() {
    let plan = |gradients, values| shard(create(entry(gradients, values), SyncSpec::ASYNC)).plan();
    assert!(plan(Some(EncodingSpec::Int8), None).is_none());
    assert!(plan(None, Some(EncodingSpec::Int8)).is_some());
}

#[test]
fn decoding_and_encoding_take_no_new_memory_after_some_rounds() {
    for sync in [SyncSpec::SYNC, SyncSpec::ASYNC] {
        let own = create(entry(Some(EncodingSpec::Int8), Some(EncodingSpec::Bf16)), sync);
        let pool = BufferPool::default();
        let mut state = shard_with(own.clone(), pool.clone());
        let (sent, _) = encoded(Some(EncodingSpec::Int8), &gradients(1));
        let mut round = |round| {
            for worker in 0..2 {
                drop(state.push(&push(&own, worker, round), sent.clone(), 1, worker));
            }
            pool.bytes_kept() + pool.bytes_used()
        };
        let warm = (0..3).map(&mut round).max();
        assert!((3..9).all(|number| Some(round(number)) == warm), "{sync}");
    }
}
