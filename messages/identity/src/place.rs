//! The place of a process in its cluster: the tasks that it runs, which task has the authority, and who
//! begins an enrolment. A certificate names all tasks of a process.

use std::collections::BTreeSet;

use pushpull_messages::cluster::{ClusterSpec, TASKS_PER_JOB_MAX};
use pushpull_messages::id::{JobName, TaskId};

/// What the tasks of a cluster do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// They train a model. The process of the chief has the authority.
    Training,
    /// They are servers of sessions, and serve clients. The first task has the authority.
    Sessions,
}

/// The place of a process in its cluster.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    cluster: ClusterSpec,
    task: TaskId,
    purpose: Purpose,
    /// Whether the process asks for its certificate. If it does not, the authority's process connects to it.
    asks: bool,
}

impl Place {
    /// Returns the place of a process that trains. A ps task of training does not dial the chief, so it does
    /// not ask.
    pub(crate) fn in_training(cluster: ClusterSpec, task: TaskId) -> Self {
        Self { cluster, task, purpose: Purpose::Training, asks: task.job != JobName::Ps }
    }

    /// Returns the place of a server of sessions. Every server dials, whatever its job is called.
    pub(crate) const fn of_server(cluster: ClusterSpec, task: TaskId) -> Self {
        Self { cluster, task, purpose: Purpose::Sessions, asks: true }
    }

    /// Returns the task of the process.
    pub(crate) const fn task(&self) -> TaskId {
        self.task
    }

    /// Returns whether the process asks for its certificate, unless it has the authority.
    pub(crate) const fn asks(&self) -> bool {
        self.asks
    }

    /// Returns whether the process serves clients.
    pub(crate) fn serves_clients(&self) -> bool {
        self.purpose == Purpose::Sessions
    }

    /// Returns the task that only the certificate of the authority's process names.
    pub(crate) fn authority(&self) -> TaskId {
        match self.purpose {
            Purpose::Training => TaskId::CHIEF,
            Purpose::Sessions => self.cluster.first_task(),
        }
    }

    /// Returns the address of the authority's process.
    pub(crate) fn authority_address(&self) -> String {
        let host = match self.purpose {
            Purpose::Training => self.cluster.chief_host(),
            Purpose::Sessions => self.cluster.first_task(),
        };
        self.cluster.address(host).map(ToString::to_string).unwrap_or_default()
    }

    /// Returns what logs and errors call the authority's process, such as `the chief` or `worker/0`.
    pub(crate) fn authority_name(&self) -> String {
        match self.purpose {
            Purpose::Training => "the chief".to_owned(),
            Purpose::Sessions => self.authority().to_string(),
        }
    }

    /// Returns the tasks that this process runs, or `None` if the cluster does not list its task.
    pub(crate) fn own_tasks(&self) -> Option<Vec<TaskId>> {
        self.tasks_with(self.task)
    }

    /// Returns the host names or addresses of tasks, each once.
    pub(crate) fn hosts_of(&self, tasks: &[TaskId]) -> Vec<&str> {
        let addresses = tasks.iter().filter_map(|&task| self.cluster.address(task));
        addresses.map(|address| address.host()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Returns the tasks that the process of `task` runs, or `None` if `task` is not one of the cluster.
    ///
    /// A server is one task. A process that trains runs the task itself; the ps task of its index, if it is a
    /// worker of a cluster that lists no ps tasks; and the chief, if it hosts the chief. A worker that the
    /// cluster does not list runs itself only: the chief decides later whether it may join the job.
    pub(crate) fn tasks_with(&self, task: TaskId) -> Option<Vec<TaskId>> {
        let (cluster, listed) = (&self.cluster, self.cluster.address(task).is_some());
        if self.purpose == Purpose::Sessions {
            return listed.then(|| vec![task]);
        }
        if !listed {
            let may_join = task.job == JobName::Worker && (task.index as usize) < TASKS_PER_JOB_MAX;
            return may_join.then(|| vec![task]);
        }
        let hosted_ps = (task.job == JobName::Worker && !cluster.has_ps()).then(|| TaskId::ps(task.index));
        let hosted_chief = (task == cluster.chief_host() && task != TaskId::CHIEF).then_some(TaskId::CHIEF);
        Some([task].into_iter().chain(hosted_ps).chain(hosted_chief).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(jobs: &[(JobName, Vec<&str>)]) -> ClusterSpec {
        ClusterSpec::new(jobs.to_vec()).unwrap()
    }

    #[test]
    fn a_worker_may_host_other_tasks() {
        let [chief, ps, worker] = [TaskId::CHIEF, TaskId::ps(1), TaskId::worker(1)];
        let workers = (JobName::Worker, vec!["w:1", "w:2"]);
        let whole = cluster(&[(JobName::Chief, vec!["c:1"]), (JobName::Ps, vec!["p:1"]), workers.clone()]);
        let tasks = |cluster: &ClusterSpec, task| Place::in_training(cluster.clone(), task).own_tasks();
        assert_eq!(tasks(&whole, worker), Some(vec![worker]));
        assert_eq!(tasks(&whole, chief), Some(vec![chief]));
        assert_eq!(tasks(&whole, ps), None);
        for (index, named) in [(2, Some(vec![TaskId::worker(2)])), (TASKS_PER_JOB_MAX as u32, None)] {
            assert_eq!(tasks(&whole, TaskId::worker(index)), named, "a worker that may join");
        }
        let workers = cluster(&[workers]);
        assert_eq!(tasks(&workers, worker), Some(vec![worker, ps]));
        let first = TaskId::worker(0);
        assert_eq!(tasks(&workers, first), Some(vec![first, TaskId::ps(0), chief]));
        assert_eq!(tasks(&workers, ps), None, "the worker that hosts it has the certificate");
    }

    #[test]
    fn a_server_is_one_task_and_asks() {
        let workers = cluster(&[(JobName::Worker, vec!["w:1", "w:2"])]);
        for task in [TaskId::worker(0), TaskId::worker(1)] {
            assert_eq!(Place::of_server(workers.clone(), task).own_tasks(), Some(vec![task]));
        }
        let place = Place::of_server(workers, TaskId::worker(1));
        assert_eq!(place.tasks_with(TaskId::worker(2)), None, "no server joins that is not listed");
        assert_eq!((place.authority(), place.authority_address().as_str()), (TaskId::worker(0), "w:1"));

        let jobs = [(JobName::Ps, vec!["p:1"]), ("a".parse().unwrap(), vec!["a:1"])];
        let (server, task) = (Place::of_server(cluster(&jobs), TaskId::ps(0)), TaskId::ps(0));
        assert!(server.asks() && server.serves_clients());
        assert_eq!(server.authority(), task, "the first task in the order of a cluster spec");
        let training = Place::in_training(cluster(&[(JobName::Ps, vec!["p:1"])]), task);
        assert!(!training.asks() && !training.serves_clients());
    }
}
