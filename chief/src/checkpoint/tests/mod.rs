//! Fixtures for the tests of checkpoints.

pub(crate) mod failing;
mod levels;
mod rolling_back;
mod saving;
pub(crate) mod shards;

use pushpull_messages::checkpoint::{CheckpointName, FileSpec, Part, SavedTensorSpec};
use pushpull_messages::id::*;
use pushpull_messages::job::JobSpec;
use pushpull_messages::optimizer::RateSpec;
use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
use pushpull_storage::{FORMAT, ManifestSpec};

/// Returns the name of the checkpoint that incarnation `life` of the chief made at `step`.
pub(super) fn named(step: u64, life: u64) -> CheckpointName {
    CheckpointName { step: GlobalStep(step), life: Incarnation(life) }
}

/// Returns a valid manifest for a checkpoint of `job` at `step`. All variables are on one shard.
pub(super) fn manifest_of(job: JobSpec, step: u64) -> ManifestSpec {
    let shard = ShardId::new(0, 0);
    let whole = |(variable, rows): (u32, usize)| PlacedSlice {
        slice: SliceSpec { variable: VariableId(variable), row: 0, rows: rows as u64 },
        shard,
    };
    let rows = job.graph.variables.iter().map(pushpull_messages::variable::VariableSpec::rows);
    let slices = (0..).zip(rows).map(whole).collect();
    let placement = Placement { epoch: PlacementEpoch(1), shards: vec![shard], slices };
    let mut offset = 64;
    let tensors = job.graph.variables.iter().zip(0u32..).map(|(variable, slice)| {
        let bytes = variable.bytes();
        let name = variable.name.clone();
        let tensor = SavedTensorSpec {
            name,
            slice: SliceId(slice),
            part: Part::Value,
            offset,
            bytes,
            crc32c: vec![7],
        };
        offset += bytes;
        tensor
    });
    let tensors = tensors.collect();
    let name = CheckpointName::shard_file(shard);
    let files = vec![FileSpec { name, shard, version: Version(step), bytes: offset, tensors }];
    let manifest = ManifestSpec {
        format: FORMAT,
        step: GlobalStep(step),
        saved_ms: 5,
        job,
        placement,
        files,
        workers: vec![],
        learning_rate: RateSpec::default(),
        inputs: Default::default(),
    };
    manifest.validate().unwrap();
    manifest
}
