//! A data set of the examples of one file. This module must not depend on a format.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pushpull_messages::input::ColumnSpec;

use super::Format;
use crate::InputError;
use crate::dataset::{Dataset, Reader, Rows};

/// The examples of one file.
pub(super) struct OneFile {
    columns: Arc<[ColumnSpec]>,
    format: Arc<dyn Format>,
    file: PathBuf,
    /// True if the file may have no examples, because there are other files.
    may_be_empty: bool,
    /// Whether a warning about the lack of examples has been logged.
    warned: Arc<AtomicBool>,
}

impl OneFile {
    pub(super) fn new(
        columns: Arc<[ColumnSpec]>,
        format: Arc<dyn Format>,
        file: &Path,
        may_be_empty: bool,
    ) -> Self {
        Self { columns, format, file: file.to_path_buf(), may_be_empty, warned: Arc::default() }
    }
}

impl Dataset for OneFile {
    fn columns(&self) -> &[ColumnSpec] {
        &self.columns
    }

    fn examples(&self) -> Option<u64> {
        self.format.examples(&self.file)
    }

    fn reader(&self) -> Result<Box<dyn Reader>, InputError> {
        let opened = Arc::clone(&self.format).open(&self.file);
        if !self.may_be_empty {
            return opened;
        }
        let reader = match opened {
            Ok(reader) => Some(reader),
            Err(error) => unless_empty(error, &self.warned).map(|_| None)?,
        };
        Ok(Box::new(MaybeEmpty { reader, warned: Arc::clone(&self.warned) }))
    }

    fn rows(&self) -> Result<Rows, InputError> {
        self.format.rows()
    }
}

/// A reader of a file that may have no examples.
struct MaybeEmpty {
    /// The reader of the file; `None` if the file has no examples.
    reader: Option<Box<dyn Reader>>,
    warned: Arc<AtomicBool>,
}

impl Reader for MaybeEmpty {
    fn read(&mut self, examples: usize, rows: &mut Rows) -> Result<usize, InputError> {
        let Some(reader) = &mut self.reader else { return Ok(0) };
        reader.read(examples, rows).or_else(|error| unless_empty(error, &self.warned).map(|_| 0))
    }

    fn skip(&mut self, examples: u64, rows: &mut Rows) -> Result<u64, InputError> {
        let Some(reader) = &mut self.reader else { return Ok(0) };
        reader.skip(examples, rows).or_else(|error| unless_empty(error, &self.warned).map(|_| 0))
    }
}

/// Returns the error, unless it says that a file has no examples. Such an error is only logged, and only
/// once.
fn unless_empty(error: InputError, warned: &AtomicBool) -> Result<(), InputError> {
    match error {
        InputError::NoExample { file } => {
            if !warned.swap(true, Ordering::Relaxed) {
                tracing::warn!("skipped {}: it has no examples", file.display());
            }
            Ok(())
        }
        other => Err(other),
    }
}
