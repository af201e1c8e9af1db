//! The data sets of a program, which jobs refer to by name. This module must not depend on jobs.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::InputError;
use crate::dataset::Dataset;

/// The data sets of a program, by their names. A job whose input says `{"custom": "name"}` reads the data
/// set of this name.
#[derive(Clone, Default)]
pub struct Datasets {
    sets: BTreeMap<String, Arc<dyn Dataset>>,
}

impl Datasets {
    /// Adds a data set. A data set of the same name is replaced.
    pub fn insert(&mut self, name: &str, set: Arc<dyn Dataset>) {
        self.sets.insert(name.to_owned(), set);
    }

    /// Returns the data set called `name`.
    ///
    /// # Errors
    /// [`InputError::Custom`] if there is none.
    pub fn get(&self, name: &str) -> Result<Arc<dyn Dataset>, InputError> {
        let known = || self.sets.keys().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
        self.sets
            .get(name)
            .cloned()
            .ok_or_else(|| InputError::Custom { name: name.to_owned(), known: known() })
    }
}

/// Shows only the names of the data sets.
impl std::fmt::Debug for Datasets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.sets.keys()).finish()
    }
}
