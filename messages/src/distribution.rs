//! Distribution strategies: which tasks store the variables, and how many tasks and devices compute.
//!
//! A strategy has the same text on a command line and in a job file, such as `multi_worker_mirrored`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::cluster::ClusterSpec;
use crate::id::JobName;
use crate::sync::SyncSpec;

/// A distribution strategy: which tasks store the variables, and how many tasks and devices compute.
///
/// All strategies have the same messages, counts and checkpoints, so a job may continue under another
/// strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DistributionSpec {
    /// The ps tasks store the variables.
    ParameterServer,
    /// The workers store the variables, each a part, or few of them. All train synchronously.
    MultiWorkerMirrored,
    /// One worker trains with several devices, and stores the variables on the first of them.
    Mirrored,
    /// One worker trains with several devices, and stores the variables in the host's memory.
    CentralStorage,
    /// One worker trains with one device, and stores the variables on it.
    OneDevice,
}

impl DistributionSpec {
    /// All strategies, in the order of the documentation.
    pub const ALL: [Self; 5] = [
        Self::ParameterServer,
        Self::MultiWorkerMirrored,
        Self::Mirrored,
        Self::CentralStorage,
        Self::OneDevice,
    ];

    /// Returns the strategy's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ParameterServer => "parameter_server",
            Self::MultiWorkerMirrored => "multi_worker_mirrored",
            Self::Mirrored => "mirrored",
            Self::CentralStorage => "central_storage",
            Self::OneDevice => "one_device",
        }
    }

    /// Returns whether ps tasks store the variables. Under the other strategies, workers store them.
    pub const fn has_ps(self) -> bool {
        matches!(self, Self::ParameterServer)
    }

    /// Returns whether the strategy has exactly one worker.
    pub const fn has_one_worker(self) -> bool {
        matches!(self, Self::Mirrored | Self::CentralStorage | Self::OneDevice)
    }

    /// Returns the synchronisation policy that a job with this strategy has if none is chosen.
    pub const fn default_sync(self) -> SyncSpec {
        if self.has_ps() { SyncSpec::ASYNC } else { SyncSpec::SYNC }
    }

    /// Checks that the strategy suits a synchronisation policy.
    ///
    /// # Errors
    /// If the strategy is `multi_worker_mirrored` and an update does not take the gradient of every worker.
    pub fn check_sync(self, sync: SyncSpec) -> Result<(), DistributionError> {
        match self {
            Self::MultiWorkerMirrored if sync != SyncSpec::SYNC => Err(DistributionError::Sync(sync)),
            _ => Ok(()),
        }
    }

    /// Checks that a cluster has the tasks that the strategy needs.
    ///
    /// # Errors
    /// If the variables would be stored by other tasks than the strategy says, or if there are too many
    /// workers.
    pub fn check_cluster(self, cluster: &ClusterSpec) -> Result<(), DistributionError> {
        let [ps, workers] = [JobName::Ps, JobName::Worker].map(|job| cluster.addresses(job).len());
        match self.has_ps() {
            true if ps == 0 => Err(DistributionError::NoPs),
            false if ps > 0 => Err(DistributionError::Ps { strategy: self, ps }),
            _ if self.has_one_worker() && workers != 1 => {
                Err(DistributionError::Workers { strategy: self, workers })
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for DistributionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The error for a text that is not a distribution strategy. The value is the text, shortened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown strategy '{0}': expected parameter_server, multi_worker_mirrored, mirrored, central_storage or one_device"
)]
pub struct UnknownDistribution(pub String);

impl FromStr for DistributionSpec {
    type Err = UnknownDistribution;

    fn from_str(text: &str) -> Result<Self, UnknownDistribution> {
        let known = Self::ALL.into_iter().find(|strategy| strategy.name() == text);
        known.ok_or_else(|| UnknownDistribution(text.chars().take(100).collect()))
    }
}

/// A strategy that does not suit its job or its cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DistributionError {
    /// The policy does not use the gradient of every worker.
    #[error(
        "strategy multi_worker_mirrored needs the policy sync, but the policy is {0}: use sync, or the strategy parameter_server"
    )]
    Sync(SyncSpec),
    /// There are no ps tasks.
    #[error(
        "strategy parameter_server needs ps tasks, but the cluster has none: add a ps task, or use the strategy multi_worker_mirrored"
    )]
    NoPs,
    /// There are ps tasks, but workers store the variables.
    #[error(
        "strategy {strategy} stores the variables on workers, but the cluster has {ps} ps task(s): leave them out, or use the strategy parameter_server"
    )]
    Ps {
        /// The strategy.
        strategy: DistributionSpec,
        /// The number of ps tasks.
        ps: usize,
    },
    /// There are too many workers.
    #[error(
        "strategy {strategy} has one worker, but the cluster has {workers}: use one worker with several devices, or the strategy multi_worker_mirrored"
    )]
    Workers {
        /// The strategy.
        strategy: DistributionSpec,
        /// The number of workers.
        workers: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(ps: usize, workers: usize) -> ClusterSpec {
        let hosts = |name: &str, count| (0..count).map(|index| format!("{name}:{}", index + 1)).collect();
        let jobs: [(JobName, Vec<String>); 2] =
            [(JobName::Ps, hosts("p", ps)), (JobName::Worker, hosts("w", workers))];
        ClusterSpec::new(jobs).unwrap()
    }

    #[test]
    fn a_strategy_has_one_text() {
        for strategy in DistributionSpec::ALL {
            assert_eq!(strategy.name().parse(), Ok(strategy));
            assert_eq!(serde_json::to_string(&strategy).unwrap(), format!("\"{strategy}\""));
        }
        let error = "mirror".parse::<DistributionSpec>().unwrap_err().to_string();
        assert!(error.starts_with("unknown strategy 'mirror': expected parameter_server, "), "{error}");
    }

    #[test]
    fn a_strategy_says_which_tasks_it_needs() {
        use DistributionSpec::{CentralStorage, Mirrored, MultiWorkerMirrored, OneDevice, ParameterServer};
        for (strategy, ps, workers, expected) in [
            (ParameterServer, 2, 2, None),
            (ParameterServer, 0, 2, Some("needs ps tasks, but the cluster has none")),
            (MultiWorkerMirrored, 0, 1, None),
            (MultiWorkerMirrored, 0, 5, None),
            (
                MultiWorkerMirrored,
                1,
                5,
                Some("multi_worker_mirrored stores the variables on workers, but the cluster has 1 ps"),
            ),
            (Mirrored, 0, 1, None),
            (Mirrored, 0, 2, Some("mirrored has one worker, but the cluster has 2")),
            (CentralStorage, 1, 1, Some("central_storage stores the variables on workers")),
            (OneDevice, 0, 3, Some("one_device has one worker, but the cluster has 3")),
        ] {
            let checked = strategy.check_cluster(&cluster(ps, workers)).map_err(|error| error.to_string());
            match (checked, expected) {
                (Ok(()), None) => {}
                (Err(error), Some(expected)) => assert!(error.contains(expected), "{error}"),
                (checked, _) => panic!("{strategy} on {ps} ps and {workers} workers: {checked:?}"),
            }
        }
    }

    #[test]
    fn mirrored_workers_train_synchronously() {
        for (sync, works) in [("sync", true), ("sync:2", false), ("async", false), ("bounded:1", false)] {
            let sync = sync.parse().unwrap();
            assert_eq!(DistributionSpec::MultiWorkerMirrored.check_sync(sync).is_ok(), works, "{sync}");
            assert!(DistributionSpec::ParameterServer.check_sync(sync).is_ok());
        }
        for strategy in DistributionSpec::ALL {
            assert!(strategy.check_sync(strategy.default_sync()).is_ok());
        }
    }
}
