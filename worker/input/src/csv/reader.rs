//! Reads the rows of a CSV file into columns. An error about a row names the file and the line. This module
//! must not depend on other formats or on the use of the examples.

use std::io::{self, Read};
use std::path::Path;

use pushpull_messages::input::{ColumnSpec, CsvFieldsSpec, CsvSpec, FieldSpec};
use pushpull_messages::tensor::DType;

use super::field::{Category, Field, Number};
use crate::rows::Rows;
use crate::unpacked::Unpacked;
use crate::{InputError, RecordError, Storage};

/// The maximum number of bytes of a row. Without a limit, an unclosed quote would turn the whole rest of the
/// file into one field.
const ROW_BYTES_MAX: u64 = 16 << 20;

/// The maximum number of bytes of a header that an error message quotes.
const SHOWN_BYTES_MAX: usize = 400;

/// Returns the columns of `spec`, still without elements.
pub(crate) fn columns(spec: &CsvSpec) -> Vec<(ColumnSpec, Storage)> {
    let column = |spec: ColumnSpec| match spec.example.dtype {
        DType::F32 => (spec, Storage::F32(Vec::new())),
        DType::I32 => (spec, Storage::I32(Vec::new())),
    };
    spec.columns.iter().map(|spec| column(spec.column())).collect()
}

/// The fields from which the values of a column are read.
enum Fields<'a> {
    Numbers(Vec<Number<'a>>),
    Categories(Vec<Category<'a>>),
}

impl<'a> Fields<'a> {
    fn new(spec: &'a CsvFieldsSpec) -> Self {
        match spec {
            CsvFieldsSpec::Number(number) => Self::Numbers(vec![Number::new(number)]),
            CsvFieldsSpec::Numbers(numbers) => Self::Numbers(numbers.iter().map(Number::new).collect()),
            CsvFieldsSpec::Category(category) => Self::Categories(vec![Category::new(category)]),
            CsvFieldsSpec::Categories(categories) => {
                Self::Categories(categories.iter().map(Category::new).collect())
            }
        }
    }

    fn fields(&mut self) -> Vec<&mut Field<'a>> {
        match self {
            Self::Numbers(numbers) => numbers.iter_mut().map(|number| &mut number.field).collect(),
            Self::Categories(categories) => {
                categories.iter_mut().map(|category| &mut category.field).collect()
            }
        }
    }

    /// Appends the values that this row has for the column.
    fn read(&self, row: &csv::ByteRecord, column: &mut Storage) -> Result<(), RecordError> {
        match (self, column) {
            (Self::Numbers(numbers), Storage::F32(values)) => {
                for number in numbers {
                    values.push(number.read(row)?);
                }
            }
            (Self::Categories(categories), Storage::I32(values)) => {
                for category in categories {
                    values.push(category.read(row)?);
                }
            }
            _ => unreachable!("columns are made for their fields"),
        }
        Ok(())
    }
}

/// Appends all rows of a file to `rows`.
pub(crate) fn read(path: &Path, spec: &CsvSpec, rows: &mut Rows) -> Result<(), InputError> {
    let mut input = Unpacked::open(path)?;
    let file = input.path().to_path_buf();
    skip_lines(&mut input, spec.skip_lines)?;
    input.limit(ROW_BYTES_MAX, "one row");
    let trim = if spec.trim { csv::Trim::All } else { csv::Trim::None };
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .trim(trim)
        .delimiter(u8::try_from(spec.delimiter).unwrap_or(b','))
        .from_reader(input);
    let mut columns: Vec<Fields<'_>> =
        spec.columns.iter().map(|column| Fields::new(&column.fields)).collect();
    let mut row = csv::ByteRecord::new();
    let mut header = spec.header.then(csv::ByteRecord::new);
    if let Some(header) = &mut header {
        next(&mut reader, header)?;
    }
    for field in columns.iter_mut().flat_map(Fields::fields) {
        field.index = find(field.spec, header.as_ref()).map_err(|problem| InputError::Row {
            file: file.clone(),
            line: u64::from(spec.skip_lines) + 1,
            problem: Box::new(problem),
        })?;
    }
    let before = rows.examples();
    while next(&mut reader, &mut row)? {
        rows.begin()?;
        for (position, fields) in columns.iter().enumerate() {
            if let Err(problem) = fields.read(&row, rows.column(position)) {
                let line = u64::from(spec.skip_lines) + row.position().map_or(0, csv::Position::line);
                return Err(InputError::Row { file, line, problem: Box::new(problem) });
            }
        }
        rows.end();
    }
    if rows.examples() == before {
        return Err(InputError::NoExample { file });
    }
    Ok(())
}

/// Reads the next row into `row`. Returns false at the end of the file.
fn next(reader: &mut csv::Reader<Unpacked>, row: &mut csv::ByteRecord) -> Result<bool, InputError> {
    reader.get_mut().limit(ROW_BYTES_MAX, "one row");
    match reader.read_byte_record(row) {
        Ok(found) => Ok(found),
        Err(error) => {
            let source = match error.into_kind() {
                csv::ErrorKind::Io(source) => source,
                other => io::Error::other(format!("{other:?}")),
            };
            Err(reader.get_ref().error(source))
        }
    }
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
