//! How gradients of several workers meet, as data. What it means is carried out by the shards.
//!
//! Written as people say it, on a command line as in a job file: `async`, `async:staleness-lr`, `bounded:3`, `sync`,
//! `sync:2`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A synchronisation policy: one value in the job, one protocol for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum SyncSpec {
    /// Each push is applied as it comes.
    Async {
        /// Whether the step size is multiplied with 1 / (1 + staleness): Zhang et al., IJCAI 2016.
        staleness_lr: bool,
    },
    /// Each push is applied as it comes, and no worker is more than so many steps ahead of the slowest: the stale
    /// synchronous parallel of Ho et al., NIPS 2013. 0 is lock step.
    Bounded {
        /// In steps of one worker.
        staleness: u32,
    },
    /// Gradients computed at one version are applied together, as their mean: Chen et al., 2016.
    Sync {
        /// So many of them make an update, and those that come later are stale; all workers', where it is `None`.
        aggregate: Option<u32>,
    },
}

impl SyncSpec {
    /// Each push is applied as it comes, with the same step size.
    pub const ASYNC: Self = Self::Async { staleness_lr: false };
    /// The gradients of all workers make an update together.
    pub const SYNC: Self = Self::Sync { aggregate: None };

    /// Gradients that make an update together in a job of so many workers.
    pub const fn gradients_per_update(self, workers: u32) -> u32 {
        match self {
            Self::Async { .. } | Self::Bounded { .. } => 1,
            Self::Sync { aggregate: Some(aggregate) } if aggregate < workers => aggregate,
            Self::Sync { .. } => workers,
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

/// Words that are no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown policy '{0}': expected async, async:staleness-lr, bounded:S with S steps, sync, or sync:K with K of at least 1"
)]
pub struct UnknownSync(pub String);

impl FromStr for SyncSpec {
    type Err = UnknownSync;

    fn from_str(text: &str) -> Result<Self, UnknownSync> {
        let (name, option) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
        // What `parse` takes beyond digits, such as a plus sign, is not how the policy is written.
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

/// What becomes of a job when a worker is lost, is told to stop, or runs out of examples before the last step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaveSpec {
    /// The others go on; where their number matters it goes down.
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
        fn what_is_written_is_read_again(sync in any_sync()) {
            prop_assert_eq!(sync.to_string().parse(), Ok(sync));
            let json = serde_json::to_string(&sync).unwrap();
            prop_assert_eq!(serde_json::from_str::<SyncSpec>(&json).unwrap(), sync);
        }
    }

    #[test]
    fn anything_else_is_refused_with_the_valid_words() {
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
    fn backup_workers_are_those_beyond_the_first_so_many() {
        let per_update =
            |words: &str, workers| words.parse::<SyncSpec>().unwrap().gradients_per_update(workers);
        assert_eq!(per_update("async", 4), 1);
        assert_eq!(per_update("sync", 4), 4);
        assert_eq!(per_update("sync:3", 4), 3);
        assert_eq!(per_update("sync:9", 4), 4);
    }
}
