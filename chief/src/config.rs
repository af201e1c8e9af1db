//! What an operator may set on the chief.

use std::time::Duration;

use pushpull_messages::observe::TraceSpec;
use pushpull_transport::{RetryConfig, ServerConfig};

use crate::checkpoint::{CheckpointConfig, WarmStartConfig};
use crate::error::ChiefError;

/// Longest time that a worker may be away.
pub const RECONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(3600);

/// The settings of the chief.
#[derive(Clone, Debug)]
pub struct ChiefConfig {
    /// So long it waits for every task to come up.
    pub start_timeout: Duration,
    /// So long workers may take to leave when the job ends early, or to come and be told why it never began.
    pub leave_timeout: Duration,
    /// So long a worker whose connection is broken may take to come back before it counts as lost.
    pub reconnect_timeout: Duration,
    /// How it deals with connections to ps tasks that break. It gives them up before the workers do.
    pub retry: RetryConfig,
    /// Whether the placement table is printed.
    pub log_placement: bool,
    /// Checkpoints, if it makes any.
    pub checkpoint: Option<CheckpointConfig>,
    /// Values of another job's checkpoint that variables begin with, where there is none of this one to go on from.
    pub warm_start: Option<WarmStartConfig>,
    /// Which steps are traced, if any: [`Hook::spans`](crate::Hook::spans) hears of them.
    pub trace: Option<TraceSpec>,
    /// What it takes from each connection.
    pub server: ServerConfig,
}

impl Default for ChiefConfig {
    fn default() -> Self {
        Self {
            start_timeout: Duration::from_secs(300),
            leave_timeout: Duration::from_secs(10),
            reconnect_timeout: Duration::from_secs(3),
            retry: RetryConfig { redial_for: Duration::from_secs(3), ..Default::default() },
            log_placement: false,
            checkpoint: None,
            warm_start: None,
            trace: None,
            server: ServerConfig::default(),
        }
    }
}

impl ChiefConfig {
    /// Checks the numbers.
    ///
    /// # Errors
    /// Names the key that is out of range.
    pub fn validate(&self) -> Result<(), ChiefError> {
        self.checkpoint.as_ref().map_or(Ok(()), CheckpointConfig::validate)?;
        self.warm_start.as_ref().map_or(Ok(()), WarmStartConfig::validate)?;
        if self.trace.is_some_and(|trace| trace.every == 0) {
            let (expected, got) = ("at least 1".to_owned(), "0".to_owned());
            return Err(ChiefError::Config { key: "trace_every", expected, got });
        }
        if (Duration::from_millis(1)..=RECONNECT_TIMEOUT_MAX).contains(&self.reconnect_timeout) {
            Ok(())
        } else {
            Err(ChiefError::Config {
                key: "reconnect_timeout",
                expected: format!("from 1 ms to {} s", RECONNECT_TIMEOUT_MAX.as_secs()),
                got: format!("{:?}", self.reconnect_timeout),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_out_of_range_is_named() {
        assert!(ChiefConfig::default().validate().is_ok());
        for reconnect_timeout in [Duration::ZERO, 2 * RECONNECT_TIMEOUT_MAX] {
            let config = ChiefConfig { reconnect_timeout, ..Default::default() };
            let error = config.validate().unwrap_err().to_string();
            assert!(error.starts_with("reconnect_timeout must be from 1 ms to 3600 s, and is "), "{error}");
        }
        let config = ChiefConfig { trace: Some(TraceSpec { every: 0 }), ..Default::default() };
        assert_eq!(config.validate().unwrap_err().to_string(), "trace_every must be at least 1, and is 0");
    }
}
