//! Shards that keep their slots on a device, which is emulated. They have the values of shards on the host,
//! and a device that fails ends its shard without an answer that has values.

use std::sync::atomic::Ordering;

use pushpull_cuda::DriverError;
use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::compression::EncodingSpec;
use pushpull_messages::id::{GlobalStep, Incarnation, Version};
use pushpull_messages::message::{CreateShard, Pull, PullAt, Push, PushId, Pushed, RefusalCode, Save};
use pushpull_messages::optimizer::{OptimizerSpec, UpdateSpec};
use pushpull_messages::sync::SyncSpec;
use pushpull_transport::buffer::{BufferPool, Payload};

use super::compressed::{self, shard_on};
use super::devices::{assert_close, emulated, failing};
use super::drafts::{draft, join};
use super::pushes::{Tested, create, floats, latest, only, payload, push};
use crate::device::MakeDevice;
use crate::shard::draft::Draft;
use crate::shard::{Answer, Cut, FileRequest, Gradients, Reader, Stage, UpdateThreads};

fn assert_same(what: &str, got: &Payload, expected: &Payload) {
    assert_eq!(got.segments().len(), expected.segments().len(), "{what}");
    for (got, expected) in floats(got).iter().zip(floats(expected)) {
        assert_close(what, got, &expected);
    }
}

/// Returns a shard of a job with Adam, which keeps its slots on a device if there is one.
fn adam(device: Option<&MakeDevice>) -> Tested {
    let mut state = Tested::new(1 << 20);
    state.0 = state.0.on_device(device.cloned());
    let update = UpdateSpec { average: Some(0.9), ..OptimizerSpec::adam(0.1).into() };
    state.create(CreateShard { update, ..create(OptimizerSpec::sgd(1.0), 20) }).unwrap();
    join(&mut state);
    state
}

fn gradients(sequence: u64) -> Payload {
    let x = sequence as f32 / 3.0 - 1.0;
    payload(&[&[x, -x], &[x, 2.0 * x, 0.5, -x]])
}

#[test]
fn drafts_on_a_device_have_the_values_of_the_host() {
    let Some(device) = emulated() else { return };
    for optimizer in [OptimizerSpec::sgd(0.1), OptimizerSpec::adam(0.1)] {
        let [mut on_device, mut host] = [Some(&device), None].map(|device| {
            let mut state = Tested::new(1 << 20);
            state.0 = state.0.on_device(device.cloned());
            state.create(create(optimizer.clone(), 20)).unwrap();
            join(&mut state);
            state
        });
        for sequence in 1..=6 {
            let (push, gradients) = (push(sequence), gradients(sequence));
            let expected = only::<Pushed>(host.0.push(&push, gradients.clone(), 1, ()));
            let gradients = match sequence % 3 {
                0 => Gradients::Arrived(gradients),
                _ => Gradients::Drafted(
                    draft(&on_device, &push, &gradients, &[3, 8]).expect("the shard makes drafts"),
                ),
            };
            let got = only::<Pushed>(on_device.0.push(&push, gradients, 1, ()));
            let ((got, values), (expected, exact)) = (got.unwrap(), expected.unwrap());
            assert_eq!(got, expected);
            assert_same("the values of a reply", &values, &exact);
        }
    }
}

/// Returns a job with two variables, one of which is so large that its gradients are copied to a device while
/// they arrive.
fn large(optimizer: OptimizerSpec, average: Option<f32>) -> CreateShard {
    const ROWS: usize = (9 << 20) / 8;
    let update = UpdateSpec { average, ..optimizer.clone().into() };
    let mut large = CreateShard { update, ..create(optimizer, 20) };
    large.variables[0].shape = [ROWS + 3, 2].into();
    large.placement.slices[0].slice.rows = ROWS as u64;
    large.placement.slices[1].slice.row = ROWS as u64;
    large
}

/// Returns a shard of `own` whose only worker has joined.
fn joined(own: &CreateShard, device: Option<&MakeDevice>) -> Tested {
    let three =
        UpdateThreads::new(3, |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().ok());
    let Tested(state) = Tested::new(64 << 20);
    let mut state = Tested(state.on_device(device.cloned()).shared_by(three));
    state.create(own.clone()).unwrap();
    let pull = Pull { at: PullAt::Join, ..latest(own.placement.digest()) };
    let reader = Reader { worker: 0, incarnation: push(1).id.incarnation, connection: 1 };
    state.0.pull(&pull, Some(reader), ());
    state
}

/// Returns gradients for [`large`].
fn large_gradients(own: &CreateShard, small: f32, last: f32) -> Payload {
    let elements = own.placement.slices[0].slice.rows as usize * 2;
    let mut gradient: Vec<f32> = (0..elements).map(|at| (at % 1999) as f32 / 1000.0 - 0.5).collect();
    gradient[elements - 1] = last;
    payload(&[&[0.5, small], &gradient])
}

/// Drafts a push whose gradients are on the device before the update.
fn uploaded(state: &Tested, push: &Push, gradients: &Payload) -> Draft {
    loop {
        let draft = draft(state, push, gradients, &[300_000, 7]).expect("the shard makes drafts");
        // The thread may still have gradients of a draft that was dropped.
        if draft.is_uploaded() {
            return draft;
        }
    }
}

/// Drafts pushes whose gradients are on the device before the update, and drops some of these drafts. An
/// element may be NaN, of a gradient that is checked as it arrives or of one that is checked later; such a
/// push must not be applied.
#[test]
fn large_drafts_on_a_device_have_the_host_s_values() {
    let Some(device) = emulated() else { return };
    for (optimizer, average) in [(OptimizerSpec::sgd(0.1), None), (OptimizerSpec::adam(0.1), Some(0.5))] {
        let own = large(optimizer, average);
        let [mut on_device, mut host] = [Some(&device), None].map(|device| joined(&own, device));
        let (x, nan) = (-0.5, f32::NAN);
        for (sequence, small, last) in [(1, x, 0.5), (2, x, nan), (2, nan, 1.0), (2, x, -0.25), (3, x, 2.0)] {
            let push = Push { placement_digest: own.placement.digest(), ..push(sequence) };
            let gradients = large_gradients(&own, small, last);
            drop(draft(&on_device, &push, &large_gradients(&own, -0.5, 9.0), &[300_000]));
            let draft = uploaded(&on_device, &push, &gradients);
            let got = only::<Pushed>(on_device.0.push(&push, Gradients::Drafted(draft), 1, ()));
            let expected = only::<Pushed>(host.0.push(&push, gradients, 1, ()));
            match (got, expected) {
                (Ok((got, values)), Ok((expected, exact))) => {
                    assert!(!small.is_nan() && !last.is_nan());
                    assert_eq!(got, expected);
                    assert_same("the values of a reply", &values, &exact);
                }
                (got, expected) => {
                    let [got, expected] = [got, expected].map(|pushed| pushed.unwrap_err());
                    assert!(small.is_nan() || last.is_nan());
                    assert_eq!((got.code, got.reason), (expected.code, expected.reason));
                }
            }
        }
    }
}

/// Overtakes a draft whose gradients are on the device, and applies one after the shard was created again, on
/// another device.
#[test]
fn uploaded_gradients_count_only_for_their_update() {
    let Some(device) = emulated() else { return };
    let own = large(OptimizerSpec::sgd(0.5), None);
    let [mut on_device, mut host] = [Some(&device), None].map(|device| joined(&own, device));
    let push = |sequence| Push { placement_digest: own.placement.digest(), ..push(sequence) };
    let overtaken = uploaded(&on_device, &push(1), &large_gradients(&own, -0.5, 7.0));
    let other = Push { id: PushId { worker: 1, ..push(1).id }, ..push(1) };
    for state in [&mut on_device, &mut host] {
        only::<Pushed>(state.0.push(&other, large_gradients(&own, -0.5, 1.0), 1, ())).unwrap();
    }
    let refusal = only::<Pushed>(on_device.0.push(&push(1), Gradients::Drafted(overtaken), 1, ()));
    assert_eq!(refusal.unwrap_err().code, RefusalCode::Again);

    let earlier = uploaded(&joined(&own, Some(&device)), &push(1), &large_gradients(&own, -0.5, 3.0));
    let [mut on_device, mut host] = [Some(&device), None].map(|device| joined(&own, device));
    let (_, got) = only::<Pushed>(on_device.0.push(&push(1), Gradients::Drafted(earlier), 1, ())).unwrap();
    let (_, expected) =
        only::<Pushed>(host.0.push(&push(1), large_gradients(&own, -0.5, 3.0), 1, ())).unwrap();
    assert_same("the values of another device", &got, &expected);
}

#[test]
fn rounds_of_workers_have_the_values_of_the_host() {
    let Some(device) = emulated() else { return };
    for sync in ["async:staleness-lr", "sync", "sync:1"] {
        for encoding in [None, Some(EncodingSpec::Bf16), Some(EncodingSpec::Int8)] {
            let own = CreateShard {
                update: UpdateSpec { weight_decay: 0.01, ..OptimizerSpec::lamb(0.1).into() },
                ..compressed::create(compressed::entry(encoding, None), sync.parse::<SyncSpec>().unwrap())
            };
            let shard =
                |device: Option<&MakeDevice>| shard_on(device.cloned(), own.clone(), BufferPool::default());
            let (mut on_device, mut host) = (shard(Some(&device)), shard(None));
            let digest = own.placement.digest();
            for round in 0..3 {
                for worker in 0..2 {
                    let push = compressed::push(&own, worker, round);
                    let seed = 2 * round + u64::from(worker);
                    let (sent, _) = compressed::encoded(encoding, &compressed::gradients(seed));
                    let got = on_device.push(&push, sent.clone(), 1, worker);
                    let expected = host.push(&push, sent, 1, worker);
                    assert_eq!(got.len(), expected.len());
                    for (got, expected) in got.into_iter().zip(expected) {
                        let ((got, values), (expected, exact)) =
                            (got.result.unwrap(), expected.result.unwrap());
                        assert_eq!(got, expected);
                        assert_same(sync, &values, &exact);
                    }
                }
                let [got, expected] =
                    [&mut on_device, &mut host].map(|state| compressed::exact(state, digest));
                assert_same(sync, &got, &expected);
            }
        }
    }
}

/// Checks that a shard has lost its variables with its device.
fn assert_lost(state: &mut Tested, answers: &[Answer<()>]) {
    assert!(answers.iter().all(|answer| answer.values.is_none()), "no answer has values: {answers:?}");
    assert_eq!(state.0.device_error(), Some(&DriverError::Failed("it fell off the bus".to_owned())));
    assert_eq!(state.0.stage(), Stage::Empty);
    let refusal = state.pull(&latest(push(1).placement_digest)).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::Unavailable);
}

#[test]
fn a_device_that_fails_takes_the_variables_with_it() {
    // An update of a slice runs two kernels: the optimizer, and the moving average.
    for kernels in [4, 5, 6] {
        for drafted in [false, true] {
            let Some((device, left)) = failing(kernels) else { return };
            let mut state = adam(Some(&device));
            state.0.push(&push(1), gradients(1), 1, ());
            assert!(state.0.device_error().is_none());
            assert_eq!(left.load(Ordering::Relaxed), kernels - 4);
            let second: Push = push(2);
            let gradients = match drafted {
                true => Gradients::Drafted(draft(&state, &second, &gradients(2), &[8]).expect("a draft")),
                false => gradients(2).into(),
            };
            let answers = state.0.push(&second, gradients, 1, ());
            assert_lost(&mut state, &answers);
        }
    }
}

#[test]
fn a_held_push_is_lost_with_the_device() {
    let Some((device, _)) = failing(0) else { return };
    let own = CreateShard { sync: SyncSpec::SYNC, ..create(OptimizerSpec::adam(0.1), 20) };
    let mut state = Tested::new(1 << 20);
    state.0 = state.0.on_device(Some(device));
    state.create(CreateShard { workers: 1, ..own }).unwrap();
    join(&mut state);
    let answers = state.0.push(&push(1), gradients(1), 1, ());
    assert_lost(&mut state, &answers);
}

#[test]
fn a_device_that_cannot_be_opened_refuses_the_variables() {
    let words = "this machine has no NVIDIA driver";
    let device = MakeDevice::new(move || Err(DriverError::Unavailable(words.to_owned())));
    let mut state = Tested::new(1 << 20);
    state.0 = state.0.on_device(Some(device));
    let refusal = state.create(create(OptimizerSpec::adam(0.1), 20)).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::Misfit);
    assert!(refusal.reason.contains("ps/0/shard/0 cannot use its device: this machine has"), "{refusal}");
    assert_eq!((state.0.stage(), state.0.device_error()), (Stage::Empty, None));
}

#[test]
fn a_cut_shares_no_slot_with_a_device() {
    let Some(device) = emulated() else { return };
    let mut state = adam(Some(&device));
    state.0.push(&push(1), gradients(1), 1, ());
    let checkpoint = CheckpointName { step: GlobalStep(1), life: Incarnation(1) };
    let save = Save { shard: 0, store: "/c".into(), checkpoint, at: Version(1) };
    assert!(state.0.save(save, 1, ()).is_empty());
    let Some(FileRequest::Write(cut)) = state.0.take_file_request() else { panic!("a cut") };
    let slots = |cut: &Cut| {
        let slots = cut.slices.iter().flat_map(|slice| &slice.slots);
        slots.map(|slot| slot.as_f32().to_vec()).collect::<Vec<_>>()
    };
    let before = slots(&cut);
    assert!(before.len() == 4 && before.iter().flatten().any(|&x| x != 0.0), "{before:?}");
    state.0.push(&push(2), gradients(2), 1, ());
    assert_eq!(slots(&cut), before);
}
