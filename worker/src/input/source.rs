//! From what a job's description names to examples in memory.
//! Knows neither who reads which of them nor when.

use std::path::{Path, PathBuf};

use messages::input::DatasetSpec;
use messages::tensor::Shape;

use super::{Dataset, Digits, IdxFile, InputError};

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

/// What can be known of a set of examples without reading them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// How many there are.
    pub examples: u64,
    /// The shape of each.
    pub feature_shape: Shape,
}

/// What `spec` names, without reading it: the files' headers say.
///
/// # Errors
/// As [`load`], as far as headers show it.
pub fn describe(spec: &DatasetSpec) -> Result<Description, InputError> {
    match spec {
        DatasetSpec::Idx { images, labels } => {
            let (images, _) = open_idx(images, labels)?;
            Ok(Description { examples: images.examples(), feature_shape: feature_shape(&images) })
        }
        DatasetSpec::Digits { examples, .. } => {
            let feature_shape = Shape::from([Digits::SIDE, Digits::SIDE]);
            Ok(Description { examples: Digits::check(*examples)?, feature_shape })
        }
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
    let (images, labels) = open_idx(images, labels)?;
    let feature_shape = feature_shape(&images);
    let labels = labels.read()?.into_iter().map(i32::from).collect();
    Dataset::new(feature_shape, images.read()?, labels, None)
}

/// Both files, their headers read and compared before any of the data is.
fn open_idx(images: &Path, labels: &Path) -> Result<(IdxFile, IdxFile), InputError> {
    let images = IdxFile::open(images)?.with_axes(3, "0x00000803 (u8 images: examples, rows, columns)")?;
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

fn feature_shape(images: &IdxFile) -> Shape {
    Shape(images.extents()[1..].iter().map(|&extent| extent as usize).collect())
}

#[cfg(test)]
mod tests;
