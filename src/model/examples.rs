//! Examples in memory, for predictions and evaluations.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use pushpull_input::{Dataset, InMemory, Storage, load, load_images};
use pushpull_messages::input::{ColumnSpec, DatasetSpec};
use pushpull_messages::tensor::{DType, Elements, Shape, Tensor, TensorSpec};

use crate::error::Error;

/// Examples in memory: named columns that all have one row for each example. There is at least one example.
#[derive(Clone, Debug)]
pub struct Examples {
    set: Arc<InMemory>,
}

impl Examples {
    /// Reads the data set that `spec` describes, such as the test set of a job's input.
    ///
    /// # Errors
    /// Returns an error if a file is missing, damaged or too large.
    pub fn read(spec: &DatasetSpec) -> Result<Self, Error> {
        Ok(Self { set: Arc::new(load(spec, None)?) })
    }

    /// Reads the images of a file in the IDX format of MNIST, plain or packed, without labels. The column
    /// `features` has the pixels, scaled from 0..255 to 0..1, as [`DatasetSpec::Idx`] reads them.
    ///
    /// # Errors
    /// Returns an error if the file is missing, damaged or too large.
    pub fn images(path: impl AsRef<Path>) -> Result<Self, Error> {
        Ok(Self { set: Arc::new(load_images(path.as_ref())?) })
    }

    /// Reads all examples of a data set, which may be of a type that the caller defines.
    ///
    /// # Errors
    /// Returns an error if the set cannot be read, has no end, or is too large for memory.
    pub fn from_dataset(set: &dyn Dataset) -> Result<Self, Error> {
        Ok(Self { set: Arc::new(InMemory::collect(set)?) })
    }

    /// Makes examples from one column of floats. `shape` is the shape of one example, and `values` holds the
    /// examples one after the other, each row-major.
    ///
    /// # Errors
    /// Returns an error if there is no example, or if `values` does not hold a whole number of examples.
    pub fn f32(column: &str, shape: impl Into<Shape>, values: Vec<f32>) -> Result<Self, Error> {
        Self::of(column, TensorSpec::f32(shape), values.len(), Storage::F32(values))
    }

    /// Makes examples from one column of integers, such as tokens or labels. `shape` and `values` are as in
    /// [`f32`](Self::f32).
    ///
    /// # Errors
    /// The same as those of [`f32`](Self::f32).
    pub fn i32(column: &str, shape: impl Into<Shape>, values: Vec<i32>) -> Result<Self, Error> {
        let example = TensorSpec { shape: shape.into(), dtype: DType::I32 };
        Self::of(column, example, values.len(), Storage::I32(values))
    }

    /// Returns these examples with the columns of `other` added. Both must have the same number of examples.
    ///
    /// # Errors
    /// Returns an error if the numbers of examples differ, or if both have a column of the same name.
    pub fn with(&self, other: &Self) -> Result<Self, Error> {
        let columns = [&self.set, &other.set].into_iter().flat_map(|set| {
            let storage =
                |column: &ColumnSpec| set.storage(&column.name).expect("a column is stored").clone();
            set.columns().iter().map(move |column| (column.clone(), storage(column)))
        });
        Ok(Self { set: Arc::new(InMemory::new(self.len(), columns.collect())?) })
    }

    fn of(column: &str, example: TensorSpec, elements: usize, storage: Storage) -> Result<Self, Error> {
        // A shape without elements, or with too many, is refused below.
        let examples = elements / example.shape.checked_elements().unwrap_or(0).max(1);
        let column = ColumnSpec { name: column.to_owned(), example };
        Ok(Self { set: Arc::new(InMemory::new(examples, vec![(column, storage)])?) })
    }

    /// Returns the first `count` examples; all examples if there are fewer.
    ///
    /// # Errors
    /// Returns an error if `count` is 0.
    pub fn first(&self, count: usize) -> Result<Self, Error> {
        Ok(Self { set: Arc::new(self.set.first(count)?) })
    }

    /// Returns the number of examples.
    #[expect(clippy::len_without_is_empty, reason = "there is at least one example")]
    pub fn len(&self) -> usize {
        self.set.len()
    }

    /// Returns the integers of a column, for example the label of each example; `None` if there is no such
    /// column of integers.
    pub fn integers(&self, column: &str) -> Option<Vec<i32>> {
        self.set.integers(column)
    }

    /// Returns these rows of a column as one tensor `[rows, …]`, such as a batch that is fed to a session;
    /// `None` if there is no such column.
    ///
    /// # Panics
    /// If `rows` is empty or exceeds the examples.
    pub fn tensor(&self, column: &str, rows: Range<usize>) -> Option<Tensor> {
        assert!(rows.start < rows.end && rows.end <= self.len(), "{rows:?} of {} examples", self.len());
        let spec = self.set.columns().iter().find(|spec| spec.name == column)?;
        let shape = spec.example.shape.with_leading(rows.len());
        let each = spec.example.shape.elements();
        let own = rows.start * each..rows.end * each;
        let elements: Elements = match self.set.storage(column)? {
            Storage::Pixels(bytes) => {
                bytes[own].iter().map(|&byte| f32::from(byte) / 255.0).collect::<Vec<_>>().into()
            }
            Storage::F32(values) => values[own].to_vec().into(),
            Storage::Bytes(bytes) => {
                bytes[own].iter().map(|&byte| i32::from(byte)).collect::<Vec<_>>().into()
            }
            Storage::I32(values) => values[own].to_vec().into(),
            Storage::Windows { tokens, begin, stride } => {
                let window = |row: usize| tokens[begin + row * stride..][..each].iter();
                rows.flat_map(window).map(|&byte| i32::from(byte)).collect::<Vec<_>>().into()
            }
        };
        Some(Tensor::new(shape, elements).expect("a column has elements of its shape"))
    }

    pub(crate) fn dataset(&self) -> InMemory {
        InMemory::clone(&self.set)
    }
}
