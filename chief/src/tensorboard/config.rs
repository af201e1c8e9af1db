//! What a user may set on summaries.

use std::path::PathBuf;
use std::time::Duration;

/// Where summaries are written, and how often.
#[derive(Clone, Debug)]
pub struct SummaryConfig {
    /// A directory of this host, which is made if it is not there. Each run writes a file of its own.
    pub dir: PathBuf,
    /// The job's own numbers are written every so many steps,
    pub every_steps: Option<u64>,
    /// or so often, whichever comes first; at most about once a second. What workers and hooks plot is always
    /// written.
    pub every: Option<Duration>,
}

impl SummaryConfig {
    /// Every 100 steps or 10 seconds.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), every_steps: Some(100), every: Some(Duration::from_secs(10)) }
    }
}
