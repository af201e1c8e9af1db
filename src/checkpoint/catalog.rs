//! Which checkpoints a store holds, as far as manifests and sizes say. Reads no tensor.

use anyhow::{Context, anyhow};
use chief::checkpoint::newest_first;
use messages::checkpoint::{CheckpointName, MANIFEST_BYTES_MAX, ManifestSpec, Store, StoreError};

/// A folder that is called as a checkpoint is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub name: CheckpointName,
    /// When it was committed, in milliseconds since 1970.
    pub saved_ms: Option<u64>,
    /// Of all files of shards that are there.
    pub bytes: u64,
    /// How many these are.
    pub files: usize,
    pub state: State,
}

/// What can be said without reading a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Its manifest is sound, and every file is there with its size.
    Whole,
    /// For this reason.
    Broken(String),
    /// It has no manifest: it is being written, or was never finished.
    Unfinished,
}

/// All checkpoints, in the order of their names.
pub(crate) async fn catalog(store: &Store) -> Result<Vec<Entry>, StoreError> {
    let mut entries = Vec::new();
    for name in names(store).await? {
        entries.push(entry(store, name).await?);
    }
    Ok(entries)
}

/// The names of all folders that are called as checkpoints are, the newest last: as the chief has it, which goes on from
/// what was saved last, whatever the step.
pub(super) async fn names(store: &Store) -> Result<Vec<CheckpointName>, StoreError> {
    let folders = store.folders().await?;
    let mut names: Vec<CheckpointName> = folders.iter().filter_map(|folder| folder.parse().ok()).collect();
    newest_first(&mut names);
    names.reverse();
    Ok(names)
}

/// Reads the manifest of a checkpoint.
///
/// # Errors
/// Where it is missing, broken, of another format, or that of another checkpoint.
pub(crate) async fn read_manifest(store: &Store, name: CheckpointName) -> anyhow::Result<ManifestSpec> {
    let bytes = store.get(&name.manifest(), MANIFEST_BYTES_MAX).await?;
    let manifest = ManifestSpec::decode(&bytes).with_context(|| name.to_string())?;
    if manifest.step != name.step {
        return Err(anyhow!("{name}: the manifest is of step {}, and lies in another folder", manifest.step));
    }
    Ok(manifest)
}

async fn entry(store: &Store, name: CheckpointName) -> Result<Entry, StoreError> {
    let (mut bytes, mut files) = (0u64, 0);
    for file in store.files(&name.to_string()).await? {
        if file.ends_with(".safetensors") {
            match store.size(&name.file(&file)).await {
                Ok(size) => bytes = bytes.saturating_add(size),
                // It has just been deleted.
                Err(StoreError::Missing { .. }) => continue,
                Err(error) => return Err(error),
            }
            files += 1;
        }
    }
    match store.size(&name.manifest()).await {
        Ok(_) => {}
        Err(StoreError::Missing { .. }) => {
            return Ok(Entry { name, saved_ms: None, bytes, files, state: State::Unfinished });
        }
        Err(error) => return Err(error),
    }
    let (saved_ms, state) = match read_manifest(store, name).await {
        // In a table the checkpoint is named already.
        Err(error) => (None, State::Broken(error.root_cause().to_string())),
        Ok(manifest) => (Some(manifest.saved_ms), by_sizes(store, name, &manifest).await),
    };
    Ok(Entry { name, saved_ms, bytes, files, state })
}

async fn by_sizes(store: &Store, name: CheckpointName, manifest: &ManifestSpec) -> State {
    for file in &manifest.files {
        match store.size(&name.file(&file.name)).await {
            Ok(size) if size == file.bytes => {}
            Ok(size) => {
                let (name, bytes) = (&file.name, file.bytes);
                return State::Broken(format!("{name} has {size} bytes, and should have {bytes}"));
            }
            Err(StoreError::Missing { .. }) => return State::Broken(format!("{} is missing", file.name)),
            Err(error) => return State::Broken(error.to_string()),
        }
    }
    State::Whole
}
