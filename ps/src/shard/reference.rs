//! Compares the updates of slices, on the processor and on a device, with the updates that other libraries
//! make, step by step. The script
//! `testdata/generate.py` trained with those libraries and wrote the expected values to files.

use std::collections::BTreeMap;
use std::sync::Arc;

use pushpull_kernels::cpu::Threads;
use pushpull_messages::id::{GlobalStep, SliceId, VariableId, Version};
use pushpull_messages::optimizer::UpdateSpec;
use pushpull_messages::placement::SliceSpec;
use pushpull_messages::tensor::{DType, Shape};
use pushpull_messages::variable::{InitializerSpec, VariableSpec};
use pushpull_transport::buffer::{Buffer, BufferPool};
use serde_json::Value;

use super::cut::SliceState;
use super::on_device::Device;
use super::slice::Slice;
use super::tests::devices::emulated;
use super::update::Update;
use crate::device::MakeDevice;

/// The elements of every variable.
type Tensors = BTreeMap<String, Vec<f32>>;

/// The values of variables after every step of a run with another library.
struct Case {
    name: String,
    update: UpdateSpec,
    shapes: BTreeMap<String, Shape>,
    start: Tensors,
    /// For each step: the gradients, and the values after the step.
    steps: Vec<(Tensors, Tensors)>,
}

fn tensors(value: &Value) -> Tensors {
    serde_json::from_value(value.clone()).expect("numbers by variable")
}

fn cases(file: &str) -> Vec<Case> {
    let Value::Array(cases) = serde_json::from_str(file).expect("JSON") else { panic!("not a list") };
    assert!(!cases.is_empty());
    let case = |case: &Value| Case {
        name: case["name"].as_str().expect("a name").to_owned(),
        update: serde_json::from_value(case["update"].clone()).expect("an update"),
        shapes: serde_json::from_value(case["shapes"].clone()).expect("shapes"),
        start: tensors(&case["start"]),
        steps: case["steps"]
            .as_array()
            .expect("steps")
            .iter()
            .map(|step| (tensors(&step["gradients"]), tensors(&step["values"])))
            .collect(),
    };
    cases.iter().map(case).collect()
}

fn variable(case: &Case, name: &str) -> VariableSpec {
    let (shape, initializer) = (case.shapes[name].clone(), InitializerSpec::Zeros);
    VariableSpec {
        name: name.to_owned(),
        shape,
        dtype: DType::F32,
        initializer,
        trainable: true,
        device: None,
    }
}

fn slice(case: &Case, name: &str, device: Option<&Device>) -> Slice {
    let variable = variable(case, name);
    let whole = SliceSpec::whole(VariableId(0), &variable);
    let value = Arc::new(Buffer::from_f32(&case.start[name]));
    let found = SliceState { id: SliceId(0), value, average: None, slots: Vec::new() };
    let slice =
        Slice::new(SliceId(0), &whole, &variable, &case.update, 0, Some(found), &BufferPool::default());
    match device {
        Some(device) => slice.moved_to(device, &case.update).unwrap(),
        None => slice,
    }
}

/// Checks the slices of all cases in a file. With a `device`, they keep their slots there.
fn check(file: &str, device: Option<&MakeDevice>) {
    let device = device.map(|make| Device::open(make).unwrap());
    let pool = BufferPool::default();
    for case in cases(file) {
        case.update.validate().unwrap();
        case.update
            .validate_groups(&case.shapes.keys().map(|name| variable(&case, name)).collect::<Vec<_>>())
            .unwrap();
        let mut slices: BTreeMap<&str, Slice> =
            case.shapes.keys().map(|name| (name.as_str(), slice(&case, name, device.as_ref()))).collect();
        assert!(case.steps.len() >= 10);
        for ((gradients, values), version) in case.steps.iter().zip(0..) {
            let update = Update::new(&case.update, Version(version), GlobalStep(1000), 1.0, 1);
            for (name, slice) in &mut slices {
                slice.apply(&[&gradients[*name]], None, &update, &pool, Threads::One).unwrap();
                slice.finish().unwrap();
                for (got, want) in slice.snapshot().as_f32().iter().zip(&values[*name]) {
                    let off = (got - want).abs();
                    assert!(off < 1e-5, "{}, '{name}' after {version}: {got}, not {want}", case.name);
                }
            }
        }
    }
}

#[test]
fn groups_agree_with_those_of_pytorch() {
    check(include_str!("testdata/torch.json"), None);
}

#[test]
fn lamb_and_lion_agree_with_optax() {
    check(include_str!("testdata/optax.json"), None);
}

#[test]
fn a_device_agrees_with_pytorch_and_optax() {
    let Some(device) = emulated() else { return };
    check(include_str!("testdata/torch.json"), Some(&device));
    check(include_str!("testdata/optax.json"), Some(&device));
}
