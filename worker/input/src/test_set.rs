//! A set that is read once, from the first example to the last: the test set of an evaluation, or examples to
//! predict. This module must not depend on shuffling or epochs.

use std::sync::Arc;

use pushpull_messages::input::{ColumnSpec, DatasetSpec, MapSpec, StreamSpec};

use crate::dataset::{Dataset, HELD_BYTES_MAX, Reader, Rows, check, collect, collect_within, read_some};
use crate::in_order::{InOrder, in_order};
use crate::mapped::prepare;
use crate::prefetch::check_ready_bytes;
use crate::sampler::check_batch;
use crate::source::{Reading, describe, is_read, load_from, open};
use crate::stages::{Scratch, Stages};
use crate::{Batch, Description, InputError, Mapped};

/// The maximum size in bytes of a test set that the setting `auto` holds in memory.
pub const TEST_BYTES_MAX: u64 = 128 << 20;

/// A test set with its map stages. Random stages are disabled. The set is held in memory, or it
/// is read again for each pass over it.
///
/// Wanted properties: (A) the batches have the same bits whether the set is held or read again; (B) a set
/// that is read again for each pass takes the memory of one batch.
pub struct TestSet(Kind);

enum Kind {
    Held(Mapped),
    Streamed { set: Arc<dyn Dataset>, stages: Stages },
}

impl TestSet {
    /// Opens the test set that `spec` describes. `stream` says whether the set is held in memory; with
    /// `auto`, it is held if its examples take at most [`TEST_BYTES_MAX`]. Texts and generated sets are
    /// always held.
    ///
    /// # Errors
    /// Any [`InputError`] that concerns the spec, the files or the map stages.
    pub fn open(
        spec: &DatasetSpec,
        map: &[MapSpec],
        stream: StreamSpec,
        reading: &Reading<'_>,
    ) -> Result<Self, InputError> {
        match is_read(spec) && stream != StreamSpec::Never {
            true => Self::of(open(spec, reading)?, map, stream),
            false => Ok(Self(Kind::Held(Mapped::testing(load_from(spec, reading)?, map)?))),
        }
    }

    /// Makes a test set from a data set; `map` and `stream` have the same meaning as in
    /// [`open`](Self::open).
    ///
    /// # Errors
    /// Any [`InputError`] that concerns the data set or the map stages; [`InputError::Endless`] if the set
    /// has no end.
    pub fn of(set: Arc<dyn Dataset>, map: &[MapSpec], stream: StreamSpec) -> Result<Self, InputError> {
        check(&*set)?;
        let held = match stream {
            StreamSpec::Always => collect_within(&*set, 0)?,
            StreamSpec::Auto => collect_within(&*set, TEST_BYTES_MAX)?,
            StreamSpec::Never => Some(collect(&*set)?),
        };
        if let Some(held) = held {
            return Ok(Self(Kind::Held(Mapped::testing(held, map)?)));
        }
        let stages = Stages::new(map, set.columns())?;
        Ok(Self(Kind::Streamed { set, stages }))
    }

    /// Describes the test set that [`open`](Self::open) would open, in the same way as the function
    /// [`describe`].
    ///
    /// # Errors
    /// Those of [`describe`]; [`InputError::TestHeld`] if the set must be held in memory and is too large
    /// for that.
    pub fn describe(
        spec: &DatasetSpec,
        map: &[MapSpec],
        stream: StreamSpec,
        reading: &Reading<'_>,
    ) -> Result<Description, InputError> {
        let description = describe(spec, map, reading)?;
        if stream == StreamSpec::Never && is_read(spec) {
            let (set, max) = (open(spec, reading)?, HELD_BYTES_MAX);
            let (examples, bytes) = (description.examples, set.rows()?.example_bytes());
            if set.in_memory().is_none() && examples.saturating_mul(bytes) > max {
                return Err(InputError::TestHeld { examples, bytes, max });
            }
        }
        Ok(description)
    }

    /// Returns the specs of the columns after the stages, in the order of a batch's columns.
    pub fn columns(&self) -> &[ColumnSpec] {
        match &self.0 {
            Kind::Held(set) => set.columns(),
            Kind::Streamed { stages, .. } => stages.columns(),
        }
    }

    /// Returns true if the examples are read again for each pass over the set.
    pub fn is_streamed(&self) -> bool {
        matches!(self.0, Kind::Streamed { .. })
    }

    /// Returns the batches of `batch` examples, in order. The last batch may be smaller.
    ///
    /// # Errors
    /// Those of [`in_order`], or any [`InputError`] that occurs when the set is opened.
    pub fn batches(&self, batch: usize) -> Result<TestBatches<'_>, InputError> {
        let (set, stages) = match &self.0 {
            Kind::Held(set) => return Ok(TestBatches(Batches::Held(in_order(set, batch)?))),
            Kind::Streamed { set, stages } => (set, stages),
        };
        check_batch(batch)?;
        check_ready_bytes(stages.columns(), batch, 1)?;
        let (reader, rows, scratch) = (set.reader()?, set.rows()?, Scratch::default());
        let streamed = Streamed { reader, rows, stages, scratch, batch, read: 0, ended: false };
        Ok(TestBatches(Batches::Streamed(Box::new(streamed))))
    }
}

impl From<Mapped> for TestSet {
    fn from(set: Mapped) -> Self {
        Self(Kind::Held(set))
    }
}

/// The iterator that [`TestSet::batches`] returns. It ends after the first error.
pub struct TestBatches<'a>(Batches<'a>);

enum Batches<'a> {
    Held(InOrder<'a>),
    Streamed(Box<Streamed<'a>>),
}

/// The batches of a set that is being read.
struct Streamed<'a> {
    reader: Box<dyn Reader>,
    /// The examples of one batch, before the stages.
    rows: Rows,
    stages: &'a Stages,
    scratch: Scratch,
    batch: usize,
    /// The number of examples in the batches so far.
    read: u64,
    ended: bool,
}

impl Streamed<'_> {
    /// Reads the next batch; returns `None` after the last one.
    fn read(&mut self) -> Result<Option<Batch>, InputError> {
        self.rows.clear();
        while self.rows.len() < self.batch {
            let most = self.batch - self.rows.len();
            if read_some(&mut *self.reader, most, &mut self.rows)? == 0 {
                self.ended = true;
                break;
            }
        }
        let examples = self.rows.len();
        match (examples, self.read) {
            (0, 0) => return Err(InputError::Extent { examples: 0, elements: 1, max: u64::MAX }),
            (0, _) => return Ok(None),
            _ => self.stages.check_rows(&self.rows, self.read)?,
        }
        let mut batch = Batch { examples, ..Batch::default() };
        prepare(self.stages.columns(), examples, &mut batch.columns);
        for (position, column) in batch.columns.iter_mut().enumerate() {
            for place in 0..examples {
                let from = (self.rows.storage(position), place);
                self.stages.fill(position, from, None, (&mut *column, place), &mut self.scratch);
            }
        }
        self.read += examples as u64;
        Ok(Some(batch))
    }
}

impl Iterator for TestBatches<'_> {
    type Item = Result<Batch, InputError>;

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Batches::Held(batches) => batches.next().map(Ok),
            Batches::Streamed(streamed) if streamed.ended => None,
            Batches::Streamed(streamed) => {
                let read = streamed.read();
                streamed.ended |= read.is_err();
                read.transpose()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::input::StageSpec;
    use pushpull_messages::tensor::{Shape, TensorSpec};

    use super::*;
    use crate::{Column, Datasets, InMemory, from_fn};

    /// Returns a set of `examples` examples, each with an image of two pixels and a label.
    fn images(examples: usize) -> InMemory {
        let pixels = (0..examples * 2).map(|pixel| (pixel * 37 % 256) as u8).collect();
        let labels = (0..examples as i32).map(|label| label % 3).collect();
        InMemory::images(Shape::from([1, 2, 1]), pixels, labels, None).unwrap()
    }

    /// A data set in memory that is read as if it were not in memory: `in_memory` and `examples` return
    /// `None`.
    struct Hidden(InMemory);

    impl Dataset for Hidden {
        fn columns(&self) -> &[ColumnSpec] {
            self.0.columns()
        }

        fn examples(&self) -> Option<u64> {
            None
        }

        fn reader(&self) -> Result<Box<dyn Reader>, InputError> {
            self.0.reader()
        }

        fn rows(&self) -> Result<Rows, InputError> {
            self.0.rows()
        }
    }

    fn read(set: &TestSet, batch: usize) -> Result<Vec<Batch>, InputError> {
        set.batches(batch)?.collect()
    }

    proptest! {
        /// Checks (A).
        #[test]
        fn streamed_batches_have_the_bits_of_held_ones(examples in 1usize..40, batch in 1usize..50) {
            let map = [
                MapSpec::new("features", StageSpec::RandomFlip),
                MapSpec::new("features", StageSpec::RandomCrop { pad: 1, size: [2, 2] }),
                MapSpec::new("features", StageSpec::Scale { factor: 3.0, offset: 0.1 }),
                MapSpec::new("labels", StageSpec::OneHot { classes: 3 }),
            ];
            let set: Arc<dyn Dataset> = Arc::new(Hidden(images(examples)));
            let held = TestSet::of(Arc::clone(&set), &map, StreamSpec::Never).unwrap();
            let auto = TestSet::of(Arc::clone(&set), &map, StreamSpec::Auto).unwrap();
            let streamed = TestSet::of(set, &map, StreamSpec::Always).unwrap();
            prop_assert!(streamed.is_streamed() && !held.is_streamed() && !auto.is_streamed());
            prop_assert_eq!(streamed.columns(), held.columns());
            let expected = read(&held, batch).unwrap();
            prop_assert_eq!(expected.iter().map(|batch| batch.examples).sum::<usize>(), examples);
            prop_assert_eq!(read(&streamed, batch).unwrap(), expected.clone());
            prop_assert_eq!(read(&streamed, batch).unwrap(), expected);
        }
    }

    /// Returns a set of `examples` examples, each of 4 MiB.
    fn large(examples: u64) -> Arc<dyn Dataset> {
        let column = ColumnSpec::new("x", TensorSpec::f32([1 << 20]));
        Arc::new(from_fn(vec![column], Some(examples), |_| vec![Column::F32(vec![0.0; 1 << 20])]))
    }

    #[test]
    fn auto_streams_a_large_set() {
        let set = TestSet::of(large(1 << 20), &[], StreamSpec::Auto).unwrap();
        assert!(set.is_streamed());
        let set = TestSet::of(large(3), &[], StreamSpec::Auto).unwrap();
        assert!(!set.is_streamed());
    }

    #[test]
    fn a_held_set_too_large_for_memory_is_found_early() {
        let mut custom = Datasets::default();
        custom.insert("large", large(1025));
        let spec = DatasetSpec::Custom("large".into());
        let described = |stream| TestSet::describe(&spec, &[], stream, &Reading::plain(&custom));
        let error = described(StreamSpec::Never).unwrap_err().to_string();
        assert!(error.contains("1025 examples of 4194304 bytes") && error.contains("stream"), "{error}");
        assert_eq!(described(StreamSpec::Auto).unwrap().examples, 1025);
    }

    #[test]
    fn a_bad_class_ends_a_streamed_set() {
        let classes = [MapSpec::new("labels", StageSpec::OneHot { classes: 2 })];
        let set = TestSet::of(Arc::new(Hidden(images(9))), &classes, StreamSpec::Always).unwrap();
        let mut batches = set.batches(2).unwrap();
        assert!(batches.next().unwrap().is_ok());
        let error = batches.next().unwrap().unwrap_err();
        assert!(matches!(error, InputError::Class { example: 2, id: 2, .. }), "{error}");
        assert!(batches.next().is_none());
    }

    #[test]
    fn an_empty_or_endless_set_is_an_error() {
        let none = images(3).filter(|_| false);
        let set = TestSet::of(Arc::new(none), &[], StreamSpec::Always).unwrap();
        assert!(matches!(read(&set, 2), Err(InputError::Extent { examples: 0, .. })));
        let endless = from_fn(images(1).columns().to_vec(), None, |_| Vec::new());
        let opened = TestSet::of(Arc::new(endless), &[], StreamSpec::Always);
        assert!(matches!(opened, Err(InputError::Endless)));
    }
}
