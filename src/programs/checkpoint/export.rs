//! Writes the whole model of a checkpoint, whatever its placement, as one safetensors file.
//!
//! Wanted properties: (A) the file contains the values bit for bit, for every placement; (B) the file is
//! written completely, or the directory stays unchanged.

use std::collections::HashMap;

use anyhow::{bail, ensure};
use pushpull_messages::checkpoint::{BLOCK_BYTES, CheckpointName, Part};
use pushpull_messages::id::VariableId;
use pushpull_messages::pattern::matches;
use pushpull_messages::variable::VariableSpec;
use pushpull_storage::{FileWriter, ManifestSpec, Piece, Store, read_piece};

use crate::programs::format::plain;

/// The part of a checkpoint that is exported.
pub(crate) struct Export<'a> {
    pub name: CheckpointName,
    pub manifest: &'a ManifestSpec,
    /// If true, the moving averages of trained variables are written instead of their values.
    pub averages: bool,
    pub variables: Vec<VariableId>,
}

/// Returns the variables that match at least one pattern, in the graph's order. Returns all variables if no
/// pattern is given. `*` matches any number of characters, including slashes, and `?` matches one character.
///
/// # Errors
/// Returns an error if a pattern matches no variable.
pub(crate) fn chosen(manifest: &ManifestSpec, patterns: &[String]) -> anyhow::Result<Vec<VariableId>> {
    let variables = &manifest.job.graph.variables;
    let named = |pattern: &String, variable: &VariableSpec| matches(pattern, &variable.name);
    if let Some(idle) = patterns.iter().find(|pattern| !variables.iter().any(|own| named(pattern, own))) {
        let some: Vec<&str> = variables.iter().take(8).map(|variable| variable.name.as_str()).collect();
        let more = if variables.len() > some.len() { ", .." } else { "" };
        bail!("no variable matches '{}'; the model has {}{more}", plain(idle), some.join(", "));
    }
    let wanted = |variable| patterns.is_empty() || patterns.iter().any(|pattern| named(pattern, variable));
    let ids = variables.iter().zip(0..).filter(|(variable, _)| wanted(variable));
    Ok(ids.map(|(_, id)| VariableId(id)).collect())
}

impl Export<'_> {
    /// Returns the slices of a variable's values or averages, each with its position in the files.
    fn pieces(&self, id: VariableId) -> anyhow::Result<Vec<Piece<'_>>> {
        let variable = &self.manifest.job.graph.variables[id.index()];
        let averaged = self.averages && self.manifest.job.update().averages(variable);
        let part = if averaged { Part::Average } else { Part::Value };
        let pieces = self.manifest.pieces(id, part, 0..variable.rows() as u64);
        let found: u64 = pieces.iter().map(|piece| piece.from.end - piece.from.start).sum();
        ensure!(found == variable.bytes(), "{}: the average of '{}' is missing", self.name, variable.name);
        Ok(pieces)
    }
}

/// Writes the file, and returns its length in bytes. At most a few blocks are in memory at a time.
///
/// # Errors
/// Returns an error if averages are requested and the checkpoint has none, if the checkpoint cannot be read,
/// or if the file cannot be written. In each of these cases, an existing file is left unchanged.
pub(crate) async fn export(from: &Store, what: &Export<'_>, to: &Store, file: &str) -> anyhow::Result<u64> {
    let variables = &what.manifest.job.graph.variables;
    if what.averages && what.manifest.job.average.is_none() {
        bail!(
            "{} has no moving averages because its job has no --ema-decay: leave out --averages",
            what.name
        );
    }
    let mut pieces = Vec::new();
    for &id in &what.variables {
        pieces.extend(what.pieces(id)?);
    }
    let tensors: Vec<_> = what
        .variables
        .iter()
        .map(|id| (variables[id.index()].name.clone(), variables[id.index()].shape.clone()))
        .collect();
    let metadata = HashMap::from([("checkpoint".to_owned(), what.name.to_string())]);
    let mut writer = FileWriter::begin(to, file, &tensors, metadata).await?;
    for piece in &pieces {
        if let Err(error) = copy(from, what.name, piece, &mut writer).await {
            writer.abort().await;
            return Err(error);
        }
    }
    Ok(writer.finish().await?.1)
}

async fn copy(
    from: &Store,
    name: CheckpointName,
    piece: &Piece<'_>,
    writer: &mut FileWriter<'_>,
) -> anyhow::Result<()> {
    let mut start = piece.from.start;
    while start < piece.from.end {
        // Every read ends at the end of a checksum's block or of the piece, so that no block is read twice.
        let end = piece.from.end.min((start / BLOCK_BYTES as u64 + 1) * BLOCK_BYTES as u64);
        let mut block = vec![0; (end - start) as usize];
        read_piece(from, name, &Piece { from: start..end, ..piece.clone() }, &mut block).await?;
        writer.write(block.into()).await?;
        start = end;
    }
    Ok(())
}
