//! What can be wrong with the input: each error says where, what was expected, what came and what to do.
//! Knows nothing of how an error is shown or whether the job goes on.

use std::io;
use std::path::PathBuf;

use pushpull_messages::input::{ColumnSpec, InputSpecError};
use pushpull_messages::tensor::TensorSpec;

use super::RecordError;

/// Why examples could not be read, drawn, shared out or handed over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// Neither the file named nor its twin with or without `.gz` exists.
    #[error("no file {} and none named {}: name a file that this worker can see", file.display(), twin.display())]
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
    /// A record of a file is no example.
    #[error("{}, record {record} at unpacked byte {offset}: {problem}", file.display())]
    Record {
        /// The file that was read.
        file: PathBuf,
        /// Which record, counted from 0.
        record: u64,
        /// Where it begins.
        offset: u64,
        /// What is wrong with it.
        problem: Box<RecordError>,
    },
    /// A row of a text file is no example.
    #[error("{}, line {line}: {problem}", file.display())]
    Row {
        /// The file that was read.
        file: PathBuf,
        /// The line in which the row begins, counted from 1.
        line: u64,
        /// What is wrong with it.
        problem: Box<RecordError>,
    },
    /// A file without a record.
    #[error("{} has no example, expected at least one: name another file", file.display())]
    NoExample {
        /// The file that was read.
        file: PathBuf,
    },
    /// More examples than a worker is ready to hold.
    #[error(
        "more than {examples} examples of {bytes} bytes each, expected at most {max} bytes in all: \
         use fewer files or more workers"
    )]
    Held {
        /// How many there are so far.
        examples: u64,
        /// Bytes of one.
        bytes: u64,
        /// Most bytes of all.
        max: u64,
    },
    /// The system has no memory left for the examples.
    #[error(
        "no memory for column '{column}' of {examples} examples: use a smaller data set or a larger host"
    )]
    NoRoom {
        /// The column that was to grow.
        column: String,
        /// How many examples there would be.
        examples: u64,
    },
    /// A text that is shorter than one window.
    #[error(
        "the part of {text} that is read has {got} bytes, expected at least {expected}: shorten the windows"
    )]
    ShortText {
        /// The file, or what the text is.
        text: String,
        /// A window and the token that follows it.
        expected: u64,
        /// What there is.
        got: u64,
    },
    /// The input's description cannot be right, whatever the files are.
    #[error(transparent)]
    Spec(#[from] InputSpecError),
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
    /// Two files of a job would become one in another directory.
    #[error(
        "{} and {} would both be {}: give them different names, or leave the data directory out",
        first.display(), second.display(), moved.display()
    )]
    SameFile {
        /// One of them.
        first: PathBuf,
        /// The other.
        second: PathBuf,
        /// What both would be.
        moved: PathBuf,
    },
    /// A column of a data set in memory is not what its spec says.
    #[error(
        "column '{name}' of {examples} examples has {got}, expected {expected} per example and its name once"
    )]
    Column {
        /// The column.
        name: String,
        /// What one example should have.
        expected: TensorSpec,
        /// How many examples there are.
        examples: usize,
        /// What came.
        got: String,
    },
    /// A data set without a column.
    #[error("a data set without a column, expected at least one: name what is to be read")]
    NoColumn,
    /// The test set has other columns than the training set.
    #[error(
        "column {position} of the test set is {got}, expected {expected} as in the training set: \
         both must have the same columns in the same order"
    )]
    TestColumn {
        /// The column, counted from 0.
        position: usize,
        /// The training set's.
        expected: String,
        /// The test set's.
        got: String,
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
    /// A share by file of fewer files than workers.
    #[error(
        "{files} files cannot be shared by file among {workers} workers: \
         expected at least one file each; split the files or shard by data"
    )]
    FileShare {
        /// How many files there are; none where the examples are made on the spot.
        files: usize,
        /// How many workers there are.
        workers: u32,
    },
    /// A map stage does not fit its column.
    #[error("a map stage of column '{name}' expects {expected}, got {got}")]
    Stage {
        /// The column.
        name: String,
        /// What the stage is for.
        expected: String,
        /// What there is.
        got: String,
    },
    /// An integer that becomes one-hot is no class.
    #[error("column '{column}' of example {example} has {id}, expected 0 to {} to make it one-hot", classes - 1)]
    Class {
        /// The column.
        column: String,
        /// The example.
        example: u32,
        /// Its integer.
        id: i32,
        /// How many classes there are; at least 1.
        classes: usize,
    },
    /// The input is at its end, and another batch was asked for.
    #[error(
        "the input has ended after {epochs} epochs of {examples} examples in batches of {batch}, before the job's \
         last step: repeat it more often, or lower the last step"
    )]
    Ended {
        /// How often it was to be read.
        epochs: u64,
        /// How many examples this worker has.
        examples: u32,
        /// Examples of a batch.
        batch: usize,
    },
    /// A batch of no example, or of far too many.
    #[error("a batch of {got} examples, expected 1 to {max}: correct the batch size")]
    Batch {
        /// The size asked for.
        got: usize,
        /// The largest.
        max: usize,
    },
    /// The batches that are kept ready would take more memory than a worker is ready to give.
    #[error(
        "{batches} batches of {examples} examples would take {bytes} bytes, expected at most {max}: the widest column is \
         {column} per example, whether or not the model reads it; use a smaller batch, a lower prefetch or fewer classes"
    )]
    ReadyBytes {
        /// Batches that are held at a time.
        batches: usize,
        /// Examples of one of them.
        examples: usize,
        /// Bytes of all columns of all of them.
        bytes: u64,
        /// Most bytes.
        max: u64,
        /// The column with the most elements.
        column: ColumnSpec,
    },
    /// More examples for one worker than it can put in order.
    #[error(
        "{examples} examples for one worker, expected at most {max}: use more workers, or of a text a larger stride"
    )]
    OrderLength {
        /// How many there are.
        examples: u32,
        /// The most.
        max: u32,
    },
    /// The system has no memory left for the order of the examples.
    #[error("no memory for the order of {examples} examples: use more workers, or of a text a larger stride")]
    OrderMemory {
        /// How many there are.
        examples: u32,
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
