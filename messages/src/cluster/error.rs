//! What can be wrong with a cluster as a user wrote it, each in one line that says what to do.
//! Knows nothing of how the program ends because of it.

use super::TASKS_PER_JOB_MAX;
use super::address::{Address, AddressError};
use crate::id::{JobName, TaskId};

/// What is wrong with a cluster, or with a task's place in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// An address cannot be read.
    #[error("address of {task}: {error}")]
    Address {
        /// Whose address.
        task: TaskId,
        /// What is wrong with it.
        error: AddressError,
    },
    /// Two tasks would listen at one address.
    #[error(
        "address '{address}' is given to both {first} and {second}: expected another address for each task"
    )]
    DuplicateAddress {
        /// The address.
        address: Address,
        /// The task that has it.
        first: TaskId,
        /// The task that was given it too.
        second: TaskId,
    },
    /// A word that names no job.
    #[error("{key}: unknown job '{name}': expected chief, ps, worker or evaluator")]
    UnknownJob {
        /// Where it was written.
        key: &'static str,
        /// The word, cut short.
        name: String,
    },
    /// A job is listed twice; `master` and `chief` are one job.
    #[error(
        "job '{0}' is given twice: expected each job once, with all its addresses ('master' is another word for 'chief')"
    )]
    DuplicateJob(JobName),
    /// There can be one chief only.
    #[error("job 'chief' has {0} tasks: expected one chief, or none and worker/0 hosts it")]
    ManyChiefs(usize),
    /// A job that every cluster needs has no task.
    #[error("job '{0}' has no task: expected at least one ps and one worker, so give '{0}' an address")]
    NoTask(JobName),
    /// A job has too many tasks.
    #[error("job '{job}' has {tasks} tasks: expected at most {TASKS_PER_JOB_MAX}")]
    ManyTasks {
        /// The job.
        job: JobName,
        /// How many it has.
        tasks: usize,
    },
    /// A part of `--cluster-spec` cannot be read.
    #[error(
        "--cluster-spec: '{0}' is not a job and its addresses: expected 'job|host:port;host:port', and ',' between jobs"
    )]
    ClusterFlag(String),
    /// A part of `TF_CONFIG` cannot be read.
    #[error("TF_CONFIG: {key}: expected {expected}, and came {came}")]
    TfConfig {
        /// Which part.
        key: String,
        /// What should have come.
        expected: &'static str,
        /// What came, cut short.
        came: String,
    },
    /// A cluster is given more than once, in different spellings.
    #[error(
        "the cluster is given twice, by {first} and by {second}: expected one of them, so leave the other out"
    )]
    TwoClusters {
        /// One place.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
    /// `TF_CONFIG` and the flags name different tasks.
    #[error(
        "TF_CONFIG says {tf_config} and {key} says {flag}: expected the same, so leave {key} out or correct it"
    )]
    TwoTasks {
        /// The flag.
        key: &'static str,
        /// The value in `TF_CONFIG`.
        tf_config: String,
        /// The flag's value.
        flag: String,
    },
    /// A task is named, but there is no cluster that it could be a part of.
    #[error(
        "{0} is given without a cluster: expected TF_CONFIG, --cluster-spec, or --ps-hosts and --worker-hosts too"
    )]
    NoCluster(&'static str),
    /// A cluster is given, but not which of its tasks this is.
    #[error(
        "a cluster is given, but not which task this is: expected --job-name (one of {valid}) and --task-index"
    )]
    NoJobName {
        /// The cluster's jobs.
        valid: String,
    },
    /// The job has more than one task, and it is not said which of them this is.
    #[error("job '{job}' has {tasks} tasks, and it is not said which this is: expected --task-index from 0 to {}", .tasks - 1)]
    NoTaskIndex {
        /// The job.
        job: JobName,
        /// How many tasks it has; at least 2.
        tasks: usize,
    },
    /// This process is said to be a task of a job that the cluster does not have.
    #[error("job '{job}' has no task in this cluster: expected --job-name to be one of {valid}")]
    JobNotInCluster {
        /// The job.
        job: JobName,
        /// The cluster's jobs.
        valid: String,
    },
    /// The job has no task of this index.
    #[error("task index {index} of job '{job}' is out of range: expected --task-index from 0 to {}", .tasks - 1)]
    TaskIndex {
        /// The job.
        job: JobName,
        /// The index that came.
        index: u32,
        /// How many tasks there are; at least 1.
        tasks: usize,
    },
}
