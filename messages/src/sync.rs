//! Synchronisation policies: how gradients of several workers become updates. The crate `pushpull-ps`
//! implements the policies.
//!
//! A policy has the same text on a command line and in a job file: `async`, `async:staleness-lr`,
//! `bounded:3`, `sync` or `sync:2`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A synchronisation policy: how the gradients of several workers become updates. The messages are the same
/// for all policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum SyncSpec {
    /// Applies each push when it arrives.
    Async {
        /// Whether the learning rate of a push is multiplied by 1 / (1 + staleness): Zhang et al., IJCAI
        /// 2016.
        staleness_lr: bool,
    },
    /// Applies each push when it arrives, and lets no worker run more than `staleness` steps ahead of the
    /// slowest worker. This is the stale synchronous parallel (SSP) policy of Ho et al., NIPS 2013.
    Bounded {
        /// The maximum number of steps by which a worker may be ahead of the slowest worker. With 0, all
        /// workers run in lock step.
        staleness: u32,
    },
    /// Applies the mean of several workers' gradients, all computed at the same version: Chen et al., 2016.
    Sync {
        /// The number of gradients in an update; `None` means one gradient from each worker. If it is less
        /// than the number of workers, the gradients that arrive after the update are stale and are not
        /// applied. If it is greater, some or all workers compute several gradients from the same values.
        aggregate: Option<u32>,
    },
}

impl SyncSpec {
    /// The policy that applies each push when it arrives. Staleness does not change the learning rate.
    pub const ASYNC: Self = Self::Async { staleness_lr: false };
    /// The policy that applies the mean of the gradients of all workers.
    pub const SYNC: Self = Self::Sync { aggregate: None };

    /// Returns the number of gradients that make one update in a job with `workers` workers.
    pub const fn gradients_per_update(self, workers: u32) -> u32 {
        match self {
            Self::Async { .. } | Self::Bounded { .. } => 1,
            Self::Sync { aggregate: Some(aggregate) } => aggregate,
            Self::Sync { aggregate: None } => workers,
        }
    }

    /// Returns true if an update has more gradients than the job has workers. Some or all of the `workers`
    /// workers then compute several gradients for each update.
    pub const fn repeats(self, workers: u32) -> bool {
        matches!(self, Self::Sync { aggregate: Some(aggregate) } if aggregate > workers)
    }

    /// Returns true if a worker may have `steps` steps in flight. Only `async` allows more than 1: the
    /// guarantees of the other policies are about a worker that waits for the reply to its push.
    pub const fn allows_pipeline(self, steps: u32) -> bool {
        steps <= 1 || matches!(self, Self::Async { .. })
    }

    /// Returns true if the order in which gradients arrive has no influence on which gradients make up an
    /// update, in a job with `workers` workers.
    pub const fn is_ordered(self, workers: u32) -> bool {
        match self {
            Self::Async { .. } | Self::Bounded { .. } => false,
            Self::Sync { aggregate: Some(aggregate) } => aggregate >= workers,
            Self::Sync { aggregate: None } => true,
        }
    }
}

impl Default for SyncSpec {
    fn default() -> Self {
        Self::ASYNC
    }
}

impl fmt::Display for SyncSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Async { staleness_lr: false } => f.write_str("async"),
            Self::Async { staleness_lr: true } => f.write_str("async:staleness-lr"),
            Self::Bounded { staleness } => write!(f, "bounded:{staleness}"),
            Self::Sync { aggregate: None } => f.write_str("sync"),
            Self::Sync { aggregate: Some(aggregate) } => write!(f, "sync:{aggregate}"),
        }
    }
}

/// The error for a text that is not a synchronisation policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown policy '{0}': expected async, async:staleness-lr, bounded:S with a staleness of at most S steps, sync, or sync:K with K of at least 1"
)]
pub struct UnknownSync(pub String);

impl FromStr for SyncSpec {
    type Err = UnknownSync;

    fn from_str(text: &str) -> Result<Self, UnknownSync> {
        let (name, option) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
        // `parse` also accepts a plus sign, which is not part of the format.
        let number = || option.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok();
        match (name, option) {
            ("async", None) => Some(Self::ASYNC),
            ("async", Some("staleness-lr" | "staleness_lr")) => Some(Self::Async { staleness_lr: true }),
            ("bounded", Some(_)) => number().map(|staleness| Self::Bounded { staleness }),
            ("sync", None) => Some(Self::SYNC),
            ("sync", Some(_)) => {
                number().filter(|&k| k > 0).map(|aggregate| Self::Sync { aggregate: Some(aggregate) })
            }
            _ => None,
        }
        .ok_or_else(|| UnknownSync(text.chars().take(100).collect()))
    }
}

impl From<SyncSpec> for String {
    fn from(sync: SyncSpec) -> Self {
        sync.to_string()
    }
}

impl TryFrom<String> for SyncSpec {
    type Error = UnknownSync;

    fn try_from(text: String) -> Result<Self, UnknownSync> {
        text.parse()
    }
}

/// What happens to the job if a worker is lost, is told to stop, or runs out of examples before the last
/// step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaveSpec {
    /// The other workers continue, and the synchronisation policy no longer counts the worker that is gone.
    #[default]
    Continue,
    /// The job ends with an error.
    Fail,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_sync() -> impl Strategy<Value = SyncSpec> {
        prop_oneof![
            any::<bool>().prop_map(|staleness_lr| SyncSpec::Async { staleness_lr }),
            any::<u32>().prop_map(|staleness| SyncSpec::Bounded { staleness }),
            prop::option::of(1u32..).prop_map(|aggregate| SyncSpec::Sync { aggregate }),
        ]
    }

    proptest! {
        #[test]
        fn policies_round_trip(sync in any_sync()) {
            prop_assert_eq!(sync.to_string().parse(), Ok(sync));
            let json = serde_json::to_string(&sync).unwrap();
            prop_assert_eq!(serde_json::from_str::<SyncSpec>(&json).unwrap(), sync);
        }
    }

    #[test]
    fn an_unknown_policy_is_refused_with_the_valid_ones() {
        for words in [
            "",
            "Async",
            "async:",
            "async:fast",
            "bounded",
            "bounded:",
            "bounded:-1",
            "bounded:+1",
            "sync:0",
            "sync:",
            "sync:1:2",
            "sync:99999999999",
        ] {
            let error = words.parse::<SyncSpec>().unwrap_err().to_string();
            assert!(error.contains("async:staleness-lr") && error.contains(&format!("'{words}'")), "{error}");
        }
    }

    #[test]
    fn an_update_has_the_gradients_that_the_policy_says() {
        let per_update =
            |words: &str, workers| words.parse::<SyncSpec>().unwrap().gradients_per_update(workers);
        assert_eq!(per_update("async", 4), 1);
        assert_eq!(per_update("sync", 4), 4);
        assert_eq!(per_update("sync:3", 4), 3);
        assert_eq!(per_update("sync:9", 4), 9);
        let ordered = |words: &str| words.parse::<SyncSpec>().unwrap().is_ordered(4);
        assert!(ordered("sync") && ordered("sync:4") && ordered("sync:9"));
        assert!(!ordered("sync:3") && !ordered("async") && !ordered("bounded:0"));
        let repeats = |words: &str| words.parse::<SyncSpec>().unwrap().repeats(4);
        assert!(repeats("sync:5") && !repeats("sync:4") && !repeats("sync") && !repeats("async"));
    }
}
