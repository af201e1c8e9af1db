//! The errors of a cluster as a user wrote it, each in one line that says what to do.
//! Does not know how the program ends because of them.

use super::TASKS_PER_JOB_MAX;
use super::address::{Address, AddressError};
use crate::id::{JobName, TaskId};

/// An invalid cluster, or an invalid task in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// An address is invalid.
    #[error("address of {task}: {error}")]
    Address {
        /// The task with this address.
        task: TaskId,
        /// The fault in the address.
        error: AddressError,
    },
    /// Two tasks have one address.
    #[error(
        "address '{address}' is given to both {first} and {second}, expected another address for each task"
    )]
    DuplicateAddress {
        /// The address.
        address: Address,
        /// The first task with this address.
        first: TaskId,
        /// The second task with this address.
        second: TaskId,
    },
    /// A name is not a job's.
    #[error("{key}: unknown job '{name}', expected chief, ps, worker or evaluator")]
    UnknownJob {
        /// The flag or key with the name.
        key: &'static str,
        /// The name, shortened.
        name: String,
    },
    /// A job is listed twice; `master` and `chief` are one job.
    #[error(
        "job '{0}' is given twice, expected each job once, with all its addresses ('master' is another name for 'chief')"
    )]
    DuplicateJob(JobName),
    /// There are several chiefs.
    #[error("job 'chief' has {0} tasks, expected one chief, or none so that worker/0 hosts it")]
    ManyChiefs(usize),
    /// A job that every cluster needs has no task.
    #[error("job '{0}' has no task, expected at least one ps and one worker: give '{0}' an address")]
    NoTask(JobName),
    /// A job has too many tasks.
    #[error("job '{job}' has {tasks} tasks, expected at most {TASKS_PER_JOB_MAX}")]
    ManyTasks {
        /// The job.
        job: JobName,
        /// The number of its tasks.
        tasks: usize,
    },
    /// A part of `--cluster-spec` is invalid.
    #[error(
        "--cluster-spec: '{0}' is not a job with its addresses, expected 'job|host:port;host:port', and ',' between jobs"
    )]
    ClusterFlag(String),
    /// A part of `TF_CONFIG` is invalid.
    #[error("TF_CONFIG: {key}: got {got}, expected {expected}")]
    TfConfig {
        /// The key of the part.
        key: String,
        /// The expected form.
        expected: &'static str,
        /// The value found, shortened.
        got: String,
    },
    /// The cluster is given more than once, in different spellings.
    #[error("the cluster is given twice, by {first} and by {second}, expected only one: leave the other out")]
    TwoClusters {
        /// The first flag or variable.
        first: &'static str,
        /// The second flag.
        second: &'static str,
    },
    /// `TF_CONFIG` and the flags name different tasks.
    #[error(
        "TF_CONFIG says {tf_config} and {key} says {flag}, expected the same: leave {key} out or correct it"
    )]
    TwoTasks {
        /// The flag.
        key: &'static str,
        /// The value in `TF_CONFIG`.
        tf_config: String,
        /// The flag's value.
        flag: String,
    },
    /// A task is given without a cluster.
    #[error(
        "{0} is given without a cluster, expected TF_CONFIG, --cluster-spec, or --ps-hosts and --worker-hosts too"
    )]
    NoCluster(&'static str),
    /// A cluster is given without the task of this process.
    #[error(
        "a cluster is given without the task of this process, expected --job-name (one of {valid}) and --task-index"
    )]
    NoJobName {
        /// The cluster's jobs.
        valid: String,
    },
    /// The job has several tasks, and the index is missing.
    #[error("job '{job}' has {tasks} tasks and no index is given, expected --task-index from 0 to {}", .tasks - 1)]
    NoTaskIndex {
        /// The job.
        job: JobName,
        /// The number of its tasks; at least 2.
        tasks: usize,
    },
    /// The cluster does not have the job of this process.
    #[error("job '{job}' has no task in this cluster, expected --job-name to be one of {valid}")]
    JobNotInCluster {
        /// The job.
        job: JobName,
        /// The cluster's jobs.
        valid: String,
    },
    /// The job has no task of this index.
    #[error("task index {index} of job '{job}' is out of range, expected --task-index from 0 to {}", .tasks - 1)]
    TaskIndex {
        /// The job.
        job: JobName,
        /// The index.
        index: u32,
        /// The number of tasks; at least 1.
        tasks: usize,
    },
}
