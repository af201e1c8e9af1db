//! Reads the values of whole variables from a checkpoint. The placement with which the checkpoint was saved
//! does not matter. This module must not depend on the progress of a job.

use std::sync::Arc;

use pushpull_messages::checkpoint::{CheckpointName, Part};
use pushpull_messages::id::VariableId;
use pushpull_storage::{ManifestSpec, Store, missing_file, read_piece};
use pushpull_transport::buffer::{BufferPool, Segment};

use super::error::EvaluatorError;
use crate::client::Values;

/// Reads every variable: its moving average if the checkpoint has one, otherwise its value.
///
/// # Errors
/// If a file is missing, incomplete or damaged.
pub(super) async fn read_values(
    store: &Store,
    checkpoint: CheckpointName,
    manifest: &ManifestSpec,
    pool: &BufferPool,
) -> Result<Arc<Values>, EvaluatorError> {
    // This check comes first, because an incomplete checkpoint should not cause an allocation.
    if let Some((_, reason)) = missing_file(store, checkpoint, manifest).await? {
        return Err(EvaluatorError::NotWhole(reason));
    }
    let mut variables = Vec::with_capacity(manifest.job.graph.variables.len());
    let update = manifest.job.update();
    for (variable, id) in manifest.job.graph.variables.iter().zip(0..) {
        let part = if update.averages(variable) { Part::Average } else { Part::Value };
        let pieces = manifest.pieces(VariableId(id), part, 0..variable.rows() as u64);
        let found: u64 = pieces.iter().map(|piece| piece.from.end - piece.from.start).sum();
        if found != variable.bytes() {
            let reason = format!("{checkpoint} lacks the average of '{}'", variable.name);
            return Err(EvaluatorError::NotWhole(reason));
        }
        let mut buffer = pool.take(found as usize);
        let mut to = buffer.as_bytes_mut();
        for piece in &pieces {
            // The pieces are in the order of the variable's rows.
            let (own, rest) = to.split_at_mut((piece.from.end - piece.from.start) as usize);
            read_piece(store, checkpoint, piece, own).await?;
            to = rest;
        }
        variables.push(Segment::whole(Arc::new(buffer)));
    }
    Ok(Arc::new(Values::new(variables)))
}
