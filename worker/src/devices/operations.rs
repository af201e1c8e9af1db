//! The devices on which operations run. Every operation runs on all devices of the worker, because each
//! device has a clone of the whole graph. This module must not depend on threads.

use pushpull_messages::device::{Device, DeviceKind, OpDeviceSpec};
use pushpull_messages::graph::{GraphSpec, NodeSpec};
use pushpull_messages::id::{NodeId, TaskId};

use super::error::ReplicaError;

/// Checks that each operation may run on every device of this worker, because each device has a clone of all
/// operations. If `soft` is true, an operation that requests another device still runs on the worker's
/// devices. A single warning then names the first such operation and the number of such operations.
///
/// # Errors
/// If `soft` is false and an operation requests another device.
pub(crate) fn check(graph: &GraphSpec, devices: &[Device], soft: bool) -> Result<(), ReplicaError> {
    check_each(graph, soft, |_, asked| devices.iter().find(|device| !asked.allows(device)).copied())
}

/// Checks that each operation of a graph with stages may run on the processor of its stage. `soft` is as for
/// [`check`].
///
/// # Errors
/// If `soft` is false and an operation requests another device.
pub(crate) fn check_stages(graph: &GraphSpec, soft: bool) -> Result<(), ReplicaError> {
    let stages = graph.stages();
    check_each(graph, soft, |node, asked| {
        let device = processor(stages.nodes()[node]);
        // The task of an input or a variable may be another one than that which its node requests.
        (!OpDeviceSpec { task: None, ..*asked }.allows(&device)).then_some(device)
    })
}

/// Returns the processor of a stage of the first replica.
const fn processor(stage: u32) -> Device {
    Device { task: TaskId::worker(stage), kind: DeviceKind::Cpu, index: 0 }
}

/// Checks the operations of a graph. `elsewhere` returns the device that an operation would run on, if its
/// request does not allow it.
fn check_each(
    graph: &GraphSpec,
    soft: bool,
    elsewhere: impl Fn(usize, &OpDeviceSpec) -> Option<Device>,
) -> Result<(), ReplicaError> {
    let elsewhere = graph.nodes.iter().enumerate().filter_map(|(position, node)| {
        let asked = node.device?;
        Some((NodeId(position as u32), asked, elsewhere(position, &asked)?))
    });
    let mut elsewhere = elsewhere.peekable();
    let Some(&(node, asked, device)) = elsewhere.peek() else { return Ok(()) };
    let (node, asked) = (graph.label(node), asked.to_string());
    if !soft {
        return Err(ReplicaError::Device { node, asked, device });
    }
    let count = elsewhere.count();
    tracing::warn!(
        "placed {node} on {device}, although it requests {asked} (operations with soft placement: {count})"
    );
    Ok(())
}

/// Returns a readable table of the operations. The first line names the devices, each of which runs all
/// operations. Each further line shows one operation, in the order of the graph.
pub(crate) fn table(graph: &GraphSpec, devices: &[Device]) -> String {
    let width = graph.nodes.iter().map(|node| node.name.len().min(NAME_WIDTH)).max().unwrap_or(0);
    let places: Vec<String> = devices.iter().map(Device::to_string).collect();
    let line = |node: &NodeSpec| format!("{:width$}  {}", node.name, node.op.name());
    let lines = graph.nodes.iter().map(line);
    std::iter::once(format!("each on {}", places.join(", "))).chain(lines).collect::<Vec<_>>().join("\n")
}

/// Returns a readable table of the operations of a graph with stages: each operation in the order of the
/// graph, and the device on which the first replica runs it.
pub(crate) fn table_of_stages(graph: &GraphSpec) -> String {
    let width = graph.nodes.iter().map(|node| node.name.len().min(NAME_WIDTH)).max().unwrap_or(0);
    let kinds = graph.nodes.iter().map(|node| node.op.name().len()).max().unwrap_or(0);
    let stages = graph.stages();
    let line = |(node, &stage): (&NodeSpec, &u32)| {
        format!("{:width$}  {:kinds$}  {}", node.name, node.op.name(), processor(stage))
    };
    graph.nodes.iter().zip(stages.nodes()).map(line).collect::<Vec<_>>().join("\n")
}

/// The maximum width to which names are padded, in characters.
const NAME_WIDTH: usize = 48;

#[cfg(test)]
mod tests {
    use pushpull_messages::graph::GraphBuilder;
    use pushpull_messages::variable::InitializerSpec;

    use super::*;

    fn on(asked: &str) -> GraphSpec {
        let mut g = GraphBuilder::new("placed");
        let x = g.variable("x", [], InitializerSpec::Zeros);
        let loss = g.on_op_device(asked.parse().unwrap(), |g| g.relu(x));
        g.finish(loss, &[]).unwrap()
    }

    #[test]
    fn other_devices_are_placed_softly_or_refused_by_name() {
        let cpu = |index| Device { task: TaskId::worker(1), kind: DeviceKind::Cpu, index };
        assert!(check(&on("/device:CPU:0"), &[cpu(0)], false).is_ok());
        assert!(check(&on("/job:worker/task:1"), &[cpu(0), cpu(1)], false).is_ok());
        for asked in ["/device:GPU:0", "/device:CPU:1", "/job:worker/task:0"] {
            assert!(check(&on(asked), &[cpu(0)], true).is_ok());
            let error = check(&on(asked), &[cpu(0)], false).unwrap_err().to_string();
            assert!(error.contains("'relu'") && error.contains("/job:worker/task:1/device:CPU:0"), "{error}");
        }
        let table = table(&on("/device:CPU:0"), &[cpu(0)]);
        assert!(
            table.starts_with("each on /job:worker/task:1/device:CPU:0\nx") && table.ends_with("relu"),
            "{table}"
        );
    }
}
