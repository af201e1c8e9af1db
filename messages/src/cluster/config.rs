//! The place of a process: a cluster and one of its tasks.
//! Does not know in which spelling the user gave them.

use super::TASKS_PER_JOB_MAX;
use super::error::ClusterError;
use super::spec::ClusterSpec;
use crate::id::{JobName, TaskId};

/// A cluster and the task of it that this process runs.
///
/// The task has an address in the cluster, except that an evaluator need not be listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    cluster: ClusterSpec,
    task: TaskId,
}

impl ClusterConfig {
    /// Finds a task in the cluster. The index may be left out if the job has only one task.
    ///
    /// # Errors
    /// If the cluster has no such task, or if the index is missing and the job has several tasks.
    pub fn new(cluster: ClusterSpec, job: JobName, index: Option<u32>) -> Result<Self, ClusterError> {
        let listed = cluster.addresses(job).len();
        // The index of an evaluator outside the cluster cannot be checked against a list.
        let outside = listed == 0 && job == JobName::Evaluator;
        if listed == 0 && !outside {
            return Err(ClusterError::JobNotInCluster { job, valid: job_names(&cluster) });
        }
        if listed > 1 && index.is_none() {
            return Err(ClusterError::NoTaskIndex { job, tasks: listed });
        }
        let index = index.unwrap_or(0);
        let tasks = if outside { TASKS_PER_JOB_MAX } else { listed };
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

    /// Returns true if this task hosts the chief.
    pub fn hosts_chief(&self) -> bool {
        self.task == self.cluster.chief_host()
    }
}

/// Lists the jobs of this cluster for an error.
pub(super) fn job_names(cluster: &ClusterSpec) -> String {
    let names: Vec<&str> = cluster.jobs().map(|(job, _)| job.as_str()).collect();
    names.join(", ")
}
