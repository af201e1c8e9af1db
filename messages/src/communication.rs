//! How gradients travel from workers to shards, and values back. The crate `pushpull-worker` implements the
//! routes.
//!
//! The setting has the same text on a command line and in a job file: `auto`, `direct`, `ring` or
//! `halving_doubling`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::sync::SyncSpec;

/// How gradients travel from workers to shards. With a ring or with halving and doubling, a worker adds the
/// gradients of other workers to its own, and pushes the sum. The values come back on the same way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum CommunicationSpec {
    /// The job has no preference. Currently the same as `direct`.
    #[default]
    Auto,
    /// Each worker pushes its own gradients to every shard.
    Direct,
    /// For each shard, the workers form a chain. Each one adds the sum of those before it to its own
    /// gradients.
    Ring,
    /// For each shard, the workers form a binomial tree. A sum passes through about log2 n workers.
    HalvingDoubling,
}

impl CommunicationSpec {
    /// Returns true if workers push sums of the gradients of several workers.
    pub const fn has_routes(self) -> bool {
        matches!(self, Self::Ring | Self::HalvingDoubling)
    }

    /// Returns true if this is the default, which is not written.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(crate) fn is_auto(&self) -> bool {
        *self == Self::Auto
    }

    /// Checks that this setting suits a job with this policy, with stages or without, and with compressed
    /// gradients or values or without.
    ///
    /// # Errors
    /// If workers would push sums that the job's shards cannot use.
    pub(crate) fn validate(
        self,
        sync: SyncSpec,
        stages: u32,
        compresses: bool,
    ) -> Result<(), CommunicationError> {
        match self {
            Self::Auto | Self::Direct => Ok(()),
            _ if sync != SyncSpec::SYNC => Err(CommunicationError::Policy { communication: self, sync }),
            _ if stages > 1 => Err(CommunicationError::Stages { communication: self, stages }),
            _ if compresses => Err(CommunicationError::Compression(self)),
            Self::Ring | Self::HalvingDoubling => Ok(()),
        }
    }
}

/// The error for a job whose settings do not suit its communication.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommunicationError {
    /// An update does not take one gradient of every worker.
    #[error(
        "communication is {communication}, which needs the policy sync, but the policy is {sync}: use sync, because under other policies an update does not take a gradient of every worker, or a communication of direct"
    )]
    Policy {
        /// How gradients travel.
        communication: CommunicationSpec,
        /// The synchronisation policy.
        sync: SyncSpec,
    },
    /// The graph has stages.
    #[error(
        "communication is {communication}, but the graph has operations on {stages} worker tasks: use a communication of direct"
    )]
    Stages {
        /// How gradients travel.
        communication: CommunicationSpec,
        /// The number of stages.
        stages: u32,
    },
    /// The job compresses what is sent.
    #[error(
        "communication is {0}, but the job compresses gradients or values, which cannot be added up on the way: use a communication of direct, or no compression"
    )]
    Compression(CommunicationSpec),
}

impl fmt::Display for CommunicationSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Direct => "direct",
            Self::Ring => "ring",
            Self::HalvingDoubling => "halving_doubling",
        })
    }
}

/// The error for a text that is not a kind of communication.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown communication '{0}': expected auto, direct, ring or halving_doubling")]
pub struct UnknownCommunication(pub String);

impl FromStr for CommunicationSpec {
    type Err = UnknownCommunication;

    fn from_str(text: &str) -> Result<Self, UnknownCommunication> {
        match text {
            "auto" => Ok(Self::Auto),
            "direct" => Ok(Self::Direct),
            "ring" => Ok(Self::Ring),
            "halving_doubling" | "halving-doubling" => Ok(Self::HalvingDoubling),
            _ => Err(UnknownCommunication(text.chars().take(100).collect())),
        }
    }
}

impl From<CommunicationSpec> for String {
    fn from(communication: CommunicationSpec) -> Self {
        communication.to_string()
    }
}

impl TryFrom<String> for CommunicationSpec {
    type Error = UnknownCommunication;

    fn try_from(text: String) -> Result<Self, UnknownCommunication> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [CommunicationSpec; 4] = [
        CommunicationSpec::Auto,
        CommunicationSpec::Direct,
        CommunicationSpec::Ring,
        CommunicationSpec::HalvingDoubling,
    ];

    #[test]
    fn every_kind_of_communication_round_trips() {
        for communication in ALL {
            assert_eq!(communication.to_string().parse(), Ok(communication));
            let json = serde_json::to_string(&communication).unwrap();
            assert_eq!(json, format!("\"{communication}\""));
            assert_eq!(serde_json::from_str::<CommunicationSpec>(&json).unwrap(), communication);
        }
        for unknown in ["", "Ring", "ring:2", "nccl"] {
            let error = unknown.parse::<CommunicationSpec>().unwrap_err().to_string();
            assert!(error.contains(&format!("'{unknown}'")) && error.contains("halving_doubling"), "{error}");
        }
    }

    #[test]
    fn sums_need_one_exact_gradient_of_every_worker() {
        for communication in ALL {
            assert_eq!(communication.validate(SyncSpec::SYNC, 1, false), Ok(()));
            for (sync, stages, compresses, expected) in [
                ("async", 1, false, "needs the policy sync, but the policy is async:"),
                ("sync:2", 1, false, "needs the policy sync, but the policy is sync:2:"),
                ("sync", 3, false, "operations on 3 worker tasks"),
                ("sync", 1, true, "cannot be added up on the way"),
            ] {
                let checked = communication.validate(sync.parse().unwrap(), stages, compresses);
                assert_eq!(checked.is_err(), communication.has_routes());
                if let Err(error) = checked {
                    let error = error.to_string();
                    assert!(error.starts_with(&format!("communication is {communication}, ")), "{error}");
                    assert!(error.contains(expected) && error.contains("communication of direct"), "{error}");
                }
            }
        }
    }
}
