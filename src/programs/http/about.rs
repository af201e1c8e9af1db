//! Describes how this process was started, without its secrets.

use std::collections::BTreeMap;

use pushpull_messages::cluster::{ClusterConfig, ClusterSpec};
use pushpull_messages::id::TaskId;
use serde::Serialize;

use crate::programs::settings::{Setting, Settings};

/// A description of how this process was started, as `/config` shows it.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct About {
    program: String,
    version: &'static str,
    /// The tasks that the process runs.
    tasks: Vec<String>,
    /// The addresses of all tasks of the cluster, for each job name, such as `ps`.
    cluster: BTreeMap<String, Vec<String>>,
    flags: Vec<Setting>,
    /// The host name of this process's task in the cluster spec; `None` if the process does not belong to a
    /// cluster.
    #[serde(skip)]
    host: Option<String>,
}

impl About {
    /// Makes the description of a process that runs `tasks`.
    pub(crate) fn new(tasks: impl IntoIterator<Item = TaskId>, cluster: Option<&ClusterSpec>) -> Self {
        let jobs = cluster.into_iter().flat_map(ClusterSpec::jobs);
        let jobs = jobs
            .map(|(job, addresses)| (job.to_string(), addresses.iter().map(ToString::to_string).collect()));
        Self {
            program: String::new(),
            version: env!("CARGO_PKG_VERSION"),
            tasks: tasks.into_iter().map(|task| task.to_string()).collect(),
            cluster: jobs.collect(),
            flags: Vec::new(),
            host: None,
        }
    }

    /// Makes the description of a process that runs a task of a cluster. A worker is listed with the tasks
    /// that it hosts.
    pub(crate) fn task(config: &ClusterConfig) -> Self {
        let (task, cluster) = (config.task(), config.cluster());
        let chief = config.hosts_chief().then_some(TaskId::CHIEF).filter(|&chief| chief != task);
        let host = cluster.address(task).map(|address| address.host().to_owned());
        let ps = config.hosts_ps().then_some(TaskId::ps(task.index));
        Self { host, ..Self::new(std::iter::once(task).chain(chief).chain(ps), Some(cluster)) }
    }

    /// Makes the description of a process that runs a server of sessions.
    pub(crate) fn server(task: TaskId, cluster: &ClusterSpec) -> Self {
        let host = cluster.address(task).map(|address| address.host().to_owned());
        Self { host, ..Self::new([task], Some(cluster)) }
    }

    /// Adds the program's name and its flags.
    #[must_use]
    pub(super) fn with(self, Settings { program, flags }: Settings) -> Self {
        Self { program, flags, ..self }
    }

    /// Returns the host name of this process's task in the cluster spec; `None` if the process does not
    /// belong to a cluster.
    pub(super) fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    pub(super) fn tasks(&self) -> &[String] {
        &self.tasks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_of_sessions_has_the_host_of_its_cluster() {
        let cluster = ClusterSpec::new([("ps".parse().unwrap(), vec!["p0.example:2222"])]).unwrap();
        let about = About::server(TaskId::ps(0), &cluster);
        assert_eq!((about.host(), about.tasks()), (Some("p0.example"), &["ps/0".to_owned()][..]));
    }
}
