//! Which tasks of a cluster share a process and its machine.

use pushpull_messages::id::{JobName, TaskId};

/// Which tasks share a process. A process has the name of its worker, or of its only task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The number of workers that the cluster lists. Only these host other tasks.
    pub listed: u32,
    /// Whether the process of worker i also runs ps task i.
    pub workers_host_ps: bool,
    /// Whether the process of worker 0 also runs the chief.
    pub worker_hosts_chief: bool,
}

impl Layout {
    /// Returns the layout in which every task has a process of its own.
    pub const fn apart(listed: u32) -> Self {
        Self { listed, workers_host_ps: false, worker_hosts_chief: false }
    }

    /// Returns the process that runs a task.
    pub fn host_of(self, task: TaskId) -> TaskId {
        match task.job {
            JobName::Ps if self.workers_host_ps => TaskId::worker(task.index),
            JobName::Chief if self.worker_hosts_chief && task == TaskId::CHIEF => TaskId::worker(0),
            _ => task,
        }
    }

    /// Returns the tasks that a process runs.
    pub fn tasks_on(self, host: TaskId) -> Vec<TaskId> {
        if host.job != JobName::Worker || host.index >= self.listed {
            return vec![host];
        }
        let mut tasks = vec![host];
        if self.workers_host_ps {
            tasks.insert(0, TaskId::ps(host.index));
        }
        if self.worker_hosts_chief && host.index == 0 {
            tasks.push(TaskId::CHIEF);
        }
        tasks
    }

    /// Returns whether two tasks are in the same process, so that no network is between them.
    pub fn are_together(self, one: TaskId, other: TaskId) -> bool {
        self.host_of(one) == self.host_of(other)
    }
}
