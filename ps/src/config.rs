//! What an operator may set on a ps task.

use std::time::Duration;

use pushpull_messages::placement::SHARDS_PER_TASK_MAX;
use pushpull_transport::ServerConfig;

use crate::error::PsError;

/// The settings of one ps task.
#[derive(Clone, Debug)]
pub struct PsConfig {
    /// How many shards it runs, each on a thread of its own.
    pub shards: u32,
    /// So long it waits for the chief to come.
    pub start_timeout: Duration,
    /// With the chief gone without a word and nobody else connected, so long it waits for somebody to come again.
    pub deserted_timeout: Duration,
    /// After a signal, with the chief connected, so long it goes on serving for the job to be saved. How long that takes
    /// the chief bounds: this is beyond whatever it may be told.
    pub drain_timeout: Duration,
    /// What it takes from each connection.
    pub server: ServerConfig,
}

impl Default for PsConfig {
    fn default() -> Self {
        Self {
            shards: 1,
            start_timeout: Duration::from_secs(300),
            deserted_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(2 * 3600),
            server: ServerConfig::default(),
        }
    }
}

impl PsConfig {
    /// Checks the numbers against each other.
    ///
    /// # Errors
    /// Names the key that is out of range.
    pub fn validate(&self) -> Result<(), PsError> {
        if (1..=SHARDS_PER_TASK_MAX).contains(&self.shards) {
            Ok(())
        } else {
            Err(PsError::Config {
                key: "shards",
                expected: format!("1 to {SHARDS_PER_TASK_MAX}"),
                got: self.shards.to_string(),
            })
        }
    }
}
