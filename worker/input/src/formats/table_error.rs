//! The errors that concern a Parquet or Arrow file as a whole. This module must not depend on the code that
//! reads the file, or on the crates that decode it.

use pushpull_messages::input::FieldSpec;

/// The reason why a Parquet or Arrow file cannot be read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The file does not begin or end as the format demands.
    #[error("the file is no {format} file: {found}; correct the format in the spec, or fetch the file again")]
    Format {
        /// The name of the format.
        format: &'static str,
        /// What was found.
        found: String,
    },
    /// A Parquet file is packed as a whole.
    #[error(
        "the file is packed with {packing}, but Parquet is read from the end of the file: unpack it; its pages can be \
         compressed instead"
    )]
    Packed {
        /// How the file is packed.
        packing: &'static str,
    },
    /// The pages of a Parquet file are compressed with a codec whose output cannot be kept below a limit.
    #[error(
        "the pages are compressed with {codec}, expected Snappy, zstd or LZ4_RAW, or no compression: write the file \
         again with one of these"
    )]
    Codec {
        /// How the pages are compressed.
        codec: &'static str,
    },
    /// Reading a part of the file failed in the operating system, in a store or during unpacking.
    #[error("cannot read {part}: {reason}")]
    Read {
        /// The part of the file that was read.
        part: &'static str,
        /// The error that the operating system, the store or the unpacker returned.
        reason: String,
    },
    /// The bytes cannot be decoded.
    #[error("cannot decode {part}: {reason}; fetch the file again, or write it in another way")]
    Decode {
        /// The part of the file that was decoded.
        part: &'static str,
        /// The error of the decoder.
        reason: String,
    },
    /// A part of the file is larger than its limit.
    #[error("{part} has {bytes} bytes, expected at most {max}: write fewer rows into each group")]
    TooLarge {
        /// The name of the part.
        part: &'static str,
        /// The number of bytes that the file declares.
        bytes: u64,
        /// The maximum number of bytes.
        max: u64,
    },
    /// The file lacks a field that the spec names.
    #[error("the file has no {field}, only {there}: correct the name or the file")]
    NoField {
        /// The missing field.
        field: FieldSpec,
        /// The names of the fields found.
        there: String,
    },
    /// A field has a type from which the column cannot be made.
    #[error("{field} has the type {got}, expected {expected}: correct the kind in the spec, or the file")]
    Type {
        /// The field.
        field: FieldSpec,
        /// A description of the types that are accepted.
        expected: String,
        /// The type found.
        got: String,
    },
    /// An Arrow file or stream ends after a message, without an end mark.
    #[error(
        "the file ends without an end mark, so messages may be missing: fetch it again, or close the writer when all \
         is written"
    )]
    NoEndMark,
    /// The file ends too early.
    #[error("the file ends inside {part}: fetch it again")]
    Truncated {
        /// The name of the incomplete part.
        part: &'static str,
    },
}
