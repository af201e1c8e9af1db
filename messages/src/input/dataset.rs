//! The spec of a data set: files in one of several formats, or generated examples. The order in which
//! examples are read is part of [`InputSpec`](super::InputSpec).

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{BabbleSpec, COLUMNS_MAX, CsvSpec, InputSpecError, TableSpec, TextSpec, TfRecordSpec};

/// The maximum number of files of one data set.
pub const FILES_MAX: usize = 1 << 16;

/// The spec of a data set that is read from files, generated, or part of the worker's program. The names of
/// CSV, TFRecord, Parquet, Arrow and CIFAR-10 files may be patterns such as `train-*.csv.gz`. Any file name
/// may be the address of an object in an object store, such as `s3://bucket/train.csv`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum DatasetSpec {
    /// Images and labels in the IDX format of MNIST, each file plain or packed by gzip or zstd. Column
    /// `features`: pixels, scaled from 0..255 to 0..1. Column `labels`: an `i32` scalar.
    Idx {
        /// The file of images: `u8`, 3 axes.
        images: PathBuf,
        /// The file of labels: `u8`, 1 axis.
        labels: PathBuf,
    },
    /// Generated images of digits, 28×28 pixels, 10 classes. The same seed gives the same examples.
    Digits {
        /// The seed of the random examples.
        seed: u64,
        /// The number of examples.
        examples: u64,
    },
    /// CIFAR-10 in its binary format. Column `features`: `f32[32, 32, 3]`, scaled from 0..255 to 0..1. Column
    /// `labels`: an `i32` scalar.
    Cifar10 {
        /// The files in order, each plain or packed by gzip or zstd.
        files: Vec<PathBuf>,
    },
    /// CSV files.
    Csv(CsvSpec),
    /// TFRecord files.
    TfRecord(TfRecordSpec),
    /// Parquet files. A program needs the feature `columnar` to read them.
    Parquet(TableSpec),
    /// Files and streams of Arrow IPC, such as Feather files (version 2). A program needs the feature
    /// `columnar` to read them.
    Arrow(TableSpec),
    /// Windows of a text file.
    Text(TextSpec),
    /// Windows of a generated text.
    Babble(BabbleSpec),
    /// Generated images of coloured shapes, 32×32 pixels with 3 channels, 10 classes. The same seed gives the
    /// same examples.
    ColorImages {
        /// The seed of the random examples.
        seed: u64,
        /// The number of examples.
        examples: u64,
    },
    /// Generated points on a plane, with noise, for linear regression. Column `features`: as many floats as
    /// there are weights, with mean 0 and standard deviation 1. Column `labels`: an `f32` scalar, weights ·
    /// features + bias + noise.
    Linear {
        /// The seed of the random examples.
        seed: u64,
        /// The number of examples.
        examples: u64,
        /// The slopes of the plane, one for each feature.
        weights: Vec<f32>,
        /// The height of the plane at the origin.
        bias: f32,
        /// The standard deviation of the noise.
        noise: f32,
    },
    /// A data set of the worker's program, by its name.
    Custom(String),
}

impl DatasetSpec {
    /// Returns the paths of all files that the spec names.
    pub fn files(&self) -> Vec<&Path> {
        match self {
            Self::Idx { images, labels } => vec![images, labels],
            Self::Cifar10 { files }
            | Self::Csv(CsvSpec { files, .. })
            | Self::TfRecord(TfRecordSpec { files, .. })
            | Self::Parquet(TableSpec { files, .. })
            | Self::Arrow(TableSpec { files, .. }) => files.iter().map(PathBuf::as_path).collect(),
            Self::Text(text) => vec![&text.file],
            Self::Digits { .. }
            | Self::Babble(_)
            | Self::ColorImages { .. }
            | Self::Linear { .. }
            | Self::Custom(_) => Vec::new(),
        }
    }

    /// Returns the list of files if the format allows any number of files, and `None` otherwise.
    pub fn file_list_mut(&mut self) -> Option<&mut Vec<PathBuf>> {
        match self {
            Self::Cifar10 { files }
            | Self::Csv(CsvSpec { files, .. })
            | Self::TfRecord(TfRecordSpec { files, .. })
            | Self::Parquet(TableSpec { files, .. })
            | Self::Arrow(TableSpec { files, .. }) => Some(files),
            Self::Idx { .. }
            | Self::Text(_)
            | Self::Digits { .. }
            | Self::Babble(_)
            | Self::ColorImages { .. }
            | Self::Linear { .. }
            | Self::Custom(_) => None,
        }
    }

    /// Returns a copy of the spec in which `change` has replaced the path of every file.
    ///
    /// # Errors
    /// Returns the first error of `change`.
    pub fn try_map_files<E>(&self, mut change: impl FnMut(&Path) -> Result<PathBuf, E>) -> Result<Self, E> {
        let mut spec = self.clone();
        let all: Vec<&mut PathBuf> = match &mut spec {
            Self::Idx { images, labels } => vec![images, labels],
            Self::Text(text) => vec![&mut text.file],
            other => other.file_list_mut().into_iter().flatten().collect(),
        };
        for path in all {
            *path = change(path)?;
        }
        Ok(spec)
    }

    /// Returns a copy of the spec. For CSV, TFRecord, Parquet and Arrow files, the copy has only the columns
    /// for which `is_needed` returns true, so the files need not contain the fields of the other columns.
    /// All other specs, and a spec without any needed column, are returned unchanged.
    #[must_use]
    pub fn with_columns(&self, is_needed: impl Fn(&str) -> bool) -> Self {
        let mut spec = self.clone();
        match &mut spec {
            Self::Csv(csv) if csv.columns.iter().any(|column| is_needed(&column.name)) => {
                csv.columns.retain(|column| is_needed(&column.name));
            }
            Self::TfRecord(records) if records.features.iter().any(|own| is_needed(&own.column)) => {
                records.features.retain(|feature| is_needed(&feature.column));
            }
            Self::Parquet(table) | Self::Arrow(table)
                if table.columns.iter().any(|column| is_needed(&column.name)) =>
            {
                table.columns.retain(|column| is_needed(&column.name));
            }
            _ => {}
        }
        spec
    }

    /// Checks everything about the spec that can be checked without reading the files.
    ///
    /// # Errors
    /// Returns the first fault found.
    pub fn validate(&self) -> Result<(), InputSpecError> {
        let files = self.files();
        if let Some(path) = files.iter().find(|path| path.to_str().is_none()) {
            return Err(InputSpecError::NotUtf8(path.to_path_buf()));
        }
        if files.len() > FILES_MAX {
            return InputSpecError::range("the number of files", format!("at most {FILES_MAX}"), files.len());
        }
        let any_number = matches!(
            self,
            Self::Cifar10 { .. } | Self::Csv(_) | Self::TfRecord(_) | Self::Parquet(_) | Self::Arrow(_)
        );
        if any_number && files.is_empty() {
            return InputSpecError::range("the number of files", "at least 1", 0);
        }
        match self {
            Self::Csv(csv) => csv.validate(),
            Self::TfRecord(records) => records.validate(),
            Self::Parquet(table) | Self::Arrow(table) => table.validate(),
            Self::Text(text) => text.windows.validate(),
            Self::Babble(babble) => babble.windows.validate(),
            Self::Linear { weights, bias, noise, .. } => {
                if !(1..=COLUMNS_MAX).contains(&weights.len()) {
                    return InputSpecError::range(
                        "the number of weights",
                        format!("1 to {COLUMNS_MAX}"),
                        weights.len(),
                    );
                }
                let numbers = weights.iter().chain([bias, noise]);
                match numbers.copied().find(|number| !number.is_finite()) {
                    Some(number) => InputSpecError::range("a weight, bias or noise", "finite", number),
                    None => Ok(()),
                }
            }
            Self::Custom(name) => InputSpecError::name(|| "the custom data set".to_owned(), name),
            Self::Idx { .. } | Self::Digits { .. } | Self::Cifar10 { .. } | Self::ColorImages { .. } => {
                Ok(())
            }
        }
    }
}
