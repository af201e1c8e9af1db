//! The binary version of CIFAR-10. A file has no header; each record is a label and a planar image, which
//! stores one colour after the other. This module must not depend on other formats or on the use of the
//! images.
//!
//! The format: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.

use std::path::{Path, PathBuf};

use pushpull_messages::input::ColumnSpec;
use pushpull_messages::tensor::Shape;

use super::description::Description;
use super::unpacked::Unpacked;
use super::{Dataset, InputError, RecordError};

const SIDE: usize = 32;
const PIXELS: usize = SIDE * SIDE;
const CHANNELS: usize = 3;
/// The number of bytes of a record: a label, then all red, all green and all blue pixels.
const RECORD_BYTES: usize = 1 + CHANNELS * PIXELS;
/// The greatest label; classes are numbered from 0.
const LABEL_MAX: u8 = 9;
/// The maximum number of records in one data set; they take 4 GiB.
const RECORDS_MAX: usize = (4 << 30) / RECORD_BYTES;

/// Returns the specs of the columns: `features` of shape `[32, 32, 3]`, and `labels`.
pub(super) fn columns() -> Vec<ColumnSpec> {
    Dataset::image_columns(Shape::from([SIDE, SIDE, CHANNELS])).into()
}

/// Loads all images of `files`.
pub(super) fn load(files: &[PathBuf]) -> Result<Dataset, InputError> {
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for file in files {
        read(file, |label, planes| {
            if labels.len() == RECORDS_MAX {
                let bytes = RECORD_BYTES as u64;
                return Err(InputError::Held {
                    examples: RECORDS_MAX as u64,
                    bytes,
                    max: super::HELD_BYTES_MAX,
                });
            }
            labels.push(label.into());
            let (red, rest) = planes.split_at(PIXELS);
            let (green, blue) = rest.split_at(PIXELS);
            let whole =
                red.iter().zip(green).zip(blue).flat_map(|((&red, &green), &blue)| [red, green, blue]);
            pixels.extend(whole);
            Ok(())
        })?;
    }
    Dataset::images(Shape::from([SIDE, SIDE, CHANNELS]), pixels, labels, Some(u32::from(LABEL_MAX) + 1))
}

/// Counts the images by the sizes of the files. Gzipped files are read, because their unpacked size is
/// unknown.
pub(super) fn describe(files: &[PathBuf]) -> Result<Description, InputError> {
    let mut examples = 0u64;
    for file in files {
        let input = Unpacked::open(file)?;
        match input.size() {
            Some(size) => {
                check_size(&input, size)?;
                examples += size / RECORD_BYTES as u64;
            }
            None => read(file, |_, _| {
                examples += 1;
                Ok(())
            })?,
        }
    }
    Ok(Description { examples, columns: columns() })
}

/// Reads a file, and calls `record` with the label and the colour planes of each record.
fn read(path: &Path, mut record: impl FnMut(u8, &[u8]) -> Result<(), InputError>) -> Result<(), InputError> {
    let mut input = Unpacked::open(path)?;
    if let Some(size) = input.size() {
        check_size(&input, size)?;
    }
    let mut bytes = [0; RECORD_BYTES];
    for number in 0.. {
        let offset = input.offset();
        let bad = |input: &Unpacked, problem| {
            let file = input.path().to_path_buf();
            Err(InputError::Record { file, record: number, offset, problem: Box::new(problem) })
        };
        match input.fill(&mut bytes)? {
            0 if number == 0 => return Err(InputError::NoExample { file: input.path().to_path_buf() }),
            0 => break,
            RECORD_BYTES if bytes[0] > LABEL_MAX => {
                return bad(&input, RecordError::Label { label: bytes[0], max: LABEL_MAX });
            }
            RECORD_BYTES => record(bytes[0], &bytes[1..])?,
            got => return bad(&input, short(got as u64)),
        }
    }
    Ok(())
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
