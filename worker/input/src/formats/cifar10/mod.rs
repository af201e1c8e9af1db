//! The binary version of CIFAR-10. A file has no header; each record is a label and a planar image, which
//! stores one colour after the other. This module must not depend on other formats or on the use of the
//! images.
//!
//! The format: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.

use std::path::Path;
use std::sync::Arc;

use pushpull_messages::input::ColumnSpec;
use pushpull_messages::tensor::Shape;

use crate::dataset::{Reader, Rows};
use crate::files::{BadRecords, Format};
use crate::unpacked::Unpacked;
use crate::{InMemory, InputError, RecordError, Storage};

const SIDE: usize = 32;
const PIXELS: usize = SIDE * SIDE;
const CHANNELS: usize = 3;
/// The number of bytes of a record: a label, then all red, all green and all blue pixels.
const RECORD_BYTES: usize = 1 + CHANNELS * PIXELS;
/// The greatest label; classes are numbered from 0.
const LABEL_MAX: u8 = 9;
/// The format of CIFAR-10's files.
#[derive(Default)]
pub(crate) struct Cifar10Format {
    bad: BadRecords,
}

impl Cifar10Format {
    pub(crate) fn new(bad: BadRecords) -> Self {
        Self { bad }
    }

    /// Returns the specs of the columns: `features` of shape `[32, 32, 3]`, and `labels`.
    fn columns() -> [ColumnSpec; 2] {
        InMemory::image_columns(Shape::from([SIDE, SIDE, CHANNELS]))
    }
}

impl Format for Cifar10Format {
    fn rows(&self) -> Result<Rows, InputError> {
        let storage = [Storage::Pixels(Vec::new()), Storage::I32(Vec::new())];
        Rows::new(Self::columns().into_iter().zip(storage).collect())
    }

    fn open(self: Arc<Self>, file: &Path) -> Result<Box<dyn Reader>, InputError> {
        let input = Unpacked::open(file)?;
        if let Some(size) = input.size() {
            check_size(&input, size)?;
        }
        Ok(Box::new(Cifar10Reader { format: self, input, number: 0, bytes: Box::new([0; RECORD_BYTES]) }))
    }

    fn examples(&self, file: &Path) -> Option<u64> {
        // Records with damaged labels are skipped, so the size of the file does not determine the number of
        // examples.
        if !self.bad.none() {
            return None;
        }
        let (record, size) = (RECORD_BYTES as u64, Unpacked::open(file).ok()?.size()?);
        (size > 0 && size.is_multiple_of(record)).then_some(size / record)
    }
}

struct Cifar10Reader {
    format: Arc<Cifar10Format>,
    input: Unpacked,
    /// The number of records that have been read.
    number: u64,
    bytes: Box<[u8; RECORD_BYTES]>,
}

impl Cifar10Reader {
    /// Reads the next record into `bytes`. Returns false at the end of the file.
    fn next(&mut self) -> Result<bool, InputError> {
        let offset = self.input.offset();
        let got = self.input.fill(&mut *self.bytes)?;
        let problem = match got {
            0 if self.number == 0 => {
                return Err(InputError::NoExample { file: self.input.path().to_path_buf() });
            }
            0 => return Ok(false),
            RECORD_BYTES if self.bytes[0] > LABEL_MAX => {
                RecordError::Label { label: self.bytes[0], max: LABEL_MAX }
            }
            RECORD_BYTES => {
                self.number += 1;
                return Ok(true);
            }
            got => short(got as u64),
        };
        let (file, record) = (self.input.path().to_path_buf(), self.number);
        self.number += 1;
        Err(InputError::Record { file, record, offset, problem: Box::new(problem) })
    }

    /// Appends the record in `bytes` to `rows`.
    fn append(&self, rows: &mut Rows) -> Result<(), InputError> {
        rows.begin()?;
        let (label, planes) = (self.bytes[0], &self.bytes[1..]);
        let (red, rest) = planes.split_at(PIXELS);
        let (green, blue) = rest.split_at(PIXELS);
        let whole = red.iter().zip(green).zip(blue).flat_map(|((&red, &green), &blue)| [red, green, blue]);
        rows.column(0).extend_bytes(whole);
        rows.column(1).extend_bytes(std::iter::once(label));
        rows.end();
        Ok(())
    }
}

impl Reader for Cifar10Reader {
    fn read(&mut self, examples: usize, rows: &mut Rows) -> Result<usize, InputError> {
        let mut read = 0;
        while read < examples {
            match self.next() {
                Ok(true) => {
                    self.append(rows)?;
                    read += 1;
                }
                Ok(false) => break,
                Err(error) => self.format.bad.skip(self.input.offset(), error)?,
            }
        }
        Ok(read)
    }
}

/// Checks that a plain file of `size` bytes consists of one or more whole records.
fn check_size(input: &Unpacked, size: u64) -> Result<(), InputError> {
    let (record, rest) = (size / RECORD_BYTES as u64, size % RECORD_BYTES as u64);
    let file = input.path().to_path_buf();
    if rest != 0 {
        let (offset, problem) = (size - rest, Box::new(short(rest)));
        return Err(InputError::Record { file, record, offset, problem });
    }
    if size == 0 { Err(InputError::NoExample { file }) } else { Ok(()) }
}

fn short(got: u64) -> RecordError {
    RecordError::Short { part: "a label and an image", expected: RECORD_BYTES as u64, got }
}

#[cfg(test)]
mod tests;
