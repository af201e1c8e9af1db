//! Which tasks the process of a task runs, and on which hosts. Its certificate names all of them.

use std::collections::BTreeSet;

use pushpull_messages::cluster::{ClusterSpec, TASKS_PER_JOB_MAX};
use pushpull_messages::id::{JobName, TaskId};

/// Returns the tasks that the process of `task` runs: the task itself; the ps task of its index, if it is a
/// worker of a cluster that lists no ps tasks; and the chief, if it hosts the chief. A worker that the
/// cluster does not list runs itself only: the chief decides later whether it may join the job. Returns
/// `None` if the cluster does not list another task.
pub(crate) fn process_tasks(cluster: &ClusterSpec, task: TaskId) -> Option<Vec<TaskId>> {
    if cluster.address(task).is_none() {
        let may_join = task.job == JobName::Worker && (task.index as usize) < TASKS_PER_JOB_MAX;
        return may_join.then(|| vec![task]);
    }
    let hosted_ps = (task.job == JobName::Worker && !cluster.has_ps()).then(|| TaskId::ps(task.index));
    let hosted_chief = (task == cluster.chief_host() && task != TaskId::CHIEF).then_some(TaskId::CHIEF);
    Some([task].into_iter().chain(hosted_ps).chain(hosted_chief).collect())
}

/// Returns the host names or addresses of tasks, each once.
pub(crate) fn hosts_of<'a>(cluster: &'a ClusterSpec, tasks: &[TaskId]) -> Vec<&'a str> {
    let hosts = tasks.iter().filter_map(|&task| cluster.address(task)).map(|address| address.host());
    hosts.collect::<BTreeSet<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_may_host_other_tasks() {
        let [chief, ps, worker] = [TaskId::CHIEF, TaskId::ps(1), TaskId::worker(1)];
        let cluster = |jobs: &[(JobName, Vec<&str>)]| ClusterSpec::new(jobs.to_vec()).unwrap();
        let workers = (JobName::Worker, vec!["w:1", "w:2"]);
        let whole = cluster(&[(JobName::Chief, vec!["c:1"]), (JobName::Ps, vec!["p:1"]), workers.clone()]);
        assert_eq!(process_tasks(&whole, worker), Some(vec![worker]));
        assert_eq!(process_tasks(&whole, chief), Some(vec![chief]));
        assert_eq!(process_tasks(&whole, ps), None);
        for (index, tasks) in [(2, Some(vec![TaskId::worker(2)])), (TASKS_PER_JOB_MAX as u32, None)] {
            assert_eq!(process_tasks(&whole, TaskId::worker(index)), tasks, "a worker that may join");
        }
        let workers = cluster(&[workers]);
        assert_eq!(process_tasks(&workers, worker), Some(vec![worker, ps]));
        let first = TaskId::worker(0);
        assert_eq!(process_tasks(&workers, first), Some(vec![first, TaskId::ps(0), chief]));
        assert_eq!(process_tasks(&workers, ps), None, "the worker that hosts it has the certificate");
    }
}
