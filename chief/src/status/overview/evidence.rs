//! Evidence against workers and shards that hold up the others. Data only.

use std::time::Duration;

use pushpull_messages::message::REPORT_EVERY_MAX;
use pushpull_messages::observe::{Finding, FindingKind};

/// How long there has to be evidence before it makes a finding.
pub(crate) const EVIDENCE_MIN: Duration = Duration::from_secs(3);
// A worker that reports as seldom as it may is not silent.
const _: () = assert!(EVIDENCE_MIN.as_millis() > REPORT_EVERY_MAX.as_millis());
/// The way in which a worker or shard holds up the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A worker that does not report.
    Silent,
    /// A worker that stays in one phase of a step for too long.
    Stalled,
    /// A worker whose steps take longer.
    Slower,
    /// A shard that cannot keep up with its messages.
    Overloaded,
    /// A shard that does not answer.
    Mute,
}

impl Cause {
    /// Returns the kind of finding that this cause makes.
    pub(crate) const fn kind(self) -> FindingKind {
        match self {
            Self::Silent | Self::Stalled | Self::Slower => FindingKind::SlowWorker,
            Self::Overloaded => FindingKind::OverloadedShard,
            Self::Mute => FindingKind::SilentShard,
        }
    }
}

/// Evidence against one worker or shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Evidence {
    pub finding: Finding,
    /// How long it has lasted, where one look can tell; zero otherwise.
    pub lasted: Duration,
    pub cause: Cause,
}

/// All evidence at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AllEvidence {
    pub against: Vec<Evidence>,
    /// Workers about which it cannot be told now whether this cause applies.
    pub unclear: Vec<(String, Cause)>,
}
