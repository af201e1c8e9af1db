//! Writes TFRecord files, plain or gzipped. This module must not depend on the contents of the records.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use pushpull_storage::record;

use super::example::Example;

/// A writer of TFRecord files, which TensorFlow can read as well. The output is complete only after a call of
/// [`finish`](Self::finish).
pub struct TfRecordWriter<W: Write> {
    output: Output<W>,
}

enum Output<W: Write> {
    Plain(W),
    Gzip(GzEncoder<W>),
}

impl<W: Write> fmt::Debug for TfRecordWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TfRecordWriter").finish_non_exhaustive()
    }
}

impl TfRecordWriter<BufWriter<File>> {
    /// Creates a file, or truncates an existing one. The file is gzipped if its name ends in `.gz`.
    ///
    /// # Errors
    /// If the operating system cannot create the file.
    pub fn create(path: &Path) -> io::Result<Self> {
        let output = BufWriter::new(File::create(path)?);
        let packed = path.extension().is_some_and(|extension| extension == "gz");
        Ok(if packed { Self::gzip(output) } else { Self::plain(output) })
    }
}

impl<W: Write> TfRecordWriter<W> {
    /// Creates a writer of plain records.
    pub fn plain(output: W) -> Self {
        Self { output: Output::Plain(output) }
    }

    /// Creates a writer of gzipped records.
    pub fn gzip(output: W) -> Self {
        Self { output: Output::Gzip(GzEncoder::new(output, Compression::default())) }
    }

    /// Writes one record.
    ///
    /// # Errors
    /// If the output fails; `InvalidInput` if the record is longer than
    /// [`RECORD_BYTES_MAX`](record::RECORD_BYTES_MAX).
    pub fn write(&mut self, data: &[u8]) -> io::Result<()> {
        let output: &mut dyn Write = match &mut self.output {
            Output::Plain(output) => output,
            Output::Gzip(output) => output,
        };
        record::write(output, data)
    }

    /// Writes one example.
    ///
    /// # Errors
    /// The same as those of [`write`](Self::write).
    pub fn write_example(&mut self, example: &Example) -> io::Result<()> {
        self.write(&example.to_bytes())
    }

    /// Flushes the records and returns the output.
    ///
    /// # Errors
    /// If the output fails.
    pub fn finish(self) -> io::Result<W> {
        let mut output = match self.output {
            Output::Plain(output) => output,
            Output::Gzip(output) => output.finish()?,
        };
        output.flush()?;
        Ok(output)
    }
}
