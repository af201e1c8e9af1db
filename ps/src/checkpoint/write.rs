//! Writes a cut, the snapshot of a shard, to a file, and defines the file's tensors and their names. Nothing
//! is copied: the file is written from the buffers that the shard trained in.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use pushpull_messages::checkpoint::{CheckpointName, FileSpec, Part, SavedTensorSpec};
use pushpull_messages::id::SliceId;
use pushpull_messages::message::SaveResult;
use pushpull_messages::observe;
use pushpull_messages::placement::SliceSpec;
use pushpull_messages::tensor::Shape;
use pushpull_messages::variable::VariableSpec;
use pushpull_storage::{NewTensor, StoreError, Stores, write_file};
use pushpull_transport::buffer::Buffer;

use crate::shard::{Cut, SliceState, initial_slots};

/// Writes a cut. Returns when the file is durable or the write has failed.
pub(super) async fn write(cut: Cut, stores: &Stores) -> SaveResult {
    let (shard, checkpoint) = (cut.created.shard, cut.save.checkpoint);
    match write_shard(cut, stores).await {
        Ok(result) => result,
        Err(error) => {
            tracing::warn!(%shard, %checkpoint, %error, "could not save the shard");
            SaveResult::failed(format!("{shard}: {error}"))
        }
    }
}

async fn write_shard(cut: Cut, stores: &Stores) -> Result<SaveResult, StoreError> {
    let began = observe::now();
    let Cut { save, created, slices, workers } = cut;
    let store = stores.open(&save.store)?;
    let (mut tensors, mut parts_of) = (Vec::new(), Vec::new());
    for state in slices {
        let slice = created.placement.slices[state.id.index()].slice;
        let variable = &created.variables[slice.variable.index()];
        let (id, slots) = (state.id, initial_slots(&created.update, variable));
        for (part, suffix, buffer) in parts(state, &slots) {
            let name = tensor_name(variable, &slice, suffix);
            parts_of.push((id, part, name.clone()));
            let bytes = vec![Bytes::from_owner(Shared(buffer))];
            tensors.push(NewTensor { name, shape: shape(variable, &slice), bytes });
        }
    }
    let name = CheckpointName::shard_file(created.shard);
    let (written, bytes) = write_file(&store, &save.checkpoint.file(&name), tensors, HashMap::new()).await?;
    let tensors = parts_of
        .into_iter()
        .zip(written)
        .map(|((slice, part, name), written)| SavedTensorSpec {
            name,
            slice,
            part,
            offset: written.offset,
            bytes: written.bytes,
            crc32c: written.crc32c,
        })
        .collect();
    let file = FileSpec { name, shard: created.shard, version: save.at, bytes, tensors };
    let took_ms = observe::since(began).as_millis() as u64;
    Ok(SaveResult::Written { file, workers, took_ms })
}

/// A buffer whose bytes are written to a file without a copy. When the bytes are dropped, the buffer goes
/// back to its pool.
struct Shared(Arc<Buffer>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// Iterates over the parts of a slice (value, average, slots). Each item has the part, the suffix of its
/// tensor's name, and its buffer.
fn parts(
    state: SliceState,
    slots: &[(&'static str, f32)],
) -> impl Iterator<Item = (Part, Option<&'static str>, Arc<Buffer>)> {
    let SliceState { id: SliceId(_), value, average, slots: states } = state;
    let slots = states.into_iter().zip(slots).zip(0..);
    let slots = slots.map(|((buffer, &(name, _)), number)| (Part::Slot(number), Some(name), buffer));
    let average = average.map(|average| (Part::Average, Some("average"), average));
    [(Part::Value, None, value)].into_iter().chain(average).chain(slots)
}

/// Returns the name of a tensor in the file: `dense1/kernel` for a whole variable, `dense1/kernel[0:100]`
/// for a range of rows, and `dense1/kernel:momentum` for a slot. The names are unambiguous, because the name
/// of a variable cannot contain ':' or '['.
fn tensor_name(variable: &VariableSpec, slice: &SliceSpec, suffix: Option<&str>) -> String {
    let mut name = variable.name.clone();
    if slice.rows != variable.rows() as u64 {
        name += &format!("[{}:{}]", slice.row, slice.row + slice.rows);
    }
    if let Some(suffix) = suffix {
        name += &format!(":{suffix}");
    }
    name
}

fn shape(variable: &VariableSpec, slice: &SliceSpec) -> Shape {
    let mut shape = variable.shape.clone();
    // A scalar has no axis 0, so there is no number of rows to replace.
    if let Some(rows) = shape.0.first_mut() {
        *rows = slice.rows as usize;
    }
    shape
}
