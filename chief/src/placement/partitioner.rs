//! Decides into how many slices a variable is split along axis 0, and where each slice begins. The
//! strategies decide which shard owns a slice.

use pushpull_messages::id::{ShardId, VariableId};
use pushpull_messages::placement::{AUTO_SLICE_BYTES_MIN, PartitionerSpec, SliceSpec};
use pushpull_messages::variable::VariableSpec;

/// Returns the number of slices of a valid variable: at least 1, and at most the variable's number of rows.
/// Allocates nothing, so that the slices of the whole job can be counted before any slice is created.
///
/// Adding a variable does not change the slices of other variables, as property (D) of `place` requires,
/// because the result depends only on this variable and the shards.
pub(super) fn slices(partitioner: PartitionerSpec, variable: &VariableSpec, shards: &[ShardId]) -> u64 {
    let rows = variable.rows() as u64;
    let row_bytes = variable.bytes() / rows;
    match partitioner {
        // The slices of one task do not arrive earlier than the whole variable would, and all slices of a
        // variable with a device go to one shard.
        PartitionerSpec::Auto if variable.device.is_some() || !has_several_tasks(shards) => 1,
        PartitionerSpec::Auto => {
            slices(PartitionerSpec::MinMax { bytes_min: AUTO_SLICE_BYTES_MIN }, variable, shards)
        }
        PartitionerSpec::None => 1,
        PartitionerSpec::Fixed { slices } => u64::from(slices).min(rows),
        // No slice exceeds `bytes`, unless a single row does, as property (G) of `place` requires. The
        // largest slice of an even split has `rows / slices` rows, rounded up. This is at most `fitting`,
        // because the number of slices is at least `rows / fitting`.
        PartitionerSpec::MaxSliceBytes { bytes } => {
            let fitting = (bytes / row_bytes).max(1);
            rows.div_ceil(fitting)
        }
        // The smallest slice of an even split has `rows / slices` rows, rounded down. If there are several
        // slices, there are at most `rows / needed` of them, so each has at least `needed` rows.
        PartitionerSpec::MinMax { bytes_min } => {
            let needed = bytes_min.div_ceil(row_bytes).max(1);
            (shards.len() as u64).min(rows / needed).max(1)
        }
    }
}

fn has_several_tasks(shards: &[ShardId]) -> bool {
    shards.windows(2).any(|pair| pair[0].ps != pair[1].ps)
}

/// Returns the slices of one variable in the order of rows. The lengths of the slices differ by at most one
/// row, and longer slices come first.
pub(super) fn split(id: VariableId, variable: &VariableSpec, slices: u64) -> impl Iterator<Item = SliceSpec> {
    let (least, larger) = (variable.rows() as u64 / slices, variable.rows() as u64 % slices);
    let first_row = move |position: u64| position * least + position.min(larger);
    (0..slices).map(move |position| {
        let row = first_row(position);
        SliceSpec { variable: id, row, rows: first_row(position + 1) - row }
    })
}
