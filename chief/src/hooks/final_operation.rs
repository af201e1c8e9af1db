//! Calls a function when the job has ended.

use crate::error::ChiefError;
use crate::hook::Hook;
use crate::report::JobEnd;

/// A hook that calls a function once with the result of the job, whether the job succeeded or failed.
pub struct FinalOperation<F>(Option<F>);

impl<F> FinalOperation<F>
where
    F: FnOnce(Result<&JobEnd, &ChiefError>) + Send,
{
    /// Creates the hook for this function.
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
