//! A slice in the memory of its shard. While its value or its moving average may have readers, an update
//! computes the next one into another buffer; otherwise it changes them in place. It changes slots in place.
//! If a save still reads a slot, the update changes a copy of it.

use std::ops::Range;
use std::sync::Arc;

use pushpull_kernels::cpu::{Threads, accumulate, add_into, average};
use pushpull_messages::id::SliceId;
use pushpull_messages::optimizer::{UpdateSpec, VariableRule};
use pushpull_messages::placement::SliceSpec;
use pushpull_messages::variable::VariableSpec;
use pushpull_transport::buffer::{Buffer, BufferPool, Segment};

use super::blocks::{Change, SLOTS_MAX, SliceWork};
use super::cut::SliceState;
use super::update::Update;
use super::{initial, optimizer};

/// A slice: its value, its moving average and the optimizer's slots.
pub(super) struct Slice {
    id: SliceId,
    /// The variable's name, for error messages.
    variable: String,
    value: Arc<Buffer>,
    /// The moving average, if the job keeps a moving average of the variable.
    average: Option<Arc<Buffer>>,
    treatment: Arc<Treatment>,
    slots: Vec<Arc<Buffer>>,
}

/// What a draft has for one slice.
pub(super) enum Drafted {
    /// The next value and the next moving average.
    Next { value: Buffer, average: Option<Buffer> },
    /// Nothing, because the slice is frozen.
    Nothing,
    /// The gradient, for an optimizer with slots. The slots change in place, so the update is computed later.
    Gradient(Buffer),
}

impl Drafted {
    /// Returns the size in bytes of the gradient, if this is one.
    pub(super) fn kept_bytes(&self) -> usize {
        match self {
            Self::Gradient(gradient) => gradient.len(),
            Self::Next { .. } | Self::Nothing => 0,
        }
    }
}

/// What a draft must know of a slice. The contents of its buffers never change.
pub(super) struct SliceView {
    pub id: SliceId,
    value: Arc<Buffer>,
    average: Option<Arc<Buffer>>,
    treatment: Arc<Treatment>,
    has_slots: bool,
}

impl SliceView {
    pub(super) fn bytes(&self) -> usize {
        self.value.len()
    }

    /// Returns the memory for what a draft has for the slice.
    pub(super) fn begin_draft(&self, pool: &BufferPool) -> Drafted {
        if matches!(*self.treatment, Treatment::Frozen) {
            return Drafted::Nothing;
        }
        if self.has_slots {
            return Drafted::Gradient(pool.take(self.bytes()));
        }
        let average = self.average.as_ref().map(|average| pool.take(average.len()));
        Drafted::Next { value: pool.take(self.bytes()), average }
    }

    /// Computes the elements `place` of the next value and of the next moving average, from the same elements
    /// of a gradient.
    ///
    /// # Panics
    /// If the slice is frozen.
    pub(super) fn draft(
        &self,
        place: Range<usize>,
        gradient: &[f32],
        update: &Update<'_>,
        next: &mut [f32],
        mean: Option<&mut [f32]>,
    ) {
        let value = &self.value.as_f32()[place.clone()];
        let old = self.average.as_ref().map(|average| &average.as_f32()[place]);
        let update = self.treatment.of(update).expect("a frozen slice has no next value");
        optimizer::apply(&update, next, value, gradient, &mut []);
        if let (Some(mean), Some(old)) = (mean, old) {
            average(mean, old, next, update.average_decay);
        }
    }
}

/// What a push does to a slice.
enum Treatment {
    /// The slice is updated by the rule of the job.
    Usual,
    /// The slice is updated by a rule of its own.
    Special(Box<VariableRule>),
    /// The variable is not trained. The pushed value is subtracted from the variable's value, without an
    /// optimizer.
    Untrained,
    /// The variable is frozen. The pushed value is ignored.
    Frozen,
}

impl Treatment {
    fn new(update: &UpdateSpec, variable: &VariableSpec) -> Self {
        let rule = update.rule(variable);
        if rule.frozen {
            Self::Frozen
        } else if !variable.trainable {
            Self::Untrained
        } else if rule == update.usual_rule() {
            Self::Usual
        } else {
            Self::Special(Box::new(rule))
        }
    }

    /// Returns the update of a slice that is treated in this way; `None` if the slice does not change.
    fn of<'u>(&'u self, update: &Update<'u>) -> Option<Update<'u>> {
        match self {
            Self::Usual => Some(*update),
            Self::Special(rule) => Some(update.by(rule)),
            Self::Untrained => Some(update.untrained()),
            Self::Frozen => None,
        }
    }
}

impl Slice {
    /// Returns a slice with the state `found`, which was read from a checkpoint. If `found` is `None`, the
    /// slice has its initial value.
    pub(super) fn new(
        id: SliceId,
        slice: &SliceSpec,
        variable: &VariableSpec,
        update: &UpdateSpec,
        seed: u64,
        found: Option<SliceState>,
        pool: &BufferPool,
    ) -> Self {
        let bytes = slice.elements(variable) * 4;
        let (value, average, mut slots) = match found {
            Some(SliceState { value, average, slots, .. }) => (value, average, slots),
            None => {
                let mut value = pool.take(bytes);
                initial::fill(value.as_f32_mut(), variable, slice, seed);
                (Arc::new(value), None, Vec::new())
            }
        };
        if slots.is_empty() {
            let slot = |(_, initial): (&str, f32)| {
                let mut slot = Buffer::zeroed(bytes);
                if initial != 0.0 {
                    slot.as_f32_mut().fill(initial);
                }
                Arc::new(slot)
            };
            slots = optimizer::initial_slots(update, variable).into_iter().map(slot).collect();
        }
        Self {
            id,
            variable: variable.name.clone(),
            average: update.averages(variable).then(|| average.unwrap_or_else(|| Arc::clone(&value))),
            value,
            treatment: Arc::new(Treatment::new(update, variable)),
            slots,
        }
    }

    pub(super) const fn id(&self) -> SliceId {
        self.id
    }

    pub(super) fn variable(&self) -> &str {
        &self.variable
    }

    pub(super) fn bytes(&self) -> usize {
        self.value.len()
    }

    /// Returns the number of bytes that the slots and the moving average take.
    pub(super) fn slot_bytes(&self) -> usize {
        self.slots.iter().chain(&self.average).map(|beside| beside.len()).sum()
    }

    /// Returns the current value. The segment's content never changes, even when updates are applied later.
    pub(super) fn snapshot(&self) -> Segment {
        Segment::whole(Arc::clone(&self.value))
    }

    /// Returns the current moving average, or the value if the slice has no average. The segment's content
    /// never changes.
    pub(super) fn averaged(&self) -> Segment {
        Segment::whole(Arc::clone(self.average.as_ref().unwrap_or(&self.value)))
    }

    /// Returns the slice's current state. The contents of the returned buffers never change.
    pub(super) fn state(&self) -> SliceState {
        let Self { id, value, average, slots, .. } = self;
        SliceState { id: *id, value: Arc::clone(value), average: average.clone(), slots: slots.clone() }
    }

    /// Applies the sum of `gradients`. A value that has another reference stays as it is; the next value is
    /// then computed into another buffer, and the current buffer goes back to the pool when its last reader
    /// drops it. A value without other references changes in place.
    pub(super) fn apply(
        &mut self,
        gradients: &[&[f32]],
        update: &Update<'_>,
        pool: &BufferPool,
        threads: Threads,
    ) {
        let treatment = Arc::clone(&self.treatment);
        let Some(update) = treatment.of(update) else { return };
        for slot in &mut self.slots {
            if Arc::get_mut(slot).is_none() {
                let mut copy = pool.take(slot.len());
                copy.as_bytes_mut().copy_from_slice(slot.as_bytes());
                *slot = Arc::new(copy);
            }
        }
        let whole = update.optimizer.needs_whole_variables();
        let whole_sum = (whole && gradients.len() > 1).then(|| sum_of(gradients, pool));
        let sum = whole_sum.as_ref().map(|sum| [sum.as_f32()]);
        let beside = |buffer: &mut Arc<Buffer>| {
            let keeps_old = whole || Arc::get_mut(buffer).is_none();
            keeps_old.then(|| pool.take(buffer.len()))
        };
        let mut next = beside(&mut self.value);
        let mut next_average = self.average.as_mut().and_then(beside);
        let mut slots = self.slots.iter_mut().map(elements_of);
        let slots_used = slots.len();
        let work = SliceWork {
            value: change(&mut self.value, next.as_mut()),
            average: self.average.as_mut().map(|average| change(average, next_average.as_mut())),
            slots: [(); SLOTS_MAX].map(|()| slots.next().unwrap_or_default()),
            slots_used,
            gradients: sum.as_ref().map_or(gradients, |sum| sum),
            start: 0,
        };
        drop(slots);
        if whole {
            work.run_whole(&update)
        } else {
            work.run(&update, threads)
        }
        next.into_iter().for_each(|next| self.value = Arc::new(next));
        next_average.into_iter().for_each(|next| self.average = Some(Arc::new(next)));
    }

    /// Returns what a draft must know of the slice.
    pub(super) fn view(&self) -> SliceView {
        SliceView {
            id: self.id,
            value: Arc::clone(&self.value),
            average: self.average.clone(),
            treatment: Arc::clone(&self.treatment),
            has_slots: !self.slots.is_empty(),
        }
    }

    /// Applies what a draft has for the slice.
    pub(super) fn apply_drafted(
        &mut self,
        drafted: Drafted,
        update: &Update<'_>,
        pool: &BufferPool,
        threads: Threads,
    ) {
        match drafted {
            Drafted::Nothing => {}
            Drafted::Gradient(gradient) => self.apply(&[gradient.as_f32()], update, pool, threads),
            Drafted::Next { value, average } => {
                self.value = Arc::new(value);
                self.average = average.map(Arc::new);
            }
        }
    }
}

/// Returns a buffer's elements for writing. The caller has made sure that nothing else shares the buffer.
fn elements_of(buffer: &mut Arc<Buffer>) -> &mut [f32] {
    Arc::get_mut(buffer).expect("a buffer that changes in place has one owner").as_f32_mut()
}

/// Returns the change of a buffer's elements: in place, or into `next`.
fn change<'a>(buffer: &'a mut Arc<Buffer>, next: Option<&'a mut Buffer>) -> Change<'a> {
    match next {
        Some(next) => Change::Beside { old: buffer.as_f32(), next: next.as_f32_mut() },
        None => Change::InPlace(elements_of(buffer)),
    }
}

/// Returns the sum of at least two gradients.
fn sum_of(gradients: &[&[f32]], pool: &BufferPool) -> Buffer {
    let mut sum = pool.take(4 * gradients[0].len());
    add_into(sum.as_f32_mut(), gradients[0], gradients[1], Threads::One);
    gradients[2..].iter().for_each(|other| accumulate(sum.as_f32_mut(), other, Threads::One));
    sum
}

#[cfg(test)]
mod tests {
    use pushpull_messages::id::{GlobalStep, VariableId, Version};
    use pushpull_messages::optimizer::{OptimizerSpec, ScheduleSpec};
    use pushpull_messages::variable::InitializerSpec;

    use super::*;

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
        let variable =
            VariableSpec { name: "v".into(), shape: [7, 3].into(), initializer, trainable, device: None };
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

    fn every_optimizer() -> Vec<OptimizerSpec> {
        vec![
            OptimizerSpec::sgd(0.1),
            OptimizerSpec::momentum(0.05, 0.9),
            OptimizerSpec::Momentum { learning_rate: 0.05, momentum: 0.9, nesterov: true },
            OptimizerSpec::adam(0.1),
            OptimizerSpec::AdamW {
                learning_rate: 0.1,
                beta1: 0.8,
                beta2: 0.9,
                epsilon: 1e-6,
                weight_decay: 0.5,
            },
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
                slice.apply(&[&gradient], &update, &pool, Threads::One);
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
            slice.apply(&[&[2.0; 21]], &update, &BufferPool::default(), Threads::One);
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
            slice.apply(&[&[1.0; 21]], &update, &BufferPool::default(), Threads::One);
            assert_eq!(slice.averaged().as_f32() != slice.snapshot().as_f32(), averaged);
            assert_eq!(slice.slot_bytes(), if averaged { 21 * 4 } else { 0 });
        }
    }

    #[test]
    fn an_average_does_not_change_while_it_is_read() {
        let spec = spec(OptimizerSpec::sgd(1.0));
        let (mut slice, pool) = (slice(&spec, true), BufferPool::default());
        let update = |version| Update::new(&spec, Version(version), LAST_STEP, 1.0, 1);
        slice.apply(&[&[1.0; 21]], &update(0), &pool, Threads::One);
        let read = slice.averaged();
        let copy = read.as_f32().to_vec();
        slice.apply(&[&[1.0; 21]], &update(1), &pool, Threads::One);
        assert_eq!(read.as_f32(), copy);
        assert_ne!(slice.averaged().as_f32(), copy);
    }

    #[test]
    fn a_value_without_readers_changes_in_place() {
        let spec = spec(OptimizerSpec::adam(0.1));
        let (mut slice, pool) = (slice(&spec, true), BufferPool::default());
        let apply = |slice: &mut Slice, version| {
            let update = Update::new(&spec, Version(version), LAST_STEP, 1.0, 1);
            slice.apply(&[&[1.0; 21]], &update, &pool, Threads::One);
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
                slice.apply(&[&[1.0; 21]], &update, &pool, Threads::One);
            };
            let places = |slice: &Slice| slice.slots.iter().map(Arc::as_ptr).collect::<Vec<_>>();
            let bytes =
                |slots: &[Arc<Buffer>]| slots.iter().map(|slot| slot.as_bytes().to_vec()).collect::<Vec<_>>();
            apply(&mut slice, 0);
            let (held, at) = (slice.state(), places(&slice));
            let copy = bytes(&held.slots);
            apply(&mut slice, 1);
            assert_eq!(bytes(&held.slots), copy);
            let moved = places(&slice);
            assert!(at.iter().zip(&moved).all(|(old, new)| old != new), "a copy is changed");
            assert!(copy.is_empty() || bytes(&slice.slots) != copy);
            drop(held);
            apply(&mut slice, 2);
            assert_eq!(places(&slice), moved, "nothing else holds them now");
        }
    }
}
