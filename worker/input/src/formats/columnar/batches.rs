//! Reads the rows of one file in batches. This module must not depend on formats.

use arrow_array::RecordBatch;
use arrow_schema::Fields;

use crate::TableError;

/// A position in a file, from which the next rows are read. Only the selected fields are read.
pub(super) trait Batches: Send {
    /// Returns the selected fields, in the order of the file.
    fn fields(&self) -> &Fields;

    /// Returns the next rows; `None` at the end of the file.
    ///
    /// # Errors
    /// If the file cannot be read or decoded. The position is then undefined.
    fn next(&mut self) -> Result<Option<RecordBatch>, TableError>;

    /// Skips at most `rows` rows without decoding them. Returns the number of rows skipped; 0 if the next
    /// rows must be decoded, or at the end of the file.
    ///
    /// # Errors
    /// If the file cannot be read. The position is then undefined.
    fn skip(&mut self, rows: u64) -> Result<u64, TableError>;
}
