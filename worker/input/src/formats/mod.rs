//! The formats of files, one module each. A module reads one format and must not depend on the others, on
//! sharding or on the order of examples.

mod cifar10;
#[cfg(feature = "columnar")]
pub(crate) mod columnar;
mod csv;
mod idx;
mod record_error;
mod table_error;
mod table_kind;
mod tables;
mod tf_record;
pub(crate) mod windows;

pub(crate) use cifar10::Cifar10Format;
pub(crate) use csv::CsvFormat;
pub use idx::IdxFile;
pub(crate) use idx::IdxImages;
pub use record_error::RecordError;
pub use table_error::TableError;
pub(crate) use table_kind::TableKind;
pub(crate) use tables::tables;
pub(crate) use tf_record::TfRecordFormat;
pub use tf_record::{Example, TfRecordWriter};
