//! Reads the rows of a CSV file into columns. An error about a row names the file and the line. This module
//! must not depend on other formats or on the use of the examples.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pushpull_messages::input::{CsvFieldsSpec, CsvSpec, FieldSpec};

use super::field::{Category, Field, Number};
use crate::dataset::{Reader, Rows, skip_by_reading};
use crate::files::{BadRecords, Format};
use crate::unpacked::Unpacked;
use crate::{InputError, RecordError, Storage};

/// The maximum number of bytes of a row. Without a limit, an unclosed quote would turn the whole rest of the
/// file into one field.
const ROW_BYTES_MAX: u64 = 16 << 20;

/// The bytes that the CSV parser reads after the bytes of a file. If the file ends inside a quoted field,
/// they become a part of this field; otherwise, they form a row of their own. The reader recognises them in
/// either case, because no text has the control character `\x1a`.
const END: &[u8] = b"\n\x1aend of file";

/// An error message that quotes a header shows at most this many of its characters.
const SHOWN_BYTES_MAX: usize = 400;

/// The format of CSV files, together with the columns that a spec makes from their fields.
pub(crate) struct CsvFormat {
    spec: CsvSpec,
    /// For each column, the fields from which its values are read.
    columns: Vec<Fields>,
    bad: BadRecords,
}

/// The fields from which the values of a column are read.
enum Fields {
    Numbers(Vec<Number>),
    Categories(Vec<Category>),
}

impl Fields {
    fn new(spec: &CsvFieldsSpec) -> Self {
        match spec {
            CsvFieldsSpec::Number(number) => Self::Numbers(vec![Number::new(number)]),
            CsvFieldsSpec::Numbers(numbers) => Self::Numbers(numbers.iter().map(Number::new).collect()),
            CsvFieldsSpec::Category(category) => Self::Categories(vec![Category::new(category)]),
            CsvFieldsSpec::Categories(categories) => {
                Self::Categories(categories.iter().map(Category::new).collect())
            }
        }
    }

    fn fields(&self) -> Vec<&Field> {
        match self {
            Self::Numbers(numbers) => numbers.iter().map(|number| &number.field).collect(),
            Self::Categories(categories) => categories.iter().map(|category| &category.field).collect(),
        }
    }

    /// Appends the values that this row has for the column. `indices` holds the positions of the fields.
    fn read(
        &self,
        indices: &[usize],
        row: &csv::ByteRecord,
        column: &mut Storage,
    ) -> Result<(), RecordError> {
        match (self, column) {
            (Self::Numbers(numbers), Storage::F32(values)) => {
                for (number, &index) in numbers.iter().zip(indices) {
                    values.push(number.read(index, row)?);
                }
            }
            (Self::Categories(categories), Storage::I32(values)) => {
                for (category, &index) in categories.iter().zip(indices) {
                    values.push(category.read(index, row)?);
                }
            }
            _ => unreachable!("columns are made for their fields"),
        }
        Ok(())
    }
}

impl CsvFormat {
    pub(crate) fn new(spec: &CsvSpec, bad: BadRecords) -> Self {
        let columns = spec.columns.iter().map(|column| Fields::new(&column.fields)).collect();
        Self { spec: CsvSpec { files: Vec::new(), ..spec.clone() }, columns, bad }
    }
}

impl Format for CsvFormat {
    fn rows(&self) -> Result<Rows, InputError> {
        let columns = self.spec.columns.iter().map(|column| column.column());
        Rows::of(&columns.collect::<Vec<_>>())
    }

    fn open(self: Arc<Self>, file: &Path) -> Result<Box<dyn Reader>, InputError> {
        let mut input = Unpacked::open(file)?;
        let (file, spec) = (input.path().to_path_buf(), &self.spec);
        skip_lines(&mut input, spec.skip_lines)?;
        input.limit(ROW_BYTES_MAX, "one row");
        let trim = if spec.trim { csv::Trim::All } else { csv::Trim::None };
        let mut reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .trim(trim)
            .delimiter(u8::try_from(spec.delimiter).unwrap_or(b','))
            .from_reader(Marked { input, end: END });
        let mut header = spec.header.then(csv::ByteRecord::new);
        if let Some(header) = &mut header
            && !next(&mut reader, header, spec.skip_lines)?
        {
            return Err(InputError::NoExample { file });
        }
        let positions = |fields: &Fields| {
            let fields = fields.fields().into_iter();
            fields.map(|field| find(&field.spec, header.as_ref())).collect()
        };
        let indices = self.columns.iter().map(positions).collect::<Result<_, _>>();
        let line = u64::from(spec.skip_lines) + 1;
        let indices = indices.map_err(|problem| InputError::Row {
            file: file.clone(),
            line,
            problem: Box::new(problem),
        })?;
        let (row, fields) = (csv::ByteRecord::new(), header.map(|header| header.len()));
        Ok(Box::new(CsvReader { format: self, file, reader, indices, fields, row, any: false }))
    }
}

struct CsvReader {
    format: Arc<CsvFormat>,
    file: PathBuf,
    reader: csv::Reader<Marked>,
    /// For each column, the positions of its fields in a row.
    indices: Vec<Vec<usize>>,
    /// The maximum number of fields of a row. This is the number of fields of the header or, if there is no
    /// header, of the first row without a fault.
    fields: Option<usize>,
    row: csv::ByteRecord,
    /// True after a row was read, even if the row was faulty and skipped.
    any: bool,
}

impl CsvReader {
    /// Reads the next row. Returns false at the end of the file.
    ///
    /// # Errors
    /// If the file cannot be read; [`InputError::NoExample`] if it has no row.
    fn next_row(&mut self) -> Result<bool, InputError> {
        match next(&mut self.reader, &mut self.row, self.format.spec.skip_lines)? {
            true => Ok(true),
            false if self.any => Ok(false),
            false => Err(InputError::NoExample { file: self.file.clone() }),
        }
    }

    /// Appends the values of the current row to `rows`.
    fn append(&mut self, rows: &mut Rows) -> Result<(), InputError> {
        if let Some(max) = self.fields.filter(|&fields| self.row.len() > fields) {
            return Err(self.bad(RecordError::MoreFields { fields: self.row.len(), max }));
        }
        rows.begin()?;
        for (position, (fields, indices)) in self.format.columns.iter().zip(&self.indices).enumerate() {
            if let Err(problem) = fields.read(indices, &self.row, rows.column(position)) {
                rows.abandon();
                return Err(self.bad(problem));
            }
        }
        rows.end();
        self.fields.get_or_insert(self.row.len());
        Ok(())
    }

    /// Returns an error that names the current row and `problem`.
    fn bad(&self, problem: RecordError) -> InputError {
        let line = line_of(&self.row, self.format.spec.skip_lines);
        InputError::Row { file: self.file.clone(), line, problem: Box::new(problem) }
    }
}

impl Reader for CsvReader {
    fn read(&mut self, examples: usize, rows: &mut Rows) -> Result<usize, InputError> {
        let mut read = 0;
        while read < examples && self.next_row()? {
            match self.append(rows) {
                Ok(()) => {
                    read += 1;
                    self.any = true;
                }
                Err(error) => {
                    // A row is identified by the offset of its first byte. Its line does not suffice, because
                    // a carriage return may end a row without starting a new line.
                    let byte = self.row.position().map_or(0, csv::Position::byte);
                    self.format.bad.skip(byte, error)?;
                    self.any = true;
                }
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
        while skipped < examples && self.next_row()? {
            skipped += 1;
            self.any = true;
            self.fields.get_or_insert(self.row.len());
        }
        Ok(skipped)
    }
}

/// The bytes of a file, followed by [`END`].
struct Marked {
    input: Unpacked,
    /// The part of [`END`] that has not been read yet.
    end: &'static [u8],
}

impl Read for Marked {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.input.read(buffer)? {
            0 => self.end.read(buffer),
            read => Ok(read),
        }
    }
}

/// Reads the next row into `row`. Returns false at the end of the file.
///
/// # Errors
/// If the file cannot be read; [`InputError::Row`] if it ends inside a quoted field, which would hide the
/// rows after the quote.
fn next(
    reader: &mut csv::Reader<Marked>,
    row: &mut csv::ByteRecord,
    skipped_lines: u32,
) -> Result<bool, InputError> {
    reader.get_mut().input.limit(ROW_BYTES_MAX, "one row");
    match reader.read_byte_record(row) {
        Ok(found) => {
            let marked = row.iter().next_back().is_some_and(|field| field.ends_with(&END[1..]));
            if marked && (row.len() > 1 || row.get(0) != Some(&END[1..])) {
                let (file, problem) = (reader.get_ref().input.path().to_path_buf(), RecordError::OpenQuote);
                let line = line_of(row, skipped_lines);
                return Err(InputError::Row { file, line, problem: Box::new(problem) });
            }
            Ok(found && !marked)
        }
        Err(error) => {
            let source = match error.into_kind() {
                csv::ErrorKind::Io(source) => source,
                other => io::Error::other(format!("{other:?}")),
            };
            Err(reader.get_ref().input.error(source))
        }
    }
}

/// Returns the line in which a row begins, counted from 1.
fn line_of(row: &csv::ByteRecord, skipped_lines: u32) -> u64 {
    u64::from(skipped_lines) + row.position().map_or(0, csv::Position::line)
}

/// Returns the position of a field in a row.
fn find(field: &FieldSpec, header: Option<&csv::ByteRecord>) -> Result<usize, RecordError> {
    match field {
        FieldSpec::Index(index) => Ok(*index as usize),
        FieldSpec::Name(name) => {
            let fields = || header.into_iter().flat_map(csv::ByteRecord::iter);
            fields().position(|field| field == name.as_bytes()).ok_or_else(|| {
                let words: Vec<_> = fields().take(50).map(String::from_utf8_lossy).collect();
                let there =
                    words.join(", ").chars().flat_map(char::escape_debug).take(SHOWN_BYTES_MAX).collect();
                RecordError::NotInHeader { field: field.clone(), there }
            })
        }
    }
}

/// Skips the first `lines` lines.
fn skip_lines(input: &mut Unpacked, lines: u32) -> Result<(), InputError> {
    for _ in 0..lines {
        input.limit(ROW_BYTES_MAX, "one line");
        let mut byte = [0];
        while byte != [b'\n'] {
            match input.read(&mut byte) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(source) if source.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(input.error(source)),
            }
        }
    }
    Ok(())
}
