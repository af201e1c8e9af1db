//! From what a job's description names to examples in memory.
//! Knows neither who reads which of them nor when.

use std::path::{Path, PathBuf};

use messages::input::DatasetSpec;
use messages::tensor::Shape;

use super::{Dataset, Digits, IdxFile, InputError, count_examples};

/// All examples that `spec` names. `data_dir_override` replaces the directories of its files, as a worker may keep
/// the same data elsewhere.
///
/// # Errors
/// Whatever can be wrong with the files (see [`IdxFile`]), or with the number of digits; nothing is then loaded.
pub fn load(spec: &DatasetSpec, data_dir_override: Option<&Path>) -> Result<Dataset, InputError> {
    match data_dir_override {
        None => load_from(spec),
        Some(directory) => load_from(&in_directory(spec, directory)?),
    }
}

/// How many examples `spec` names, without reading them: the files' headers say.
///
/// # Errors
/// As [`load`], as far as headers show it.
pub fn examples_in(spec: &DatasetSpec) -> Result<u64, InputError> {
    match spec {
        DatasetSpec::Idx { images, .. } => count_examples(images),
        DatasetSpec::Digits { examples, .. } => Digits::check(*examples),
    }
}

/// The same data, its files in another directory.
///
/// # Errors
/// [`InputError::NoFileName`] where a path ends in no name, such as `..`.
pub fn in_directory(spec: &DatasetSpec, directory: &Path) -> Result<DatasetSpec, InputError> {
    let moved = |path: &PathBuf| match path.file_name() {
        Some(name) => Ok(directory.join(name)),
        None => Err(InputError::NoFileName { path: path.clone() }),
    };
    Ok(match spec {
        DatasetSpec::Idx { images, labels } => {
            DatasetSpec::Idx { images: moved(images)?, labels: moved(labels)? }
        }
        DatasetSpec::Digits { .. } => spec.clone(),
    })
}

fn load_from(spec: &DatasetSpec) -> Result<Dataset, InputError> {
    match spec {
        DatasetSpec::Idx { images, labels } => load_idx(images, labels),
        DatasetSpec::Digits { seed, examples } => Digits::draw(*seed, *examples),
    }
}

fn load_idx(images: &Path, labels: &Path) -> Result<Dataset, InputError> {
    let images = IdxFile::open(images)?.with_axes(3, "0x00000803 (u8 images: examples, rows, columns)")?;
    let labels = IdxFile::open(labels)?.with_axes(1, "0x00000801 (u8 labels)")?;
    // Compared before any of the data is read.
    if images.examples() != labels.examples() {
        return Err(InputError::CountMismatch {
            image_count: images.examples(),
            images: images.path().to_path_buf(),
            label_count: labels.examples(),
            labels: labels.path().to_path_buf(),
        });
    }
    let feature_shape = Shape(images.extents()[1..].iter().map(|&extent| extent as usize).collect());
    let labels = labels.read()?.into_iter().map(i32::from).collect();
    Dataset::new(feature_shape, images.read()?, labels, None)
}

#[cfg(test)]
mod tests;
