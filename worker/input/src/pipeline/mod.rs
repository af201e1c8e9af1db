//! The input pipeline of one worker: from the job's input to batches. It holds the worker's examples in
//! memory, or reads them again in each epoch. This module must not depend on formats.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use pushpull_messages::input::{
    ColumnSpec, DatasetSpec, FilesDigest, InputSpec, ShardSpec, ShuffleSpec, StreamSpec,
};

use crate::dataset::{Dataset, check, collect};
use crate::files::{FoundFiles, SkippedRecords, expand};
use crate::source::{Reading, is_read, load_found, open_found};
use crate::stages::Scratch;
use crate::stream::{Stream, StreamConfig};
use crate::{Batch, DataShare, Datasets, FileShare, InputError, Mapped, Pick, Position, Sampler};

/// If the input files have more bytes than this, the setting `auto` streams the examples instead of holding
/// them in memory.
pub const STREAM_BYTES_MIN: u64 = 128 << 20;

/// The input pipeline of one worker. Its batches are the same whether it holds the examples or streams them.
pub struct Pipeline {
    kind: Kind,
    /// The files that the worker reads; `None` if it reads no files.
    files: Option<FilesDigest>,
    skipped: SkippedRecords,
}

enum Kind {
    /// The examples are in memory.
    Held(Box<Held>),
    /// The examples are read again in each epoch.
    Streamed(Box<Stream>),
}

/// Examples in memory, and the sampler that chooses among them.
struct Held {
    set: Mapped,
    sampler: Sampler,
    picks: Vec<Pick>,
    scratch: Scratch,
}

/// The worker that a pipeline is for.
#[derive(Clone, Copy, Debug)]
pub struct PipelineWorker {
    /// The worker's index.
    pub index: u32,
    /// The number of workers of the job.
    pub workers: u32,
}

impl PipelineWorker {
    /// The only worker of a job, which reads all examples.
    pub const ALL: Self = Self { index: 0, workers: 1 };
}

impl Pipeline {
    /// Opens the training set of a job for one worker. `custom` has the data sets that the job refers to by
    /// name, `batch` is the number of examples in a batch, and `seed` is the seed of the job.
    ///
    /// # Errors
    /// Any [`InputError`] that concerns the spec, the files, the worker's part or the batch.
    pub fn open(
        input: &InputSpec,
        custom: &Datasets,
        batch: usize,
        seed: u64,
        worker: PipelineWorker,
    ) -> Result<Self, InputError> {
        let skipped = SkippedRecords::default();
        let reading = Reading { skipped: Some(&skipped), ..Reading::of(input, custom) };
        let PipelineWorker { index, workers } = worker;
        if let DatasetSpec::Custom(name) = &input.train {
            let set = custom.get(name)?;
            check(&*set)?;
            let (set, whole) = part(set, input.shard, worker)?;
            return match streams(input, Some(u64::MAX)) {
                true => Self::stream(set, input, batch, seed, worker, whole),
                false => {
                    let set = collect(&set)?;
                    let share = match whole {
                        true => DataShare::whole(index, set.len())?,
                        false => DataShare::new(index, workers, set.len())?,
                    };
                    Self::hold(Mapped::training(set, &input.map, seed)?, share, input, batch, seed)
                }
            };
        }
        input.train.validate()?;
        let (train, sizes) = expand(&input.train)?;
        let own = FileShare::new(&train, input.shard, index, workers)?;
        let found = FoundFiles::find(&own.dataset, &sizes)?;
        let pipeline = match streams(input, is_read(&own.dataset).then(|| found.bytes())) {
            true => {
                let set = open_found(&own.dataset, &reading)?;
                Self::stream(set, input, batch, seed, worker, own.is_whole())?
            }
            false => {
                let set = load_found(&own.dataset, &reading)?;
                let share = own.examples(set.len())?;
                Self::hold(Mapped::training(set, &input.map, seed)?, share, input, batch, seed)?
            }
        };
        Ok(Self { files: found.digest(), skipped, ..pipeline })
    }

    /// Makes a pipeline of the batches that `sampler` chooses from `set`.
    ///
    /// # Panics
    /// If the sampler was made for a data set with more examples than `set` has.
    pub fn held(set: Mapped, sampler: Sampler) -> Self {
        assert!(sampler.share().examples_of_all() as usize <= set.len(), "a sampler for another data set");
        let picks = Vec::with_capacity(sampler.batch());
        let held = Held { set, sampler, picks, scratch: Scratch::default() };
        Self { kind: Kind::Held(Box::new(held)), files: None, skipped: SkippedRecords::default() }
    }

    fn hold(
        set: Mapped,
        share: DataShare,
        input: &InputSpec,
        batch: usize,
        seed: u64,
    ) -> Result<Self, InputError> {
        Ok(Self::held(set, Sampler::with(share, batch, seed, input.shuffle, input.repeat)?))
    }

    fn stream(
        set: Arc<dyn Dataset>,
        input: &InputSpec,
        batch: usize,
        seed: u64,
        PipelineWorker { index, workers }: PipelineWorker,
        whole: bool,
    ) -> Result<Self, InputError> {
        let (map, shuffle, repeat) = (input.map.clone(), input.shuffle, input.repeat);
        let (begin, step) = if whole { (0, 1) } else { (index.into(), workers.max(1).into()) };
        let worker = index;
        let config = StreamConfig { map, batch, seed, shuffle, repeat, worker, workers, begin, step };
        let kind = Kind::Streamed(Box::new(Stream::new(set, config)?));
        Ok(Self { kind, files: None, skipped: SkippedRecords::default() })
    }

    /// Returns the columns of a batch.
    pub fn columns(&self) -> &[ColumnSpec] {
        match &self.kind {
            Kind::Held(held) => held.set.columns(),
            Kind::Streamed(stream) => stream.columns(),
        }
    }

    /// Returns the number of examples in a batch.
    pub fn batch(&self) -> usize {
        match &self.kind {
            Kind::Held(held) => held.sampler.batch(),
            Kind::Streamed(stream) => stream.batch(),
        }
    }

    /// Returns the number of examples in this worker's part of the training set; `None` while it is unknown.
    pub fn examples(&self) -> Option<u64> {
        match &self.kind {
            Kind::Held(held) => Some(held.sampler.share().len().into()),
            Kind::Streamed(stream) => stream.examples(),
        }
    }

    /// Returns a short description of the files that this worker reads; `None` if it reads no files.
    pub fn files(&self) -> Option<FilesDigest> {
        self.files
    }

    /// Returns the counter of damaged records that this worker has skipped. The pipeline continues to update
    /// the returned counter.
    pub fn skipped(&self) -> SkippedRecords {
        self.skipped.clone()
    }

    /// Returns true if the examples are read again in each epoch.
    pub fn is_streamed(&self) -> bool {
        matches!(self.kind, Kind::Streamed(_))
    }

    /// Continues after the first `used` examples of the worker's part, counted over all epochs.
    ///
    /// # Errors
    /// If the data set cannot be read.
    pub fn restore(&mut self, used: u64) -> Result<(), InputError> {
        match &mut self.kind {
            Kind::Held(held) => held.sampler.restore(Position::after(used, held.sampler.share())),
            Kind::Streamed(_) if used == 0 => Ok(()),
            Kind::Streamed(stream) => stream.restore(used),
        }
    }

    /// Fills `batch` with the next examples. Allocates only if the previous contents were smaller.
    ///
    /// # Errors
    /// [`InputError::Ended`] if the remaining examples do not fill a batch; another error if the data set
    /// cannot be read.
    pub(super) fn fill(&mut self, batch: &mut Batch) -> Result<(), InputError> {
        match &mut self.kind {
            Kind::Held(held) => {
                let Held { set, sampler, picks, scratch } = &mut **held;
                sampler.next_into(picks)?;
                batch.set(set, picks, Some(Sampler::position(sampler)), scratch);
                Ok(())
            }
            Kind::Streamed(stream) => stream.fill(batch),
        }
    }
}

/// Shows only the columns.
impl std::fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipeline").field("columns", &self.columns()).finish_non_exhaustive()
    }
}

/// Returns the data set from which a worker reads: its own part of a custom data set, or the whole set. The
/// boolean is true if the worker uses every example of the returned data set.
fn part(
    set: Arc<dyn Dataset>,
    policy: ShardSpec,
    PipelineWorker { index, workers }: PipelineWorker,
) -> Result<(Arc<dyn Dataset>, bool), InputError> {
    match policy {
        ShardSpec::Off => Ok((set, true)),
        ShardSpec::Data => Ok((set, false)),
        ShardSpec::Auto | ShardSpec::File => match set.part(index, workers) {
            Some(part) => Ok((part, true)),
            None if policy == ShardSpec::File => Err(InputError::NoParts { workers }),
            None => Ok((set, false)),
        },
    }
}

/// Returns true if the examples are read again in each epoch, and false if they are held in memory. `bytes`
/// is the size of all files together. It is `None` for texts and generated sets, which are always held, and
/// `u64::MAX` for a custom set, whose size is unknown.
fn streams(input: &InputSpec, bytes: Option<u64>) -> bool {
    let Some(bytes) = bytes.filter(|_| input.shuffle != ShuffleSpec::Full) else { return false };
    match input.stream {
        StreamSpec::Always => true,
        StreamSpec::Never => false,
        StreamSpec::Auto => bytes > STREAM_BYTES_MIN,
    }
}
