//! What this process was told when it was started, without its secrets.

use std::collections::BTreeMap;

use pushpull_messages::cluster::{ClusterConfig, ClusterSpec};
use pushpull_messages::id::TaskId;
use serde::Serialize;

use crate::cli::{Setting, settings};

/// How this process was started: `/config`.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct About {
    program: String,
    version: &'static str,
    /// Every task that it runs.
    tasks: Vec<String>,
    /// The addresses of every task, by job.
    cluster: BTreeMap<String, Vec<String>>,
    flags: Vec<Setting>,
    /// How others reach this process, if its cluster says.
    #[serde(skip)]
    host: Option<String>,
}

impl About {
    /// Of a process that runs those tasks.
    pub(crate) fn new(tasks: impl IntoIterator<Item = TaskId>, cluster: Option<&ClusterSpec>) -> Self {
        let (program, flags) = settings();
        let jobs = cluster.into_iter().flat_map(ClusterSpec::jobs);
        let jobs = jobs
            .map(|(job, addresses)| (job.to_string(), addresses.iter().map(ToString::to_string).collect()));
        Self {
            program: program.to_owned(),
            version: env!("CARGO_PKG_VERSION"),
            tasks: tasks.into_iter().map(|task| task.to_string()).collect(),
            cluster: jobs.collect(),
            flags: flags.to_vec(),
            host: None,
        }
    }

    /// Of a task in a cluster; a worker that hosts the chief is both.
    pub(crate) fn task(config: &ClusterConfig) -> Self {
        let (task, cluster) = (config.task(), config.cluster());
        let chief = config.hosts_chief().then_some(TaskId::CHIEF).filter(|&chief| chief != task);
        let host = cluster.address(task).map(|address| address.host().to_owned());
        Self { host, ..Self::new(std::iter::once(task).chain(chief), Some(cluster)) }
    }

    /// The name of this process's host in its cluster.
    pub(super) fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    pub(super) fn tasks(&self) -> &[String] {
        &self.tasks
    }
}
