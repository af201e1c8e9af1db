//! Decides which runs are so short that the thread that serves all connections runs them at once: passing
//! such a run to other threads takes longer than the run itself. The other clients wait meanwhile, so the
//! work of such a run is bounded.

use pushpull_messages::graph::{GraphSpec, Op, SessionOp};
use pushpull_messages::tensor::{DType, TensorSpec};

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
