//! Does something when the job is over.

use crate::error::ChiefError;
use crate::hook::Hook;
use crate::report::JobEnd;

/// Calls a function once with how the job has ended, well or not.
pub struct FinalOperation<F>(Option<F>);

impl<F> FinalOperation<F>
where
    F: FnOnce(Result<&JobEnd, &ChiefError>) + Send,
{
    /// That function.
    pub const fn new(operation: F) -> Self {
        Self(Some(operation))
    }
}

impl<F> Hook for FinalOperation<F>
where
    F: FnOnce(Result<&JobEnd, &ChiefError>) + Send,
{
    fn end(&mut self, result: Result<&JobEnd, &ChiefError>) {
        if let Some(operation) = self.0.take() {
            operation(result);
        }
    }
}
