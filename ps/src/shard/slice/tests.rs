//! Tests of slices on the host: updates agree with the formulas of the optimizers' papers, and buffers that
//! have readers do not change.

use pushpull_messages::id::{GlobalStep, VariableId, Version};
use pushpull_messages::optimizer::{OptimizerSpec, ScheduleSpec};
use pushpull_messages::tensor::DType;
use pushpull_messages::variable::InitializerSpec;

use super::*;
use crate::shard::on_device::Device;
use crate::shard::tests::devices::emulated;

const LAST_STEP: GlobalStep = GlobalStep(8);
/// The number of gradients that are summed for each update.
const GRADIENTS: u32 = 3;

/// A reference implementation for one element, in `f64`: its value, its slots and its moving average.
struct Model {
    value: f64,
    slots: [f64; 2],
    average: f64,
}

impl Model {
    /// Applies the update that turns `version` into the next version, with the formulas of the
    /// optimizers' papers. `sum` is the sum of the gradients. The learning rate is multiplied by `rate`.
    fn apply(&mut self, spec: &UpdateSpec, sum: f64, version: u64, rate: f64) {
        let share = version as f64 / LAST_STEP.0 as f64;
        let warm = ((version + 1) as f64 / spec.warm_up as f64).min(1.0);
        let factor = rate * warm * (1.0 - share);
        let gradient = sum / f64::from(GRADIENTS) + f64::from(spec.weight_decay) * self.value;
        let (optimizer, [a, b]) = (&spec.optimizer, &mut self.slots);
        let wide = f64::from;
        match *optimizer {
            OptimizerSpec::Sgd { learning_rate } => self.value -= wide(learning_rate) * factor * gradient,
            OptimizerSpec::Momentum { learning_rate, momentum, nesterov } => {
                *a = wide(momentum) * *a + gradient;
                let step = if nesterov { gradient + wide(momentum) * *a } else { *a };
                self.value -= wide(learning_rate) * factor * step;
            }
            OptimizerSpec::Adam { learning_rate, beta1, beta2, epsilon }
            | OptimizerSpec::AdamW { learning_rate, beta1, beta2, epsilon, .. } => {
                *a = wide(beta1) * *a + (1.0 - wide(beta1)) * gradient;
                *b = wide(beta2) * *b + (1.0 - wide(beta2)) * gradient * gradient;
                let corrected = |beta: f32| 1.0 - wide(beta).powi(version as i32 + 1);
                let rate = wide(learning_rate) * factor * corrected(beta2).sqrt() / corrected(beta1);
                if let OptimizerSpec::AdamW { weight_decay, .. } = *optimizer {
                    self.value *= 1.0 - wide(learning_rate) * factor * wide(weight_decay);
                }
                self.value -= rate * *a / (b.sqrt() + wide(epsilon));
            }
            OptimizerSpec::Adagrad { learning_rate, epsilon, .. } => {
                *a += gradient * gradient;
                self.value -= wide(learning_rate) * factor * gradient / (a.sqrt() + wide(epsilon));
            }
            OptimizerSpec::RmsProp { learning_rate, decay, momentum, epsilon } => {
                *a = wide(decay) * *a + (1.0 - wide(decay)) * gradient * gradient;
                let step = wide(learning_rate) * factor * gradient / (*a + wide(epsilon)).sqrt();
                *b = wide(momentum) * *b + step;
                self.value -= *b;
            }
            OptimizerSpec::Ftrl { learning_rate, l1, l2, .. } => {
                let n = *a + gradient * gradient;
                *b += factor * gradient - (n.sqrt() - a.sqrt()) / wide(learning_rate) * self.value;
                *a = n;
                let shrunk = b.signum() * (b.abs() - wide(l1)).max(0.0);
                self.value = -shrunk / (n.sqrt() / wide(learning_rate) + 2.0 * wide(l2));
            }
            OptimizerSpec::Lion { learning_rate, beta1, beta2, weight_decay } => {
                let sign = (wide(beta1) * *a + (1.0 - wide(beta1)) * gradient).signum();
                *a = wide(beta2) * *a + (1.0 - wide(beta2)) * gradient;
                self.value *= 1.0 - wide(learning_rate) * factor * wide(weight_decay);
                self.value -= wide(learning_rate) * factor * sign;
            }
            OptimizerSpec::Lamb { .. } => {
                unreachable!("its model, which needs norms, is beside its kernel")
            }
        }
        let decay = spec.average.map_or(0.0, wide).min((1 + version) as f64 / (10 + version) as f64);
        self.average = decay * self.average + (1.0 - decay) * self.value;
    }
}

fn slice(spec: &UpdateSpec, trainable: bool) -> Slice {
    let initializer = InitializerSpec::Normal { mean: 0.0, stddev: 1.0 };
    let variable = VariableSpec {
        name: "v".into(),
        shape: [7, 3].into(),
        dtype: DType::F32,
        initializer,
        trainable,
        device: None,
    };
    let whole = SliceSpec { variable: VariableId(0), row: 0, rows: 7 };
    Slice::new(SliceId(0), &whole, &variable, spec, 1, None, &BufferPool::default())
}

fn spec(optimizer: OptimizerSpec) -> UpdateSpec {
    let (schedule, average) = (ScheduleSpec::Linear, Some(0.3));
    UpdateSpec { schedule, warm_up: 3, weight_decay: 0.05, average, ..optimizer.into() }
}

/// Returns the made-up number that the tests use as the sum of an element's gradients in one update.
fn sum(step: u64, element: usize) -> f32 {
    ((step * 31 + element as u64 * 17) % 23) as f32 / 4.0 - 2.5
}

pub(in crate::shard) fn every_optimizer() -> Vec<OptimizerSpec> {
    vec![
        OptimizerSpec::sgd(0.1),
        OptimizerSpec::momentum(0.05, 0.9),
        OptimizerSpec::Momentum { learning_rate: 0.05, momentum: 0.9, nesterov: true },
        OptimizerSpec::adam(0.1),
        OptimizerSpec::AdamW { learning_rate: 0.1, beta1: 0.8, beta2: 0.9, epsilon: 1e-6, weight_decay: 0.5 },
        OptimizerSpec::adagrad(0.2),
        OptimizerSpec::rmsprop(0.02),
        OptimizerSpec::RmsProp { learning_rate: 0.02, decay: 0.8, momentum: 0.5, epsilon: 1e-4 },
        OptimizerSpec::Ftrl { learning_rate: 0.5, initial_accumulator: 0.1, l1: 0.05, l2: 0.1 },
        OptimizerSpec::Lion { learning_rate: 0.1, beta1: 0.8, beta2: 0.9, weight_decay: 0.5 },
        OptimizerSpec::lamb(0.1),
    ]
}

#[test]
fn every_optimizer_agrees_with_its_formula_in_f64() {
    let of_elements = |optimizer: &OptimizerSpec| !optimizer.needs_whole_variables();
    for optimizer in every_optimizer().into_iter().filter(of_elements) {
        let spec = spec(optimizer);
        let pool = BufferPool::default();
        let mut slice = slice(&spec, true);
        let [first, second] = [0, 1].map(|at| optimizer::slots(&spec.optimizer).get(at).copied());
        let slots = [first, second].map(|slot| f64::from(slot.unwrap_or(0.0)));
        let start = slice.snapshot();
        assert_eq!(slice.averaged().as_f32(), start.as_f32(), "an average begins with the value");
        let model = |&value: &f32| Model { value: value.into(), slots, average: value.into() };
        let mut models: Vec<Model> = start.as_f32().iter().map(model).collect();
        for version in 0..LAST_STEP.0 {
            let rate = 1.0 / (1 + version % 2) as f32;
            let gradient: Vec<f32> = (0..models.len()).map(|element| sum(version, element)).collect();
            let update = Update::new(&spec, Version(version), LAST_STEP, rate, GRADIENTS);
            slice.apply(&[&gradient], None, &update, &pool, Threads::One).unwrap();
            for (element, model) in models.iter_mut().enumerate() {
                model.apply(&spec, f64::from(gradient[element]), version, f64::from(rate));
                for (got, want) in [(slice.snapshot(), model.value), (slice.averaged(), model.average)] {
                    let got = f64::from(got.as_f32()[element]);
                    assert!(
                        (got - want).abs() < 1e-5 * (1.0 + want.abs()),
                        "{} after {version}: element {element} is {got}, but should be {want}",
                        spec.optimizer.name()
                    );
                }
            }
        }
        assert_ne!(slice.averaged().as_f32(), slice.snapshot().as_f32());
    }
}

#[test]
fn the_mean_push_is_subtracted_from_an_untrained_variable() {
    for optimizer in every_optimizer() {
        let spec = spec(optimizer);
        let mut slice = slice(&spec, false);
        let before = slice.snapshot();
        let update = Update::new(&spec, Version(5), LAST_STEP, 0.5, 4);
        slice.apply(&[&[2.0; 21]], None, &update, &BufferPool::default(), Threads::One).unwrap();
        let expected: Vec<f32> = before.as_f32().iter().map(|value| value - 0.5).collect();
        assert_eq!(slice.snapshot().as_f32(), expected);
        assert_eq!(slice.averaged().as_f32(), expected);
    }
}

#[test]
fn a_slice_that_is_not_chosen_has_no_average() {
    let of = |pattern: &str| UpdateSpec {
        average_variables: vec![pattern.into()],
        ..spec(OptimizerSpec::sgd(1.0))
    };
    for (pattern, averaged) in [("v*", true), ("w", false)] {
        let spec = of(pattern);
        let mut slice = slice(&spec, true);
        let update = Update::new(&spec, Version(0), LAST_STEP, 1.0, 1);
        slice.apply(&[&[1.0; 21]], None, &update, &BufferPool::default(), Threads::One).unwrap();
        assert_eq!(slice.averaged().as_f32() != slice.snapshot().as_f32(), averaged);
        assert_eq!(slice.slot_bytes(), if averaged { 21 * 4 } else { 0 });
    }
}

#[test]
fn an_average_does_not_change_while_it_is_read() {
    let spec = spec(OptimizerSpec::sgd(1.0));
    let (mut slice, pool) = (slice(&spec, true), BufferPool::default());
    let update = |version| Update::new(&spec, Version(version), LAST_STEP, 1.0, 1);
    slice.apply(&[&[1.0; 21]], None, &update(0), &pool, Threads::One).unwrap();
    let read = slice.averaged();
    let copy = read.as_f32().to_vec();
    slice.apply(&[&[1.0; 21]], None, &update(1), &pool, Threads::One).unwrap();
    assert_eq!(read.as_f32(), copy);
    assert_ne!(slice.averaged().as_f32(), copy);
}

#[test]
fn a_value_without_readers_changes_in_place() {
    let spec = spec(OptimizerSpec::adam(0.1));
    let (mut slice, pool) = (slice(&spec, true), BufferPool::default());
    let apply = |slice: &mut Slice, version| {
        let update = Update::new(&spec, Version(version), LAST_STEP, 1.0, 1);
        slice.apply(&[&[1.0; 21]], None, &update, &pool, Threads::One).unwrap();
    };
    // At first, the average is the value itself.
    apply(&mut slice, 0);
    let places = |slice: &Slice| (Arc::as_ptr(&slice.value), slice.average.as_ref().map(Arc::as_ptr));
    let (before, old) = (places(&slice), slice.snapshot().as_f32().to_vec());
    apply(&mut slice, 1);
    assert_eq!(places(&slice), before);
    assert_ne!(slice.snapshot().as_f32(), old);
    let read = slice.snapshot();
    let copy = read.as_f32().to_vec();
    apply(&mut slice, 2);
    assert_ne!(places(&slice).0, before.0);
    assert_eq!(places(&slice).1, before.1);
    assert_eq!(read.as_f32(), copy);
}

#[test]
fn slots_change_in_place_unless_a_save_holds_them() {
    for optimizer in every_optimizer() {
        let spec = spec(optimizer);
        let (mut slice, pool) = (slice(&spec, true), BufferPool::default());
        let apply = |slice: &mut Slice, version| {
            let update = Update::new(&spec, Version(version), LAST_STEP, 1.0, 1);
            slice.apply(&[&[1.0; 21]], None, &update, &pool, Threads::One).unwrap();
        };
        let slots = |slice: &Slice| match &slice.slots {
            Slots::Host(slots) => slots.clone(),
            Slots::Device(_) => panic!("they are on the host"),
        };
        let places = |slice: &Slice| slots(slice).iter().map(Arc::as_ptr).collect::<Vec<_>>();
        let bytes =
            |slots: &[Arc<Buffer>]| slots.iter().map(|slot| slot.as_bytes().to_vec()).collect::<Vec<_>>();
        apply(&mut slice, 0);
        let (held, at) = (slice.state().unwrap(), places(&slice));
        let copy = bytes(&held.slots);
        apply(&mut slice, 1);
        assert_eq!(bytes(&held.slots), copy);
        let moved = places(&slice);
        assert!(at.iter().zip(&moved).all(|(old, new)| old != new), "a copy is changed");
        assert!(copy.is_empty() || bytes(&slots(&slice)) != copy);
        drop(held);
        apply(&mut slice, 2);
        assert_eq!(places(&slice), moved, "nothing else holds them now");
    }
}

#[test]
fn a_slice_that_needs_the_threads_has_them_alone() {
    let of = |optimizer: OptimizerSpec| {
        let spec = UpdateSpec::from(optimizer);
        let update = Update::new(&spec, Version(0), LAST_STEP, 1.0, GRADIENTS);
        let slices = [slice(&spec, false), slice(&spec, true)];
        let among = among_slices(&slices, &update, Threads::Pool(3));
        let Some(make) = emulated() else { return (among, None) };
        let device = Device::open(&make).unwrap();
        let [first, last] = slices;
        let slices = [first, last.moved_to(&device, &spec).unwrap()];
        (among, Some(among_slices(&slices, &update, Threads::Pool(3))))
    };
    let (among, on_device) = of(OptimizerSpec::adam(0.1));
    assert_eq!(among, Threads::Pool(3));
    assert_eq!(on_device.unwrap_or(Threads::One), Threads::One, "they lock the device");
    assert_eq!(of(OptimizerSpec::lamb(0.1)).0, Threads::One, "it adds up its gradients first");
}
