//! A data set in the format of MNIST that is small enough to be written, and damaged, by each test.

use std::fs;
use std::path::{Path, PathBuf};

/// A directory with 28×28 images and their labels, in four uncompressed files.
pub(crate) struct TinyDigits(PathBuf);

pub(crate) const TRAIN_IMAGES: &str = "train-images-idx3-ubyte";
const TRAIN_LABELS: &str = "train-labels-idx1-ubyte";
const TEST_IMAGES: &str = "t10k-images-idx3-ubyte";
const TEST_LABELS: &str = "t10k-labels-idx1-ubyte";
const PIXELS: usize = 28 * 28;

impl TinyDigits {
    pub(crate) const FILES: [&str; 4] = [TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS];
    pub(crate) const TRAIN: usize = 320;

    /// Writes the files into a directory below `dir`.
    pub(crate) fn write(dir: &Path) -> Self {
        let digits = Self(dir.join("data"));
        fs::create_dir(&digits.0).expect("the test's directory can be written");
        for (images, labels, count) in
            [(TRAIN_IMAGES, TRAIN_LABELS, Self::TRAIN), (TEST_IMAGES, TEST_LABELS, 50)]
        {
            // The share of each worker has all classes, whatever the number of workers.
            let label = |example: usize| ((example * 7 + example / 10) % 10) as u8;
            // Images of each class have a bright row at a different place.
            let pixel = |at: usize| {
                if at % PIXELS / 56 == usize::from(label(at / PIXELS)) { 255 } else { at as u8 % 64 }
            };
            let header = |magic: u32, extents: &[usize]| {
                let extents = extents.iter().flat_map(|&extent| (extent as u32).to_be_bytes());
                magic.to_be_bytes().into_iter().chain(extents).collect::<Vec<u8>>()
            };
            let mut bytes = header(0x803, &[count, 28, 28]);
            bytes.extend((0..count * PIXELS).map(pixel));
            fs::write(digits.file(images), bytes).expect("images can be written");
            let mut bytes = header(0x801, &[count]);
            bytes.extend((0..count).map(label));
            fs::write(digits.file(labels), bytes).expect("labels can be written");
        }
        digits
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.0
    }

    /// Returns the flag that names the directory.
    pub(crate) fn flag(&self) -> String {
        format!("--data-dir={}", self.0.display())
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Changes the bytes of one file with `spoil`.
    pub(crate) fn spoil(&self, name: &str, spoil: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = fs::read(self.file(name)).expect("the file is there");
        spoil(&mut bytes);
        fs::write(self.file(name), bytes).expect("the file can be written");
    }

    /// Keeps only the first `examples` training examples.
    pub(crate) fn keep(&self, examples: usize) {
        for (name, header, each) in [(TRAIN_IMAGES, 16, PIXELS), (TRAIN_LABELS, 8, 1)] {
            self.spoil(name, |bytes| {
                bytes.truncate(header + examples * each);
                bytes[4..8].copy_from_slice(&(examples as u32).to_be_bytes());
            });
        }
    }

    pub(crate) fn remove(&self, name: &str) {
        fs::remove_file(self.file(name)).expect("the file is there");
    }
}
