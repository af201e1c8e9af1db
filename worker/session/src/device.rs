//! The devices of a cluster of servers.

use std::fmt;

use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::TaskId;

/// The maximum number of CPU devices of a task.
pub const CPUS_MAX: u32 = 64;

/// The devices of all tasks of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices {
    /// The tasks in the order of the cluster spec, each with its number of CPU devices; 0 if the task could
    /// not be asked.
    tasks: Vec<(TaskId, u32)>,
    /// The index of the task that runs operations which request no task.
    home: usize,
}

/// A device: the index of its task in [`Devices`], and its index among the task's CPU devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct DeviceId {
    pub task: usize,
    pub cpu: u32,
}

impl Devices {
    /// Makes the list of devices. `cpus` has the number of CPU devices of each task, in the order of the
    /// cluster spec. Returns `None` if the numbers do not fit the cluster, or if `home` is not in it.
    pub fn new(cluster: &ClusterSpec, cpus: &[u32], home: TaskId) -> Option<Self> {
        let tasks: Vec<TaskId> = cluster.tasks().map(|(task, _)| task).collect();
        let at_home = tasks.iter().position(|&task| task == home)?;
        let fits = tasks.len() == cpus.len() && cpus.iter().all(|&cpus| cpus <= CPUS_MAX);
        fits.then(|| Self { tasks: tasks.into_iter().zip(cpus.iter().copied()).collect(), home: at_home })
    }

    /// Returns the first device of the home task.
    pub(crate) const fn home(&self) -> DeviceId {
        DeviceId { task: self.home, cpu: 0 }
    }

    pub(crate) fn task(&self, index: usize) -> TaskId {
        self.tasks[index].0
    }

    /// Returns the number of CPU devices of a task.
    pub(crate) fn cpus(&self, index: usize) -> u32 {
        self.tasks[index].1
    }

    pub(crate) fn index(&self, task: TaskId) -> Option<usize> {
        self.tasks.iter().position(|&(other, _)| other == task)
    }

    /// Returns the full name of a device, such as `/job:worker/task:0/device:CPU:0`.
    pub(crate) fn name(&self, device: DeviceId) -> String {
        let TaskId { job, index } = self.task(device.task);
        format!("/job:{job}/task:{index}/device:CPU:{}", device.cpu)
    }
}

impl fmt::Display for Devices {
    /// Writes the first few tasks with their numbers of devices, for errors.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        for (position, (TaskId { job, index }, cpus)) in self.tasks.iter().take(SHOWN).enumerate() {
            let comma = if position > 0 { ", " } else { "" };
            match cpus {
                0 | 1 => write!(f, "{comma}/job:{job}/task:{index}/device:CPU:0")?,
                cpus => write!(f, "{comma}/job:{job}/task:{index}/device:CPU:0 to CPU:{}", cpus - 1)?,
            }
        }
        match self.tasks.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, " and those of {more} more tasks"),
        }
    }
}
