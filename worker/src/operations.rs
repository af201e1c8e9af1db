//! Where operations run: on the devices of the worker, each of which has a clone of all of them.

use pushpull_messages::device::Device;
use pushpull_messages::graph::{GraphSpec, NodeSpec};
use pushpull_messages::id::NodeId;

use crate::replica::ReplicaError;

/// Checks that every device of this worker is one that each operation allows: all of a graph's operations run on every
/// device, in its clone. With soft placement an operation that asks for something else runs there all the same, with
/// one warning for all of them, else the first is refused.
pub(crate) fn check(graph: &GraphSpec, devices: &[Device], soft: bool) -> Result<(), ReplicaError> {
    let elsewhere = graph.nodes.iter().enumerate().filter_map(|(position, node)| {
        let asked = node.device?;
        let device = devices.iter().find(|device| !asked.allows(device))?;
        Some((NodeId(position as u32), asked, *device))
    });
    let mut elsewhere = elsewhere.peekable();
    let Some(&(node, asked, device)) = elsewhere.peek() else { return Ok(()) };
    let (node, asked) = (graph.label(node), asked.to_string());
    if !soft {
        return Err(ReplicaError::Device { node, asked, device });
    }
    let count = elsewhere.count();
    tracing::warn!(
        "{node} asks for {asked}, and runs on {device} with its clone of the graph (operations placed so: {count})"
    );
    Ok(())
}

/// A readable table of the operations: where all of them run, then one line each, in the order in which they are
/// written.
pub(crate) fn table(graph: &GraphSpec, devices: &[Device]) -> String {
    let width = graph.nodes.iter().map(|node| node.name.len().min(NAME_WIDTH)).max().unwrap_or(0);
    let places: Vec<String> = devices.iter().map(Device::to_string).collect();
    let line = |node: &NodeSpec| format!("{:width$}  {}", node.name, node.op.name());
    let lines = graph.nodes.iter().map(line);
    std::iter::once(format!("each on {}", places.join(", "))).chain(lines).collect::<Vec<_>>().join("\n")
}

/// Columns that names are padded to at most.
const NAME_WIDTH: usize = 48;

#[cfg(test)]
mod tests {
    use pushpull_messages::device::DeviceKind;
    use pushpull_messages::graph::GraphBuilder;
    use pushpull_messages::id::TaskId;
    use pushpull_messages::variable::InitializerSpec;

    use super::*;

    fn on(asked: &str) -> GraphSpec {
        let mut g = GraphBuilder::new("placed");
        let x = g.variable("x", [], InitializerSpec::Zeros);
        let loss = g.on_op_device(asked.parse().unwrap(), |g| g.relu(x));
        g.finish(loss, &[]).unwrap()
    }

    #[test]
    fn an_operation_on_another_device_is_soft_placed_or_refused_by_name() {
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
