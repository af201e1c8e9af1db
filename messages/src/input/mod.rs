//! The spec of the workers' input: data sets, the order in which they are read, and map stages. The crate
//! `pushpull-input` reads the data.

mod column;
mod columnar;
mod csv;
mod dataset;
mod error;
mod files_digest;
mod map;
mod order;
mod spec;
#[cfg(test)]
pub(crate) mod tests;
mod tf_record;
mod windows;

pub use column::{Column, ColumnSpec};
pub use columnar::{ListKind, ListSpec, TableColumnSpec, TableFieldsSpec, TableSpec};
pub use csv::{CategorySpec, CsvColumnSpec, CsvFieldsSpec, CsvSpec, FieldSpec, NumberSpec, VocabularySpec};
pub use dataset::{DatasetSpec, FILES_MAX};
pub use error::InputSpecError;
pub use files_digest::FilesDigest;
pub use map::{MapSpec, StageSpec};
pub use order::{RepeatSpec, ShardSpec, ShuffleSpec, StreamSpec};
pub use spec::{INTERLEAVE_MAX, InputSpec, PREFETCH, PREFETCH_MAX, SKIPPED_RECORDS_MAX};
pub use tf_record::{FeatureKind, FeatureSpec, TfRecordSpec};
pub use windows::{BabbleSpec, TextSpec, WindowsSpec};

/// The maximum number of columns in a data set. The same limit applies to the fields of one CSV, Parquet or
/// Arrow column, the features of a record, the weights of [`DatasetSpec::Linear`], the map stages, and the
/// means of [`StageSpec::Standardise`].
pub const COLUMNS_MAX: usize = 1 << 16;
/// The maximum number of bytes in the name of a column, a field or a feature.
pub const NAME_BYTES_MAX: usize = 256;
/// The maximum number of elements in one example of a column.
pub const EXAMPLE_ELEMENTS_MAX: usize = 1 << 28;
