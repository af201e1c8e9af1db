//! Tensors as the segments of a payload.

use std::sync::Arc;

use pushpull_messages::tensor::{Tensor, TensorError, TensorSpec};
use pushpull_transport::buffer::{Buffer, Payload, Segment};

/// Returns the payload that has a segment for each tensor.
pub fn payload_of<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Payload {
    Payload::new(tensors.into_iter().map(segment).collect())
}

fn segment(tensor: &Tensor) -> Segment {
    match tensor.f32s() {
        Some(floats) if cfg!(target_endian = "little") => Segment::whole(Arc::new(Buffer::from_f32(floats))),
        _ => segment_of_bytes(&tensor.to_bytes()),
    }
}

fn segment_of_bytes(bytes: &[u8]) -> Segment {
    let mut buffer = Buffer::zeroed(bytes.len());
    buffer.as_bytes_mut().copy_from_slice(bytes);
    Segment::whole(Arc::new(buffer))
}

/// Returns the payload that has these segments.
pub fn payload_of_bytes<'a>(segments: impl IntoIterator<Item = &'a [u8]>) -> Payload {
    Payload::new(segments.into_iter().map(segment_of_bytes).collect())
}

/// Reads the tensors of a payload.
///
/// # Errors
/// If the bytes of a segment do not fit its spec.
pub fn tensors_of<'a>(
    specs: impl IntoIterator<Item = &'a TensorSpec>,
    payload: &Payload,
) -> Result<Vec<Arc<Tensor>>, TensorError> {
    let tensor =
        |(spec, segment): (&TensorSpec, &Segment)| Tensor::from_bytes(spec, segment.as_bytes()).map(Arc::new);
    specs.into_iter().zip(payload.segments()).map(tensor).collect()
}
