//! The errors of a worker's input: each says where it occurred, what was found, what was expected and what
//! to do. This module must not depend on how an error is shown, or on whether the job continues.

use std::io;
use std::path::PathBuf;

use pushpull_messages::input::{ColumnSpec, FilesDigest, InputSpecError};
use pushpull_messages::tensor::TensorSpec;

use crate::{RecordError, TableError};

/// An error in reading, generating, sharding or batching examples.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// The named file does not exist. The file with `.gz` or `.zst` added to its name, or removed from it,
    /// does not exist either.
    #[error(
        "{} and {twins} do not exist, expected one of them: name a file that this host can read",
        file.display()
    )]
    Missing {
        /// The path as the input spec names it.
        file: PathBuf,
        /// The other paths that were tried.
        twins: String,
    },
    /// The operating system or a decoder failed.
    #[error("cannot read {} at unpacked byte {offset}: {source}", file.display())]
    Read {
        /// The file that was read.
        file: PathBuf,
        /// The number of unpacked bytes that were read before the failure.
        offset: u64,
        /// The error of the operating system or the decoder.
        source: io::Error,
    },
    /// The first four bytes are not those of the expected kind of IDX file.
    #[error("{} begins with {got:#010x} at byte 0, expected {expected}: check that the file of images and the file of labels are not swapped", file.display())]
    Magic {
        /// The file that was read.
        file: PathBuf,
        /// What the first four bytes should be, and what they mean.
        expected: &'static str,
        /// The file's first four bytes, as a big-endian number.
        got: u32,
    },
    /// One of the extents in the file's header is 0.
    #[error(
        "{} has no examples: the extents in its header (at byte 4) are {extents:?}, expected only extents above 0; name another file",
        file.display()
    )]
    Empty {
        /// The file that was read.
        file: PathBuf,
        /// The extents in the header.
        extents: Vec<u32>,
    },
    /// The header declares more data than a worker may hold in memory.
    #[error(
        "{} is too large: the extents in its header (at byte 4) are {extents:?}, expected at most {max} bytes in all; \
         split the file or correct its header",
        file.display()
    )]
    TooLarge {
        /// The file that was read.
        file: PathBuf,
        /// The extents in the header.
        extents: Vec<u32>,
        /// The maximum number of bytes that are unpacked from one file.
        max: u64,
    },
    /// The file ends before the end of the data that its header declares.
    #[error(
        "{} ends too early: found {got} bytes at offset {offset} of the unpacked data, expected {expected}; \
         fetch the file again",
        file.display()
    )]
    Truncated {
        /// The file that was read.
        file: PathBuf,
        /// The offset of the incomplete part, in unpacked bytes.
        offset: u64,
        /// The number of bytes that the part should have.
        expected: u64,
        /// The number of bytes found. If the size of a gzip file alone shows that data are missing, this is
        /// the maximum number of bytes that the file could contain.
        got: u64,
    },
    /// More bytes follow the data that the header declares.
    #[error(
        "{} has bytes after unpacked byte {offset}, expected the file to end there: its header and its data disagree; \
         fetch the file again",
        file.display()
    )]
    Trailing {
        /// The file that was read.
        file: PathBuf,
        /// The offset at which the file should end, in unpacked bytes.
        offset: u64,
    },
    /// A record of a file is not a valid example.
    #[error("{}, record {record} at unpacked byte {offset}: {problem}", file.display())]
    Record {
        /// The file that was read.
        file: PathBuf,
        /// The record's index, counted from 0.
        record: u64,
        /// The offset at which the record begins, in unpacked bytes.
        offset: u64,
        /// What is wrong with the record.
        problem: Box<RecordError>,
    },
    /// A row of a text file is not a valid example.
    #[error("{}, line {line}: {problem}", file.display())]
    Row {
        /// The file that was read.
        file: PathBuf,
        /// The line in which the row begins, counted from 1.
        line: u64,
        /// What is wrong with the row.
        problem: Box<RecordError>,
    },
    /// A row of a Parquet or Arrow file is not a valid example.
    #[error("{}, row {row}: {problem}", file.display())]
    TableRow {
        /// The file that was read.
        file: PathBuf,
        /// The row, counted from 0.
        row: u64,
        /// What is wrong with the row.
        problem: Box<RecordError>,
    },
    /// A Parquet or Arrow file cannot be read.
    #[error("{}: {problem}", file.display())]
    Table {
        /// The file that was read.
        file: PathBuf,
        /// What is wrong with the file.
        problem: Box<TableError>,
    },
    /// The program was built without the feature that reads the format.
    #[error("this program cannot read {format} files: build it with `--features columnar`")]
    NotBuilt {
        /// The name of the format.
        format: &'static str,
    },
    /// The file has no record.
    #[error("{} has no examples, expected at least one: name another file", file.display())]
    NoExample {
        /// The file that was read.
        file: PathBuf,
    },
    /// The data set has more examples than a worker may hold in memory.
    #[error(
        "the data set has more than {examples} examples of {bytes} bytes each, expected at most {max} bytes in all: \
         shuffle with a buffer and stream the set, or use fewer files"
    )]
    Held {
        /// The number of examples read so far.
        examples: u64,
        /// The number of bytes of one example.
        bytes: u64,
        /// The maximum number of bytes of all examples together.
        max: u64,
    },
    /// The job demands that the test set is held in memory, but the set is too large for that.
    #[error(
        "the test set has {examples} examples of {bytes} bytes each, expected at most {max} bytes in all: let it be \
         streamed with \"stream\": \"auto\", or use fewer files"
    )]
    TestHeld {
        /// The number of examples.
        examples: u64,
        /// The number of bytes of one example.
        bytes: u64,
        /// The maximum number of bytes of all examples together.
        max: u64,
    },
    /// The function of a custom data set returned an error.
    #[error("the function of the data set failed at example {example}: {reason}")]
    Function {
        /// The index of the example in the set, or in the worker's part of it.
        example: u64,
        /// The error of the function.
        reason: String,
    },
    /// The names or sizes of the training files have changed since the checkpoint was made.
    #[error(
        "the training files are not those of the checkpoint: found {found}, expected {expected}; put the files back, or \
         continue in the new ones with --accept-changed-files or \"accept_changed_files\": true in the job's input"
    )]
    FilesChanged {
        /// The digest of the files that this worker reads now.
        found: FilesDigest,
        /// The digest of this worker's files that is recorded in the checkpoint.
        expected: FilesDigest,
    },
    /// The system has no memory left for the examples.
    #[error(
        "out of memory for column '{column}' of {examples} examples: use a smaller data set or a larger host"
    )]
    NoRoom {
        /// The column that could not be enlarged.
        column: String,
        /// The number of examples that the column would have had.
        examples: u64,
    },
    /// The part of the text that is cut into windows is too short for one window plus the token after it.
    #[error(
        "the part of {text} that is cut into windows has {got} bytes, expected at least {expected}: \
         shorten the windows or read a larger part"
    )]
    ShortText {
        /// The path of the file, or a name for the generated text.
        text: String,
        /// The number of bytes of one window, plus 1 for the token that follows the window.
        expected: u64,
        /// The number of bytes found.
        got: u64,
    },
    /// The input spec is invalid, whatever the files contain.
    #[error(transparent)]
    Spec(#[from] InputSpecError),
    /// The file of images and the file of labels declare different numbers of examples.
    #[error(
        "{} declares {image_count} images, but {} declares {label_count} labels, expected equal counts at byte 4: \
         name two files of the same set",
        images.display(),
        labels.display()
    )]
    CountMismatch {
        /// The file of images.
        images: PathBuf,
        /// The number of images.
        image_count: u64,
        /// The file of labels.
        labels: PathBuf,
        /// The number of labels.
        label_count: u64,
    },
    /// The system has no memory left for a file's data.
    #[error("out of memory for {bytes} more bytes of {}: use a smaller data set or a larger host", file.display())]
    Memory {
        /// The file that was read.
        file: PathBuf,
        /// The number of bytes requested.
        bytes: usize,
    },
    /// A path does not end in a file name, so the file cannot be looked up in the data directory.
    #[error(
        "{} does not end in a file name, so it cannot be looked up in the data directory: name the file",
        path.display()
    )]
    NoFileName {
        /// The path without a file name.
        path: PathBuf,
    },
    /// Two files of a job would have the same path in the data directory.
    #[error(
        "{} and {} would both be {} in the data directory: give the files different names, or do not set a data directory",
        first.display(), second.display(), moved.display()
    )]
    SameFile {
        /// The first file.
        first: PathBuf,
        /// The second file.
        second: PathBuf,
        /// The path that both files would have.
        moved: PathBuf,
    },
    /// A column of a data set differs from its spec, or has the name of another column.
    #[error(
        "column '{name}': found {got}, expected one column of that name, with {expected} for each of {examples} examples: \
         correct the column or its name"
    )]
    Column {
        /// The name of the column.
        name: String,
        /// The expected type and shape of one example.
        expected: TensorSpec,
        /// The number of examples in the data set.
        examples: usize,
        /// What was found: the number and type of the elements, or another column of that name.
        got: String,
    },
    /// The data set has no column.
    #[error("the data set has no columns, expected at least one: name the fields or features to read")]
    NoColumn,
    /// The elements of a column have a type that no example has.
    #[error("the data set has the column {column}, expected elements of f32 or i32: convert the column")]
    ColumnType {
        /// The column.
        column: String,
    },
    /// The test set's columns differ from the training set's.
    #[error(
        "column {position} of the test set is {got}, expected {expected} as in the training set: \
         give both sets the same columns in the same order"
    )]
    TestColumn {
        /// The column's position, counted from 0.
        position: usize,
        /// The training set's column.
        expected: String,
        /// The test set's column.
        got: String,
    },
    /// The data set has no examples, its examples have no elements, or it has more examples than can be
    /// counted or stored.
    #[error(
        "the data set has {examples} examples of {elements} elements each, \
         expected at least 1 element and 1 to {max} examples: correct its size"
    )]
    Extent {
        /// The number of examples.
        examples: u64,
        /// The number of elements of one example; 0 if the number overflows.
        elements: usize,
        /// The maximum number of examples of this size.
        max: u64,
    },
    /// A label is not the number of a class.
    #[error(
        "example {example} has label {label}, expected 0 to {max}: correct the label or the number of classes"
    )]
    Label {
        /// The index of the example.
        example: usize,
        /// The label found.
        label: i32,
        /// The greatest allowed label.
        max: i32,
    },
    /// The worker's index is not below the number of workers, or there are more workers than examples.
    #[error(
        "worker {worker} of {workers} cannot get a share of {examples} examples, \
         expected a worker index below {workers} and at least one example per worker: use fewer workers or more data"
    )]
    Share {
        /// The worker's index.
        worker: u32,
        /// The number of workers.
        workers: u32,
        /// The number of examples.
        examples: u32,
    },
    /// The job shards by file, but has fewer files than workers.
    #[error(
        "{files} files cannot be sharded by file among {workers} workers, \
         expected at least one file per worker: split the files or shard by data"
    )]
    FileShare {
        /// The number of files; 0 if the examples are generated.
        files: usize,
        /// The number of workers.
        workers: u32,
    },
    /// A map stage cannot be applied to its column.
    #[error("a map stage of column '{name}' got {got}, expected {expected}: correct the stage or its column")]
    Stage {
        /// The name of the column.
        name: String,
        /// A description of the columns that the stage accepts.
        expected: String,
        /// The column found.
        got: String,
    },
    /// An integer cannot be one-hot encoded because it is not the number of a class.
    #[error(
        "column '{column}' of example {example} has {id}, expected 0 to {} for one-hot encoding: \
         correct the data or the number of classes",
        classes - 1
    )]
    Class {
        /// The name of the column.
        column: String,
        /// The index of the example.
        example: u64,
        /// The integer found.
        id: i32,
        /// The number of classes; at least 1.
        classes: usize,
    },
    /// Another batch was requested after the input had ended.
    #[error(
        "the input has ended after {epochs} epochs of {examples} examples in batches of {batch}, before the job's \
         last step: repeat the input more often, or lower the last step"
    )]
    Ended {
        /// The number of epochs requested.
        epochs: u64,
        /// The number of examples in this worker's part of the data.
        examples: u32,
        /// The number of examples in a batch.
        batch: usize,
    },
    /// The requested number of examples in a batch is 0 or too large.
    #[error("the batch has {got} examples, expected 1 to {max}: correct the batch size")]
    Batch {
        /// The requested number of examples in a batch.
        got: usize,
        /// The maximum number of examples in a batch.
        max: usize,
    },
    /// The batches that are kept ready would take more memory than a worker may use for them.
    #[error(
        "{batches} batches of {examples} examples would take {bytes} bytes, expected at most {max}: the widest column \
         is {column} (all columns count, even if the model does not read them); use a smaller batch, a lower prefetch or \
         fewer classes"
    )]
    ReadyBytes {
        /// The number of batches that exist at a time.
        batches: usize,
        /// The number of examples in a batch.
        examples: usize,
        /// The number of bytes of all columns of all batches.
        bytes: u64,
        /// The maximum number of bytes of all these batches together.
        max: u64,
        /// The column with the most elements.
        column: ColumnSpec,
    },
    /// A worker's part of the data has more examples than a sampler can shuffle.
    #[error(
        "the worker's part of the data has {examples} examples, expected at most {max}: \
         use more workers, or a larger stride for text data"
    )]
    OrderLength {
        /// The number of examples.
        examples: u32,
        /// The maximum number of examples.
        max: u32,
    },
    /// The system has no memory left for the list that holds the order of the examples.
    #[error(
        "out of memory for the shuffled list of {examples} examples: use more workers, or a larger stride for text data"
    )]
    OrderMemory {
        /// The number of examples.
        examples: u32,
    },
    /// A saved position lies outside this worker's part of the data.
    #[error(
        "position {offset} in epoch {epoch} lies outside the worker's part of the data, expected an offset below {len}: \
         the position was saved with other data or another number of workers; use the same data and number of workers, or start a new job"
    )]
    Position {
        /// The saved epoch.
        epoch: u64,
        /// The saved offset.
        offset: u32,
        /// The number of examples in the worker's part of the data.
        len: u32,
    },
    /// An example does not have the columns of its data set.
    #[error(
        "an example has {got}, expected {expected}: correct the function or the data set that made the example"
    )]
    Example {
        /// The columns expected.
        expected: String,
        /// What was found.
        got: String,
    },
    /// The data set has no end, but its examples must be counted or held.
    #[error(
        "the data set has no end, so it cannot be counted or held in memory: \
         give the number of steps, and shuffle with a buffer or not at all; a test set must have an end"
    )]
    Endless,
    /// A reader of a custom data set appended more examples than it was asked for, or returned a number that
    /// differs from the number of examples appended.
    #[error(
        "a reader was asked for at most {most} examples, appended {appended}, and returned the count {told}: correct the data set"
    )]
    Reader {
        /// The maximum number of examples that the reader was asked for.
        most: usize,
        /// The number of examples that the reader claimed to have appended (its return value).
        told: usize,
        /// The number of examples that the reader did append.
        appended: usize,
    },
    /// A custom data set could not be read.
    #[error("cannot read the data set: {0}")]
    Other(Box<dyn std::error::Error + Send + Sync>),
    /// The job shards by file, but the custom data set cannot be divided into parts.
    #[error(
        "the data set cannot be divided into parts for {workers} workers: use the sharding `data`, or implement Dataset::part"
    )]
    NoParts {
        /// The number of workers.
        workers: u32,
    },
    /// The shuffle buffer would take too much memory.
    #[error(
        "a shuffle buffer of {examples} examples of {bytes} bytes each would take more than {max} bytes: use a smaller buffer"
    )]
    Buffer {
        /// The number of examples in the buffer.
        examples: u32,
        /// The number of bytes of one example in the buffer.
        bytes: u64,
        /// The maximum number of bytes of the buffer.
        max: u64,
    },
    /// The number of examples in a data set changed from one reading of the set to the next.
    #[error(
        "the data set ended after {examples} examples, but had a different number of examples when it was read before: \
         do not change the data while a job reads them"
    )]
    Changed {
        /// The number of examples found.
        examples: u64,
    },
    /// The job reads a data set by a name that this program does not know.
    #[error(
        "the job reads the data set '{name}', but this program has {}: use a program that gives a data set of this \
         name to pushpull::worker_main_with or evaluator_main_with",
        if known.is_empty() { "none of its own" } else { known }
    )]
    Custom {
        /// The name in the job.
        name: String,
        /// The names that the program knows, quoted; empty if there is none.
        known: String,
    },
    /// More records are damaged than the job allows.
    #[error("more than {max} records are damaged; the last one found: {last}; repair the data or allow more")]
    BadRecords {
        /// The number of damaged records allowed.
        max: u64,
        /// The error of the first damaged record beyond this number.
        last: Box<InputError>,
    },
    /// No file matches a pattern of the job.
    #[error("the pattern {} matches no file: {reason}; correct the pattern or the directory", pattern.display())]
    NoMatch {
        /// The pattern.
        pattern: PathBuf,
        /// The reason.
        reason: String,
    },
    /// Too many files match a pattern of the job.
    #[error("the pattern {} matches too many files, expected at most {max}: join files", pattern.display())]
    Matches {
        /// The pattern.
        pattern: PathBuf,
        /// The maximum number of files of a data set.
        max: usize,
    },
    /// The thread that prepares batches could not read the data.
    #[error(transparent)]
    Failed(std::sync::Arc<InputError>),
    /// The operating system could not start a thread.
    #[error("cannot start the thread that prepares batches: {source}")]
    Thread {
        /// The error of the operating system.
        source: io::Error,
    },
    /// The thread that prepares batches panicked.
    #[error("the thread that prepares batches panicked: {message}; there are no more batches")]
    Panicked {
        /// The panic's message.
        message: String,
    },
}
