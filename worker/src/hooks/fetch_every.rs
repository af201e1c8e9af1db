//! A hook that passes fetched tensors to a function. This module must not depend on graphs.

use super::hook::{Fetched, Hook, HookError};
use crate::fetches::FetchConfig;
use crate::telemetry::Plots;

/// A hook that calls a function with tensors of the worker's steps.
pub struct FetchEvery<F> {
    config: FetchConfig,
    call: F,
}

impl<F: FnMut(&Fetched<'_>) + Send> FetchEvery<F> {
    /// Creates a hook that calls `call` with the tensors that `config` names.
    pub const fn new(config: FetchConfig, call: F) -> Self {
        Self { config, call }
    }
}

impl<F: FnMut(&Fetched<'_>) + Send> Hook for FetchEvery<F> {
    fn fetches(&self) -> Option<FetchConfig> {
        Some(self.config.clone())
    }

    fn fetched(&mut self, fetched: &Fetched<'_>, _: &Plots) -> Result<(), HookError> {
        (self.call)(fetched);
        Ok(())
    }
}
