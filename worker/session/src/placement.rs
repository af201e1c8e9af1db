//! Chooses the device of each node of a graph. Every task chooses alike, because the choice depends only on
//! the graph, the devices and the home task. This module must not depend on connections.

use pushpull_messages::device::{DeviceKind, OpDeviceSpec};
use pushpull_messages::graph::{GraphSpec, Op, SessionOp};
use pushpull_messages::id::{NodeId, TaskId, VariableId};

use crate::device::{DeviceId, Devices};
use crate::error::SessionError;

/// The device of each node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement(Vec<DeviceId>);

impl Placement {
    /// Chooses the device of each node. A part that a request leaves out is filled in: the job is that of the
    /// home task; the task is the home task if it is of that job, and otherwise the job's first task; the
    /// device is the first CPU.
    ///
    /// An operation that changes a variable runs on the variable's device, and an input runs on the home
    /// task, where its value arrives. If `soft` is true, a device that a task does not have is replaced by
    /// the task's first CPU.
    ///
    /// # Errors
    /// If the cluster has no such task, or the task no such device.
    pub fn new(graph: &GraphSpec, devices: &Devices, soft: bool) -> Result<Self, SessionError> {
        let requested = |node: NodeId| match graph.nodes[node.index()].device {
            None => Ok(devices.home()),
            Some(request) => resolve(&request, devices, soft).map_err(|expected| SessionError::Device {
                node: graph.label(node),
                request,
                expected,
            }),
        };
        let mut variables: Vec<Option<DeviceId>> = vec![None; graph.variables.len()];
        for (position, node) in graph.nodes.iter().enumerate() {
            if let Op::Variable { variable: VariableId(variable) } = node.op {
                let device = &mut variables[variable as usize];
                if device.is_none() {
                    *device = Some(requested(NodeId(position as u32))?);
                }
            }
        }
        let variables: Vec<DeviceId> =
            variables.into_iter().map(|device| device.unwrap_or(devices.home())).collect();
        let place = |position: usize| match &graph.nodes[position].op {
            Op::Input { .. } | Op::Session(SessionOp::Placeholder { .. }) => Ok(devices.home()),
            op => match changed_or_read(op) {
                Some(variable) => Ok(variables[variable.index()]),
                None => requested(NodeId(position as u32)),
            },
        };
        Ok(Self((0..graph.nodes.len()).map(place).collect::<Result<_, _>>()?))
    }

    pub fn of(&self, node: NodeId) -> DeviceId {
        self.0[node.index()]
    }
}

/// Returns the variable that an operation reads or changes, if it must run where the variable is.
const fn changed_or_read(op: &Op) -> Option<VariableId> {
    match op {
        Op::Variable { variable }
        | Op::Session(
            SessionOp::Assign { variable, .. }
            | SessionOp::Apply { variable, .. }
            | SessionOp::Initialize { variable },
        ) => Some(*variable),
        _ => None,
    }
}

/// Returns the device that a request names.
///
/// # Errors
/// Returns what was expected instead.
fn resolve(request: &OpDeviceSpec, devices: &Devices, soft: bool) -> Result<DeviceId, String> {
    let home = devices.task(devices.home().task);
    let job = request.job.unwrap_or(home.job);
    let index = request.task.unwrap_or(if job == home.job { home.index } else { 0 });
    let task = devices
        .index(TaskId::new(job, index))
        .ok_or_else(|| format!("a device of this cluster: {devices}"))?;
    let first = DeviceId { task, cpu: 0 };
    // A task that could not be asked gives an error only when it is needed.
    let cpus = devices.cpus(task).max(1);
    match request.device {
        None | Some((DeviceKind::Cpu, None)) => Ok(first),
        Some((DeviceKind::Cpu, Some(cpu))) if cpu < cpus => Ok(DeviceId { task, cpu }),
        Some(_) if soft => Ok(first),
        Some(_) => {
            let last = devices.name(DeviceId { task, cpu: cpus - 1 });
            let has = match cpus {
                1 => devices.name(first),
                _ => format!("{} to {last}", devices.name(first)),
            };
            Err(format!("{has}, or soft placement"))
        }
    }
}

#[cfg(test)]
mod tests {
    use pushpull_messages::cluster::ClusterSpec;
    use pushpull_messages::graph::GraphBuilder;
    use pushpull_messages::id::JobName;
    use pushpull_messages::variable::InitializerSpec;

    use super::*;

    fn devices() -> Devices {
        let jobs = [(JobName::Ps, vec!["p:1", "p:2"]), (JobName::Worker, vec!["w:1", "w:2"])];
        Devices::new(&ClusterSpec::new(jobs).unwrap(), &[1, 1, 1, 4], TaskId::worker(1)).unwrap()
    }

    /// Returns the device that a constant gets which requests `text`.
    fn device_of(text: &str, soft: bool) -> Result<String, String> {
        let mut g = GraphBuilder::new("g");
        let node = g.device(text, |g| g.value(1.0f32));
        let graph = g.finish_session().unwrap();
        let devices = devices();
        let placement = Placement::new(&graph, &devices, soft).map_err(|error| error.to_string())?;
        Ok(devices.name(placement.of(node)))
    }

    #[test]
    fn a_request_in_part_is_filled_in() {
        for (request, expected) in [
            ("", "/job:worker/task:1/device:CPU:0"),
            ("/job:worker", "/job:worker/task:1/device:CPU:0"),
            ("/task:0", "/job:worker/task:0/device:CPU:0"),
            ("/job:ps", "/job:ps/task:0/device:CPU:0"),
            ("/job:ps/task:1", "/job:ps/task:1/device:CPU:0"),
            ("/cpu:3", "/job:worker/task:1/device:CPU:3"),
            ("/job:worker/task:1/device:CPU:2", "/job:worker/task:1/device:CPU:2"),
        ] {
            assert_eq!(device_of(request, false).as_deref(), Ok(expected), "{request}");
        }
    }

    #[test]
    fn a_missing_device_is_named_or_replaced() {
        let error = device_of("/job:ps/task:0/device:GPU:0", false).unwrap_err();
        assert_eq!(
            error,
            "node 0 (constant 'constant') requests /job:ps/task:0/device:GPU:0, expected \
             /job:ps/task:0/device:CPU:0, or soft placement"
        );
        assert_eq!(device_of("/job:ps/device:GPU:0", true).unwrap(), "/job:ps/task:0/device:CPU:0");
        assert!(device_of("/cpu:4", false).unwrap_err().contains("CPU:0 to /job:worker/task:1/device:CPU:3"));
        for soft in [false, true] {
            let error = device_of("/job:ps/task:2", soft).unwrap_err();
            assert!(
                error.contains("expected a device of this cluster: /job:ps/task:0/device:CPU:0, "),
                "{error}"
            );
        }
    }

    #[test]
    fn changes_of_a_variable_run_where_it_is() {
        let mut g = GraphBuilder::new("g");
        let v = g.device("/job:ps/task:1", |g| g.variable("v", [], InitializerSpec::Zeros));
        let one = g.value(1.0f32);
        let changed = g.device("/job:worker/task:0", |g| g.assign_add(v, one));
        let placement = Placement::new(&g.finish_session().unwrap(), &devices(), false).unwrap();
        assert_eq!(placement.of(changed), placement.of(v));
        assert_eq!(placement.of(v), DeviceId { task: 1, cpu: 0 });
        assert_eq!(placement.of(one), devices().home());
    }
}
