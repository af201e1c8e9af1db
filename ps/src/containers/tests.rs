//! Tests of containers: the wanted properties under random changes, and from several threads.

use std::sync::Arc;

use proptest::prelude::*;
use pushpull_messages::graph::VariableUpdate;
use pushpull_messages::optimizer::OptimizerSpec;
use pushpull_messages::tensor::{DType, Tensor};
use pushpull_messages::variable::{InitializerSpec, VariableSpec};

use super::{ClientVariable, ContainerError, ContainerLimits, Containers};

/// The bytes that a variable takes besides its elements.
const OVERHEAD: u64 = 1024;

fn containers(bytes_max: u64, client_bytes_max: u64) -> Containers {
    Containers::new(ContainerLimits { bytes_max, client_bytes_max })
}

fn spec(name: &str, dtype: DType, elements: usize) -> VariableSpec {
    VariableSpec {
        name: name.into(),
        shape: [elements].into(),
        dtype,
        initializer: InitializerSpec::Constant { value: 2.0 },
        trainable: dtype == DType::F32,
        device: None,
    }
}

fn of(spec: &VariableSpec, client: u64) -> ClientVariable<'_> {
    ClientVariable { container: "c", spec, client, may_create: true }
}

#[test]
fn a_variable_begins_with_its_initial_value() {
    let held = containers(1 << 20, 1 << 20);
    let counter = spec("counter", DType::I64, 2);
    assert_eq!(*held.read(of(&counter, 1)).unwrap(), Tensor::from(vec![2i64, 2]));
    let term = Arc::new(Tensor::from(vec![5i64, -1]));
    let sum = held.update(of(&counter, 1), VariableUpdate::Add, &term).unwrap();
    assert_eq!(*sum, Tensor::from(vec![7i64, 1]));
    let before = held.read(of(&counter, 1)).unwrap();
    held.update(of(&counter, 1), VariableUpdate::Sub, &term).unwrap();
    assert_eq!(before, sum, "(B) a value that was read does not change");
    held.initialize(of(&counter, 1)).unwrap();
    assert_eq!(*held.read(of(&counter, 2)).unwrap(), Tensor::from(vec![2i64, 2]));
    let described = held.describe();
    assert_eq!((described[0].name.as_str(), described[0].variables[0].changes), ("c", 3));
    let other = VariableSpec { dtype: DType::F64, ..counter };
    assert_eq!(
        held.read(of(&other, 1)).unwrap_err().to_string(),
        "the container 'c' has a variable 'counter' of i64[2], expected f64[2]: use another name or container, or \
         reset the container"
    );
    assert_eq!(held.reset(&["d".into()]), 0);
    assert_eq!(held.reset(&["c".into()]), 1);
    assert_eq!(held.bytes().0, 0, "(C)");
    held.read(of(&other, 1)).unwrap();
}

#[test]
fn an_optimizer_keeps_its_slots_between_steps() {
    let held = containers(1 << 20, 1 << 20);
    let w = spec("w", DType::F32, 1);
    let momentum = OptimizerSpec::momentum(0.5, 0.5);
    let value = || held.read(of(&w, 1)).unwrap().f32s().unwrap()[0];
    held.apply(of(&w, 1), &momentum, &[1.0]).unwrap();
    assert_eq!(value(), 1.5);
    held.apply(of(&w, 1), &momentum, &[1.0]).unwrap();
    assert_eq!(value(), 0.75, "the velocity is 1.5");
    let error = held.apply(of(&w, 1), &momentum, &[f32::NAN]).unwrap_err();
    assert_eq!(error, ContainerError::NotFinite("w".into()));
    assert_eq!(value(), 0.75);
    held.apply(of(&w, 1), &OptimizerSpec::adam(0.1), &[1.0]).unwrap();
    assert!((value() - 0.65).abs() < 1e-6, "the first step of Adam is the learning rate");
    assert_eq!(held.bytes().0, 4 + 8 + OVERHEAD, "the value and Adam's two slots");
}

#[test]
fn limits_of_the_task_and_of_each_client_hold() {
    let held = containers(3 * (400 + OVERHEAD), 2 * (400 + OVERHEAD));
    let variables: Vec<VariableSpec> = (0..4).map(|i| spec(&format!("v{i}"), DType::F32, 100)).collect();
    held.read(of(&variables[0], 1)).unwrap();
    held.read(of(&variables[1], 1)).unwrap();
    let error = held.read(of(&variables[2], 1)).unwrap_err().to_string();
    assert_eq!(
        error,
        "variable 'v2' needs 1424 bytes more, but 0 of the 2848 bytes of the client are left: reset a container, or \
         raise --client-memory-limit"
    );
    held.read(of(&variables[2], 2)).unwrap();
    let error = held.read(of(&variables[3], 2)).unwrap_err().to_string();
    assert!(error.contains("of the task are left") && error.ends_with("raise --memory-limit"), "{error}");
    let error = held.apply(of(&variables[0], 1), &OptimizerSpec::adam(0.1), &[0.0; 100]).unwrap_err();
    assert!(matches!(error, ContainerError::NoMemory { bytes: 800, .. }), "slots count: {error}");
    held.apply(of(&variables[0], 1), &OptimizerSpec::sgd(0.1), &[0.0; 100]).unwrap();
    let text = spec("text", DType::Text, 1);
    let text = VariableSpec { initializer: InitializerSpec::Zeros, ..text };
    assert_eq!(held.reset(&[]), 3);
    held.read(of(&text, 1)).unwrap();
    let long = Arc::new(Tensor::from(vec!["x".repeat(4000)]));
    let error = held.update(of(&text, 1), VariableUpdate::Set, &long).unwrap_err();
    assert!(matches!(error, ContainerError::NoMemory { .. }), "{error}");
    assert_eq!(held.read(of(&text, 1)).unwrap().texts(), Some(&[String::new()][..]), "unchanged");
}

#[test]
fn no_addition_of_any_thread_is_lost() {
    let held = containers(1 << 20, 1 << 20);
    let counter = spec("counter", DType::I64, 3);
    std::thread::scope(|scope| {
        for client in 0..4 {
            let (held, counter) = (&held, &counter);
            scope.spawn(move || {
                let one = Arc::new(Tensor::from(vec![1i64; 3]));
                for _ in 0..500 {
                    held.update(of(counter, client), VariableUpdate::Add, &one).unwrap();
                    let read = held.read(of(counter, client)).unwrap();
                    let seen = read.i64s().unwrap();
                    assert!(seen.iter().all(|&own| own == seen[0]), "(A) no torn value: {seen:?}");
                }
            });
        }
    });
    assert_eq!(*held.read(of(&counter, 0)).unwrap(), Tensor::from(vec![2002i64; 3]));
}

proptest! {
    /// (C): after any changes, the bytes are those of the values and slots, and no limit is exceeded.
    #[test]
    fn the_bytes_are_those_of_all_variables(
        changes in prop::collection::vec((0usize..6, 0u64..3, 0u8..4, 1usize..200), 1..60),
    ) {
        let limits = (8000, 5000);
        let held = containers(limits.0, limits.1);
        for (variable, client, change, elements) in changes {
            let spec = spec(&format!("v{variable}"), DType::F32, 20 * (variable + 1));
            let gradient = vec![0.5; 20 * (variable + 1)];
            let value = Arc::new(Tensor::from(vec![1.0f32; 20 * (variable + 1)]));
            let _ = match change {
                0 => held.read(of(&spec, client)).map(drop),
                1 => held.update(of(&spec, client), VariableUpdate::Add, &value).map(drop),
                2 => held.apply(of(&spec, client), &OptimizerSpec::momentum(0.1, 0.5), &gradient),
                _ if elements < 20 => { held.reset(&[]); Ok(()) }
                _ => held.initialize(of(&spec, client)),
            };
            let (bytes, max) = held.bytes();
            prop_assert!(bytes <= max && max == limits.0);
            let variables: u64 = held.describe().iter().flat_map(|own| &own.variables).map(|own| {
                own.tensor.shape.elements() as u64 * 4 + OVERHEAD
            }).sum();
            prop_assert!(bytes >= variables, "{} of variables, {} counted", variables, bytes);
            prop_assert!(bytes <= 2 * variables, "a slot is as large as its variable");
        }
        held.reset(&[]);
        prop_assert_eq!(held.bytes().0, 0);
    }
}

#[test]
fn a_client_that_may_create_nothing_reads_what_exists() {
    let held = containers(1 << 20, 1 << 20);
    let counter = spec("counter", DType::I64, 2);
    let reader = ClientVariable { may_create: false, ..of(&counter, 2) };
    let error = held.read(reader).unwrap_err().to_string();
    assert!(error.starts_with("the container 'c' has no variable 'counter'"), "{error}");
    assert_eq!((held.describe().len(), held.bytes().0), (0, 0), "nothing was created");
    let value = held.read(of(&counter, 1)).unwrap();
    assert_eq!(held.read(reader).unwrap(), value);
}
