//! One variable of a container, with its slots.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use pushpull_kernels::cpu::GradientTerms;
use pushpull_messages::graph::VariableUpdate;
use pushpull_messages::optimizer::OptimizerSpec;
use pushpull_messages::tensor::{DType, Elements, Tensor, TensorSpec};
use pushpull_messages::variable::VariableSpec;

use super::arithmetic::{add, initial};
use super::error::ContainerError;
use super::memory::{Memory, Share};
use crate::shard::{optimizer_step, slots};

/// The bytes that a variable takes besides its elements: its name and the tables.
const OVERHEAD_BYTES: u64 = 1024;

/// A variable.
#[derive(Debug)]
pub(super) struct Variable {
    /// The shape and type.
    pub tensor: TensorSpec,
    /// The number of changes. It is beside the state, because a description must not wait for a change.
    changes: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The variable as it was declared, until it is used: then it gets its initial value.
    declared: Option<VariableSpec>,
    /// The value; empty until then.
    value: Arc<Tensor>,
    slots: Option<Slots>,
    share: Share,
}

/// The slots of an optimizer, and the number of its steps.
#[derive(Debug)]
struct Slots {
    optimizer: OptimizerSpec,
    steps: u64,
    values: Vec<Vec<f32>>,
}

impl Variable {
    /// Makes a variable. It gets its initial value when it is first used: the caller holds up all others
    /// meanwhile.
    ///
    /// # Errors
    /// If the variable does not fit within a limit.
    pub fn new(
        spec: &VariableSpec,
        tensor: TensorSpec,
        client: u64,
        memory: &Arc<Memory>,
    ) -> Result<Self, ContainerError> {
        let elements = tensor.shape.elements() as u64;
        // The memory is counted before it is allocated.
        let bytes = elements.saturating_mul(tensor.dtype.bytes().unwrap_or(size_of::<String>()) as u64);
        let share = memory.take(client, &spec.name, bytes.saturating_add(OVERHEAD_BYTES))?;
        let empty = Tensor::new([0], Elements::zeros(DType::U8, 0)).expect("no elements");
        let state = State { declared: Some(spec.clone()), value: Arc::new(empty), slots: None, share };
        Ok(Self { tensor, changes: AtomicU64::new(0), state: Mutex::new(state) })
    }

    /// Returns the state, with a value.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        if let Some(declared) = state.declared.take() {
            state.value = Arc::new(initial(&declared));
        }
        state
    }

    pub fn read(&self) -> Arc<Tensor> {
        Arc::clone(&self.state().value)
    }

    /// Returns the shape and type, and the number of changes.
    pub fn describe(&self) -> (TensorSpec, u64) {
        (self.tensor.clone(), self.changes.load(Ordering::Relaxed))
    }

    pub fn update(
        &self,
        spec: &VariableSpec,
        update: VariableUpdate,
        value: &Arc<Tensor>,
    ) -> Result<Arc<Tensor>, ContainerError> {
        let mut state = self.state();
        let next = match update {
            VariableUpdate::Set => Arc::clone(value),
            VariableUpdate::Add | VariableUpdate::Sub => {
                let before = Tensor::clone(&state.value);
                Arc::new(add(before, value, update == VariableUpdate::Sub))
            }
        };
        let bytes = bytes_of(&next) + state.slots.as_ref().map_or(0, Slots::bytes);
        state.share.resize(&spec.name, bytes + OVERHEAD_BYTES)?;
        self.changes.fetch_add(1, Ordering::Relaxed);
        state.value = Arc::clone(&next);
        Ok(next)
    }

    pub fn initialize(&self, spec: &VariableSpec) -> Result<(), ContainerError> {
        let mut state = self.state();
        let value = Arc::new(initial(spec));
        state.share.resize(&spec.name, bytes_of(&value) + OVERHEAD_BYTES)?;
        self.changes.fetch_add(1, Ordering::Relaxed);
        (state.value, state.slots) = (value, None);
        Ok(())
    }

    pub fn apply(
        &self,
        spec: &VariableSpec,
        optimizer: &OptimizerSpec,
        gradient: &[f32],
    ) -> Result<(), ContainerError> {
        if !gradient.iter().all(|element| element.is_finite()) {
            return Err(ContainerError::NotFinite(spec.name.clone()));
        }
        let mut state = self.state();
        let State { value, slots: held, share, .. } = &mut *state;
        let before = value.f32s().expect("the check of a graph demands a variable of floats");
        if held.as_ref().is_none_or(|held| held.optimizer != *optimizer) {
            let fresh = slots(optimizer);
            let bytes = (fresh.len() * before.len() * size_of::<f32>()) as u64;
            share.resize(&spec.name, bytes_of(value) + bytes + OVERHEAD_BYTES)?;
            let values = fresh.into_iter().map(|slot| vec![slot; before.len()]).collect();
            *held = Some(Slots { optimizer: optimizer.clone(), steps: 0, values });
        }
        let slots = held.as_mut().expect("the slots exist now");
        slots.steps += 1;
        let mut next = vec![0.0; before.len()];
        let mut by_slot: Vec<&mut [f32]> = slots.values.iter_mut().map(Vec::as_mut_slice).collect();
        let step = optimizer_step(optimizer, 1.0, slots.steps);
        step.apply(&mut next, Some(before), &mut by_slot, gradient, GradientTerms::PLAIN);
        self.changes.fetch_add(1, Ordering::Relaxed);
        *value = Arc::new(Tensor::new(self.tensor.shape.clone(), next).expect("the shape is unchanged"));
        Ok(())
    }
}

impl Slots {
    fn bytes(&self) -> u64 {
        self.values.iter().map(|slot| (slot.len() * size_of::<f32>()) as u64).sum()
    }
}

fn bytes_of(value: &Tensor) -> u64 {
    match value.elements() {
        Elements::Text(texts) => texts.iter().map(|text| (size_of::<String>() + text.len()) as u64).sum(),
        elements => (elements.len() * elements.dtype().bytes().unwrap_or(1)) as u64,
    }
}
