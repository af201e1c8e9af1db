//! Loads the data sets that a job's input spec names. This module must not depend on sharding or on the
//! order of examples.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pushpull_messages::input::{BabbleSpec, CsvSpec, DatasetSpec, InputSpec, MapSpec, TfRecordSpec};
use pushpull_messages::tensor::Shape;

use super::rows::Rows;
use super::stages::Stages;
use super::{
    Dataset, Description, Digits, IdxFile, InputError, Storage, babble, cifar10, color_images, csv, linear,
    tf_record, windows,
};

/// The name by which errors refer to a generated text.
const BABBLE: &str = "the generated text";

/// Loads all examples of `spec`. The columns are those that [`describe`] returns without map stages.
/// `data_dir_override` replaces the directories of all files, because a worker may store the same data
/// elsewhere.
///
/// # Errors
/// Any [`InputError`] that concerns the spec, the files or the number of generated examples.
pub fn load(spec: &DatasetSpec, data_dir_override: Option<&Path>) -> Result<Dataset, InputError> {
    match data_dir_override {
        None => load_from(spec),
        Some(directory) => load_from(&in_directory(spec, directory)?),
    }
}

/// Loads the images of an IDX file, plain or gzipped, without labels. The only column is `features`, with the
/// elements that [`load`] gives the same images.
///
/// # Errors
/// Any [`InputError`] that concerns the file.
pub fn load_images(images: &Path) -> Result<Dataset, InputError> {
    let images = open_images(images)?;
    let [features, _] = Dataset::image_columns(feature_shape(&images));
    let examples = usize::try_from(images.examples()).unwrap_or(usize::MAX);
    Dataset::new(examples, vec![(features, Storage::Pixels(images.read()?))])
}

/// Describes the data set of `spec` after its map stages. Takes the number of examples from the headers or
/// sizes of the files if possible; otherwise reads the files, without storing the examples. If the stages
/// one-hot encode integers, loads the examples to check that each integer is the number of a class.
///
/// # Errors
/// Those of [`load`], for the parts of the files that are read; [`InputError::Stage`] if a stage cannot be
/// applied to its column; [`InputError::Class`] if an integer is not the number of a class.
pub fn describe(spec: &DatasetSpec, map: &[MapSpec]) -> Result<Description, InputError> {
    let Description { examples, columns } = describe_unmapped(spec)?;
    let stages = Stages::new(map, &columns)?;
    if stages.need_classes() {
        stages.check(&load_from(spec)?)?;
    }
    Ok(Description { examples, columns: stages.columns().to_vec() })
}

fn describe_unmapped(spec: &DatasetSpec) -> Result<Description, InputError> {
    spec.validate()?;
    let described = |examples, columns| Ok(Description { examples, columns });
    match spec {
        DatasetSpec::Idx { images, labels } => {
            let (images, _) = open_idx(images, labels)?;
            described(images.examples(), Dataset::image_columns(feature_shape(&images)).into())
        }
        DatasetSpec::Digits { examples, .. } => {
            let shape = Shape::from([Digits::SIDE, Digits::SIDE]);
            described(Digits::check(*examples)?, Dataset::image_columns(shape).into())
        }
        DatasetSpec::Cifar10 { files } => cifar10::describe(files),
        DatasetSpec::Csv(csv) => Ok(csv_rows(csv, false)?.into_description()),
        DatasetSpec::TfRecord(records) => Ok(record_rows(records, false)?.into_description()),
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

/// Returns `spec` with its files moved to another directory. For the two sets of a job use
/// [`input_in_directory`], which also finds conflicts between the sets.
///
/// # Errors
/// [`InputError::NoFileName`] if a path does not end in a file name (for example, if it ends in
/// `..`); [`InputError::SameFile`] if two files of different directories would get the same path.
pub fn in_directory(spec: &DatasetSpec, directory: &Path) -> Result<DatasetSpec, InputError> {
    Moved::new(directory).dataset(spec)
}

/// Returns the input of a job with all files moved to another directory.
///
/// # Errors
/// Those of [`in_directory`]; also [`InputError::SameFile`] if a file of the training set and a
/// different file of the test set would get the same path.
pub fn input_in_directory(input: &InputSpec, directory: &Path) -> Result<InputSpec, InputError> {
    let mut moved = Moved::new(directory);
    let (train, test) = (moved.dataset(&input.train)?, moved.dataset(&input.test)?);
    Ok(InputSpec { train, test, ..input.clone() })
}

/// The new paths of the files that have been moved to another directory so far.
struct Moved<'a> {
    directory: &'a Path,
    /// Maps the new path of each moved file to its earlier path.
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

fn load_from(spec: &DatasetSpec) -> Result<Dataset, InputError> {
    spec.validate()?;
    match spec {
        DatasetSpec::Idx { images, labels } => load_idx(images, labels),
        DatasetSpec::Digits { seed, examples } => Digits::draw(*seed, *examples),
        DatasetSpec::Cifar10 { files } => cifar10::load(files),
        DatasetSpec::Csv(csv) => csv_rows(csv, true)?.into_dataset(),
        DatasetSpec::TfRecord(records) => record_rows(records, true)?.into_dataset(),
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

fn csv_rows(spec: &CsvSpec, keep: bool) -> Result<Rows, InputError> {
    let mut rows = Rows::new(csv::columns(spec), keep)?;
    for file in &spec.files {
        csv::read(file, spec, &mut rows)?;
    }
    Ok(rows)
}

fn record_rows(spec: &TfRecordSpec, keep: bool) -> Result<Rows, InputError> {
    let mut rows = Rows::new(tf_record::columns(spec), keep)?;
    for file in &spec.files {
        tf_record::read(file, spec, &mut rows)?;
    }
    Ok(rows)
}

fn load_idx(images: &Path, labels: &Path) -> Result<Dataset, InputError> {
    let (images, labels) = open_idx(images, labels)?;
    let feature_shape = feature_shape(&images);
    let labels = labels.read()?.into_iter().map(i32::from).collect();
    Dataset::images(feature_shape, images.read()?, labels, None)
}

/// Opens both files, and checks that their headers agree before any data is read.
fn open_idx(images: &Path, labels: &Path) -> Result<(IdxFile, IdxFile), InputError> {
    let images = open_images(images)?;
    let labels = IdxFile::open(labels)?.with_axes(1, "0x00000801 (u8 labels)")?;
    if images.examples() != labels.examples() {
        return Err(InputError::CountMismatch {
            image_count: images.examples(),
            images: images.path().to_path_buf(),
            label_count: labels.examples(),
            labels: labels.path().to_path_buf(),
        });
    }
    Ok((images, labels))
}

fn open_images(images: &Path) -> Result<IdxFile, InputError> {
    IdxFile::open(images)?.with_axes(3, "0x00000803 (u8 images: examples, rows, columns)")
}

fn feature_shape(images: &IdxFile) -> Shape {
    Shape(images.extents()[1..].iter().map(|&extent| extent as usize).collect())
}

#[cfg(test)]
mod tests;
