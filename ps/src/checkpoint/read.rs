//! Reads a new shard's state from a checkpoint. The checkpoint may have been saved with another placement,
//! so the rows of one slice may be in several files. The rows are read directly into the buffers that the
//! shard trains in. Wanted properties: (A) the saved state is restored bit for bit, with any placement; (B)
//! if a file is missing, truncated or changed, the restore fails with an error that names the file; (C) if a
//! variable does not fit the job, the restore fails with an error that names the variable.

use std::collections::HashMap;
use std::sync::Arc;

use pushpull_messages::checkpoint::{CheckpointName, Part, SourceSpec, StartSpec};
use pushpull_messages::id::{SliceId, VariableId, Version};
use pushpull_messages::message::{CreateShard, Refusal, RefusalCode};
use pushpull_messages::optimizer::VariableRule;
use pushpull_messages::placement::SliceSpec;
use pushpull_messages::tensor::Shape;
use pushpull_messages::variable::VariableSpec;
use pushpull_storage::{
    Catalog, FileError, Index, ManifestSpec, Piece, PieceReader, Store, StoreError, Stores,
};
use pushpull_transport::buffer::{Buffer, BufferPool};

use crate::shard::{Restored, SliceState, initial_slots};

/// Reads a new shard's state from the checkpoint that `create` names. If `create` names none, because the
/// variables' initializers are used, returns an empty state.
///
/// # Errors
/// If the checkpoint cannot be read, or if it does not fit the shard.
pub(super) async fn read(
    create: &CreateShard,
    pool: &BufferPool,
    stores: &Stores,
) -> Result<Restored, Refusal> {
    let restored = match &create.start {
        StartSpec::Initialise => Ok(Restored::default()),
        StartSpec::Resume { store, checkpoint, workers } => {
            let restored = resume(create, stores.open(store), *checkpoint, pool).await;
            match &workers[..] {
                [] => restored,
                workers => restored.map(|restored| Restored { workers: workers.to_vec(), ..restored }),
            }
        }
        StartSpec::WarmStart { store, checkpoint, variables } => {
            warm_start(create, stores.open(store), *checkpoint, variables, pool).await
        }
    };
    restored.map_err(|error| {
        let id = create.shard;
        tracing::warn!(shard = %id, %error, "could not restore the shard");
        Refusal::new(error.code(), format!("{id}: {error}"))
    })
}

/// The reason why a shard's state cannot be restored from a checkpoint.
#[derive(Debug, thiserror::Error)]
enum RestoreError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(
        "variable '{variable}' is not in {checkpoint}; to take over only matching variables, use \
         a new --checkpoint-dir and --warm-start"
    )]
    NoVariable { variable: String, checkpoint: CheckpointName },
    #[error(
        "variable '{variable}' of {checkpoint} is not in the job; to take over only matching variables, use \
         a new --checkpoint-dir and --warm-start"
    )]
    OddVariable { variable: String, checkpoint: CheckpointName },
    #[error("variable '{variable}' has shape {expected}, but '{source_name}' of {checkpoint} has {got}")]
    Shape { variable: String, expected: Shape, source_name: String, checkpoint: CheckpointName, got: Shape },
    #[error(
        "{optimizer} needs the slot '{slot}' of variable '{variable}', but {checkpoint}, {made_with}, does \
         not contain that slot; to take over only values, use a new --checkpoint-dir and --warm-start"
    )]
    NoSlot {
        optimizer: &'static str,
        slot: &'static str,
        variable: String,
        checkpoint: CheckpointName,
        made_with: String,
    },
}

impl From<StoreError> for RestoreError {
    fn from(error: StoreError) -> Self {
        Self::File(error.into())
    }
}

impl RestoreError {
    const fn code(&self) -> RefusalCode {
        match self {
            // The store may recover, so this error must not make the chief continue from an older checkpoint.
            Self::File(FileError::Store(StoreError::Failed { .. } | StoreError::Directory { .. })) => {
                RefusalCode::Overloaded
            }
            Self::File(_) => RefusalCode::Unavailable,
            _ => RefusalCode::Misfit,
        }
    }
}

/// An open checkpoint, from which slices are read.
struct Source {
    store: Store,
    checkpoint: CheckpointName,
    manifest: ManifestSpec,
}

impl Source {
    async fn open(store: Store, checkpoint: CheckpointName) -> Result<Self, RestoreError> {
        let catalog = Catalog::new(store);
        let manifest = catalog.manifest(checkpoint).await?;
        Ok(Self { store: catalog.store().clone(), checkpoint, manifest })
    }

    fn variables(&self) -> &[VariableSpec] {
        &self.manifest.job.graph.variables
    }

    /// Checks that the checkpoint has the variable called `name`, with the same shape as the job's
    /// `variable`. Returns the variable's id, which is `found`; if `found` is `None`, the checkpoint has no
    /// such variable.
    fn variable(
        &self,
        found: Option<VariableId>,
        name: &str,
        variable: &VariableSpec,
    ) -> Result<VariableId, RestoreError> {
        let checkpoint = self.checkpoint;
        let id = found.ok_or_else(|| RestoreError::NoVariable { variable: name.to_owned(), checkpoint })?;
        let got = &self.variables()[id.index()].shape;
        if *got == variable.shape {
            return Ok(id);
        }
        let (variable, expected) = (variable.name.clone(), variable.shape.clone());
        let (source_name, got) = (name.to_owned(), got.clone());
        Err(RestoreError::Shape { variable, expected, source_name, checkpoint, got })
    }

    /// Finds each variable of the job in the checkpoint by its name. The job and the checkpoint must have
    /// the same variables.
    fn same_variables(&self, variables: &[VariableSpec]) -> Result<Vec<VariableId>, RestoreError> {
        let mut known: HashMap<&str, VariableId> = HashMap::new();
        for (spec, id) in self.variables().iter().zip(0..) {
            known.insert(&spec.name, VariableId(id));
        }
        let found = variables.iter().map(|variable| {
            let found = known.remove(variable.name.as_str());
            self.variable(found, &variable.name, variable)
        });
        let found: Vec<_> = found.collect::<Result<_, _>>()?;
        match known.into_keys().min() {
            None => Ok(found),
            Some(odd) => {
                Err(RestoreError::OddVariable { variable: odd.to_owned(), checkpoint: self.checkpoint })
            }
        }
    }
}

/// A slice of the job, and the pieces of the checkpoint from which its parts (value, average, slots) are
/// read.
struct Wanted<'a> {
    id: SliceId,
    bytes: usize,
    value: Vec<Piece<'a>>,
    average: Option<Vec<Piece<'a>>>,
    slots: Vec<Vec<Piece<'a>>>,
}

/// Returns the pieces of the checkpoint from which a part of a slice is read. Returns `None` if the
/// checkpoint does not contain the whole part.
fn find<'a>(
    index: &Index<'a>,
    variable: VariableId,
    part: Part,
    slice: &SliceSpec,
    bytes: usize,
) -> Option<Vec<Piece<'a>>> {
    let pieces = index.pieces(variable, part, slice.row..slice.row + slice.rows);
    // The pieces do not overlap, so the sum of their lengths is the number of bytes found.
    let found: u64 = pieces.iter().map(|piece| piece.from.end - piece.from.start).sum();
    (found == bytes as u64).then_some(pieces)
}

/// Describes how a checkpoint's variable was updated: by which optimizer, or not at all because it was
/// frozen.
fn made_with(rule: &VariableRule) -> String {
    if rule.frozen { "which froze it".into() } else { format!("made with {}", rule.optimizer.name()) }
}

async fn resume(
    create: &CreateShard,
    store: Result<Store, StoreError>,
    checkpoint: CheckpointName,
    pool: &BufferPool,
) -> Result<Restored, RestoreError> {
    let source = Source::open(store?, checkpoint).await?;
    let variables = source.same_variables(&create.variables)?;
    let index = source.manifest.index();
    let before = source.manifest.job.update();
    let mut wanted = Vec::new();
    for (id, slice) in create.placement.on_shard(create.shard) {
        let variable = &create.variables[slice.variable.index()];
        let from = variables[slice.variable.index()];
        let bytes = slice.elements(variable) * 4;
        let saved = &source.variables()[from.index()];
        let saved_slots = initial_slots(&before, saved);
        let slots = initial_slots(&create.update, variable).into_iter().map(|(slot, _)| {
            let number = saved_slots.iter().position(|(name, _)| *name == slot);
            let found =
                number.and_then(|number| find(&index, from, Part::Slot(number as u32), &slice, bytes));
            found.ok_or_else(|| RestoreError::NoSlot {
                optimizer: create.update.rule(variable).optimizer.name(),
                slot,
                variable: variable.name.clone(),
                checkpoint,
                made_with: made_with(&before.rule(saved)),
            })
        });
        let keeps_average = create.update.averages(variable);
        wanted.push(Wanted {
            id,
            bytes,
            slots: slots.collect::<Result<_, _>>()?,
            value: find(&index, from, Part::Value, &slice, bytes).expect("a manifest has all values"),
            average: keeps_average.then(|| find(&index, from, Part::Average, &slice, bytes)).flatten(),
        });
    }
    let slices = read_all(&source, wanted, pool).await?;
    let (workers, rate) = (source.manifest.workers, source.manifest.learning_rate);
    Ok(Restored { version: Version(checkpoint.step.0), slices, workers, rate })
}

async fn warm_start(
    create: &CreateShard,
    store: Result<Store, StoreError>,
    checkpoint: CheckpointName,
    sources: &[SourceSpec],
    pool: &BufferPool,
) -> Result<Restored, RestoreError> {
    let source = Source::open(store?, checkpoint).await?;
    let mut variables = HashMap::new();
    for SourceSpec { variable, source: name } in sources {
        let found = source.manifest.variable(name);
        let of_job = &create.variables[variable.index()];
        variables.insert(*variable, source.variable(found, name, of_job)?);
    }
    let index = source.manifest.index();
    let mut wanted = Vec::new();
    for (id, slice) in create.placement.on_shard(create.shard) {
        if let Some(&from) = variables.get(&slice.variable) {
            let bytes = slice.elements(&create.variables[slice.variable.index()]) * 4;
            let value = find(&index, from, Part::Value, &slice, bytes).expect("a manifest has all values");
            wanted.push(Wanted { id, bytes, value, average: None, slots: Vec::new() });
        }
    }
    let slices = read_all(&source, wanted, pool).await?;
    Ok(Restored { slices, ..Restored::default() })
}

/// Reads the slices, with one reader for each kind of part (value, average, each slot). The next slice often
/// begins in the block in which the previous slice ended. The reader has cached this block, so it is read
/// only once.
async fn read_all(
    source: &Source,
    wanted: Vec<Wanted<'_>>,
    pool: &BufferPool,
) -> Result<Vec<SliceState>, RestoreError> {
    let reader = || PieceReader::new(&source.store, source.checkpoint);
    let (mut values, mut averages, mut slots) = (reader(), reader(), Vec::new());
    let mut slices = Vec::with_capacity(wanted.len());
    for Wanted { id, bytes, value, average, slots: own } in wanted {
        let value = read_part(&mut values, &value, pool.take(bytes)).await?;
        let average = match average {
            Some(pieces) => Some(read_part(&mut averages, &pieces, pool.take(bytes)).await?),
            None => None,
        };
        slots.resize_with(own.len().max(slots.len()), reader);
        let mut states = Vec::with_capacity(own.len());
        for (pieces, reader) in own.iter().zip(&mut slots) {
            states.push(read_part(reader, pieces, pool.take(bytes)).await?);
        }
        slices.push(SliceState { id, value, average, slots: states });
    }
    Ok(slices)
}

async fn read_part(
    reader: &mut PieceReader<'_>,
    pieces: &[Piece<'_>],
    mut buffer: Buffer,
) -> Result<Arc<Buffer>, FileError> {
    for piece in pieces {
        let to = piece.to as usize;
        let length = (piece.from.end - piece.from.start) as usize;
        reader.read(piece, &mut buffer.as_bytes_mut()[to..to + length]).await?;
    }
    Ok(Arc::new(buffer))
}
