//! What the function of a data set returns. This module must not depend on what the function does.

use std::error::Error;

use pushpull_messages::input::Column;

use crate::InputError;

/// What the function of [`Dataset::map`](super::Dataset::map) or [`from_fn`](super::from_fn) returns: a value
/// for each column or, if the function may fail, a `Result`. The first error ends the job.
pub trait IntoExample {
    /// Returns the values, or the reason why there are none.
    ///
    /// # Errors
    /// The error of the function.
    fn into_example(self) -> Result<Vec<Column>, Box<dyn Error + Send + Sync>>;
}

impl IntoExample for Vec<Column> {
    fn into_example(self) -> Result<Self, Box<dyn Error + Send + Sync>> {
        Ok(self)
    }
}

impl<E: Into<Box<dyn Error + Send + Sync>>> IntoExample for Result<Vec<Column>, E> {
    fn into_example(self) -> Result<Vec<Column>, Box<dyn Error + Send + Sync>> {
        self.map_err(Into::into)
    }
}

/// Returns the values that a function has returned for the example at `index`.
pub(super) fn example(index: u64, returned: impl IntoExample) -> Result<Vec<Column>, InputError> {
    returned.into_example().map_err(|error| {
        // The error must be a single line.
        let reason = error.to_string().lines().collect::<Vec<_>>().join("; ");
        InputError::Function { example: index, reason }
    })
}
