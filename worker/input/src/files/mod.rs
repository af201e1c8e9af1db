//! Data sets in files: the examples of one file after the other, or of several files in turn. This module
//! must not depend on a format.

mod bad_records;
mod pattern;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pushpull_messages::input::ColumnSpec;

use super::InputError;
use super::dataset::{Dataset, Interleave, Reader, Rows};

pub(super) use bad_records::BadRecords;
pub(super) use pattern::expand;

/// A format of files that contain examples.
pub(super) trait Format: Send + Sync {
    /// Returns an empty block for the examples of a file.
    ///
    /// # Errors
    /// [`InputError::Extent`] if a column has no elements.
    fn rows(&self) -> Result<Rows, InputError>;

    /// Opens a file.
    ///
    /// # Errors
    /// If the file cannot be opened, or does not begin as the format demands.
    fn open(self: Arc<Self>, file: &Path) -> Result<Box<dyn Reader>, InputError>;

    /// Returns the number of examples in a file; `None` if the file must be read to find it.
    fn examples(&self, file: &Path) -> Option<u64> {
        let _ = file;
        None
    }
}

/// Returns the data set of all examples in `files`. Reads `cycle` files at a time, and takes one example from
/// each in turn.
///
/// # Errors
/// [`InputError::NoColumn`] if there is no file.
pub(super) fn dataset<F: Format + 'static>(
    format: F,
    files: &[PathBuf],
    cycle: u32,
) -> Result<Interleave, InputError> {
    let empty = format.rows()?;
    let columns: Arc<[ColumnSpec]> = empty.columns().into();
    let format: Arc<dyn Format> = Arc::new(format);
    let one = |file: &PathBuf| {
        let (columns, format) = (Arc::clone(&columns), Arc::clone(&format));
        Arc::new(OneFile { columns, format, file: file.clone() }) as Arc<dyn Dataset>
    };
    if files.is_empty() {
        return Err(InputError::NoColumn);
    }
    Ok(Interleave::like(files.iter().map(one).collect(), cycle as usize, empty))
}

/// The examples of one file.
struct OneFile {
    columns: Arc<[ColumnSpec]>,
    format: Arc<dyn Format>,
    file: PathBuf,
}

impl Dataset for OneFile {
    fn columns(&self) -> &[ColumnSpec] {
        &self.columns
    }

    fn examples(&self) -> Option<u64> {
        self.format.examples(&self.file)
    }

    fn reader(&self) -> Result<Box<dyn Reader>, InputError> {
        Arc::clone(&self.format).open(&self.file)
    }

    fn rows(&self) -> Result<Rows, InputError> {
        self.format.rows()
    }
}
