//! Fixtures for the tests of the readers.

pub(crate) mod damaged;

use pushpull_messages::input::{DatasetSpec, MapSpec};

use crate::{Datasets, Description, InputError, Reading};

/// Describes a data set that is read file by file and has no damaged record.
pub(crate) fn describe(spec: &DatasetSpec, map: &[MapSpec]) -> Result<Description, InputError> {
    crate::describe(spec, map, &Reading::plain(&Datasets::default()))
}
