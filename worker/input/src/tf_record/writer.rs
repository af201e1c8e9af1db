//! Writes TFRecord files, plain or gzipped.
//! Knows not what is in a record.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use pushpull_storage::record;

use super::example::Example;

/// Records for TensorFlow, or for ourselves. What is written is complete only once [`finish`](Self::finish) has
/// returned.
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
    /// Into a file, gzipped where its name ends in `.gz`; what the file held is lost.
    ///
    /// # Errors
    /// Whatever the operating system says.
    pub fn create(path: &Path) -> io::Result<Self> {
        let output = BufWriter::new(File::create(path)?);
        let packed = path.extension().is_some_and(|extension| extension == "gz");
        Ok(if packed { Self::gzip(output) } else { Self::plain(output) })
    }
}

impl<W: Write> TfRecordWriter<W> {
    /// As they are.
    pub fn plain(output: W) -> Self {
        Self { output: Output::Plain(output) }
    }

    /// Gzipped.
    pub fn gzip(output: W) -> Self {
        Self { output: Output::Gzip(GzEncoder::new(output, Compression::default())) }
    }

    /// Writes one record.
    ///
    /// # Errors
    /// Whatever the output says; `InvalidInput` for a record longer than [`RECORD_BYTES_MAX`](record::RECORD_BYTES_MAX).
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

    /// Writes what is left, and gives the output back.
    ///
    /// # Errors
    /// Whatever the output says.
    pub fn finish(self) -> io::Result<W> {
        let mut output = match self.output {
            Output::Plain(output) => output,
            Output::Gzip(output) => output.finish()?,
        };
        output.flush()?;
        Ok(output)
    }
}
