//! What checkpoints a store holds, and whether they are whole as far as can be seen without reading tensors. Decides
//! nothing. Wanted property: (A) what was committed is found committed until a file of it is lost or changes its length.

use messages::checkpoint::{CheckpointName, FileSpec, MANIFEST_BYTES_MAX, ManifestSpec, Store, StoreError};

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

    /// Reads the manifest, and looks for the files that it names.
    pub async fn look(&self, name: CheckpointName) -> CheckpointState {
        let bytes = match self.store.get(&name.manifest(), MANIFEST_BYTES_MAX).await {
            Ok(bytes) => bytes,
            Err(StoreError::Missing { .. }) => return CheckpointState::Unfinished,
            Err(error @ StoreError::TooLarge { .. }) => return CheckpointState::Broken(error.to_string()),
            Err(error) => return CheckpointState::Unreadable(error.to_string()),
        };
        let manifest = match ManifestSpec::decode(&bytes) {
            Ok(manifest) => manifest,
            Err(error) => return CheckpointState::Broken(format!("{}: {error}", name.manifest())),
        };
        if manifest.step != name.step {
            let reason = format!("{} is of step {}", name.manifest(), manifest.step);
            return CheckpointState::Broken(reason);
        }
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

/// The first file that is not there, or has another length than the manifest says.
pub(super) async fn missing_file<'a>(
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
