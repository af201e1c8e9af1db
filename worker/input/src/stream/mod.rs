//! The batches of one worker, read from a data set that is not held in memory, except for the examples in
//! the shuffle buffer. This module must not depend on formats.

mod buffer;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use pushpull_messages::input::{ColumnSpec, MapSpec, RepeatSpec, ShuffleSpec};

use crate::dataset::{Dataset, Reader, Rows, block, check, read_some};
use crate::mapped::{prepare, random};
use crate::sampler::{check_batch, order};
use crate::stages::{Scratch, Stages};
use crate::{Batch, HELD_BYTES_MAX, InputError};
use buffer::Buffer;

/// The number of bytes that the buffer needs for each example in addition to the example's elements. This
/// number also suffices while the buffer is restored.
const SLOT_BYTES: u64 = 48;

/// How one worker reads a data set.
#[derive(Clone, Debug)]
pub(super) struct StreamConfig {
    pub map: Vec<MapSpec>,
    pub batch: usize,
    pub seed: u64,
    pub shuffle: ShuffleSpec,
    pub repeat: RepeatSpec,
    pub worker: u32,
    pub workers: u32,
    /// The index of the first example that the worker uses. After it, the worker uses every `step`-th
    /// example.
    pub begin: u64,
    pub step: u64,
}

/// The batches of one worker, read from a data set.
///
/// Properties: (A) The batches have the same bits as those that a [`Sampler`](crate::Sampler) chooses from
/// the same data set in memory, with the same seed, shuffling, repetition and share. (B) After
/// [`restore`](Self::restore), the batches have the same bits as if the stream had not been interrupted. (C)
/// The memory is bounded by the shuffle buffer.
pub(super) struct Stream {
    set: Arc<dyn Dataset>,
    config: StreamConfig,
    stages: Stages,
    scratch: Scratch,
    epoch: u64,
    /// The number of examples of this epoch that have been put into batches.
    drawn: u64,
    /// The number of examples in the worker's part; `None` until it is known.
    length: Option<u64>,
    /// The reader of this epoch, and the shuffle buffer; `None` before the epoch begins.
    open: Option<(Source, Buffer)>,
}

/// The examples of one epoch that belong to the worker's part.
struct Source {
    reader: Box<dyn Reader>,
    step: u64,
    /// The examples that were read last. Those before index `next` have been used already.
    block: Rows,
    next: usize,
    /// The index, within the worker's part, of the example at `next`.
    index: u64,
    /// How many examples of the whole set must be skipped before the next block is read.
    skip: u64,
    /// True after the last example of the part.
    ended: bool,
}

impl Stream {
    /// Makes a stream that starts at the first batch of epoch 0.
    ///
    /// # Errors
    /// [`InputError::Batch`] if the batch is empty or too large; [`InputError::Stage`] if a map stage
    /// cannot be applied to its column; [`InputError::Buffer`] if the shuffle buffer would take more than
    /// [`HELD_BYTES_MAX`].
    pub(super) fn new(set: Arc<dyn Dataset>, config: StreamConfig) -> Result<Self, InputError> {
        check_batch(config.batch)?;
        check(&*set)?;
        let stages = Stages::new(&config.map, set.columns())?;
        let rows = set.rows()?;
        let size = buffer_size(config.shuffle);
        let length = set.examples().map(|all| all.saturating_sub(config.begin).div_ceil(config.step));
        if length == Some(0) {
            return Err(no_share(&config, set.examples()));
        }
        // A set of unknown size may be smaller than the buffer. The memory is checked again as the buffer
        // grows.
        let (held, bytes) = (length.unwrap_or(0).min(size.into()), rows.example_bytes() + SLOT_BYTES);
        if held.saturating_mul(bytes) > HELD_BYTES_MAX || u64::from(size) * SLOT_BYTES > HELD_BYTES_MAX {
            return Err(InputError::Buffer { examples: size, bytes, max: HELD_BYTES_MAX });
        }
        let scratch = Scratch::default();
        Ok(Self { set, config, stages, scratch, epoch: 0, drawn: 0, length, open: None })
    }

    /// Returns the columns after the map stages.
    pub(super) fn columns(&self) -> &[ColumnSpec] {
        self.stages.columns()
    }

    /// Returns the number of examples in the worker's part; `None` while it is unknown.
    pub(super) fn examples(&self) -> Option<u64> {
        self.length
    }

    /// Returns the number of examples in a batch.
    pub(super) fn batch(&self) -> usize {
        self.config.batch
    }

    /// Continues after the first `used` examples of the worker's part, counted over all epochs. Reads as much
    /// of the data set as is necessary to find the place: at most one epoch to count the examples, and at
    /// most one to fill the shuffle buffer.
    ///
    /// # Errors
    /// If the data set cannot be read.
    pub(super) fn restore(&mut self, used: u64) -> Result<(), InputError> {
        let size = buffer_size(self.config.shuffle);
        if self.length.is_none() {
            let mut source = self.source()?;
            let wanted = used.saturating_add(size.into());
            let there = source.skip(wanted)?;
            if there < wanted {
                self.length = Some(there);
            }
        }
        (self.epoch, self.drawn) = match self.length {
            Some(0) => return Err(no_share(&self.config, None)),
            Some(length) => (used / length, used % length),
            None => (0, used),
        };
        let random = order(self.config.seed, self.config.worker, self.epoch);
        let (mut buffer, held) = Buffer::after(self.drawn, self.length, size, random, self.set.rows()?);
        let mut source = self.source()?;
        for (index, slot) in held {
            source.skip(index - source.index)?;
            match source.next(&self.stages, &self.config)? {
                true => buffer.fill(slot, source.index - 1, &source.block, source.next - 1)?,
                false => return Err(InputError::Changed { examples: source.index }),
            }
        }
        source.skip(buffer.read() - source.index)?;
        self.open = Some((source, buffer));
        Ok(())
    }

    /// Fills `batch` with the next examples. Allocates only if the previous contents of `batch` were
    /// smaller.
    ///
    /// # Errors
    /// [`InputError::Ended`] if the remaining examples do not fill a batch; any other [`InputError`] if the
    /// data set cannot be read.
    pub(super) fn fill(&mut self, batch: &mut Batch) -> Result<(), InputError> {
        prepare(self.stages.columns(), self.config.batch, &mut batch.columns);
        for place in 0..self.config.batch {
            self.begin_epoch()?;
            let Some((source, buffer)) = &mut self.open else { unreachable!("an epoch has begun") };
            let slot = buffer.draw();
            let (row, example) = buffer.example(slot);
            let number = self.config.begin + example * self.config.step;
            for (position, column) in batch.columns.iter_mut().enumerate() {
                let random = random(self.config.seed, self.epoch, number);
                let from = (buffer.storage(position), row);
                self.stages.fill(position, from, Some(random), (column, place), &mut self.scratch);
            }
            match source.next(&self.stages, &self.config)? {
                true => buffer.replace(slot, source.index - 1, &source.block, source.next - 1),
                false => buffer.remove(slot),
            }
            self.drawn += 1;
        }
        batch.examples = self.config.batch;
        batch.resume_at = None;
        Ok(())
    }

    /// Begins the next epoch if none has begun or if all examples of the current one have been used.
    fn begin_epoch(&mut self) -> Result<(), InputError> {
        if self.open.as_ref().is_some_and(|(_, buffer)| buffer.is_empty()) {
            if self.length.is_some_and(|length| length != self.drawn) {
                return Err(InputError::Changed { examples: self.drawn });
            }
            self.length = Some(self.drawn);
            (self.epoch, self.drawn) = (self.epoch.wrapping_add(1), 0);
            self.open = None;
        }
        if let RepeatSpec::Epochs(epochs) = self.config.repeat
            && self.epoch >= epochs
        {
            let examples = u32::try_from(self.length.unwrap_or(0)).unwrap_or(u32::MAX);
            return Err(InputError::Ended { epochs, examples, batch: self.config.batch });
        }
        if self.open.is_some() {
            return Ok(());
        }
        let mut source = self.source()?;
        let random = order(self.config.seed, self.config.worker, self.epoch);
        let mut buffer = Buffer::new(random, self.set.rows()?);
        for slot in 0..buffer_size(self.config.shuffle) as usize {
            if !source.next(&self.stages, &self.config)? {
                break;
            }
            buffer.fill(slot, source.index - 1, &source.block, source.next - 1)?;
        }
        if buffer.is_empty() {
            return Err(no_share(&self.config, None));
        }
        self.open = Some((source, buffer));
        Ok(())
    }

    fn source(&self) -> Result<Source, InputError> {
        let (reader, block) = (self.set.reader()?, self.set.rows()?);
        let StreamConfig { begin, step, .. } = self.config;
        Ok(Source { reader, step, block, next: 0, index: 0, skip: begin, ended: false })
    }
}

impl Source {
    /// Moves to the next example, which is then at `next - 1` in `block`. Returns false at the end of the
    /// part.
    fn next(&mut self, stages: &Stages, config: &StreamConfig) -> Result<bool, InputError> {
        if self.next == self.block.len() {
            self.next = 0;
            self.ended = self.ended || self.reader.skip(self.skip, &mut self.block)? < self.skip;
            self.block.clear();
            if self.ended {
                return Ok(false);
            }
            let most = if self.step == 1 { block(&self.block) } else { 1 };
            if read_some(&mut *self.reader, most, &mut self.block)? == 0 {
                self.ended = true;
                return Ok(false);
            }
            self.skip = self.step - 1;
            stages.check_rows(&self.block, config.begin + self.index * self.step)?;
        }
        self.next += 1;
        self.index += 1;
        Ok(true)
    }

    /// Skips `examples` examples of the part. Returns the number of skipped examples, which is less than
    /// `examples` only at the end of the part.
    fn skip(&mut self, examples: u64) -> Result<u64, InputError> {
        let ready = ((self.block.len() - self.next) as u64).min(examples);
        self.next += ready as usize;
        self.index += ready;
        let left = examples - ready;
        if left == 0 {
            return Ok(ready);
        }
        // The reader stops right after the last example to skip. The examples of other workers that follow
        // are skipped when the next example is read.
        let all = (left - 1).saturating_mul(self.step).saturating_add(self.skip + 1);
        let skipped = self.reader.skip(all, &mut self.block)?;
        self.block.clear();
        self.next = 0;
        let got = skipped.saturating_sub(self.skip).div_ceil(self.step).min(left);
        self.skip = self.step - 1;
        self.index += got;
        Ok(ready + got)
    }
}

/// Returns the number of examples in the shuffle buffer. Without shuffling, a buffer of one example keeps
/// the order of the data set.
fn buffer_size(shuffle: ShuffleSpec) -> u32 {
    match shuffle {
        ShuffleSpec::Buffer(size) => size.max(1),
        ShuffleSpec::None | ShuffleSpec::Full => 1,
    }
}

/// Returns the error for a worker whose share of a set has no examples. The whole set has `examples`
/// examples.
fn no_share(config: &StreamConfig, examples: Option<u64>) -> InputError {
    let StreamConfig { worker, workers, .. } = *config;
    // If the number is unknown, the set ended before the worker's first example, so it has at most `begin`
    // examples.
    let examples = u32::try_from(examples.unwrap_or(config.begin)).unwrap_or(u32::MAX);
    InputError::Share { worker, workers, examples }
}
