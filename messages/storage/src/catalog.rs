//! What checkpoints a store holds, and whether they are whole as far as can be seen without reading tensors. Decides
//! nothing. Wanted property: (A) what was committed is found committed until a file of it is lost or changes its length.

use super::file::FileError;
use pushpull_messages::checkpoint::{CheckpointName, FileSpec};

use super::manifest::{MANIFEST_BYTES_MAX, ManifestError, ManifestSpec};
use super::store::{Store, StoreError};

/// What a folder that is called like a checkpoint holds.
#[derive(Clone, Debug, PartialEq)]
pub enum CheckpointState {
    /// A manifest, and all files with the lengths that it names.
    Committed(Box<ManifestSpec>),
    /// A manifest that cannot be used, or that names what is not there.
    Broken(String),
    /// No manifest: it is being written, or its save broke.
    Unfinished,
    /// The store could not say now.
    Unreadable(String),
}

/// The checkpoints of a store.
#[derive(Clone, Debug)]
pub struct Catalog {
    store: Store,
}

/// The newest first: a chief that was started later has written later, whatever the step.
pub fn newest_first(names: &mut [CheckpointName]) {
    names.sort_unstable_by_key(|name| std::cmp::Reverse((name.life, name.step)));
}

impl Catalog {
    /// Of that store.
    pub const fn new(store: Store) -> Self {
        Self { store }
    }

    /// Where it looks.
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// Every folder that is called like a checkpoint, the newest first.
    ///
    /// # Errors
    /// Where the store cannot be listed.
    pub async fn names(&self) -> Result<Vec<CheckpointName>, StoreError> {
        let folders = self.store.folders().await?;
        let mut names: Vec<_> = folders.iter().filter_map(|folder| folder.parse().ok()).collect();
        newest_first(&mut names);
        Ok(names)
    }

    /// A checkpoint's manifest.
    ///
    /// # Errors
    /// Where it is missing, cannot be read or used, or is that of another step.
    pub async fn manifest(&self, name: CheckpointName) -> Result<ManifestSpec, FileError> {
        let bytes = self.store.get(&name.manifest(), MANIFEST_BYTES_MAX).await?;
        let wrong = |error| FileError::Manifest { file: name.manifest(), error };
        let manifest = ManifestSpec::decode(&bytes).map_err(wrong)?;
        if manifest.step != name.step {
            let reason = format!("it is of step {}, and lies in another folder", manifest.step);
            return Err(wrong(ManifestError::Invalid(reason)));
        }
        Ok(manifest)
    }

    /// Whether it has a manifest: not whether that can be used.
    ///
    /// # Errors
    /// Where the store cannot say.
    pub async fn is_committed(&self, name: CheckpointName) -> Result<bool, StoreError> {
        match self.store.size(&name.manifest()).await {
            Ok(_) => Ok(true),
            Err(StoreError::Missing { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads the manifest, and looks for the files that it names.
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

    /// All of them, the newest first.
    ///
    /// # Errors
    /// Where the store cannot be listed.
    pub async fn list(&self) -> Result<Vec<(CheckpointName, CheckpointState)>, StoreError> {
        let mut list = Vec::new();
        for name in self.names().await? {
            list.push((name, self.look(name).await));
        }
        Ok(list)
    }
}

/// The first file that is not there, or has another length than the manifest says, and that in words.
///
/// # Errors
/// Where the store cannot say.
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
                let reason = format!("{path} has {bytes} bytes, and should have {}", file.bytes);
                return Ok(Some((file, reason)));
            }
            Err(error @ StoreError::Missing { .. }) => return Ok(Some((file, error.to_string()))),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
