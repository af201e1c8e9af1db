//! A data set in memory: named columns, each stored in the element type of its source. This module must not
//! depend on files or on the order in which examples are read.

use std::fmt;
use std::sync::Arc;

use pushpull_messages::input::ColumnSpec;
use pushpull_messages::tensor::{DType, Shape, TensorSpec};

use super::{Dataset, Reader, Rows, Storage};
use crate::{Column, InputError};

/// The name of the feature column of images and texts.
pub(crate) const FEATURES: &str = "features";
/// The name of the label column of images and texts.
pub(crate) const LABELS: &str = "labels";

/// A data set in memory. It has at least one example. Clones share the memory.
#[derive(Clone, PartialEq)]
pub struct InMemory {
    examples: usize,
    columns: Arc<[ColumnSpec]>,
    /// For each column, the number of elements per example, and the stored elements.
    storage: Arc<[(usize, Storage)]>,
}

impl InMemory {
    /// Creates a data set of `examples` examples from these columns. Keeps the order of the columns.
    ///
    /// # Errors
    /// [`InputError::Extent`] if there is no example, if an example has no element, or if `examples` does not
    /// fit in a `u32`; [`InputError::Column`] if two columns have the same name, or if the type or number of
    /// the elements of a column differs from its spec; [`InputError::NoColumn`] if there is no column.
    pub fn new(examples: usize, columns: Vec<(ColumnSpec, Storage)>) -> Result<Self, InputError> {
        if columns.is_empty() {
            return Err(InputError::NoColumn);
        }
        let (mut specs, mut stored): (Vec<ColumnSpec>, Vec<_>) = (Vec::new(), Vec::new());
        for (spec, storage) in columns {
            let elements = spec.example.shape.checked_elements().unwrap_or(0);
            if elements == 0 || examples == 0 || u32::try_from(examples).is_err() {
                return Err(InputError::Extent { examples: examples as u64, elements, max: u32::MAX.into() });
            }
            let twice = specs.iter().any(|column| column.name == spec.name);
            let fits = storage.dtype() == spec.example.dtype && storage.holds(examples, elements);
            if twice || !fits {
                let got = match twice {
                    true => "another column of that name".to_owned(),
                    false => format!("{} elements of {}", storage.elements(), storage.dtype()),
                };
                return Err(InputError::Column { name: spec.name, expected: spec.example, examples, got });
            }
            specs.push(spec);
            stored.push((elements, storage));
        }
        Ok(Self { examples, columns: specs.into(), storage: stored.into() })
    }

    /// Creates a data set of images and their classes. The column `features` has the given `shape`,
    /// row-major, with every pixel (0 to 255) divided by 255. The column `labels` is an `i32` scalar.
    ///
    /// # Errors
    /// Those of [`new`](Self::new); and [`InputError::Label`] if a label is below 0, or if
    /// `classes` is given and a label is not below `classes`.
    pub fn images(
        shape: Shape,
        pixels: Vec<u8>,
        labels: Vec<i32>,
        classes: Option<u32>,
    ) -> Result<Self, InputError> {
        let max = classes.map_or(i32::MAX, |count| i32::try_from(i64::from(count) - 1).unwrap_or(i32::MAX));
        if let Some(example) = labels.iter().position(|&label| !(0..=max).contains(&label)) {
            return Err(InputError::Label { example, label: labels[example], max });
        }
        let [features, classes] = Self::image_columns(shape);
        Self::new(labels.len(), vec![(features, Storage::Pixels(pixels)), (classes, Storage::I32(labels))])
    }

    /// Returns the specs of the columns of a set that [`images`](Self::images) creates.
    pub(crate) fn image_columns(shape: Shape) -> [ColumnSpec; 2] {
        [
            ColumnSpec { name: FEATURES.to_owned(), example: TensorSpec::f32(shape) },
            ColumnSpec { name: LABELS.to_owned(), example: TensorSpec::i32([]) },
        ]
    }

    /// Returns the number of examples; at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a data set is never empty")]
    pub fn len(&self) -> usize {
        self.examples
    }

    /// Returns a data set of the first `count` examples; of all examples if there are fewer.
    ///
    /// # Errors
    /// [`InputError::Extent`] if `count` is 0.
    pub fn first(&self, count: usize) -> Result<Self, InputError> {
        let count = count.min(self.examples);
        let columns = self.columns.iter().zip(self.storage.iter());
        let columns =
            columns.map(|(spec, (elements, storage))| (spec.clone(), storage.first(count, *elements)));
        Self::new(count, columns.collect())
    }

    /// Returns the specs of the columns, in the order of a batch's columns; at least one.
    pub fn columns(&self) -> &[ColumnSpec] {
        &self.columns
    }

    /// Returns the stored elements of the column called `name`.
    pub fn storage(&self, name: &str) -> Option<&Storage> {
        let column = self.columns.iter().position(|column| column.name == name)?;
        Some(&self.storage[column].1)
    }

    /// Returns the elements of the column of integers called `name`, for all examples; `None` if there is no
    /// such column.
    pub fn integers(&self, name: &str) -> Option<Vec<i32>> {
        let column = self.columns.iter().position(|column| column.name == name)?;
        let (elements, storage) = &self.storage[column];
        if storage.dtype() != DType::I32 {
            return None;
        }
        let mut all = vec![0; self.examples * elements];
        for (example, row) in all.chunks_exact_mut(*elements).enumerate() {
            storage.fill_i32(example, row);
        }
        Some(all)
    }

    /// Returns the stored elements of the column at `position`.
    pub(crate) fn storage_at(&self, position: usize) -> &Storage {
        &self.storage[position].1
    }

    /// Replaces the contents of `columns` with the examples at the indices `examples`, in the order of these
    /// indices. The columns are in the order of [`columns`](Self::columns). Allocates only if the capacity
    /// of `columns` does not suffice.
    ///
    /// # Panics
    /// If an index is not below [`len`](Self::len).
    pub fn fill(&self, examples: &[u32], columns: &mut Vec<Column>) {
        columns.truncate(self.columns.len());
        for (index, (spec, (elements, storage))) in self.columns.iter().zip(self.storage.iter()).enumerate() {
            if columns.len() == index {
                columns.push(Column::F32(Vec::new()));
            }
            let column = &mut columns[index];
            column.resize(spec.example.dtype, examples.len() * elements);
            match column {
                Column::F32(rows) => {
                    for (&example, row) in examples.iter().zip(rows.chunks_exact_mut(*elements)) {
                        storage.fill_f32(example as usize, row);
                    }
                }
                Column::I32(rows) => {
                    for (&example, row) in examples.iter().zip(rows.chunks_exact_mut(*elements)) {
                        storage.fill_i32(example as usize, row);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
impl InMemory {
    /// Returns the labels of all examples.
    pub(crate) fn labels(&self) -> &[i32] {
        match self.storage(LABELS) {
            Some(Storage::I32(labels)) => labels,
            _ => panic!("the data set has no labels"),
        }
    }

    /// Returns the pixels of one image, not scaled: 0 to 255.
    pub(crate) fn pixels(&self, example: u32) -> &[u8] {
        match &self.storage[0] {
            (elements, Storage::Pixels(pixels)) => &pixels[example as usize * elements..][..*elements],
            _ => panic!("the data set has no images"),
        }
    }

    /// Returns the shape of one example's features.
    pub(crate) fn feature_shape(&self) -> &Shape {
        &self.columns[0].example.shape
    }
}

/// Makes a data set from the examples of a block. The errors are those of [`InMemory::new`].
impl TryFrom<Rows> for InMemory {
    type Error = InputError;

    fn try_from(rows: Rows) -> Result<Self, InputError> {
        let (examples, columns) = rows.into_columns();
        Self::new(examples, columns)
    }
}

impl Dataset for InMemory {
    fn columns(&self) -> &[ColumnSpec] {
        &self.columns
    }

    fn examples(&self) -> Option<u64> {
        Some(self.examples as u64)
    }

    fn in_memory(&self) -> Option<InMemory> {
        Some(self.clone())
    }

    fn reader(&self) -> Result<Box<dyn Reader>, InputError> {
        Ok(Box::new(InMemoryReader { set: self.clone(), next: 0 }))
    }

    fn rows(&self) -> Result<Rows, InputError> {
        let empty = self.storage.iter().map(|(_, storage)| storage.empty());
        Rows::new(self.columns.iter().cloned().zip(empty).collect())
    }
}

struct InMemoryReader {
    set: InMemory,
    /// The index of the next example.
    next: usize,
}

impl Reader for InMemoryReader {
    fn read(&mut self, examples: usize, rows: &mut Rows) -> Result<usize, InputError> {
        let count = examples.min(self.set.examples - self.next);
        for _ in 0..count {
            rows.begin()?;
            for (position, (elements, storage)) in self.set.storage.iter().enumerate() {
                rows.column(position).copy(storage, self.next, *elements);
            }
            rows.end();
            self.next += 1;
        }
        Ok(count)
    }

    fn skip(&mut self, examples: u64, _: &mut Rows) -> Result<u64, InputError> {
        let count = examples.min((self.set.examples - self.next) as u64);
        self.next += count as usize;
        Ok(count)
    }
}

/// Shows only the columns, because the examples may be millions of numbers.
impl fmt::Debug for InMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InMemory")
            .field("examples", &self.examples)
            .field("columns", &format_args!("{}", ColumnSpec::list(&self.columns)))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn three_of_two() -> InMemory {
        InMemory::images(Shape::from([2, 1]), vec![0, 255, 51, 102, 153, 204], vec![4, 0, 9], Some(10))
            .unwrap()
    }

    fn named(name: &str, example: TensorSpec) -> ColumnSpec {
        ColumnSpec { name: name.to_owned(), example }
    }

    #[test]
    fn fills_scaled_features_in_the_given_order() {
        let set = three_of_two();
        let mut columns = vec![Column::I32(vec![7]), Column::I32(vec![7; 9]), Column::F32(vec![])];
        set.fill(&[2, 0, 2], &mut columns);
        assert_eq!(columns, [Column::F32(vec![0.6, 0.8, 0.0, 1.0, 0.6, 0.8]), Column::I32(vec![9, 4, 9])]);
        assert_eq!(set.len(), 3);
        assert_eq!(
            set.columns(),
            [named("features", TensorSpec::f32([2, 1])), named("labels", TensorSpec::i32([]))]
        );
    }

    #[test]
    fn every_kind_of_storage_returns_its_elements() {
        let tokens: Arc<[u8]> = Arc::from(&b"abcdefg"[..]);
        let window = |begin| Storage::Windows { tokens: Arc::clone(&tokens), begin, stride: 2 };
        let set = InMemory::new(
            2,
            vec![
                (named("x", TensorSpec::f32([2])), Storage::F32(vec![1.0, 2.0, 3.0, 4.0])),
                (named("raw", TensorSpec::i32([1])), Storage::Bytes(vec![255, 3])),
                (named("id", TensorSpec::i32([])), Storage::I32(vec![-5, 6])),
                (named("text", TensorSpec::i32([4])), window(0)),
                (named("next", TensorSpec::i32([4])), window(1)),
            ],
        )
        .unwrap();
        let mut columns = Vec::new();
        set.fill(&[1], &mut columns);
        let ints = |text: &[u8]| Column::I32(text.iter().map(|&byte| byte.into()).collect());
        let expected = [
            Column::F32(vec![3.0, 4.0]),
            Column::I32(vec![3]),
            Column::I32(vec![6]),
            ints(b"cdef"),
            ints(b"defg"),
        ];
        assert_eq!(columns, expected);
    }

    #[test]
    #[should_panic(expected = "range end index 8 out of range")]
    fn an_index_beyond_the_end_panics() {
        three_of_two().fill(&[3], &mut Vec::new());
    }

    #[test]
    fn refuses_images_and_labels_that_do_not_match() {
        let new = |shape: &[usize], features: usize, labels: &[i32], classes| {
            InMemory::images(Shape(shape.to_vec()), vec![0; features], labels.to_vec(), classes).unwrap_err()
        };
        assert!(matches!(new(&[2], 0, &[], None), InputError::Extent { examples: 0, .. }));
        assert!(matches!(new(&[2, 0], 0, &[1], None), InputError::Extent { elements: 0, .. }));
        assert!(matches!(new(&[usize::MAX, 2], 4, &[1], None), InputError::Extent { elements: 0, .. }));
        let error = new(&[2], 3, &[1], None);
        assert!(
            matches!(&error, InputError::Column { name, examples: 1, .. } if name == "features"),
            "{error}"
        );
        assert!(matches!(new(&[1], 2, &[0, -1], None), InputError::Label { example: 1, label: -1, .. }));
        assert!(matches!(
            new(&[1], 2, &[9, 10], Some(10)),
            InputError::Label { example: 1, label: 10, max: 9 }
        ));
        assert!(matches!(new(&[1], 1, &[0], Some(0)), InputError::Label { example: 0, label: 0, max: -1 }));
    }

    #[test]
    fn refuses_columns_that_differ_from_their_spec() {
        let x = |storage| (named("x", TensorSpec::i32([2])), storage);
        let refused = |columns| InMemory::new(2, columns).unwrap_err().to_string();
        assert!(refused(vec![x(Storage::F32(vec![0.0; 4]))]).contains("'x'"));
        assert!(refused(vec![x(Storage::I32(vec![0; 5]))]).contains("5 elements of i32"));
        assert!(
            refused(vec![x(Storage::I32(vec![0; 4])), x(Storage::I32(vec![0; 4]))]).contains("that name")
        );
        let tokens: Arc<[u8]> = Arc::from(&b"abcde"[..]);
        for (begin, stride) in [(0, 0), (3, 1), (0, 4), (usize::MAX, 1), (0, usize::MAX)] {
            let windows = Storage::Windows { tokens: Arc::clone(&tokens), begin, stride };
            assert!(refused(vec![x(windows)]).contains("'x'"), "{begin} {stride}");
        }
        assert!(InMemory::new(2, vec![x(Storage::Windows { tokens, begin: 2, stride: 1 })]).is_ok());
        assert!(matches!(InMemory::new(2, vec![]), Err(InputError::NoColumn)));
    }

    #[test]
    fn debug_is_short() {
        assert!(format!("{:?}", three_of_two()).len() < 120);
    }
}
