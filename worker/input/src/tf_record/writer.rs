//! Writes TFRecord files, plain or gzipped.
//! Does not know what is in a record.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use pushpull_storage::record;

use super::example::Example;

/// A writer of TFRecord files, which TensorFlow can read as well. The output is complete only after
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
    /// Creates or truncates a file, gzipped if its name ends in `.gz`.
    ///
    /// # Errors
    /// Any error of the operating system.
    pub fn create(path: &Path) -> io::Result<Self> {
        let output = BufWriter::new(File::create(path)?);
        let packed = path.extension().is_some_and(|extension| extension == "gz");
        Ok(if packed { Self::gzip(output) } else { Self::plain(output) })
    }
}

impl<W: Write> TfRecordWriter<W> {
    /// Makes a writer of plain records.
    pub fn plain(output: W) -> Self {
        Self { output: Output::Plain(output) }
    }

    /// Makes a writer of gzipped records.
    pub fn gzip(output: W) -> Self {
        Self { output: Output::Gzip(GzEncoder::new(output, Compression::default())) }
    }

    /// Writes one record.
    ///
    /// # Errors
    /// Any error of the output; `InvalidInput` for a record longer than
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
    /// As [`write`](Self::write).
    pub fn write_example(&mut self, example: &Example) -> io::Result<()> {
        self.write(&example.to_bytes())
    }

    /// Flushes the records and returns the output.
    ///
    /// # Errors
    /// Any error of the output.
    pub fn finish(self) -> io::Result<W> {
        let mut output = match self.output {
            Output::Plain(output) => output,
            Output::Gzip(output) => output.finish()?,
        };
        output.flush()?;
        Ok(output)
    }
}
