//! Makes a checkpoint of a job from a safetensors file. The checkpoint has one shard. The optimizer's slots
//! get their initial values, and moving averages begin with the imported values. Importing an exported file
//! gives the same values.

use std::collections::{BTreeMap, HashMap};

use anyhow::{bail, ensure};
use bytes::Bytes;
use pushpull_messages::checkpoint::{BLOCK_BYTES, CheckpointName, FileSpec, Part, SavedTensorSpec};
use pushpull_messages::id::{PlacementEpoch, ShardId, SliceId, VariableId, Version};
use pushpull_messages::job::JobSpec;
use pushpull_messages::optimizer::RateSpec;
use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
use pushpull_messages::tensor::Shape;
use pushpull_messages::variable::VariableSpec;
use pushpull_storage::{FORMAT, FileWriter, FoundTensor, ManifestSpec, Store, read_header};

use crate::programs::format::plain;

/// The only shard of an imported checkpoint.
const SHARD: ShardId = ShardId::new(0, 0);
/// The maximum number of tensors that an error lists.
const NAMES_SHOWN: usize = 4;

/// The settings of a checkpoint that is made from a file.
pub(crate) struct Import {
    pub name: CheckpointName,
    pub job: JobSpec,
    /// The time that the manifest gives as the time of the save, in milliseconds since 1970.
    pub saved_ms: u64,
    /// If true, tensors that the model does not have are ignored; if false, they are an error.
    pub allow_extra: bool,
}

/// One tensor of the checkpoint.
struct Planned {
    name: String,
    slice: SliceId,
    shape: Shape,
    part: Part,
    bytes: u64,
    source: Source,
}

/// The source of a tensor's bytes.
enum Source {
    /// The bytes are in the file, from this offset on.
    File(u64),
    /// All elements are this number.
    Constant(f32),
}

/// Makes the checkpoint. At most a few blocks are in memory at a time.
///
/// # Errors
/// Returns an error if the file is not a safetensors file, if it lacks a variable or has one with the wrong
/// shape or type, if the file has tensors that the model does not have and `allow_extra` is false, if the
/// step is beyond the job's last step, if a job uses the store, or if the checkpoint cannot be written.
/// After an error there is no checkpoint.
pub(crate) async fn import(from: &Store, file: &str, what: Import, to: &Store) -> anyhow::Result<()> {
    let (name, last_step) = (what.name, what.job.last_step);
    ensure!(name.step <= last_step, "step {} is beyond the job's last step, {last_step}", name.step);
    let found = read_header(from, file).await?;
    let planned = plan(&what, &found, file)?;
    // A job that runs would delete the new checkpoint as one of the oldest, or save over it.
    let _lock = to.lock("an import of a checkpoint")?;
    let written = write(from, file, what, &planned, to).await;
    if written.is_err() {
        // A folder without a manifest does not count as a checkpoint, so a failed deletion does no harm.
        let _ = to.delete_folder(&name.to_string()).await;
    }
    written
}

/// Returns all tensors of the checkpoint, in the order in which the file of its shard contains them.
fn plan(what: &Import, found: &[FoundTensor], file: &str) -> anyhow::Result<Vec<Planned>> {
    let Import { job, allow_extra, .. } = what;
    let by_name: BTreeMap<&str, &FoundTensor> =
        found.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let known = |name: &str| job.graph.variables.iter().any(|variable| variable.name == name);
    let extra: Vec<&str> = by_name.keys().copied().filter(|name| !known(name)).collect();
    let update = job.update();
    let mut planned = Vec::new();
    for (variable, id) in job.graph.variables.iter().zip(0..) {
        let VariableSpec { name, shape, .. } = variable;
        let Some(tensor) = by_name.get(name.as_str()) else {
            bail!(
                "{file} lacks the variable '{name}' {shape}{}",
                listed("; tensors that the job does not have:", &extra)
            );
        };
        let dtype = plain(&tensor.dtype);
        ensure!(
            dtype == "F32",
            "{file} has '{name}' with type {dtype}, expected F32: convert the file first"
        );
        ensure!(tensor.shape == *shape, "{file} has '{name}' with shape {}, expected {shape}", tensor.shape);
        let mut add = |name: String, part, source| {
            let (shape, bytes) = (shape.clone(), variable.bytes());
            planned.push(Planned { name, slice: SliceId(id), shape, part, bytes, source });
        };
        add(name.clone(), Part::Value, Source::File(tensor.offset));
        if update.averages(variable) {
            add(format!("{name}:average"), Part::Average, Source::File(tensor.offset));
        }
        for ((slot, initial), number) in pushpull_ps::initial_slots(&update, variable).into_iter().zip(0..) {
            add(format!("{name}:{slot}"), Part::Slot(number), Source::Constant(initial));
        }
    }
    if !allow_extra && !extra.is_empty() {
        let names = listed("", &extra);
        bail!(
            "{file} has {} tensor(s) that the job does not have:{names}; ignore them with --allow-extra",
            extra.len()
        );
    }
    Ok(planned)
}

/// Returns the text `words` followed by the first [`NAMES_SHOWN`] names; an empty text if there are no
/// names.
fn listed(words: &str, names: &[&str]) -> String {
    if names.is_empty() {
        return String::new();
    }
    let shown: Vec<String> =
        names.iter().take(NAMES_SHOWN).map(|name| format!("'{}'", plain(name))).collect();
    let more = if names.len() > NAMES_SHOWN { ", .." } else { "" };
    format!("{words} {}{more}", shown.join(", "))
}

async fn write(
    from: &Store,
    file: &str,
    what: Import,
    planned: &[Planned],
    to: &Store,
) -> anyhow::Result<()> {
    let Import { name, job, saved_ms, .. } = what;
    let own = CheckpointName::shard_file(SHARD);
    let shapes: Vec<_> = planned.iter().map(|tensor| (tensor.name.clone(), tensor.shape.clone())).collect();
    let mut writer = FileWriter::begin(to, &name.file(&own), &shapes, HashMap::new()).await?;
    for tensor in planned {
        if let Err(error) = fill(from, file, tensor, &mut writer).await {
            writer.abort().await;
            return Err(error);
        }
    }
    let (written, bytes) = writer.finish().await?;
    let tensors = planned.iter().zip(written).map(|(tensor, written)| SavedTensorSpec {
        name: tensor.name.clone(),
        slice: tensor.slice,
        part: tensor.part,
        offset: written.offset,
        bytes: written.bytes,
        crc32c: written.crc32c,
    });
    let version = Version(name.step.0);
    let file = FileSpec { name: own, shard: SHARD, version, bytes, tensors: tensors.collect() };
    let slices = job.graph.variables.iter().zip(0..);
    let slices = slices.map(|(variable, id)| PlacedSlice {
        slice: SliceSpec::whole(VariableId(id), variable),
        shard: SHARD,
    });
    let placement = Placement { epoch: PlacementEpoch(1), shards: vec![SHARD], slices: slices.collect() };
    let (step, files) = (name.step, vec![file]);
    let (workers, learning_rate) = (Vec::new(), RateSpec::default());
    let manifest = ManifestSpec {
        format: FORMAT,
        step,
        saved_ms,
        job,
        placement,
        files,
        workers,
        learning_rate,
        inputs: Default::default(),
    };
    manifest.validate().expect("a manifest of this job");
    Ok(to.put(&name.manifest(), manifest.encode()?).await?)
}

async fn fill(from: &Store, file: &str, tensor: &Planned, writer: &mut FileWriter<'_>) -> anyhow::Result<()> {
    let block_bytes = tensor.bytes.min(BLOCK_BYTES as u64);
    let constant = match tensor.source {
        Source::File(_) => Bytes::new(),
        Source::Constant(value) => value.to_le_bytes().repeat(block_bytes as usize / 4).into(),
    };
    let mut start = 0;
    while start < tensor.bytes {
        let end = tensor.bytes.min(start + block_bytes);
        let block = match tensor.source {
            Source::File(offset) => from.read(file, offset + start..offset + end).await?,
            Source::Constant(_) => constant.slice(..(end - start) as usize),
        };
        writer.write(block).await?;
        start = end;
    }
    Ok(())
}
