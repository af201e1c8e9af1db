//! A storage of variables for the tests. A variable named `gate` is read only while its gate is open.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use pushpull_messages::graph::VariableUpdate;
use pushpull_messages::message::ContainerDescription;
use pushpull_messages::optimizer::OptimizerSpec;
use pushpull_messages::tensor::{Elements, Tensor, TensorSpec};
use pushpull_messages::variable::VariableSpec;
use pushpull_session::{Declared, VariableError, Variables};

use crate::gates::Gate;

/// The maximum number of elements of a variable.
const ELEMENTS_MAX: usize = 1 << 24;

/// The variables of a task, by container and name.
#[derive(Default)]
pub(crate) struct Values {
    table: Mutex<BTreeMap<(String, String), Arc<Tensor>>>,
    pub(crate) gate: Gate,
}

/// Returns the value that a variable begins with: zeros, or numbers from 0.25 to 1.25 if it is of floats.
fn initial(variable: &VariableSpec) -> Arc<Tensor> {
    let spec = TensorSpec::new(variable.dtype, variable.shape.clone());
    let count = variable.shape.elements();
    let seed = variable.name.bytes().map(usize::from).sum::<usize>();
    let elements = match Elements::zeros(variable.dtype, count) {
        Elements::F32(zeros) => {
            let number = |at: usize| 0.25 + ((seed + 7 * at) % 13) as f32 / 13.0;
            Elements::F32((0..zeros.len()).map(number).collect())
        }
        zeros => zeros,
    };
    Arc::new(Tensor::new(spec.shape, elements).unwrap())
}

impl Values {
    fn change<T>(
        &self,
        declared: Declared<'_>,
        change: impl FnOnce(&mut Arc<Tensor>) -> T,
    ) -> Result<T, VariableError> {
        let Declared { container, variable, .. } = declared;
        if variable.shape.checked_elements().is_none_or(|elements| elements > ELEMENTS_MAX) {
            return Err(VariableError(format!("variable '{}' does not fit", variable.name)));
        }
        if variable.name == "gate" {
            self.gate.pass();
        }
        let mut table = self.table.lock();
        let value = table.entry((container.to_owned(), variable.name.clone()));
        Ok(change(value.or_insert_with(|| initial(variable))))
    }
}

impl Variables for Values {
    fn read(&self, declared: Declared<'_>) -> Result<Arc<Tensor>, VariableError> {
        self.change(declared, |value| Arc::clone(value))
    }

    fn update(
        &self,
        declared: Declared<'_>,
        update: VariableUpdate,
        by: &Arc<Tensor>,
    ) -> Result<Arc<Tensor>, VariableError> {
        self.change(declared, |value| {
            *value = match (update, value.i64s(), by.i64s()) {
                (VariableUpdate::Add, Some(a), Some(b)) => {
                    let sum: Vec<i64> = a.iter().zip(b).map(|(a, b)| a + b).collect();
                    Arc::new(Tensor::new(value.shape().clone(), sum).unwrap())
                }
                _ => Arc::clone(by),
            };
            Arc::clone(value)
        })
    }

    fn apply(
        &self,
        declared: Declared<'_>,
        _: &OptimizerSpec,
        gradient: &[f32],
    ) -> Result<(), VariableError> {
        self.change(declared, |value| {
            let before = value.f32s().unwrap();
            let next: Vec<f32> =
                before.iter().zip(gradient).map(|(x, gradient)| x - 0.1 * gradient).collect();
            *value = Arc::new(Tensor::new(value.shape().clone(), next).unwrap());
        })
    }

    fn initialize(&self, declared: Declared<'_>) -> Result<(), VariableError> {
        let fresh = || initial(declared.variable);
        self.change(declared, |value| *value = fresh())
    }

    fn reset(&self, _: &[String]) -> u64 {
        let removed = std::mem::take(&mut *self.table.lock());
        removed.len() as u64
    }

    fn describe(&self) -> Vec<ContainerDescription> {
        Vec::new()
    }

    fn bytes(&self) -> (u64, u64) {
        (0, 1 << 30)
    }
}
