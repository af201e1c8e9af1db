//! Writes TFRecord files, plain or gzipped.
//! Knows not what is in a record.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::example::Example;
use super::framing::{RECORD_BYTES_MAX, masked_crc32c};

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
    /// Whatever the output says; `InvalidInput` for a record longer than [`RECORD_BYTES_MAX`], which nobody here
    /// would read.
    pub fn write(&mut self, data: &[u8]) -> io::Result<()> {
        if data.len() as u64 > RECORD_BYTES_MAX {
            let text = format!("a record of {} bytes, expected at most {RECORD_BYTES_MAX}", data.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let length = (data.len() as u64).to_le_bytes();
        let output: &mut dyn Write = match &mut self.output {
            Output::Plain(output) => output,
            Output::Gzip(output) => output,
        };
        output.write_all(&length)?;
        output.write_all(&masked_crc32c(&length).to_le_bytes())?;
        output.write_all(data)?;
        output.write_all(&masked_crc32c(data).to_le_bytes())
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
