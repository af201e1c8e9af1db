//! The order in which a worker reads its part of the data. Each epoch is shuffled anew, and all batches have
//! the same size. Uses only the indices of examples. The same seed gives the same order on every machine.

use pushpull_messages::input::{RepeatSpec, ShuffleSpec};

use crate::random::SplitMix64;
use crate::{DataShare, InputError};

/// The maximum number of examples in one batch.
pub const BATCH_EXAMPLES_MAX: usize = 1 << 20;

/// The maximum number of examples in one worker's part of the data. Their order takes at most 1 GiB of
/// memory, and a shuffle buffer at most another 1 GiB.
pub const ORDER_EXAMPLES_MAX: u32 = 1 << 28;

/// Separates the random streams of the sampler from all other streams of the same seed.
const STREAM: u64 = 0x5341_4d50_4c45; // "SAMPLE"

/// A position in the sequence of examples. A worker can save its position and later resume there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Position {
    /// The number of complete passes over the share.
    pub epoch: u64,
    /// The number of examples read in this epoch; below the share's length.
    pub offset: u32,
}

impl Position {
    /// Returns the position of a worker that has read `examples` examples of `share` since the first epoch
    /// began.
    pub fn after(examples: u64, share: DataShare) -> Self {
        let length = u64::from(share.len());
        Self { epoch: examples / length, offset: (examples % length) as u32 }
    }
}

/// An example that was chosen for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// The epoch in which the example is read; random stages depend on it.
    pub epoch: u64,
    /// The example's index in the whole set.
    pub example: u32,
}

/// A sampler that chooses the examples of each batch, by their indices.
///
/// Properties: (A) An epoch reads every example of the share exactly once. (B) Every batch has exactly
/// `batch` examples: if an epoch ends inside a batch, the next epoch fills the rest. (C) The order depends
/// only on the seed, the worker and the epoch, so a [`Position`] suffices to resume. (D) A shuffle buffer of
/// n examples moves an example at most n − 1 positions towards the start. (E) The number of batches in n
/// epochs is n times the share's length, divided by `batch` and rounded down.
#[derive(Clone, Debug)]
pub struct Sampler {
    share: DataShare,
    batch: usize,
    seed: u64,
    shuffle: ShuffleSpec,
    repeat: RepeatSpec,
    position: Position,
    /// The order of the examples in this epoch.
    order: Vec<u32>,
    /// The contents of the shuffle buffer while the order is determined.
    buffer: Vec<u32>,
}

impl Sampler {
    /// Creates a sampler that reads `share` in batches of `batch` examples. Every epoch is fully shuffled
    /// with `seed`, the seed of the job. The number of epochs is unlimited. The sampler starts at the
    /// beginning of epoch 0.
    ///
    /// # Errors
    /// [`InputError::Batch`] if `batch` is 0 or greater than [`BATCH_EXAMPLES_MAX`];
    /// [`InputError::OrderLength`] if the share has more than [`ORDER_EXAMPLES_MAX`] examples;
    /// [`InputError::OrderMemory`] if the system has no memory left for the order.
    pub fn new(share: DataShare, batch: usize, seed: u64) -> Result<Self, InputError> {
        Self::with(share, batch, seed, ShuffleSpec::Full, RepeatSpec::Endless)
    }

    /// Creates a sampler like [`new`](Self::new), but with the given kind of shuffling and number of epochs.
    ///
    /// # Errors
    /// The same as those of [`new`](Self::new).
    pub fn with(
        share: DataShare,
        batch: usize,
        seed: u64,
        shuffle: ShuffleSpec,
        repeat: RepeatSpec,
    ) -> Result<Self, InputError> {
        check_batch(batch)?;
        let examples = share.len();
        if examples > ORDER_EXAMPLES_MAX {
            return Err(InputError::OrderLength { examples, max: ORDER_EXAMPLES_MAX });
        }
        let buffered = match shuffle {
            ShuffleSpec::Buffer(size) => size.clamp(1, examples),
            ShuffleSpec::Full | ShuffleSpec::None => 0,
        };
        let reserve = |numbers: u32| {
            let mut indices = Vec::new();
            let reserved = indices.try_reserve_exact(numbers as usize);
            reserved.map(|()| indices).map_err(|_| InputError::OrderMemory { examples })
        };
        let (position, order, buffer) = (Position::default(), reserve(examples)?, reserve(buffered)?);
        let mut sampler = Self { share, batch, seed, shuffle, repeat, position, order, buffer };
        sampler.shuffle();
        Ok(sampler)
    }

    /// Returns the share that the sampler reads.
    pub fn share(&self) -> DataShare {
        self.share
    }

    /// Returns the number of examples in each batch.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Returns the position at which the next batch begins.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Moves the sampler to a position that was saved by a sampler with the same seed and share.
    ///
    /// # Errors
    /// [`InputError::Position`] if the offset is not below the share's length; in this case, the sampler does
    /// not move.
    pub fn restore(&mut self, position: Position) -> Result<(), InputError> {
        let Position { epoch, offset } = position;
        if offset >= self.share.len() {
            return Err(InputError::Position { epoch, offset, len: self.share.len() });
        }
        self.position = position;
        self.shuffle();
        Ok(())
    }

    /// Replaces the contents of `picks` with the next batch. Allocates only if the capacity of `picks` does
    /// not suffice.
    ///
    /// # Errors
    /// [`InputError::Ended`] if the examples that remain do not fill a batch. Every later call returns the
    /// same error.
    pub fn next_into(&mut self, picks: &mut Vec<Pick>) -> Result<(), InputError> {
        picks.clear();
        if let RepeatSpec::Epochs(epochs) = self.repeat {
            let Position { epoch, offset } = self.position;
            let all = u128::from(epochs.saturating_sub(epoch)) * u128::from(self.share.len());
            if all.saturating_sub(offset.into()) < self.batch as u128 {
                return Err(InputError::Ended { epochs, examples: self.share.len(), batch: self.batch });
            }
        }
        while picks.len() < self.batch {
            let rest = &self.order[self.position.offset as usize..];
            let taken = rest.len().min(self.batch - picks.len());
            let epoch = self.position.epoch;
            picks.extend(rest[..taken].iter().map(|&example| Pick { epoch, example }));
            if taken < rest.len() {
                self.position.offset += taken as u32;
            } else {
                self.position = Position { epoch: epoch.wrapping_add(1), offset: 0 };
                self.shuffle();
            }
        }
        Ok(())
    }

    /// Determines the order of this epoch. Always shuffles the ascending order, not the order of the last
    /// epoch, because a restored sampler has not seen the earlier epochs.
    fn shuffle(&mut self) {
        let mut random = order(self.seed, self.share.worker(), self.position.epoch);
        self.order.clear();
        match self.shuffle {
            ShuffleSpec::None => self.order.extend(self.share.examples()),
            // The shuffle of Fisher and Yates.
            ShuffleSpec::Full => {
                self.order.extend(self.share.examples());
                for last in (1..self.share.len()).rev() {
                    self.order.swap(last as usize, random.below(last + 1) as usize);
                }
            }
            ShuffleSpec::Buffer(size) => {
                let mut rest = self.share.examples();
                self.buffer.clear();
                self.buffer.extend(rest.by_ref().take(size.max(1) as usize));
                for next in rest {
                    let taken = random.below(self.buffer.len() as u32) as usize;
                    self.order.push(std::mem::replace(&mut self.buffer[taken], next));
                }
                while !self.buffer.is_empty() {
                    let taken = random.below(self.buffer.len() as u32) as usize;
                    self.order.push(self.buffer.swap_remove(taken));
                }
            }
        }
    }
}

/// Returns the random stream for the order in which `worker` reads its examples in `epoch`.
pub(super) fn order(seed: u64, worker: u32, epoch: u64) -> SplitMix64 {
    SplitMix64::stream(&[STREAM, seed, worker.into(), epoch])
}

/// Yields a new `Vec` for each batch, with the indices of its examples, until the input ends.
impl Iterator for Sampler {
    type Item = Vec<u32>;

    fn next(&mut self) -> Option<Vec<u32>> {
        let mut picks = Vec::with_capacity(self.batch);
        self.next_into(&mut picks).ok()?;
        Some(picks.into_iter().map(|pick| pick.example).collect())
    }
}

/// Checks that a batch may have `batch` examples.
pub(super) fn check_batch(batch: usize) -> Result<(), InputError> {
    if (1..=BATCH_EXAMPLES_MAX).contains(&batch) {
        Ok(())
    } else {
        Err(InputError::Batch { got: batch, max: BATCH_EXAMPLES_MAX })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sampler(worker: u32, workers: u32, examples: usize, batch: usize, seed: u64) -> Sampler {
        Sampler::new(DataShare::new(worker, workers, examples).unwrap(), batch, seed).unwrap()
    }

    proptest! {
        #[test]
        fn an_epoch_reads_each_example_of_the_share_once(
            workers in 1u32..5, more in 0usize..60, batch in 1usize..40, seed: u64, pick: u32,
        ) {
            let worker = pick % workers;
            let mut sampler = sampler(worker, workers, workers as usize + more, batch, seed);
            let len = sampler.share().len() as usize;
            let batches: Vec<Vec<u32>> = sampler.by_ref().take((3 * len).div_ceil(batch)).collect();
            prop_assert!(batches.iter().all(|examples| examples.len() == batch));
            let read: Vec<u32> = batches.concat();
            let expected: Vec<u32> = sampler.share().examples().collect();
            for epoch in 0..3 {
                let mut seen = read[epoch * len..(epoch + 1) * len].to_vec();
                seen.sort_unstable();
                prop_assert_eq!(&seen, &expected);
            }
            let position = sampler.position();
            prop_assert_eq!(position.epoch as usize * len + position.offset as usize, read.len());
        }

        /// Checks that every example is read once (A), and that the buffer bounds how far examples move (D).
        /// Without shuffling, or with a buffer of one example, the order must be that of the set.
        #[test]
        fn a_buffer_bounds_how_far_examples_move(examples in 1usize..100, size in 1u32..120, seed: u64) {
            let share = DataShare::new(0, 1, examples).unwrap();
            let shuffle = ShuffleSpec::Buffer(size);
            let epoch = |shuffle| {
                let mut sampler = Sampler::with(share, examples, seed, shuffle, RepeatSpec::Endless).unwrap();
                sampler.next().unwrap()
            };
            let order = epoch(shuffle);
            for (place, &example) in order.iter().enumerate() {
                prop_assert!((example as usize) < place + size as usize, "{:?}", order);
            }
            let in_order: Vec<u32> = (0..examples as u32).collect();
            prop_assert_eq!(epoch(ShuffleSpec::None), &in_order[..]);
            if size == 1 {
                prop_assert_eq!(&order, &in_order);
            }
            let mut sorted = order;
            sorted.sort_unstable();
            prop_assert_eq!(sorted, in_order);
        }

        /// Checks the number of batches (E), and the epoch of each example. If `restore` is true, a new
        /// sampler continues from the saved position after every batch.
        #[test]
        fn ends_after_the_last_full_batch(
            examples in 1usize..40, batch in 1usize..50, epochs in 1u64..5, restore: bool,
        ) {
            let share = DataShare::new(0, 1, examples).unwrap();
            let begin = || Sampler::with(share, batch, 3, ShuffleSpec::Full, RepeatSpec::Epochs(epochs)).unwrap();
            let mut sampler = begin();
            let mut picks = Vec::new();
            for number in 0..examples * epochs as usize / batch {
                sampler.next_into(&mut picks).unwrap();
                for (place, pick) in picks.iter().enumerate() {
                    prop_assert_eq!(pick.epoch as usize, (number * batch + place) / examples);
                }
                if restore {
                    let mut restored = begin();
                    restored.restore(sampler.position()).unwrap();
                    sampler = restored;
                }
            }
            for _ in 0..2 {
                let ended = matches!(sampler.next_into(&mut picks), Err(InputError::Ended { .. }));
                prop_assert!(ended && picks.is_empty());
            }
        }

        #[test]
        fn a_restored_sampler_continues_the_sequence(
            examples in 1usize..80, batch in 1usize..30, seed: u64, before in 0usize..12,
        ) {
            let mut first = sampler(0, 1, examples, batch, seed);
            first.by_ref().take(before).for_each(drop);
            let mut second = sampler(0, 1, examples, batch, seed);
            second.restore(first.position()).unwrap();
            prop_assert_eq!(first.position(), Position::after((before * batch) as u64, first.share()));
            for _ in 0..8 {
                prop_assert_eq!(first.next(), second.next());
                prop_assert_eq!(first.position(), second.position());
            }
        }
    }

    #[test]
    fn the_order_depends_on_seed_worker_and_epoch() {
        let order = |worker, seed, epoch| {
            let mut sampler = sampler(worker, 2, 200, 100, seed);
            sampler.restore(Position { epoch, offset: 0 }).unwrap();
            // Worker 1 reads the odd indices. After division by 2 they can be compared with those of worker
            // 0.
            sampler.next().unwrap().into_iter().map(|example| example / 2).collect::<Vec<_>>()
        };
        let base = order(0, 7, 0);
        assert_eq!(base, order(0, 7, 0));
        for other in [order(0, 8, 0), order(1, 7, 0), order(0, 7, 1), (0..100).collect()] {
            let same = base.iter().zip(&other).filter(|(a, b)| a == b).count();
            // A random order leaves one example in its place on average.
            assert!(same < 10, "{same} of 100 examples are in the same place");
        }
    }

    #[test]
    fn every_example_comes_first_equally_often() {
        let mut first = [0; 5];
        for batch in sampler(0, 1, 5, 5, 11).take(10_000) {
            first[batch[0] as usize] += 1;
        }
        // 2 000 of each are expected, with a standard deviation of 40.
        assert!(first.iter().all(|count| (1_800..2_200).contains(count)), "{first:?}");
    }

    #[test]
    fn refuses_bad_batches_and_positions() {
        let share = DataShare::new(0, 1, 10).unwrap();
        assert!(matches!(Sampler::new(share, 0, 0), Err(InputError::Batch { got: 0, .. })));
        assert!(matches!(Sampler::new(share, BATCH_EXAMPLES_MAX + 1, 0), Err(InputError::Batch { .. })));
        let mut sampler = Sampler::new(share, 3, 0).unwrap();
        sampler.next();
        let before = sampler.position();
        let refused = sampler.restore(Position { epoch: 4, offset: 10 });
        assert!(matches!(refused, Err(InputError::Position { epoch: 4, offset: 10, len: 10 })));
        assert_eq!(sampler.position(), before);
    }

    #[test]
    fn refuses_a_share_too_large_to_order() {
        // This is the number of windows in a text of 4 GiB with a stride of 1.
        let share = DataShare::new(0, 1, u32::MAX as usize).unwrap();
        for shuffle in [ShuffleSpec::Full, ShuffleSpec::None, ShuffleSpec::Buffer(u32::MAX)] {
            let error = Sampler::with(share, 1, 0, shuffle, RepeatSpec::Endless).unwrap_err();
            assert!(matches!(error, InputError::OrderLength { examples: u32::MAX, .. }), "{error}");
            assert!(
                error
                    .to_string()
                    .contains("part of the data has 4294967295 examples, expected at most 268435456")
            );
        }
        let share = DataShare::new(0, 1, ORDER_EXAMPLES_MAX as usize + 1).unwrap();
        assert!(matches!(Sampler::new(share, 1, 0), Err(InputError::OrderLength { .. })));
    }

    #[test]
    fn reuses_the_memory_of_the_picks() {
        let mut sampler = sampler(0, 1, 10, 4, 0);
        let mut examples = Vec::with_capacity(4);
        let place = examples.as_ptr();
        for _ in 0..20 {
            sampler.next_into(&mut examples).unwrap();
        }
        assert_eq!((examples.as_ptr(), examples.len()), (place, 4));
    }
}
