//! Loads the data sets that a job's input spec names. This module must not depend on sharding or on the
//! order of examples.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pushpull_messages::input::{BabbleSpec, DatasetSpec, InputSpec, MapSpec};
use pushpull_messages::tensor::Shape;

use crate::dataset::{Dataset, Rows, check, collect, count};
use crate::files::{BadRecords, FoundFiles, SkippedRecords, dataset, expand};
use crate::formats::{Cifar10Format, CsvFormat, IdxImages, TableKind, TfRecordFormat, tables, windows};
use crate::generated::{babble, color_images, linear};
use crate::stages::Stages;
use crate::{Datasets, Description, Digits, InMemory, InputError};

/// The name by which errors refer to a generated text.
const BABBLE: &str = "the generated text";

/// The settings for reading the files of a data set, and the custom data sets of the program.
#[derive(Clone, Copy, Debug)]
pub struct Reading<'a> {
    /// The number of files that are read at a time; see [`InputSpec::interleave`].
    pub interleave: u32,
    /// The number of damaged records that may be skipped; see [`InputSpec::skip_bad_records`].
    pub skip_bad_records: u64,
    /// The custom data sets, to which specs refer by name.
    pub custom: &'a Datasets,
    /// The counter of skipped records; `None` if the caller does not need it.
    pub skipped: Option<&'a SkippedRecords>,
}

impl<'a> Reading<'a> {
    /// Returns the settings that `input` contains.
    pub fn of(input: &InputSpec, custom: &'a Datasets) -> Self {
        Self { interleave: input.interleave, skip_bad_records: input.skip_bad_records, custom, skipped: None }
    }

    /// Returns the settings with which files are read one after the other and no damaged record is skipped.
    pub fn plain(custom: &'a Datasets) -> Self {
        Self { interleave: 1, skip_bad_records: 0, custom, skipped: None }
    }
}

/// Loads all examples of `spec` with the settings of [`Reading::plain`]. The columns are those that
/// [`describe`] returns for `spec` without map stages. `data_dir_override` replaces the directories of all
/// files, because a worker may store the same data elsewhere.
///
/// # Errors
/// Any [`InputError`] that concerns the spec, the files or the number of generated examples.
pub fn load(spec: &DatasetSpec, data_dir_override: Option<&Path>) -> Result<InMemory, InputError> {
    let custom = Datasets::default();
    let reading = Reading::plain(&custom);
    match data_dir_override {
        None => load_from(spec, &reading),
        Some(directory) => load_from(&in_directory(spec, directory)?, &reading),
    }
}

/// Loads the images of an IDX file without labels. The only column is `features`, with the same elements
/// that [`load`] returns for images with labels.
///
/// # Errors
/// Any [`InputError`] that concerns the file.
pub fn load_images(images: &Path) -> Result<InMemory, InputError> {
    IdxImages::load_unlabelled(images)
}

/// Describes the data set of `spec` after its map stages. Takes the number of examples from the headers or
/// sizes of the files if possible; otherwise reads the files, without storing the examples. If the stages
/// one-hot encode integers, loads the examples to check that each integer is the number of a class.
///
/// # Errors
/// Those of [`load_from`], for the parts of the files that are read; [`InputError::Stage`] if a stage
/// cannot be applied to its column; [`InputError::Class`] if an integer is not the number of a class;
/// [`InputError::Endless`] if the data set has no end.
pub fn describe(
    spec: &DatasetSpec,
    map: &[MapSpec],
    reading: &Reading<'_>,
) -> Result<Description, InputError> {
    spec.validate()?;
    if is_read(spec) {
        let set = open(spec, reading)?;
        check(&*set)?;
        let stages = Stages::new(map, set.columns())?;
        let classes = |rows: &Rows, first| stages.check_rows(rows, first);
        let examples = count(&*set, if stages.need_classes() { Some(&classes) } else { None })?;
        if examples == 0 {
            return Err(InputError::Extent { examples, elements: 1, max: u32::MAX.into() });
        }
        return Ok(Description { examples, columns: stages.columns().to_vec() });
    }
    let Description { examples, columns } = describe_made(spec)?;
    let stages = Stages::new(map, &columns)?;
    if stages.need_classes() {
        stages.check(&load_from(spec, reading)?)?;
    }
    Ok(Description { examples, columns: stages.columns().to_vec() })
}

/// Returns true if the examples of `spec` are read one after the other. This is true of custom data sets and
/// of all files except texts. Texts and generated examples are loaded as a whole.
pub(super) fn is_read(spec: &DatasetSpec) -> bool {
    matches!(
        spec,
        DatasetSpec::Idx { .. }
            | DatasetSpec::Cifar10 { .. }
            | DatasetSpec::Csv(_)
            | DatasetSpec::TfRecord(_)
            | DatasetSpec::Parquet(_)
            | DatasetSpec::Arrow(_)
            | DatasetSpec::Custom(_)
    )
}

/// Describes a text or a generated data set.
fn describe_made(spec: &DatasetSpec) -> Result<Description, InputError> {
    let described = |examples, columns| Ok(Description { examples, columns });
    match spec {
        DatasetSpec::Idx { .. }
        | DatasetSpec::Cifar10 { .. }
        | DatasetSpec::Csv(_)
        | DatasetSpec::TfRecord(_)
        | DatasetSpec::Parquet(_)
        | DatasetSpec::Arrow(_)
        | DatasetSpec::Custom(_) => unreachable!("it has a reader"),
        DatasetSpec::Digits { examples, .. } => {
            let shape = Shape::from([Digits::SIDE, Digits::SIDE]);
            described(Digits::check(*examples)?, InMemory::image_columns(shape).into())
        }
        DatasetSpec::Text(text) => windows::describe(&text.file, &text.windows),
        DatasetSpec::Babble(BabbleSpec { bytes, windows, .. }) => {
            windows::description(BABBLE, babble::check(*bytes)?, windows)
        }
        DatasetSpec::ColorImages { examples, .. } => {
            described(color_images::check(*examples)?, color_images::columns())
        }
        DatasetSpec::Linear { examples, weights, .. } => {
            let examples = linear::check(*examples, weights.len())?;
            described(examples, linear::columns(weights.len()).into())
        }
    }
}

/// Opens the data set of `spec`. Examples in files are read when they are needed; texts and generated
/// examples are loaded.
///
/// # Errors
/// Any [`InputError`] that concerns the spec, the headers of files or the number of generated examples.
pub fn open(spec: &DatasetSpec, reading: &Reading<'_>) -> Result<Arc<dyn Dataset>, InputError> {
    spec.validate()?;
    let (spec, sizes) = expand(spec)?;
    // Reports a missing file now and not only when the job begins to read that file.
    FoundFiles::find(&spec, &sizes)?;
    open_found(&spec, reading)
}

/// Opens the data set of `spec`. The spec must be valid, its file patterns must be expanded, and its files
/// must exist.
pub(super) fn open_found(spec: &DatasetSpec, reading: &Reading<'_>) -> Result<Arc<dyn Dataset>, InputError> {
    let skipped = || reading.skipped.cloned().unwrap_or_default();
    let (cycle, bad) = (reading.interleave, || BadRecords::allowing(reading.skip_bad_records, skipped()));
    Ok(match spec {
        DatasetSpec::Idx { images, labels } => Arc::new(IdxImages::open(images, labels)?),
        DatasetSpec::Cifar10 { files } => Arc::new(dataset(Cifar10Format::new(bad()), files, cycle)?),
        DatasetSpec::Csv(csv) => Arc::new(dataset(CsvFormat::new(csv, bad()), &csv.files, cycle)?),
        DatasetSpec::TfRecord(records) => {
            Arc::new(dataset(TfRecordFormat::new(records, bad()), &records.files, cycle)?)
        }
        DatasetSpec::Parquet(table) => tables(table, TableKind::Parquet, bad(), cycle)?,
        DatasetSpec::Arrow(table) => tables(table, TableKind::Arrow, bad(), cycle)?,
        DatasetSpec::Custom(name) => reading.custom.get(name)?,
        DatasetSpec::Digits { .. }
        | DatasetSpec::Text(_)
        | DatasetSpec::Babble(_)
        | DatasetSpec::ColorImages { .. }
        | DatasetSpec::Linear { .. } => Arc::new(load_found(spec, reading)?),
    })
}

/// Returns `spec` with the paths of its files changed to another directory; no file is moved. For the two
/// sets of a job, use [`input_in_directory`], which also finds conflicts between the sets.
///
/// # Errors
/// [`InputError::NoFileName`] if a path does not end in a file name (for example, if it ends in
/// `..`); [`InputError::SameFile`] if two files of different directories would get the same path.
pub fn in_directory(spec: &DatasetSpec, directory: &Path) -> Result<DatasetSpec, InputError> {
    Moved::new(directory).dataset(spec)
}

/// Returns the input of a job with the paths of all files changed to another directory; no file is moved.
///
/// # Errors
/// Those of [`in_directory`]; also [`InputError::SameFile`] if a file of the training set and a
/// different file of the test set would get the same path.
pub fn input_in_directory(input: &InputSpec, directory: &Path) -> Result<InputSpec, InputError> {
    let mut moved = Moved::new(directory);
    let (train, test) = (moved.dataset(&input.train)?, moved.dataset(&input.test)?);
    Ok(InputSpec { train, test, ..input.clone() })
}

/// The file paths that have been changed to another directory so far.
struct Moved<'a> {
    directory: &'a Path,
    /// Maps each new path to the original path of the same file.
    before: BTreeMap<PathBuf, PathBuf>,
}

impl<'a> Moved<'a> {
    fn new(directory: &'a Path) -> Self {
        Self { directory, before: BTreeMap::new() }
    }

    fn dataset(&mut self, spec: &DatasetSpec) -> Result<DatasetSpec, InputError> {
        spec.try_map_files(|path| self.file(path))
    }

    fn file(&mut self, path: &Path) -> Result<PathBuf, InputError> {
        let Some(name) = path.file_name() else {
            return Err(InputError::NoFileName { path: path.to_path_buf() });
        };
        let moved = self.directory.join(name);
        // The training set and the test set may both name the same file.
        match self.before.get(&moved) {
            Some(first) if first != path => {
                Err(InputError::SameFile { first: first.clone(), second: path.to_path_buf(), moved })
            }
            Some(_) => Ok(moved),
            None => {
                self.before.insert(moved.clone(), path.to_path_buf());
                Ok(moved)
            }
        }
    }
}

/// Loads all examples of `spec`.
///
/// # Errors
/// Any [`InputError`] that concerns the spec, the files or the number of generated examples.
pub fn load_from(spec: &DatasetSpec, reading: &Reading<'_>) -> Result<InMemory, InputError> {
    spec.validate()?;
    let (spec, sizes) = expand(spec)?;
    FoundFiles::find(&spec, &sizes)?;
    load_found(&spec, reading)
}

/// Loads all examples of `spec`. The spec must be valid, its file patterns must be expanded, and its files
/// must exist.
pub(super) fn load_found(spec: &DatasetSpec, reading: &Reading<'_>) -> Result<InMemory, InputError> {
    match spec {
        DatasetSpec::Idx { images, labels } => IdxImages::load(images, labels),
        DatasetSpec::Cifar10 { .. }
        | DatasetSpec::Csv(_)
        | DatasetSpec::TfRecord(_)
        | DatasetSpec::Parquet(_)
        | DatasetSpec::Arrow(_)
        | DatasetSpec::Custom(_) => {
            let set = open_found(spec, reading)?;
            check(&*set)?;
            collect(&*set)
        }
        DatasetSpec::Digits { seed, examples } => Digits::draw(*seed, *examples),
        DatasetSpec::Text(text) => windows::load(&text.file, &text.windows),
        DatasetSpec::Babble(BabbleSpec { seed, bytes, windows }) => {
            windows::dataset(BABBLE, babble::text(*seed, *bytes)?, windows)
        }
        DatasetSpec::ColorImages { seed, examples } => color_images::draw(*seed, *examples),
        DatasetSpec::Linear { seed, examples, weights, bias, noise } => {
            linear::draw(*seed, *examples, weights, *bias, *noise)
        }
    }
}

#[cfg(test)]
mod tests;
