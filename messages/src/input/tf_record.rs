//! Files of `tf.train.Example` records, as data: which features become which columns.
//! Knows neither the framing nor the encoding.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{COLUMNS_MAX, ColumnSpec, EXAMPLE_ELEMENTS_MAX, InputSpecError};
use crate::tensor::{DType, Shape, TensorSpec};

/// Files in the TFRecord format whose records are `tf.train.Example`, one record an example.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TfRecordSpec {
    /// The files, each plain or gzipped, one after the other.
    pub files: Vec<PathBuf>,
    /// What becomes of the features; one that is not named here is not looked at.
    pub features: Vec<FeatureSpec>,
}

/// A feature, and the column that it becomes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeatureSpec {
    /// Its name in the record.
    pub feature: String,
    /// The column's name.
    pub column: String,
    /// What it is.
    pub kind: FeatureKind,
    /// The shape of one example: the record must have exactly so many values.
    pub shape: Shape,
}

/// The kind of a feature, and what is made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeatureKind {
    /// A `FloatList`, an `f32` column.
    Float,
    /// An `Int64List`, an `i32` column: a number that does not fit is refused.
    Int64,
    /// A `BytesList` of one string, an `f32` column: each byte scaled from 0..255 to 0..1.
    Pixels,
    /// A `BytesList` of one string, an `i32` column: each byte as it is.
    Bytes,
}

impl FeatureSpec {
    /// A feature that becomes the column of that name.
    pub fn new(feature: &str, column: &str, kind: FeatureKind, shape: impl Into<Shape>) -> Self {
        Self { feature: feature.to_owned(), column: column.to_owned(), kind, shape: shape.into() }
    }

    /// What a graph sees of it.
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
