//! Reads the values of flags that are files, directories or locations of checkpoints. Paths are made
//! absolute, so that they do not depend on the working directory.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::model::located as located_model;
use crate::programs::exit::Failure;
use crate::programs::roles::EndFiles;
use crate::report::{is_special, partial};

/// The name of the folder of event files in a checkpoint directory.
const SUMMARIES: &str = "summaries";

/// Makes `path`, which is the value of `flag`, absolute. The path must be UTF-8, because a job file may
/// contain it.
pub(super) fn absolute(flag: &str, path: &Path) -> Result<PathBuf, Failure> {
    let absolute =
        std::path::absolute(path).with_context(|| format!("{flag}: '{}' is not a path", path.display()))?;
    match absolute.to_str() {
        Some(_) => Ok(absolute),
        None => Err(Failure::Usage(format!(
            "{flag}: the path {} is not UTF-8, rename the file",
            absolute.display()
        ))),
    }
}

/// Parses `place`, the path or URL of a directory of data. `place` is the value of `flag`. A path is
/// made absolute.
pub(super) fn data_directory(flag: &str, place: &Path) -> Result<PathBuf, Failure> {
    match place.to_str() {
        Some(url) if url.contains("://") => Ok(place.to_path_buf()),
        _ => absolute(flag, place),
    }
}

/// Parses `place`, the path or URL of a location of checkpoints. `place` is the value of `flag`. A path
/// is made absolute, so that it does not depend on the working directory.
pub(super) fn located(flag: &str, place: &str) -> Result<String, Failure> {
    match place.split_once("://") {
        None => Ok(absolute(flag, place.as_ref())?.display().to_string()),
        Some(_) => Ok(place.to_owned()),
    }
}

/// Returns the directory of event files for a location of checkpoints; `None` if the location is a URL.
pub(super) fn summaries_below(location: &str) -> Option<PathBuf> {
    (!location.contains("://")).then(|| PathBuf::from(location).join(SUMMARIES))
}

/// Checks that a file can be written, so that an error is reported before the training and not after it. The
/// error begins with "cannot write", followed by `what`.
///
/// # Errors
/// Returns an error that names `flag`.
pub(super) fn check_writable(flag: &str, what: &str, path: &Path) -> anyhow::Result<()> {
    let partial = partial(path);
    let tried = if path.is_dir() {
        Err(std::io::ErrorKind::IsADirectory.into())
    } else if is_special(path) {
        // A device or a pipe is not opened here but only when it is written: opening a pipe that has no
        // reader would block.
        Ok(())
    } else {
        std::fs::write(&partial, "").and_then(|()| std::fs::remove_file(&partial))
    };
    tried.with_context(|| format!("{flag}: cannot write {what} to {}", path.display()))
}

/// Checks that the files that are written at the end of a job can be written, so that an error is reported
/// before the training.
///
/// # Errors
/// Returns an error that names the flag.
pub(super) fn check_files(files: &EndFiles<'_>) -> Result<(), Failure> {
    files.report.map_or(Ok(()), |path| check_writable("--report", "the report", path))?;
    if let Some(path) = files.model {
        located_model(path).map_err(|error| Failure::Usage(format!("--save-model: {error}")))?;
        check_writable("--save-model", "the model", path)?;
    }
    Ok(())
}
