//! A data set of images and labels in two IDX files. This module must not depend on what the images show.

use std::path::{Path, PathBuf};

use pushpull_messages::input::{ColumnSpec, EXAMPLE_ELEMENTS_MAX};
use pushpull_messages::tensor::Shape;

use super::IdxFile;
use crate::dataset::{Dataset, Reader, Rows};
use crate::unpacked::read_up_to;
use crate::{InMemory, InputError, Storage};

/// The images of one file with the labels of another.
pub(crate) struct IdxImages {
    images: PathBuf,
    labels: PathBuf,
    columns: [ColumnSpec; 2],
    examples: u64,
}

impl IdxImages {
    /// Reads and checks the headers of both files.
    pub(crate) fn open(images: &Path, labels: &Path) -> Result<Self, InputError> {
        let (first, _) = open_both(images, labels)?;
        let elements = shape(&first).checked_elements().unwrap_or(usize::MAX);
        if elements > EXAMPLE_ELEMENTS_MAX {
            let (file, extents, max) = (first.path, first.extents, EXAMPLE_ELEMENTS_MAX as u64);
            return Err(InputError::TooLarge { file, extents, max });
        }
        let columns = InMemory::image_columns(shape(&first));
        let examples = first.examples();
        Ok(Self { images: images.to_path_buf(), labels: labels.to_path_buf(), columns, examples })
    }

    /// Reads both files into memory.
    pub(crate) fn load(images: &Path, labels: &Path) -> Result<InMemory, InputError> {
        let (images, labels) = open_both(images, labels)?;
        let shape = shape(&images);
        let labels = labels.read()?.into_iter().map(i32::from).collect();
        InMemory::images(shape, images.read()?, labels, None)
    }

    /// Reads only the images. The data set that is returned has no column of labels.
    pub(crate) fn load_unlabelled(images: &Path) -> Result<InMemory, InputError> {
        let images = open_images(images)?;
        let [features, _] = InMemory::image_columns(shape(&images));
        let examples = usize::try_from(images.examples()).unwrap_or(usize::MAX);
        InMemory::new(examples, vec![(features, Storage::Pixels(images.read()?))])
    }
}

fn open_images(images: &Path) -> Result<IdxFile, InputError> {
    IdxFile::open(images)?.with_axes(3, "0x00000803 (u8 images: examples, rows, columns)")
}

/// Opens both files, and checks that their headers agree before any data is read.
fn open_both(images: &Path, labels: &Path) -> Result<(IdxFile, IdxFile), InputError> {
    let images = open_images(images)?;
    let labels = IdxFile::open(labels)?.with_axes(1, "0x00000801 (u8 labels)")?;
    if images.examples() != labels.examples() {
        return Err(InputError::CountMismatch {
            image_count: images.examples(),
            images: images.path().to_path_buf(),
            label_count: labels.examples(),
            labels: labels.path().to_path_buf(),
        });
    }
    Ok((images, labels))
}

fn shape(images: &IdxFile) -> Shape {
    Shape(images.extents()[1..].iter().map(|&extent| extent as usize).collect())
}

impl Dataset for IdxImages {
    fn columns(&self) -> &[ColumnSpec] {
        &self.columns
    }

    fn examples(&self) -> Option<u64> {
        Some(self.examples)
    }

    fn reader(&self) -> Result<Box<dyn Reader>, InputError> {
        let (images, labels) = open_both(&self.images, &self.labels)?;
        let (expected, got) = (&self.columns[0].example.shape, shape(&images));
        if got != *expected {
            let shown = |shape: &Shape| format!("images of shape {shape}");
            return Err(InputError::Example { expected: shown(expected), got: shown(&got) });
        }
        let pixels = vec![0; got.elements()];
        Ok(Box::new(IdxReader { left: images.examples(), images, labels, pixels }))
    }

    fn rows(&self) -> Result<Rows, InputError> {
        let storage = [Storage::Pixels(Vec::new()), Storage::I32(Vec::new())];
        Rows::new(self.columns.iter().cloned().zip(storage).collect())
    }
}

struct IdxReader {
    images: IdxFile,
    labels: IdxFile,
    /// The number of examples that have not been read yet.
    left: u64,
    /// A buffer for one image.
    pixels: Vec<u8>,
}

impl IdxReader {
    /// Reads the next image into `pixels`, and returns its label.
    fn next(&mut self) -> Result<u8, InputError> {
        fill(&mut self.images, &mut self.pixels)?;
        let mut label = [0];
        fill(&mut self.labels, &mut label)?;
        self.left -= 1;
        if self.left == 0 {
            // A decoder compares its checksum only at the end of the file.
            self.images.check_end()?;
            self.labels.check_end()?;
        }
        Ok(label[0])
    }
}

impl Reader for IdxReader {
    fn read(&mut self, examples: usize, rows: &mut Rows) -> Result<usize, InputError> {
        let count = self.left.min(examples as u64);
        for _ in 0..count {
            let label = self.next()?;
            rows.begin()?;
            rows.column(0).extend_bytes(self.pixels.iter().copied());
            rows.column(1).extend_bytes(std::iter::once(label));
            rows.end();
        }
        Ok(count as usize)
    }

    fn skip(&mut self, examples: u64, _: &mut Rows) -> Result<u64, InputError> {
        let count = self.left.min(examples);
        for _ in 0..count {
            self.next()?;
        }
        Ok(count)
    }
}

/// Fills `buffer` with the next bytes of the file's data.
fn fill(file: &mut IdxFile, buffer: &mut [u8]) -> Result<(), InputError> {
    let offset = file.header_bytes() + file.read;
    match read_up_to(&mut file.input, buffer) {
        Ok(got) if got == buffer.len() => {
            file.read += got as u64;
            Ok(())
        }
        Ok(got) => {
            let (offset, expected) = (file.header_bytes(), file.data_bytes);
            Err(InputError::Truncated {
                file: file.path.clone(),
                offset,
                expected,
                got: file.read + got as u64,
            })
        }
        Err(source) => Err(InputError::Read { file: file.path.clone(), offset, source }),
    }
}
