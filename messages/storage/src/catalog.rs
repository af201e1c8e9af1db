//! The catalog of a store: lists the checkpoints and reports whether each is complete. It checks the
//! manifest and the lengths of the files, and reads no tensors. The caller decides what to do about a
//! damaged checkpoint.
//!
//! Property: (A) a committed checkpoint is reported as committed until one of its files is lost or changes
//! its length.

use super::file::FileError;
use pushpull_messages::checkpoint::{CheckpointName, FileSpec};
use pushpull_messages::id::Incarnation;

use super::manifest::{MANIFEST_BYTES_MAX, ManifestError, ManifestSpec};
use super::store::{Store, StoreError};

/// The state of a checkpoint's folder.
#[derive(Clone, Debug, PartialEq)]
pub enum CheckpointState {
    /// The checkpoint has a manifest, and every file in the manifest exists with the listed length.
    Committed(Box<ManifestSpec>),
    /// The manifest is invalid, or a file that it lists is missing or has a different length; the field is
    /// the reason.
    Broken(String),
    /// The checkpoint has no manifest: it is still being written, or its save failed.
    Unfinished,
    /// The store could not be read; the field is the reason.
    Unreadable(String),
}

/// The catalog of a store's checkpoints.
#[derive(Clone, Debug)]
pub struct Catalog {
    store: Store,
}

/// Sorts names from the newest to the oldest. If two checkpoints were saved by different chiefs, the
/// checkpoint of the chief that was started later counts as newer, even if its step is smaller.
pub fn newest_first(names: &mut [CheckpointName]) {
    names.sort_unstable_by_key(|name| std::cmp::Reverse((name.life, name.step)));
}

impl Catalog {
    /// Returns a catalog of the checkpoints in a store.
    pub const fn new(store: Store) -> Self {
        Self { store }
    }

    /// Returns the store that the catalog reads.
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the names of all checkpoints' folders, the newest first.
    ///
    /// # Errors
    /// If the store cannot be listed.
    pub async fn names(&self) -> Result<Vec<CheckpointName>, StoreError> {
        let folders = self.store.folders().await?;
        let mut names: Vec<_> = folders.iter().filter_map(|folder| folder.parse().ok()).collect();
        newest_first(&mut names);
        Ok(names)
    }

    /// Returns the incarnation with which to name new checkpoints, so that they count as the newest. This is
    /// `own` or, if it is greater, a number above the greatest incarnation in the store, as
    /// [`life_after`](Self::life_after) computes it. `own` may be too small, because a clock may be wrong.
    /// `nonce` is a random number: it keeps two tasks that find the same checkpoints from getting the same
    /// incarnation.
    ///
    /// # Errors
    /// If the store cannot be listed.
    pub async fn next_life(&self, own: Incarnation, nonce: u64) -> Result<Incarnation, StoreError> {
        let newest = self.newest_life().await?;
        Ok(newest.map(|newest| Self::life_after(newest, nonce)).unwrap_or_default().max(own))
    }

    /// Returns the greatest incarnation in the names of the checkpoints; `None` if there are none.
    ///
    /// # Errors
    /// If the store cannot be listed.
    pub async fn newest_life(&self) -> Result<Option<Incarnation>, StoreError> {
        Ok(self.names().await?.first().map(|name| name.life))
    }

    /// Returns an incarnation greater than `life`, with which to name checkpoints. `nonce` decides how much
    /// greater.
    pub fn life_after(life: Incarnation, nonce: u64) -> Incarnation {
        // At most 2^32, which is little compared with the range of the numbers.
        let distance = 1 + (nonce >> 32);
        // The greatest number is not allowed in a name.
        Incarnation(life.0.saturating_add(distance).min(u64::MAX - 1))
    }

    /// Reads a checkpoint's manifest.
    ///
    /// # Errors
    /// If the manifest is missing, cannot be read, is invalid, or has a step that differs from the step in
    /// the checkpoint's name.
    pub async fn manifest(&self, name: CheckpointName) -> Result<ManifestSpec, FileError> {
        let bytes = self.store.get(&name.manifest(), MANIFEST_BYTES_MAX).await?;
        let wrong = |error| FileError::Manifest { file: name.manifest(), error };
        let manifest = ManifestSpec::decode(&bytes).map_err(wrong)?;
        if manifest.step != name.step {
            let reason = format!("it has step {}, but lies in the folder of another step", manifest.step);
            return Err(wrong(ManifestError::Invalid(reason)));
        }
        Ok(manifest)
    }

    /// Returns true if the checkpoint has a manifest, even an invalid one.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn is_committed(&self, name: CheckpointName) -> Result<bool, StoreError> {
        match self.store.size(&name.manifest()).await {
            Ok(_) => Ok(true),
            Err(StoreError::Missing { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the state of a checkpoint: reads its manifest, and checks that the files that the manifest
    /// lists exist and have the listed lengths.
    pub async fn look(&self, name: CheckpointName) -> CheckpointState {
        let manifest = match self.manifest(name).await {
            Ok(manifest) => manifest,
            Err(FileError::Store(StoreError::Missing { .. })) => return CheckpointState::Unfinished,
            Err(FileError::Store(error @ (StoreError::Failed { .. } | StoreError::Directory { .. }))) => {
                return CheckpointState::Unreadable(error.to_string());
            }
            Err(error) => return CheckpointState::Broken(error.to_string()),
        };
        match missing_file(&self.store, name, &manifest).await {
            Ok(None) => CheckpointState::Committed(Box::new(manifest)),
            Ok(Some((_, reason))) => CheckpointState::Broken(reason),
            Err(error) => CheckpointState::Unreadable(error.to_string()),
        }
    }

    /// Returns all checkpoints and their states, the newest first.
    ///
    /// # Errors
    /// If the store cannot be listed.
    pub async fn list(&self) -> Result<Vec<(CheckpointName, CheckpointState)>, StoreError> {
        let mut list = Vec::new();
        for name in self.names().await? {
            list.push((name, self.look(name).await));
        }
        Ok(list)
    }
}

/// Checks that the files in the manifest exist and have the listed lengths. Returns the first file that is
/// missing or has another length, with the reason.
///
/// # Errors
/// If the store cannot be read.
pub async fn missing_file<'a>(
    store: &Store,
    name: CheckpointName,
    manifest: &'a ManifestSpec,
) -> Result<Option<(&'a FileSpec, String)>, StoreError> {
    for file in &manifest.files {
        let path = name.file(&file.name);
        match store.size(&path).await {
            Ok(bytes) if bytes == file.bytes => {}
            Ok(bytes) => {
                let reason = format!("{path} has {bytes} bytes, expected {}", file.bytes);
                return Ok(Some((file, reason)));
            }
            Err(error @ StoreError::Missing { .. }) => return Ok(Some((file, error.to_string()))),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
