//! The cluster of a process, and the task that the process runs. Other modules read the cluster and the task
//! from the flags and `TF_CONFIG`.

use super::TASKS_PER_JOB_MAX;
use super::error::ClusterError;
use super::spec::ClusterSpec;
use crate::id::{JobName, TaskId};

/// A cluster that trains, and the task of this cluster that the process runs.
///
/// The cluster has an address for the task. The only exception is an evaluator, because a cluster may omit
/// its evaluators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    cluster: ClusterSpec,
    task: TaskId,
}

impl ClusterConfig {
    /// Finds the task of this process in the cluster. The index may be `None` if the cluster has only one
    /// task with the job name `job`.
    ///
    /// # Errors
    /// If the cluster cannot train; if it has no task with this job name and index; if the index is `None`
    /// and the cluster has several tasks with this job name. If the cluster lists no evaluators, any
    /// evaluator index below `TASKS_PER_JOB_MAX` is accepted.
    pub fn new(cluster: ClusterSpec, job: JobName, index: Option<u32>) -> Result<Self, ClusterError> {
        let cluster = cluster.for_training()?;
        let listed = cluster.addresses(job).len();
        // If the cluster lists no evaluators, an evaluator's index cannot be checked.
        if listed > 0 || job != JobName::Evaluator {
            let task = task_of(&cluster, job, index)?;
            return Ok(Self { cluster, task });
        }
        let (index, tasks) = (index.unwrap_or(0), TASKS_PER_JOB_MAX);
        if index as usize >= tasks {
            return Err(ClusterError::TaskIndex { job, index, tasks });
        }
        Ok(Self { cluster, task: TaskId::new(job, index) })
    }

    /// Returns the cluster.
    pub const fn cluster(&self) -> &ClusterSpec {
        &self.cluster
    }

    /// Returns the task of this process.
    pub const fn task(&self) -> TaskId {
        self.task
    }

    /// Returns true if this process runs the chief, in a task of its own or within worker/0.
    pub fn hosts_chief(&self) -> bool {
        self.task == self.cluster.chief_host()
    }
}

/// Returns the task of a cluster with this job name and index. The index may be `None` if the job has only
/// one task.
///
/// # Errors
/// If the cluster has no such task, or if the index is `None` and the job has several tasks.
pub(super) fn task_of(
    cluster: &ClusterSpec,
    job: JobName,
    index: Option<u32>,
) -> Result<TaskId, ClusterError> {
    let tasks = cluster.addresses(job).len();
    if tasks == 0 {
        return Err(ClusterError::JobNotInCluster { job, valid: job_names(cluster) });
    }
    if tasks > 1 && index.is_none() {
        return Err(ClusterError::NoTaskIndex { job, tasks });
    }
    let index = index.unwrap_or(0);
    if index as usize >= tasks {
        return Err(ClusterError::TaskIndex { job, index, tasks });
    }
    Ok(TaskId::new(job, index))
}

/// Returns the cluster's job names, for an error message.
pub(super) fn job_names(cluster: &ClusterSpec) -> String {
    let names: Vec<String> = cluster.jobs().map(|(job, _)| job.to_string()).collect();
    names.join(", ")
}
