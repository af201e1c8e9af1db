//! The formats of files that hold tables of named fields: Parquet and Arrow. This module must not depend on
//! how the files are read.

/// A format of files that hold tables of named fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableKind {
    Parquet,
    Arrow,
}

impl TableKind {
    /// Returns the name of the format.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Parquet => "Parquet",
            Self::Arrow => "Arrow",
        }
    }
}
