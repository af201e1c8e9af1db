//! Evidence that a worker or a shard holds up the others. This module only defines data.

use std::time::Duration;

use pushpull_messages::message::REPORT_EVERY_MAX;
use pushpull_messages::observe::{Finding, FindingKind};

/// The time for which evidence must last before it becomes a finding.
pub(crate) const EVIDENCE_MIN: Duration = Duration::from_secs(3);
// A worker that uses the longest allowed report interval must not count as silent.
const _: () = assert!(EVIDENCE_MIN.as_millis() > REPORT_EVERY_MAX.as_millis());
/// The way in which a worker or a shard holds up the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A worker sends no reports.
    Silent,
    /// A worker stays in one phase of a step for too long.
    Stalled,
    /// A worker takes longer for its steps than the other workers.
    Slower,
    /// A shard cannot keep up with its messages.
    Overloaded,
    /// A shard does not reply.
    Mute,
}

impl Cause {
    /// Returns the kind of finding that this cause leads to.
    pub(crate) const fn kind(self) -> FindingKind {
        match self {
            Self::Silent | Self::Stalled | Self::Slower => FindingKind::SlowWorker,
            Self::Overloaded => FindingKind::OverloadedShard,
            Self::Mute => FindingKind::SilentShard,
        }
    }
}

/// Evidence that one worker or shard holds up the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Evidence {
    pub finding: Finding,
    /// The time for which the cause has lasted, if a single snapshot shows this time; zero if only several
    /// snapshots together can show it.
    pub lasted: Duration,
    pub cause: Cause,
}

/// All evidence from one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AllEvidence {
    pub against: Vec<Evidence>,
    /// The workers for which a cause is unclear: the current data do not show whether the cause applies.
    pub unclear: Vec<(String, Cause)>,
}
