//! What can be wrong with the input: each error says where, what was expected, what came and what to do.
//! Knows nothing of how an error is shown or whether the job goes on.

use std::io;
use std::path::PathBuf;

/// Why examples could not be read, drawn, shared out or handed over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// Neither the file named nor its twin with or without `.gz` exists.
    #[error("no file {} and none named {}: name an IDX file that this worker can see", file.display(), twin.display())]
    Missing {
        /// As it was named.
        file: PathBuf,
        /// The other name that was tried.
        twin: PathBuf,
    },
    /// The operating system, or the gzip stream, did not give the bytes.
    #[error("cannot read {} at unpacked byte {offset}: {source}", file.display())]
    Read {
        /// The file that was read.
        file: PathBuf,
        /// How many unpacked bytes came before.
        offset: u64,
        /// What the operating system or the unpacking said.
        source: io::Error,
    },
    /// The first four bytes are not those of the IDX file that is wanted here.
    #[error("{} begins at byte 0 with {got:#010x}, expected {expected}: name an IDX file of that kind", file.display())]
    Magic {
        /// The file that was read.
        file: PathBuf,
        /// The number wanted, and its meaning.
        expected: &'static str,
        /// The number that came.
        got: u32,
    },
    /// The header's extents multiply to no record, or to records of no element.
    #[error("{} has no example: its extents at byte 4 are {extents:?}, expected none of them 0", file.display())]
    Empty {
        /// The file that was read.
        file: PathBuf,
        /// The extents in the header.
        extents: Vec<u32>,
    },
    /// The header promises more than a worker is ready to hold.
    #[error(
        "{} promises too much: extents {extents:?} at byte 4, expected at most {max} bytes in all; \
         split the file or correct its header",
        file.display()
    )]
    TooLarge {
        /// The file that was read.
        file: PathBuf,
        /// The extents in the header.
        extents: Vec<u32>,
        /// Most bytes that are unpacked from one file.
        max: u64,
    },
    /// The file ends before the data that its header promises.
    #[error(
        "{} ends too early: expected {expected} bytes from unpacked byte {offset} on, got {got}; fetch the file again",
        file.display()
    )]
    Truncated {
        /// The file that was read.
        file: PathBuf,
        /// Where the part that is not complete begins.
        offset: u64,
        /// How many bytes that part has.
        expected: u64,
        /// How many of them came; for a gzip that is not unpacked because it is too short, how many could come.
        got: u64,
    },
    /// More bytes follow the data that the header promises.
    #[error(
        "{} goes on at unpacked byte {offset}, expected its end there: its header and its data disagree; \
         fetch the file again",
        file.display()
    )]
    Trailing {
        /// The file that was read.
        file: PathBuf,
        /// Where it should have ended.
        offset: u64,
    },
    /// The images and the labels do not belong together.
    #[error(
        "{} counts {image_count} images at byte 4, but {} counts {label_count} labels: name two files of one set",
        images.display(),
        labels.display()
    )]
    CountMismatch {
        /// The file of images.
        images: PathBuf,
        /// How many it has.
        image_count: u64,
        /// The file of labels.
        labels: PathBuf,
        /// How many it has.
        label_count: u64,
    },
    /// The system has no memory left for the data.
    #[error("no memory for {bytes} more bytes of {}: use a smaller data set or a larger host", file.display())]
    Memory {
        /// The file that was read.
        file: PathBuf,
        /// How many were asked for.
        bytes: usize,
    },
    /// A path cannot be moved to another directory, as it does not end in a file's name.
    #[error("{} does not end in a file's name, so the data directory cannot be put before it", path.display())]
    NoFileName {
        /// The path.
        path: PathBuf,
    },
    /// A data set in memory does not fit together.
    #[error(
        "{features} bytes of features and {labels} labels are no data set: expected {elements} bytes per label"
    )]
    Features {
        /// How many feature bytes came.
        features: usize,
        /// How many labels came.
        labels: usize,
        /// How many bytes one example has.
        elements: usize,
    },
    /// A data set of no example, of no element per example, or of more examples than can be counted or held.
    #[error(
        "{examples} examples of {elements} elements each, expected at least 1 of 1 and at most {max} examples"
    )]
    Extent {
        /// How many came.
        examples: u64,
        /// How many elements one example has; 0 where their number does not fit.
        elements: usize,
        /// Most examples of that many elements.
        max: u64,
    },
    /// A label is not the number of a class.
    #[error(
        "example {example} has label {label}, expected 0 to {max}: correct the label or the number of classes"
    )]
    Label {
        /// The example.
        example: usize,
        /// Its label.
        label: i32,
        /// The last class.
        max: i32,
    },
    /// No such worker, or more workers than examples.
    #[error(
        "worker {worker} of {workers} has no share of {examples} examples: \
         expected a worker below {workers} and no more workers than examples"
    )]
    Share {
        /// The worker's index.
        worker: u32,
        /// How many workers there are.
        workers: u32,
        /// How many examples there are.
        examples: u32,
    },
    /// A batch of no example, or of far too many.
    #[error("a batch of {got} examples, expected 1 to {max}: correct the batch size")]
    Batch {
        /// The size asked for.
        got: usize,
        /// The largest.
        max: usize,
    },
    /// A saved position is not one of this sampler's.
    #[error(
        "position {offset} in epoch {epoch} lies outside the share, expected an offset below {len}: \
         it was saved with other data or another number of workers"
    )]
    Position {
        /// The epoch saved.
        epoch: u64,
        /// The offset saved.
        offset: u32,
        /// How many examples an epoch has here.
        len: u32,
    },
    /// The operating system gave no thread.
    #[error("no thread to prepare batches: {source}")]
    Thread {
        /// What it said.
        source: io::Error,
    },
    /// The thread that prepares batches panicked.
    #[error("the thread that prepares batches panicked: {message}; no batch will come any more")]
    Panicked {
        /// What it said.
        message: String,
    },
}
