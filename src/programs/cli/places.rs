//! The files and directories that flags name: paths that mean the same in any working directory, and
//! locations of checkpoints.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::programs::exit::Failure;
use crate::report::partial;

/// The folder of event files below a directory of checkpoints.
const SUMMARIES: &str = "summaries";

/// Returns the absolute path of the file that `flag` names. It must be UTF-8, so that a job file can contain
/// it.
pub(super) fn absolute(flag: &str, path: &Path) -> Result<PathBuf, Failure> {
    let absolute =
        std::path::absolute(path).with_context(|| format!("{flag}: '{}' is not a path", path.display()))?;
    match absolute.to_str() {
        Some(_) => Ok(absolute),
        None => Err(Failure::Usage(format!("{flag}: {} is not UTF-8", absolute.display()))),
    }
}

/// Returns the location of checkpoints that `flag` names, a path or a URL. A path is made absolute, so that
/// it means the same in any working directory.
pub(super) fn located(flag: &str, place: &str) -> Result<String, Failure> {
    match place.split_once("://") {
        None => Ok(absolute(flag, place.as_ref())?.display().to_string()),
        Some(_) => Ok(place.to_owned()),
    }
}

/// Returns the directory of event files below the location of checkpoints; `None` if that is a URL.
pub(super) fn summaries_below(location: &str) -> Option<PathBuf> {
    (!location.contains("://")).then(|| PathBuf::from(location).join(SUMMARIES))
}

/// Checks that a file can be written, so that an error is reported before the training and not after it.
/// `what` completes "cannot write ..." in the error.
///
/// # Errors
/// Returns an error that names `flag`.
pub(super) fn check_writable(flag: &str, what: &str, path: &Path) -> anyhow::Result<()> {
    let partial = partial(path);
    let tried = if path.is_dir() {
        Err(std::io::ErrorKind::IsADirectory.into())
    } else {
        std::fs::write(&partial, "").and_then(|()| std::fs::remove_file(&partial))
    };
    tried.with_context(|| format!("{flag}: cannot write {what} to {}", path.display()))
}
