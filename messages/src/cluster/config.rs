//! Who a process is: a cluster, and one task of it.
//! Does not know in which spelling a user said so.

use super::TASKS_PER_JOB_MAX;
use super::error::ClusterError;
use super::spec::ClusterSpec;
use crate::id::{JobName, TaskId};

/// The cluster, and which of its tasks this process is.
///
/// The task has an address in the cluster; only an evaluator may lack one, since it need not be listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    cluster: ClusterSpec,
    task: TaskId,
}

impl ClusterConfig {
    /// Finds a task in the cluster. Where the job has one task only, the index may be left out.
    ///
    /// # Errors
    /// Where the cluster has no such task, or more than one that it could be.
    pub fn new(cluster: ClusterSpec, job: JobName, index: Option<u32>) -> Result<Self, ClusterError> {
        let listed = cluster.addresses(job).len();
        // An evaluator outside the cluster has nothing to be counted by: its index is believed.
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

    /// All tasks.
    pub const fn cluster(&self) -> &ClusterSpec {
        &self.cluster
    }

    /// This one.
    pub const fn task(&self) -> TaskId {
        self.task
    }

    /// Whether this task hosts the chief.
    pub fn hosts_chief(&self) -> bool {
        self.task == self.cluster.chief_host()
    }
}

/// The jobs that a task of this cluster can be of, for an error message.
pub(super) fn job_names(cluster: &ClusterSpec) -> String {
    let names: Vec<&str> = cluster.jobs().map(|(job, _)| job.as_str()).collect();
    names.join(", ")
}
