//! Opens Parquet and Arrow files, if the program was built with the feature `columnar`. This module must not
//! depend on how the files are read.

use std::sync::Arc;

use pushpull_messages::input::TableSpec;

use crate::InputError;
use crate::dataset::Dataset;
use crate::files::BadRecords;
use crate::formats::table_kind::TableKind;

/// Opens the data set of `table`, whose file name patterns are already expanded. `cycle` is the number of
/// files that are read at a time.
///
/// # Errors
/// [`InputError::NoColumn`] if `table` lists no file.
#[cfg(feature = "columnar")]
pub(crate) fn tables(
    table: &TableSpec,
    kind: TableKind,
    bad: BadRecords,
    cycle: u32,
) -> Result<Arc<dyn Dataset>, InputError> {
    let format = crate::formats::columnar::TableFormat::new(table, kind, bad);
    Ok(Arc::new(crate::files::dataset(format, &table.files, cycle)?))
}

/// Refuses the data set, because this program cannot read it.
///
/// # Errors
/// Always [`InputError::NotBuilt`].
#[cfg(not(feature = "columnar"))]
pub(crate) fn tables(
    _: &TableSpec,
    kind: TableKind,
    _: BadRecords,
    _: u32,
) -> Result<Arc<dyn Dataset>, InputError> {
    Err(InputError::NotBuilt { format: kind.name() })
}
