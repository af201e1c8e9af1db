//! Reads the rows of Parquet and Arrow files into columns. An error about a row names the file and the row.
//! This module must not depend on how the formats are decoded.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::RecordBatch;
use pushpull_messages::input::{TableColumnSpec, TableSpec};

use super::batches::Batches;
use super::cells::{Cell, Values};
use super::ipc::ArrowFile;
use super::row_groups::ParquetFile;
use super::selection::Wanted;
use crate::dataset::{Reader, Rows, skip_by_reading};
use crate::files::{BadRecords, Format};
use crate::formats::table_kind::TableKind;
use crate::{InputError, RecordError, TableError};

/// The maximum number of rows that are decoded at a time.
const ROWS_MAX: usize = 1024;
/// The target size, in bytes, of the elements of all rows that are decoded at a time. A single row may be
/// larger.
const ROWS_BYTES: u64 = 4 << 20;

/// The format of Parquet or Arrow files, together with the columns that a spec makes from their fields.
pub(crate) struct TableFormat {
    kind: TableKind,
    columns: Vec<TableColumnSpec>,
    /// For each column, the fields from which it is made.
    cells: Vec<Vec<Cell>>,
    bad: BadRecords,
}

impl TableFormat {
    pub(crate) fn new(spec: &TableSpec, kind: TableKind, bad: BadRecords) -> Self {
        let cells = spec.columns.iter().map(Cell::all).collect();
        Self { kind, columns: spec.columns.clone(), cells, bad }
    }
}

impl Format for TableFormat {
    fn rows(&self) -> Result<Rows, InputError> {
        Rows::new(self.columns.iter().map(|column| (column.column(), Cell::storage(column))).collect())
    }

    fn open(self: Arc<Self>, file: &Path) -> Result<Box<dyn Reader>, InputError> {
        let bytes = self.rows()?.example_bytes().max(1);
        let rows = ((ROWS_BYTES / bytes) as usize).clamp(1, ROWS_MAX);
        let wanted: Vec<Wanted> = self.cells.iter().flatten().map(Cell::wanted).collect();
        let (file, batches) = match self.kind {
            TableKind::Parquet => {
                let table = ParquetFile::open(file)?;
                (table.path.clone(), table.batches(&wanted, rows))
            }
            TableKind::Arrow => {
                let table = ArrowFile::open(file)?;
                (table.path().to_path_buf(), table.batches(&wanted))
            }
        };
        let checked = batches.and_then(|(batches, positions)| {
            for (cell, &position) in self.cells.iter().flatten().zip(&positions) {
                cell.check(batches.fields()[position].data_type())?;
            }
            Ok((batches, positions))
        });
        let (batches, positions) = checked.map_err(|problem| in_file(&file, problem))?;
        let reader = TableReader {
            format: self,
            file,
            batches,
            positions,
            window: rows,
            batch: None,
            values: Vec::new(),
            at: 0,
            row: 0,
            any: false,
        };
        Ok(Box::new(reader))
    }

    fn examples(&self, file: &Path) -> Option<u64> {
        // Damaged rows are skipped, so the footer does not determine the number of examples.
        if self.kind != TableKind::Parquet || !self.bad.none() {
            return None;
        }
        // A file without rows causes an error when it is read, not here.
        ParquetFile::open(file).ok()?.rows().ok().filter(|&rows| rows > 0)
    }
}

fn in_file(file: &Path, problem: TableError) -> InputError {
    InputError::Table { file: file.to_path_buf(), problem: Box::new(problem) }
}

struct TableReader {
    format: Arc<TableFormat>,
    file: PathBuf,
    batches: Box<dyn Batches>,
    /// For each field of each column, its position among the fields of a batch.
    positions: Vec<usize>,
    /// The maximum number of rows whose values are converted at a time.
    window: usize,
    /// The rows that were decoded last. The rows before index `at` have been read already.
    batch: Option<RecordBatch>,
    /// For each field of each column, the converted values of the first `window` rows of the batch.
    values: Vec<Values>,
    /// The index of the next row in the batch.
    at: usize,
    /// The number of the next row in the file.
    row: u64,
    /// True after a row was found in the file. A file without rows is an error.
    any: bool,
}

impl TableReader {
    /// Returns how many rows of the batch have not been read yet.
    fn left(&self) -> usize {
        self.batch.as_ref().map_or(0, |batch| batch.num_rows() - self.at)
    }

    /// Makes sure that the next row is decoded and converted. Returns false at the end of the file.
    fn prepare(&mut self) -> Result<bool, InputError> {
        while self.left() == 0 {
            let next = self.batches.next().map_err(|problem| in_file(&self.file, problem))?;
            (self.batch, self.at) = (next, 0);
            self.values.clear();
            if self.batch.is_none() {
                return match self.any {
                    true => Ok(false),
                    false => Err(InputError::NoExample { file: self.file.clone() }),
                };
            }
        }
        self.any = true;
        let Some(batch) = &mut self.batch else { return Ok(false) };
        if self.at >= self.window || self.values.is_empty() {
            *batch = batch.slice(self.at, batch.num_rows() - self.at);
            self.at = 0;
            let part = batch.slice(0, batch.num_rows().min(self.window));
            let cells = self.format.cells.iter().flatten();
            let values = cells.zip(&self.positions).map(|(cell, &field)| cell.values(part.column(field)));
            self.values.clear();
            self.values.extend(values);
        }
        Ok(true)
    }

    /// Appends the next row to `rows`.
    fn append(&self, rows: &mut Rows) -> Result<(), InputError> {
        rows.begin()?;
        let Some(batch) = &self.batch else { return Ok(()) };
        let mut fields = self.positions.iter().zip(&self.values);
        for (column, cells) in self.format.cells.iter().enumerate() {
            for (cell, (&field, values)) in cells.iter().zip(&mut fields) {
                let appended = cell.append(values, batch.column(field), self.at, rows.column(column));
                if let Err(problem) = appended {
                    rows.abandon();
                    return Err(self.bad(problem));
                }
            }
        }
        rows.end();
        Ok(())
    }

    fn bad(&self, problem: RecordError) -> InputError {
        InputError::TableRow { file: self.file.clone(), row: self.row, problem: Box::new(problem) }
    }
}

impl Reader for TableReader {
    fn read(&mut self, examples: usize, rows: &mut Rows) -> Result<usize, InputError> {
        let mut read = 0;
        while read < examples && self.prepare()? {
            let appended = self.append(rows);
            self.at += 1;
            let row = self.row;
            self.row += 1;
            match appended {
                Ok(()) => read += 1,
                Err(error) => self.format.bad.skip(row, error)?,
            }
        }
        Ok(read)
    }

    fn skip(&mut self, examples: u64, rows: &mut Rows) -> Result<u64, InputError> {
        if !self.format.bad.none() {
            // Only reading shows which rows are damaged.
            return skip_by_reading(self, examples, rows);
        }
        let mut skipped = 0;
        while skipped < examples {
            let more = match self.left() as u64 {
                0 => {
                    let some = self.batches.skip(examples - skipped);
                    some.map_err(|problem| in_file(&self.file, problem))?
                }
                left => {
                    let some = left.min(examples - skipped);
                    self.at += some as usize;
                    some
                }
            };
            self.any |= more > 0;
            if more == 0 && !self.prepare()? {
                break;
            }
            skipped += more;
            self.row += more;
        }
        Ok(skipped)
    }
}
