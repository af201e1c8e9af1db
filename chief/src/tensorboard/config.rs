//! The settings of summaries.

use std::path::PathBuf;
use std::time::Duration;

/// The settings of summaries: where they are written, and how often.
#[derive(Clone, Debug)]
pub struct SummaryConfig {
    /// A directory on this host, which is created if it does not exist. Each run writes a separate file.
    pub dir: PathBuf,
    /// The number of steps between two summaries of the job's own metrics.
    pub every_steps: Option<u64>,
    /// The time between two summaries of the job's own metrics; a value below about a second has the same
    /// effect as a second. A summary is due when `every_steps` or `every` has passed, whichever is first.
    /// Summaries that workers and hooks plot are always written.
    pub every: Option<Duration>,
}

impl SummaryConfig {
    /// Returns the default settings: every 100 steps or 10 seconds.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), every_steps: Some(100), every: Some(Duration::from_secs(10)) }
    }
}
