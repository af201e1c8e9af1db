//! Decides which runs are so short that the thread that serves all connections runs them at once: passing such
//! a run to other threads takes longer than the run itself. The other clients wait meanwhile, so the work of
//! such a run is bounded.

use pushpull_messages::graph::{GraphSpec, Op, SessionOp};
use pushpull_messages::tensor::{DType, TensorSpec};

use crate::plan::Part;

/// The largest number of bytes of all values of a small run.
const BYTES_MAX: u64 = 64 << 10;
/// The largest number of bytes that the operations of a small run read. A value may be read many times.
const READ_BYTES_MAX: u64 = 256 << 10;
/// The largest number of floating-point operations of the products and convolutions of a small run.
const FLOPS_MAX: u64 = 256 << 10;
/// The largest number of entries of the plan of a small run.
const ENTRIES_MAX: usize = 512;

/// The work of a run. At each of the bounds, a run takes some tenths of a millisecond.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    /// The bytes of all values.
    pub bytes: u64,
    /// The bytes that the operations read; `None` if they are not known before the run.
    pub read_bytes: Option<u64>,
    /// The floating-point operations of products and convolutions.
    pub flops: u64,
    /// The number of operations, inputs and instructions.
    pub entries: usize,
}

impl Work {
    /// Returns true if the run is small.
    pub fn is_small(self) -> bool {
        let Self { bytes, read_bytes, flops, entries } = self;
        let reads_little = read_bytes.is_some_and(|bytes| bytes <= READ_BYTES_MAX);
        bytes <= BYTES_MAX && reads_little && flops <= FLOPS_MAX && entries <= ENTRIES_MAX
    }
}

/// Returns true if one thread of the home task can run the parts: the host operations of this task, and at
/// most one program.
pub(crate) fn is_one_thread(parts: &[Part], home: usize) -> bool {
    let alone = |(index, part): (usize, &Part)| {
        part.task == parts[home].task && (index == home || part.steps.is_empty())
    };
    let programs = parts.iter().filter(|part| part.engine.is_some()).count();
    programs <= 1 && parts.iter().enumerate().all(alone)
}

/// Returns the bytes that the needed operations read, of values with these `bytes`. Returns `None` if this
/// depends on the lengths of texts.
pub(crate) fn read_bytes(
    graph: &GraphSpec,
    tensors: &[Option<TensorSpec>],
    bytes: impl Fn(&TensorSpec) -> u64,
) -> Option<u64> {
    let mut read = 0u64;
    for (node, tensor) in graph.nodes.iter().zip(tensors) {
        let Some(tensor) = tensor else { continue };
        let inputs = || node.inputs.iter().filter_map(|input| tensors[input.index()].as_ref());
        let has_text = inputs().chain([tensor]).any(|tensor| tensor.dtype == DType::Text);
        read = inputs().map(&bytes).fold(read, u64::saturating_add);
        match &node.op {
            Op::Session(SessionOp::Constant { value }) => {
                read = read.saturating_add(value.bytes_len() as u64);
            }
            // These do not look into texts, and the texts of a placeholder arrive with the request.
            Op::Session(SessionOp::Placeholder { .. } | SessionOp::Identity | SessionOp::Group) => {}
            _ if has_text => return None,
            _ => {}
        }
    }
    Some(read)
}

#[cfg(test)]
mod tests {
    use pushpull_messages::cluster::ClusterSpec;
    use pushpull_messages::graph::GraphBuilder;
    use pushpull_messages::id::{JobName, NodeId, TaskId};
    use pushpull_messages::message::Fed;
    use pushpull_messages::tensor::Shape;
    use pushpull_messages::variable::InitializerSpec;

    use super::*;
    use crate::device::Devices;
    use crate::placement::Placement;
    use crate::plan::{Plan, Signature};

    /// Plans a run that fetches the node that `build` returns, for the first of two tasks with two CPUs each.
    fn is_small(build: impl FnOnce(&mut GraphBuilder) -> NodeId) -> bool {
        let mut g = GraphBuilder::new("g");
        let fetch = build(&mut g);
        let graph = g.finish_session().unwrap();
        let cluster = ClusterSpec::new([(JobName::Worker, vec!["a:1", "b:1"])]).unwrap();
        let devices = Devices::new(&cluster, &[2, 2], TaskId::worker(0)).unwrap();
        let placement = Placement::new(&graph, &devices, false).unwrap();
        let fed = graph.nodes.iter().enumerate().filter_map(|(position, node)| match &node.op {
            Op::Session(SessionOp::Placeholder { tensor }) => {
                Some(Fed { node: NodeId(position as u32), tensor: tensor.clone() })
            }
            _ => None,
        });
        let signature = Signature { feeds: fed.collect(), fetches: vec![fetch], targets: vec![] };
        Plan::new(&graph, &placement, &devices, &signature, 0).unwrap().is_small
    }

    fn vector(g: &mut GraphBuilder, elements: usize) -> NodeId {
        g.placeholder("x", TensorSpec::f32([elements]))
    }

    #[test]
    fn operations_on_few_numbers_are_small() {
        assert!(is_small(|g| vector(g, 1)));
        assert!(is_small(|g| {
            let x = vector(g, 100);
            let x = g.relu(x);
            let x = g.cast(x, DType::I64);
            let x = g.mul(x, x);
            let x = g.cast(x, DType::F32);
            g.reduce(pushpull_messages::graph::ReductionOp::Sum, x, &[0], false)
        }));
        assert!(is_small(|g| {
            let v = g.variable("v", [100], InitializerSpec::Zeros);
            let x = vector(g, 100);
            g.assign_add(v, x)
        }));
    }

    #[test]
    fn large_values_are_not_small() {
        assert!(!is_small(|g| vector(g, 1 << 15)));
        assert!(!is_small(|g| {
            let x = vector(g, 1);
            let wide = g.variable("wide", [1 << 14], InitializerSpec::Zeros);
            g.mul(x, wide)
        }));
    }

    #[test]
    fn values_that_are_read_often_are_not_small() {
        let sum = |elements: usize, times: usize| {
            is_small(|g| {
                let x = g.placeholder("x", TensorSpec::new(DType::I64, [elements]));
                g.add_n(&vec![x; times])
            })
        };
        assert!(sum(1024, 30));
        assert!(!sum(1024, 40));
        assert!(sum(1, 500));
        assert!(!sum(1, 600));
    }

    #[test]
    fn many_products_are_not_small() {
        let product = |size: usize| {
            is_small(|g| {
                let x = g.placeholder("x", TensorSpec::f32([size, size]));
                g.matmul(x, x)
            })
        };
        assert!(product(40));
        // All values together are within the bound, but not the products.
        assert!(!product(60));
    }

    #[test]
    fn runs_on_several_devices_are_not_small() {
        let device = |device: &str| {
            is_small(|g| {
                let x = vector(g, 2);
                let y = g.relu(x);
                g.device(device, |g| g.relu(y))
            })
        };
        assert!(device("/job:worker/task:0/device:CPU:0"));
        assert!(!device("/job:worker/task:0/device:CPU:1"));
        assert!(!device("/job:worker/task:1"));
    }

    #[test]
    fn texts_of_unknown_length_are_not_small() {
        let text = || TensorSpec::new(DType::Text, Shape::scalar());
        assert!(is_small(|g| {
            let x = g.placeholder("x", text());
            let y = g.text("hello");
            g.group(&[x, y])
        }));
        assert!(!is_small(|g| g.text(&"long ".repeat(1 << 16))));
        assert!(!is_small(|g| {
            let x = g.placeholder("x", text());
            g.equal(x, x)
        }));
        assert!(!is_small(|g| g.variable_of("v", [], DType::Text, InitializerSpec::Zeros)));
    }
}
