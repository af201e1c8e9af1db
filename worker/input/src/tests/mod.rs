//! Fixtures for the tests of the readers.

pub(crate) mod damaged;

use pushpull_messages::input::{DatasetSpec, MapSpec};

use crate::{Datasets, Description, InputError, Reading};

/// Describes a data set whose files are read one after the other, without skipping damaged records.
pub(crate) fn describe(spec: &DatasetSpec, map: &[MapSpec]) -> Result<Description, InputError> {
    crate::describe(spec, map, &Reading::plain(&Datasets::default()))
}
