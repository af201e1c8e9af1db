//! Expands the patterns among the names of a data set's files and objects, such as `train-*.csv.gz`. This
//! module must not depend on what is in the files.

use std::path::{Path, PathBuf};

use glob::{MatchOptions, Pattern};
use pushpull_messages::input::{DatasetSpec, FILES_MAX};

use super::found::Sizes;
use crate::InputError;
use crate::object::{self, Address};

/// Returns `spec` with each pattern replaced by the files that match it, ordered by name. Also returns the
/// sizes of the matching objects in a bucket. The name of an existing local file is never treated as a
/// pattern. `*` matches any number of characters, `?` one character, and `[ab]` one of the characters `a`
/// and `b`; none of them matches a `/`.
///
/// # Errors
/// [`InputError::NoMatch`] if no file matches a pattern; [`InputError::Matches`] if more files match than a
/// data set may have.
pub(crate) fn expand(spec: &DatasetSpec) -> Result<(DatasetSpec, Sizes), InputError> {
    let (mut spec, mut sizes) = (spec.clone(), Sizes::new());
    if let Some(files) = spec.file_list_mut() {
        let mut all = Vec::new();
        for file in files.iter() {
            match is_pattern(file) {
                true => match Address::of(file) {
                    Some(address) => objects(file, &address, &mut all, &mut sizes)?,
                    None => matches(file, &mut all)?,
                },
                false => all.push(file.clone()),
            }
        }
        *files = all;
    }
    Ok((spec, sizes))
}

fn is_pattern(file: &Path) -> bool {
    // Only a request would show whether an object exists. An address with a pattern character therefore
    // always counts as a pattern.
    file.to_str().is_some_and(object::is_pattern) && (Address::of(file).is_some() || !file.exists())
}

/// Appends to `all` the addresses of the objects that match the pattern, and adds their sizes to `sizes`.
fn objects(
    pattern: &Path,
    address: &Address,
    all: &mut Vec<PathBuf>,
    sizes: &mut Sizes,
) -> Result<(), InputError> {
    let bad = |reason: String| InputError::NoMatch { pattern: pattern.to_path_buf(), reason };
    let name =
        address.pattern().ok_or_else(|| bad("only the last part of an address may be a pattern".into()))?;
    let names = Pattern::new(name).map_err(|error| bad(error.to_string()))?;
    let found = address.list(|name| names.matches(name)).map_err(|error| bad(error.to_string()))?;
    if found.is_empty() {
        return Err(bad("no object matches".into()));
    }
    if all.len() + found.len() > FILES_MAX {
        return Err(InputError::Matches { pattern: pattern.to_path_buf(), max: FILES_MAX });
    }
    tracing::info!(files = found.len(), "expanded the pattern {}", pattern.display());
    for (file, size) in found {
        all.push(PathBuf::from(&file));
        sizes.insert(file.into(), size);
    }
    Ok(())
}

fn matches(pattern: &Path, all: &mut Vec<PathBuf>) -> Result<(), InputError> {
    let text = pattern.to_str().unwrap_or_default();
    let bad = |reason: String| InputError::NoMatch { pattern: pattern.to_path_buf(), reason };
    let options = MatchOptions { require_literal_separator: true, ..MatchOptions::new() };
    if text.contains("**") {
        return Err(bad("'**' is not supported".into()));
    }
    Pattern::new(text).map_err(|error| bad(error.to_string()))?;
    let found = glob::glob_with(text, options).map_err(|error| bad(error.to_string()))?;
    let before = all.len();
    for file in found {
        let file = file.map_err(|error| bad(error.to_string()))?;
        if all.len() == FILES_MAX {
            return Err(InputError::Matches { pattern: pattern.to_path_buf(), max: FILES_MAX });
        }
        match file.metadata() {
            Ok(found) if found.is_dir() => {}
            Ok(_) => all.push(file),
            // Skipping a link to a missing file would silently leave out a part of the data.
            Err(source) => return Err(InputError::Read { file, offset: 0, source }),
        }
    }
    if all.len() == before {
        return Err(bad("no file matches".into()));
    }
    // Each host expands the pattern on its own. This log message shows whether all hosts found equally many
    // files.
    tracing::info!(files = all.len() - before, "expanded the pattern {}", pattern.display());
    Ok(())
}
