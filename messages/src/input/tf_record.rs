//! The spec of TFRecord files of `tf.train.Example`: which features become columns. The crate
//! `pushpull-input` reads the files.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{COLUMNS_MAX, ColumnSpec, EXAMPLE_ELEMENTS_MAX, InputSpecError};
use crate::tensor::{DType, Shape, TensorSpec};

/// The spec of TFRecord files in which each record is a `tf.train.Example`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TfRecordSpec {
    /// The files in order, each plain or packed by gzip or zstd.
    pub files: Vec<PathBuf>,
    /// The features that are read, and their columns. Other features are ignored.
    pub features: Vec<FeatureSpec>,
}

/// A feature of the records, and the column that it becomes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeatureSpec {
    /// The feature's name in the record.
    pub feature: String,
    /// The column's name.
    pub column: String,
    /// The kind of the feature's values.
    pub kind: FeatureKind,
    /// The shape of the column in one example. The feature must have exactly as many values as the shape has
    /// elements.
    pub shape: Shape,
}

/// The kind of a feature's values. It determines the type of the column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeatureKind {
    /// A `FloatList` that becomes an `f32` column.
    Float,
    /// An `Int64List` that becomes an `i32` column. A value that does not fit into an `i32` is an error.
    Int64,
    /// A `BytesList` of one string whose bytes become the elements of an `f32` column, scaled from 0..255 to
    /// 0..1.
    Pixels,
    /// A `BytesList` of one string whose bytes become the elements of an `i32` column, unscaled.
    Bytes,
}

impl FeatureSpec {
    /// Makes a feature that becomes the column called `column`.
    pub fn new(feature: &str, column: &str, kind: FeatureKind, shape: impl Into<Shape>) -> Self {
        Self { feature: feature.to_owned(), column: column.to_owned(), kind, shape: shape.into() }
    }

    /// Returns the spec of the column: its name, shape and type.
    pub fn column(&self) -> ColumnSpec {
        let dtype = match self.kind {
            FeatureKind::Float | FeatureKind::Pixels => DType::F32,
            FeatureKind::Int64 | FeatureKind::Bytes => DType::I32,
        };
        ColumnSpec { name: self.column.clone(), example: TensorSpec { shape: self.shape.clone(), dtype } }
    }
}

impl TfRecordSpec {
    pub(super) fn validate(&self) -> Result<(), InputSpecError> {
        if !(1..=COLUMNS_MAX).contains(&self.features.len()) {
            return InputSpecError::range(
                "the number of features",
                format!("1 to {COLUMNS_MAX}"),
                self.features.len(),
            );
        }
        for (position, feature) in self.features.iter().enumerate() {
            InputSpecError::name(|| format!("feature {position}"), &feature.feature)?;
            InputSpecError::name(|| format!("the column of feature '{}'", feature.feature), &feature.column)?;
            let elements = feature.shape.checked_elements().unwrap_or(usize::MAX);
            if !(1..=EXAMPLE_ELEMENTS_MAX).contains(&elements) {
                let what = format!("the shape of feature '{}'", feature.feature);
                let expected = format!("of 1 to {EXAMPLE_ELEMENTS_MAX} elements");
                return InputSpecError::range(what, expected, &feature.shape);
            }
        }
        Ok(())
    }
}
