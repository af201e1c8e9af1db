//! Tests that slices on an emulated device have the values, moving averages and slots of slices on the host.

use pushpull_kernels::cpu::Threads;
use pushpull_messages::id::{GlobalStep, SliceId, VariableId, Version};
use pushpull_messages::optimizer::{GroupSpec, OptimizerSpec, ScheduleSpec, UpdateSpec};
use pushpull_messages::placement::SliceSpec;
use pushpull_messages::tensor::DType;
use pushpull_messages::variable::{InitializerSpec, VariableSpec};
use pushpull_transport::buffer::BufferPool;

use super::*;
use crate::shard::slice::Slice;
use crate::shard::slice::tests::every_optimizer;
use crate::shard::tests::devices::{assert_close, emulated};

/// The variables: two that are usual, one of which is larger than a block of threads, one with a rule of its
/// own, one that is frozen, and one that is not trained.
const VARIABLES: [(&str, usize); 5] =
    [("usual", 21), ("large", 1500), ("special", 40), ("frozen", 9), ("untrained", 300)];

fn slice(name: &str, elements: usize, spec: &UpdateSpec) -> Slice {
    let initializer = InitializerSpec::Normal { mean: 0.0, stddev: 1.0 };
    let trainable = name != "untrained";
    let variable = VariableSpec {
        name: name.into(),
        shape: [elements].into(),
        dtype: DType::F32,
        initializer,
        trainable,
        device: None,
    };
    let whole = SliceSpec::whole(VariableId(0), &variable);
    Slice::new(SliceId(0), &whole, &variable, spec, 1, None, &BufferPool::default())
}

/// Returns a gradient of made-up numbers.
fn gradient(elements: usize, seed: u64) -> Vec<f32> {
    (0..elements as u64).map(|at| ((at * 31 + seed * 17) % 23) as f32 / 4.0 - 2.5).collect()
}

fn spec(optimizer: OptimizerSpec, average: Option<f32>) -> UpdateSpec {
    let special = GroupSpec::new("special").optimizer(OptimizerSpec::adagrad(0.2)).weight_decay(0.3);
    let groups = vec![special, GroupSpec { frozen: true, ..GroupSpec::new("frozen") }];
    UpdateSpec {
        schedule: ScheduleSpec::Linear,
        warm_up: 3,
        weight_decay: 0.05,
        average,
        groups,
        ..optimizer.into()
    }
}

#[test]
fn a_device_updates_slices_as_the_processor_does() {
    let Some(device) = emulated().map(|make| Device::open(&make).unwrap()) else { return };
    let pool = BufferPool::default();
    for optimizer in every_optimizer() {
        for (average, gradients) in [(None, 1), (Some(0.3), 3), (None, 2), (Some(0.3), 1)] {
            let spec = spec(optimizer.clone(), average);
            for (name, elements) in VARIABLES {
                let mut host = slice(name, elements, &spec);
                let mut on_device = slice(name, elements, &spec).moved_to(&device, &spec).unwrap();
                assert_eq!(on_device.slot_bytes(), host.slot_bytes());
                let what =
                    |part, version| format!("{}, {part} of '{name}' after {version}", spec.optimizer.name());
                for version in 0..4 {
                    let read = (version % 2 == 0).then(|| on_device.snapshot());
                    let copy = read.as_ref().map(|read| read.as_f32().to_vec());
                    let all: Vec<_> =
                        (0..gradients).map(|seed| gradient(elements, 5 * seed + version)).collect();
                    let all: Vec<&[f32]> = all.iter().map(Vec::as_slice).collect();
                    let update = Update::new(&spec, Version(version), GlobalStep(8), 0.5, gradients as u32);
                    for slice in [&mut host, &mut on_device] {
                        slice.apply(&all, None, &update, &pool, Threads::One).unwrap();
                        slice.finish().unwrap();
                    }
                    assert_eq!(read.map(|read| read.as_f32().to_vec()), copy, "no read is torn");
                    let (got, want) = (on_device.state().unwrap(), host.state().unwrap());
                    assert_close(&what("value", version), got.value.as_f32(), want.value.as_f32());
                    assert_eq!(got.average.is_some(), want.average.is_some());
                    for (got, want) in got.average.iter().zip(&want.average) {
                        assert_close(&what("average", version), got.as_f32(), want.as_f32());
                    }
                    assert_eq!(got.slots.len(), want.slots.len());
                    for (got, want) in got.slots.iter().zip(&want.slots) {
                        assert_close(&what("slot", version), got.as_f32(), want.as_f32());
                    }
                }
            }
        }
    }
}

#[test]
fn a_state_comes_back_with_the_same_bits() {
    let Some(device) = emulated().map(|make| Device::open(&make).unwrap()) else { return };
    for optimizer in every_optimizer() {
        let spec = spec(optimizer, Some(0.9));
        for (name, elements) in VARIABLES {
            let (host, on_device) = (slice(name, elements, &spec), slice(name, elements, &spec));
            let (got, want) =
                (on_device.moved_to(&device, &spec).unwrap().state().unwrap(), host.state().unwrap());
            let bytes =
                |slots: &[Arc<Buffer>]| slots.iter().map(|x| x.as_bytes().to_vec()).collect::<Vec<_>>();
            assert_eq!(bytes(&got.slots), bytes(&want.slots));
            assert_eq!(got.value.as_bytes(), want.value.as_bytes());
        }
    }
}
