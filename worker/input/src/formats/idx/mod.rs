//! The IDX format, plain or packed with gzip or zstd: a magic number, the extents of the axes, then `u8`
//! elements, row-major. Verifies what the header of a file declares. This module must not depend on images
//! or on labels.
//!
//! The format: Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits".

use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::unpacked::{Opened, Packing, open_either, read_exactly, read_up_to, unpacked};
use crate::{InputError, UNPACKED_BYTES_MAX};

mod images;

pub(crate) use images::IdxImages;

/// The IDX magic number for `u8` elements, without the number of axes in its last byte.
const MAGIC_U8: u32 = 0x0000_0800;

/// An IDX file whose header has been read and checked. The data has not been read yet.
pub struct IdxFile {
    path: PathBuf,
    input: Box<dyn Read + Send>,
    magic: u32,
    extents: Vec<u32>,
    /// The number of bytes of data, which is the product of the extents.
    data_bytes: u64,
    /// The number of bytes of data that have been read so far.
    read: u64,
}

/// Shows only the header.
impl fmt::Debug for IdxFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdxFile")
            .field("path", &self.path)
            .field("extents", &self.extents)
            .finish_non_exhaustive()
    }
}

impl IdxFile {
    /// Opens `path` and reads the header of the file. If `path` does not exist, opens the file with `.gz`
    /// or `.zst` added to its name, or removed from it.
    ///
    /// # Errors
    /// [`InputError::Missing`] if none of these files exists; [`InputError::Read`] if a file cannot be read;
    /// [`InputError::Magic`], [`InputError::Truncated`], [`InputError::Empty`] or [`InputError::TooLarge`]
    /// if the header is invalid; [`InputError::Trailing`] or [`InputError::Truncated`] if the size of the
    /// file contradicts the header.
    pub fn open(path: &Path) -> Result<Self, InputError> {
        let Opened { path, input, size } = open_either(path)?;
        let read_error = |offset| {
            let file = path.clone();
            move |source| InputError::Read { file, offset, source }
        };
        let (mut input, packing) = unpacked(input).map_err(read_error(0))?;

        let magic = read_u32(&mut input, &path, 0)?;
        let axes = magic & 0xff;
        if magic & !0xff != MAGIC_U8 || axes == 0 {
            let expected = "0x000008 followed by the number of axes (a file of u8 elements)";
            return Err(InputError::Magic { file: path, expected, got: magic });
        }
        let mut extents = Vec::new();
        for axis in 0..axes {
            extents.push(read_u32(&mut input, &path, 4 + 4 * u64::from(axis))?);
        }
        if extents.contains(&0) {
            return Err(InputError::Empty { file: path, extents });
        }
        let product = extents.iter().try_fold(1u64, |product, &extent| product.checked_mul(extent.into()));
        let Some(data_bytes) = product else {
            return Err(InputError::TooLarge { file: path, extents, max: UNPACKED_BYTES_MAX });
        };

        // A pipe has no size that could be compared with the header. If bytes are missing, reading the data
        // fails.
        if let Some(size) = size {
            let (offset, expected) = (4 + 4 * u64::from(axes), data_bytes);
            let ratio = packing.ratio_max().unwrap_or(u64::MAX);
            let got = size.saturating_mul(ratio).saturating_sub(offset);
            if got < expected {
                return Err(InputError::Truncated { file: path, offset, expected, got });
            }
            if got > expected && packing == Packing::Plain {
                return Err(InputError::Trailing { file: path, offset: offset + expected });
            }
        }
        Ok(Self { path, input, magic, extents, data_bytes, read: 0 })
    }

    /// Returns this file unchanged if it has `axes` axes.
    ///
    /// # Errors
    /// [`InputError::Magic`] if the file has another number of axes. In the error, `expected`
    /// describes the expected file.
    pub(crate) fn with_axes(self, axes: u32, expected: &'static str) -> Result<Self, InputError> {
        if self.magic == MAGIC_U8 + axes {
            Ok(self)
        } else {
            Err(InputError::Magic { file: self.path, expected, got: self.magic })
        }
    }

    /// Returns the path of the file that was opened, whose ending may differ from the requested path's.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the extents, all above 0. The outermost axis comes first: the examples, followed for instance
    /// by rows and columns.
    pub fn extents(&self) -> &[u32] {
        &self.extents
    }

    /// Returns the number of examples that the header declares; at least 1.
    pub fn examples(&self) -> u64 {
        self.extents[0].into()
    }

    /// Reads the data. The number of bytes is the product of the extents.
    ///
    /// # Errors
    /// [`InputError::TooLarge`] if the header declares more than [`UNPACKED_BYTES_MAX`];
    /// [`InputError::Truncated`] if the file ends too early; [`InputError::Trailing`] if bytes follow the
    /// data; [`InputError::Read`] if the file cannot be read or its packed data is corrupt;
    /// [`InputError::Memory`] if there is no memory for the data.
    pub fn read(mut self) -> Result<Vec<u8>, InputError> {
        let header = self.header_bytes();
        let held = usize::try_from(self.data_bytes).ok().filter(|&bytes| bytes as u64 <= UNPACKED_BYTES_MAX);
        let Some(data_bytes) = held else {
            let (file, extents, max) = (self.path, self.extents, UNPACKED_BYTES_MAX);
            return Err(InputError::TooLarge { file, extents, max });
        };
        let mut data = Vec::new();
        match read_exactly(&mut self.input, data_bytes, &mut data) {
            Ok(()) => {}
            Err(source) if source.kind() == io::ErrorKind::UnexpectedEof => {
                let (expected, got) = (self.data_bytes, data.len() as u64);
                return Err(InputError::Truncated { file: self.path, offset: header, expected, got });
            }
            Err(source) if source.kind() == io::ErrorKind::OutOfMemory => {
                return Err(InputError::Memory { file: self.path, bytes: data_bytes - data.len() });
            }
            Err(source) => {
                return Err(InputError::Read { file: self.path, offset: header + data.len() as u64, source });
            }
        }
        self.check_end()?;
        Ok(data)
    }

    /// Returns the number of bytes of the header.
    fn header_bytes(&self) -> u64 {
        4 + 4 * self.extents.len() as u64
    }

    /// Checks that the file ends after its data, once the data have been read. This also makes a decoder
    /// verify its checksum, which it does only at the end.
    fn check_end(&mut self) -> Result<(), InputError> {
        let (file, offset) = (self.path.clone(), self.header_bytes() + self.data_bytes);
        match read_up_to(&mut self.input, &mut [0]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(InputError::Trailing { file, offset }),
            Err(source) => Err(InputError::Read { file, offset, source }),
        }
    }
}

/// Reads one big-endian number from the header. `offset` is where the number begins in the file; errors name
/// this offset.
fn read_u32(input: &mut impl Read, path: &Path, offset: u64) -> Result<u32, InputError> {
    let mut bytes = [0; 4];
    let truncated = |got| InputError::Truncated { file: path.to_path_buf(), offset, expected: 4, got };
    match read_up_to(input, &mut bytes) {
        Ok(4) => Ok(u32::from_be_bytes(bytes)),
        Ok(got) => Err(truncated(got as u64)),
        Err(source) if source.kind() == io::ErrorKind::UnexpectedEof => Err(truncated(0)),
        Err(source) => Err(InputError::Read { file: path.to_path_buf(), offset, source }),
    }
}

#[cfg(test)]
mod tests;
