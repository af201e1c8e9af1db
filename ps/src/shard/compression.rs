//! The encodings of a shard's slices: those in which gradients arrive, and those in which values are sent in
//! the replies to pushes. The shard itself computes with `f32` only. Both ends of a connection derive the
//! encodings and the number of bytes of each slice from the job, so no message says them.
//!
//! Wanted property: (A) a push that is encoded has the effect of the push that it is decoded to.

use std::sync::Arc;

use pushpull_kernels::cpu::{BadIndex, Encoding, Threads};
use pushpull_messages::compression::EncodingSpec;
use pushpull_messages::message::CreateShard;
use pushpull_transport::buffer::{Buffer, BufferPool, Payload, Segment};

/// The encodings of all slices of a shard, in the order of the placement.
#[derive(Debug)]
pub(super) struct Compression(Vec<SliceEncodings>);

/// The encodings of one slice; `None` for what is sent exactly.
#[derive(Clone, Copy, Debug)]
struct SliceEncodings {
    gradients: Option<Encoding>,
    values: Option<Encoding>,
}

/// A gradient that cannot be decoded.
#[derive(Debug)]
pub(super) struct BadGradient {
    /// The position of the slice among the slices of the shard.
    pub position: usize,
    pub error: BadIndex,
}

/// Returns the encoding of a slice with `elements` elements; `None` if it would not make the slice smaller.
/// The worker's `encoding`, in its layout, must decide in the same way.
fn encoding(spec: Option<EncodingSpec>, elements: usize) -> Option<Encoding> {
    let encoding = match spec? {
        EncodingSpec::Fp16 => Encoding::Fp16,
        EncodingSpec::Bf16 => Encoding::Bf16,
        EncodingSpec::Int8 => Encoding::Int8,
        EncodingSpec::TopK { fraction } => Encoding::TopK { fraction },
    };
    Some(encoding).filter(|encoding| encoding.shrinks(elements))
}

impl Compression {
    pub(super) fn new(create: &CreateShard) -> Self {
        let of = |slice| {
            let sent = create.sent_as(slice);
            let elements = slice.elements(&create.variables[slice.variable.index()]);
            SliceEncodings {
                gradients: encoding(sent.gradients, elements),
                values: encoding(sent.values, elements),
            }
        };
        Self(create.placement.on_shard(create.shard).map(|(_, slice)| of(slice)).collect())
    }

    /// Returns whether any gradient arrives in an encoding.
    pub(super) fn has_gradients(&self) -> bool {
        self.0.iter().any(|slice| slice.gradients.is_some())
    }

    /// Returns whether any values are sent in an encoding.
    pub(super) fn has_values(&self) -> bool {
        self.0.iter().any(|slice| slice.values.is_some())
    }

    /// Returns the number of bytes in which the gradient of a slice arrives. The slice is the one at this
    /// position among the slices of the shard, and has this number of bytes as `f32`.
    pub(super) fn gradient_bytes(&self, position: usize, bytes: usize) -> usize {
        self.0[position].gradients.map_or(bytes, |encoding| encoding.bytes(bytes / 4))
    }

    /// Decodes the gradients of a push, which are in the reverse order of the slices. `sizes` has the number
    /// of bytes of each slice as `f32`, in the order of the gradients, and the gradients must have the
    /// numbers of bytes that follow from these. A gradient that was sent exactly is not copied.
    ///
    /// # Errors
    /// Returns the first gradient that cannot be decoded.
    pub(super) fn decode(
        &self,
        gradients: &Payload,
        sizes: impl Iterator<Item = usize>,
        pool: &BufferPool,
        threads: Threads,
    ) -> Result<Payload, BadGradient> {
        let slices = self.0.iter().enumerate().rev().zip(gradients.segments()).zip(sizes);
        let decoded = slices.map(|(((position, slice), segment), bytes)| {
            let Some(encoding) = slice.gradients else { return Ok(segment.clone()) };
            let mut decoded = pool.take(bytes);
            let result = encoding.decode(decoded.as_f32_mut(), segment.as_bytes(), threads);
            result.map_err(|error| BadGradient { position, error })?;
            Ok(Segment::whole(Arc::new(decoded)))
        });
        Ok(Payload::new(decoded.collect::<Result<_, _>>()?))
    }

    /// Encodes the values of all slices. Values that are sent exactly are not copied.
    pub(super) fn encode(
        &self,
        values: impl Iterator<Item = Segment>,
        pool: &BufferPool,
        threads: Threads,
    ) -> Vec<Segment> {
        let encode = |(slice, values): (&SliceEncodings, Segment)| match slice.values {
            None => values,
            Some(encoding) => {
                let mut encoded: Buffer = pool.take(encoding.bytes(values.len() / 4));
                encoding.encode(encoded.as_bytes_mut(), values.as_f32(), threads);
                Segment::whole(Arc::new(encoded))
            }
        };
        self.0.iter().zip(values).map(encode).collect()
    }
}
