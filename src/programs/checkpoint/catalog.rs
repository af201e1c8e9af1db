//! The checkpoints of a store, judged by their manifests and the sizes of their files. Reads no tensor.

use pushpull_messages::checkpoint::CheckpointName;
use pushpull_storage::{Catalog, CheckpointState, StoreError};

/// A folder with the name of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub name: CheckpointName,
    /// The time at which the checkpoint was committed, in milliseconds since 1970; `None` unless it is whole.
    pub saved_ms: Option<u64>,
    /// The bytes of all shard files that exist.
    pub bytes: u64,
    /// The number of shard files that exist.
    pub files: usize,
    pub state: State,
}

/// The state of a checkpoint, as far as it can be seen without reading a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The manifest is valid, and every file exists with the right size.
    Whole,
    /// The manifest or a file is damaged, for this reason.
    Broken(String),
    /// There is no manifest: the checkpoint is being written, or was never finished.
    Unfinished,
}

/// Returns all checkpoints in the order in which they were saved, the newest last. The chief resumes in this
/// order, not in the order of steps.
pub(crate) async fn listed(catalog: &Catalog) -> Result<Vec<Entry>, StoreError> {
    let mut entries = Vec::new();
    for name in catalog.names().await?.into_iter().rev() {
        entries.push(entry(catalog, name).await?);
    }
    Ok(entries)
}

async fn entry(catalog: &Catalog, name: CheckpointName) -> Result<Entry, StoreError> {
    let store = catalog.store();
    let (mut bytes, mut files) = (0u64, 0);
    for file in store.files(&name.to_string()).await? {
        if file.ends_with(".safetensors") {
            match store.size(&name.file(&file)).await {
                Ok(size) => bytes = bytes.saturating_add(size),
                // The file was deleted after it was listed.
                Err(StoreError::Missing { .. }) => continue,
                Err(error) => return Err(error),
            }
            files += 1;
        }
    }
    let (saved_ms, state) = match catalog.look(name).await {
        CheckpointState::Committed(manifest) => (Some(manifest.saved_ms), State::Whole),
        CheckpointState::Unfinished => (None, State::Unfinished),
        CheckpointState::Broken(reason) | CheckpointState::Unreadable(reason) => {
            // The table names the checkpoint in a column of its own.
            let reason = reason.strip_prefix(&format!("{name}/")).unwrap_or(&reason).to_owned();
            (None, State::Broken(reason))
        }
    };
    Ok(Entry { name, saved_ms, bytes, files, state })
}
