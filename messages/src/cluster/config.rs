//! The cluster of a process, and the task that the process runs. Other modules read the cluster and the task
//! from the flags and `TF_CONFIG`.

use super::TASKS_PER_JOB_MAX;
use super::error::ClusterError;
use super::spec::ClusterSpec;
use crate::id::{JobName, TaskId};

/// A cluster that trains, and the task of this cluster that the process runs.
///
/// The cluster has an address for the task, with two exceptions: a cluster may omit its evaluators, and a
/// worker that joins later is not in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    cluster: ClusterSpec,
    task: TaskId,
    workers_max: Option<u32>,
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
        Self::elastic(cluster, job, index, None)
    }

    /// Finds the task of this process in the cluster, as [`new`](Self::new) does. A worker's index may be any
    /// number below `workers_max`: workers that the cluster does not list may join while the job trains.
    /// `None` for no such workers.
    ///
    /// # Errors
    /// For the reasons of [`new`](Self::new); if `workers_max` is less than the number of workers in the
    /// cluster, or more than a job may have.
    pub fn elastic(
        cluster: ClusterSpec,
        job: JobName,
        index: Option<u32>,
        workers_max: Option<u32>,
    ) -> Result<Self, ClusterError> {
        let cluster = cluster.for_training()?;
        let workers = cluster.addresses(JobName::Worker).len();
        if let Some(max) = workers_max {
            if !(workers..=TASKS_PER_JOB_MAX).contains(&(max as usize)) {
                return Err(ClusterError::WorkersMax { max, workers });
            }
            if let (JobName::Worker, Some(index)) = (job, index) {
                let (task, tasks) = (TaskId::worker(index), max as usize);
                let config = Self { cluster, task, workers_max };
                return if index < max {
                    Ok(config)
                } else {
                    Err(ClusterError::TaskIndex { job, index, tasks })
                };
            }
        }
        let listed = cluster.addresses(job).len();
        // If the cluster lists no evaluators, an evaluator's index cannot be checked.
        if listed > 0 || job != JobName::Evaluator {
            let task = task_of(&cluster, job, index)?;
            return Ok(Self { cluster, task, workers_max });
        }
        let (index, tasks) = (index.unwrap_or(0), TASKS_PER_JOB_MAX);
        if index as usize >= tasks {
            return Err(ClusterError::TaskIndex { job, index, tasks });
        }
        Ok(Self { cluster, task: TaskId::new(job, index), workers_max })
    }

    /// Returns the cluster.
    pub const fn cluster(&self) -> &ClusterSpec {
        &self.cluster
    }

    /// Returns the task of this process.
    pub const fn task(&self) -> TaskId {
        self.task
    }

    /// Returns the largest number of workers that the job may have; `None` if no worker may join that the
    /// cluster does not list.
    pub const fn workers_max(&self) -> Option<u32> {
        self.workers_max
    }

    /// Returns true if this process runs a worker that hosts a ps task: the cluster lists the worker, but no
    /// ps tasks.
    pub fn hosts_ps(&self) -> bool {
        let listed = self.task.job == JobName::Worker && self.cluster.address(self.task).is_some();
        listed && !self.cluster.has_ps()
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
