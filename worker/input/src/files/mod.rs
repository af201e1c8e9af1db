//! Data sets in files. The files are read one after the other, or several at a time, with one example taken
//! from each in round-robin order. This module must not depend on a format.

mod bad_records;
mod found;
mod one_file;
mod pattern;
mod skipped_records;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pushpull_messages::input::ColumnSpec;

use crate::InputError;
use crate::dataset::{Dataset, Interleave, Reader, Rows};

pub(super) use bad_records::BadRecords;
pub(super) use found::FoundFiles;
use one_file::OneFile;
pub(super) use pattern::expand;
pub use skipped_records::SkippedRecords;

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

    /// Returns the number of examples in a file; `None` if the number is known only after the file has been
    /// read.
    fn examples(&self, file: &Path) -> Option<u64> {
        let _ = file;
        None
    }
}

/// Returns the data set of all examples in `files`. Reads `cycle` files at a time, and takes one example
/// from each of them in round-robin order. If there are several files, leaves out the files without
/// examples.
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
        Arc::new(OneFile::new(columns, format, file, files.len() > 1)) as Arc<dyn Dataset>
    };
    if files.is_empty() {
        return Err(InputError::NoColumn);
    }
    Ok(Interleave::like(files.iter().map(one).collect(), cycle as usize, empty))
}
