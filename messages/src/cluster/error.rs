//! The errors in a user's description of a cluster. Each error is one line that says what to do. The
//! programs decide how to report an error and how to exit.

use super::address::{Address, AddressError};
use super::{JOBS_MAX, TASKS_MAX, TASKS_PER_JOB_MAX};
use crate::id::{JobName, JobNameError, TaskId};

/// An error in a cluster, or in the choice of this process's task.
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
    /// Two tasks have the same address.
    #[error(
        "address '{address}' is given to both {first} and {second}, expected a different address for each task"
    )]
    DuplicateAddress {
        /// The address that both tasks have.
        address: Address,
        /// The first task with this address.
        first: TaskId,
        /// The second task with this address.
        second: TaskId,
    },
    /// A name cannot be the name of a job.
    #[error("{key}: {error}")]
    JobName {
        /// The flag or key that contains the name.
        key: &'static str,
        /// The fault in the name.
        error: JobNameError,
    },
    /// A name is not the name of a role of training.
    #[error("{key}: unknown job '{name}', expected chief, ps, worker or evaluator")]
    UnknownJob {
        /// The flag or key that contains the name.
        key: &'static str,
        /// The unknown name, shortened.
        name: String,
    },
    /// A job is listed twice. `master` and `chief` are the same job.
    #[error(
        "job '{0}' is given twice, expected each job once, with all its addresses ('master' is another name for 'chief')"
    )]
    DuplicateJob(JobName),
    /// A cluster that trains has more than one chief. The value is the number of chiefs.
    #[error("job 'chief' has {0} tasks, expected one chief, or none (worker/0 then hosts the chief)")]
    ManyChiefs(usize),
    /// The cluster has no task at all.
    #[error("the cluster has no task, expected at least one job with the address of a task")]
    Empty,
    /// The cluster has too many jobs. The value is the number of jobs.
    #[error("the cluster has {0} jobs, expected at most {JOBS_MAX}")]
    ManyJobs(usize),
    /// All jobs together have too many tasks. The value is the number of tasks.
    #[error("the cluster has {0} tasks, expected at most {TASKS_MAX}")]
    ManyTasksInAll(usize),
    /// A cluster that trains has a job that takes no part in training.
    #[error("job '{0}' takes no part in training, expected only chief, ps, worker and evaluator: remove it")]
    NotARole(JobName),
    /// The cluster has no worker.
    #[error("job 'worker' has no task, expected at least one: add the address of a worker")]
    NoWorker,
    /// A job has too many tasks.
    #[error("job '{job}' has {tasks} tasks, expected at most {TASKS_PER_JOB_MAX}")]
    ManyTasks {
        /// The job.
        job: JobName,
        /// The number of the job's tasks.
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
        /// The key of the invalid part.
        key: String,
        /// The expected form.
        expected: &'static str,
        /// The value found, shortened.
        got: String,
    },
    /// The cluster is given in more than one way, such as in `TF_CONFIG` and by a flag.
    #[error("the cluster is given by both {first} and {second}: remove one of them")]
    TwoClusters {
        /// The environment variable, or the first of two flags.
        first: &'static str,
        /// The flag that gives the cluster a second time.
        second: &'static str,
    },
    /// `TF_CONFIG` and the flags name different tasks.
    #[error(
        "TF_CONFIG says {tf_config} and {key} says {flag}, expected the same value: remove {key} or correct it"
    )]
    TwoTasks {
        /// The name of the flag.
        key: &'static str,
        /// The value in `TF_CONFIG`.
        tf_config: String,
        /// The flag's value.
        flag: String,
    },
    /// A task is given without a cluster.
    #[error(
        "{0} is given without a cluster, expected also TF_CONFIG, or --cluster-spec, or both --ps-hosts and --worker-hosts"
    )]
    NoCluster(&'static str),
    /// A cluster is given without the task of this process.
    #[error(
        "the cluster is given, but not which of its tasks this process is: expected --job-name (one of {valid}) and --task-index"
    )]
    NoJobName {
        /// The names of the cluster's jobs.
        valid: String,
    },
    /// The job has several tasks, and no index is given.
    #[error("job '{job}' has {tasks} tasks and no index is given, expected --task-index from 0 to {}", .tasks - 1)]
    NoTaskIndex {
        /// The job.
        job: JobName,
        /// The number of the job's tasks; at least 2.
        tasks: usize,
    },
    /// The cluster does not have the job of this process.
    #[error("job '{job}' has no task in this cluster, expected --job-name to be one of {valid}")]
    JobNotInCluster {
        /// The job.
        job: JobName,
        /// The names of the cluster's jobs.
        valid: String,
    },
    /// The largest number of workers is less than the number of workers in the cluster, or too large.
    #[error(
        "--workers-max is {max}, expected from {workers}, the number of workers in the cluster, to {TASKS_PER_JOB_MAX}"
    )]
    WorkersMax {
        /// The largest number of workers.
        max: u32,
        /// The number of workers in the cluster.
        workers: usize,
    },
    /// The job has no task with this index.
    #[error("task index {index} of job '{job}' is out of range, expected --task-index from 0 to {}", .tasks - 1)]
    TaskIndex {
        /// The job.
        job: JobName,
        /// The index that was given.
        index: u32,
        /// The number of the job's tasks; at least 1.
        tasks: usize,
    },
}
