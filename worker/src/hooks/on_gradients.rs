//! A hook that calls a function with the gradients of every step. This module must not depend on connections.

use super::hook::{Hook, HookError};
use super::step_gradients::StepGradients;

/// A hook that calls a function with the gradients of every step, before they are checked, clipped and
/// pushed.
pub struct OnGradients<F>(F);

impl<F: FnMut(&mut StepGradients<'_>) + Send> OnGradients<F> {
    /// Creates the hook.
    pub const fn new(change: F) -> Self {
        Self(change)
    }
}

impl<F: FnMut(&mut StepGradients<'_>) + Send> Hook for OnGradients<F> {
    fn changes_gradients(&self) -> bool {
        true
    }

    fn change_gradients(&mut self, gradients: &mut StepGradients<'_>) -> Result<(), HookError> {
        (self.0)(gradients);
        Ok(())
    }
}

/// Formats only the name of the hook, because a function cannot be shown.
impl<F> std::fmt::Debug for OnGradients<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnGradients")
    }
}
