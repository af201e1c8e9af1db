//! The damaged records that a job may skip. This module must not depend on a format.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Mutex;

use super::SkippedRecords;
use crate::InputError;

/// The damaged records that were skipped so far, and the number of records that may be skipped in all. A
/// record that is read again, for example in the next epoch, is counted only once.
#[derive(Debug, Default)]
pub(crate) struct BadRecords {
    max: u64,
    skipped: SkippedRecords,
    found: Mutex<BTreeSet<(PathBuf, u64)>>,
}

impl BadRecords {
    /// Allows at most `max` damaged records to be skipped. Also counts the skipped records in `skipped`.
    pub(crate) fn allowing(max: u64, skipped: SkippedRecords) -> Self {
        Self { max, skipped, found: Mutex::default() }
    }

    /// Returns true if no damaged record may be skipped.
    pub(crate) fn none(&self) -> bool {
        self.max == 0
    }

    /// Counts and logs the damaged record that `error` describes, unless it has been counted before. `place`
    /// is a number that identifies the record within its file.
    ///
    /// # Errors
    /// Returns `error` itself if no damaged record may be skipped, or if the error does not concern a single
    /// record; [`InputError::BadRecords`] if the allowed number of records has already been skipped.
    pub(crate) fn skip(&self, place: u64, error: InputError) -> Result<(), InputError> {
        let place = match &error {
            InputError::Record { file, .. }
            | InputError::Row { file, .. }
            | InputError::TableRow { file, .. } => (file.clone(), place),
            _ => return Err(error),
        };
        if self.none() {
            return Err(error);
        }
        let mut found = self.found.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if found.contains(&place) {
            return Ok(());
        }
        if found.len() as u64 >= self.max {
            return Err(InputError::BadRecords { max: self.max, last: Box::new(error) });
        }
        found.insert(place);
        self.skipped.add();
        tracing::warn!(skipped = found.len(), max = self.max, "skipped a damaged record: {error}");
        Ok(())
    }
}
