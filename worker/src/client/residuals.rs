//! What the encodings of this worker's gradients have dropped so far. It is added to the next gradients, so
//! that nothing is dropped for ever: error feedback (Seide et al., Interspeech 2014; Karimireddy et al., ICML
//! 2019). Residuals belong to the client of one registration, and do not depend on verdicts.

use parking_lot::{Mutex, MutexGuard};
use pushpull_messages::id::VariableId;
use pushpull_transport::buffer::Buffer;

/// The residuals of all variables. A variable takes memory when its first gradient is encoded.
///
/// If a push is stale, the shard drops what was sent of its gradients, and the worker still sends the rest
/// later. If a step is skipped because a gradient is not finite, nothing of the step is encoded, and the
/// residual stays as it is.
#[derive(Debug)]
pub(crate) struct Residuals(Vec<Mutex<Option<Buffer>>>);

/// The residual of one variable, while a gradient is encoded.
pub(crate) struct Residual<'a>(MutexGuard<'a, Option<Buffer>>);

impl Residuals {
    /// Returns empty residuals for this number of variables.
    pub(crate) fn new(variables: usize) -> Self {
        Self((0..variables).map(|_| Mutex::default()).collect())
    }

    /// Returns the residual of a variable, which must be used for one step after the other.
    pub(crate) fn of(&self, variable: VariableId) -> Residual<'_> {
        Residual(self.0[variable.index()].lock())
    }
}

impl Residual<'_> {
    /// Returns the residual's numbers. At first they are 0.
    pub(crate) fn numbers(&mut self, elements: usize) -> &mut [f32] {
        self.0.get_or_insert_with(|| Buffer::zeroed(elements * 4)).as_f32_mut()
    }
}
