//! Describes the tasks of a cluster of servers: their devices, containers and variables.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, at_most, container_name, no_payload, text_within};
use crate::cluster::{ClusterSpec, TASKS_PER_JOB_MAX};
use crate::id::{Incarnation, TaskId};
use crate::message::REASON_BYTES_MAX;
use crate::tensor::TensorSpec;
use crate::variable::VARIABLE_NAME_BYTES_MAX;

/// The maximum number of variables that a task lists. The rest is only counted.
pub const VARIABLES_LISTED_MAX: usize = 4096;
/// The maximum number of containers that a task lists.
const CONTAINERS_LISTED_MAX: usize = 4096;

/// A request from a client, or from another server, to a server: what do the tasks have?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Describe {
    /// Whether to describe only the task that answers. Otherwise, the task asks all other tasks, too.
    pub own: bool,
    /// Whether to list the containers and their variables.
    pub variables: bool,
}

impl Content for Describe {}

/// The reply of a server to [`Describe`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Described {
    /// The cluster of the server.
    pub cluster: ClusterSpec,
    /// The tasks, in the order of the cluster spec.
    pub tasks: Vec<TaskDescription>,
}

/// A server, as it describes itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskDescription {
    /// The task.
    pub task: TaskId,
    /// The incarnation of the task.
    pub incarnation: Incarnation,
    /// The number of the task's CPU devices.
    pub cpus: u32,
    /// The bytes that the task's variables take.
    pub bytes: u64,
    /// The maximum of `bytes`.
    pub bytes_max: u64,
    /// The task's containers.
    pub containers: Vec<ContainerDescription>,
    /// Why the task could not be asked; `None` if it answered.
    #[serde(default)]
    pub error: Option<String>,
}

/// A container of variables on one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContainerDescription {
    /// The container's name; empty for the default container.
    pub name: String,
    /// The variables, in the order of their names.
    pub variables: Vec<VariableDescription>,
    /// The number of variables that are not listed.
    #[serde(default)]
    pub left_out: u64,
}

/// A variable in a container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VariableDescription {
    /// The variable's name.
    pub name: String,
    /// The shape and type of the value.
    pub tensor: TensorSpec,
    /// The number of times that the variable was changed since it was created.
    pub changes: u64,
}

impl TaskDescription {
    fn validate(&self) -> Result<(), Invalid> {
        at_most("containers", self.containers.len(), CONTAINERS_LISTED_MAX)?;
        for container in &self.containers {
            container_name(&container.name)?;
            at_most("variables", container.variables.len(), VARIABLES_LISTED_MAX)?;
            let names = container.variables.iter().map(|variable| &variable.name);
            for name in names {
                text_within("the name of a variable", name, VARIABLE_NAME_BYTES_MAX)?;
            }
        }
        self.error.iter().try_for_each(|error| text_within("the error", error, REASON_BYTES_MAX))
    }
}

impl Content for Described {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        at_most("tasks", self.tasks.len(), 64 * TASKS_PER_JOB_MAX)?;
        self.tasks.iter().try_for_each(TaskDescription::validate)?;
        no_payload(segments)
    }
}
