//! The settings of summaries.

use std::path::PathBuf;
use std::time::Duration;

/// Where summaries are written, and how often.
#[derive(Clone, Debug)]
pub struct SummaryConfig {
    /// A directory on this host, which is created if it does not exist. Each run writes a file of its own.
    pub dir: PathBuf,
    /// The steps between two summaries of the job's own numbers.
    pub every_steps: Option<u64>,
    /// The time between two such summaries, if it ends first; about a second at least. What workers and hooks
    /// plot is always written.
    pub every: Option<Duration>,
}

impl SummaryConfig {
    /// Returns the default settings: every 100 steps or 10 seconds.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), every_steps: Some(100), every: Some(Duration::from_secs(10)) }
    }
}
