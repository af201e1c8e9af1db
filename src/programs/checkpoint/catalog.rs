//! Which checkpoints a store holds, as far as manifests and sizes say. Reads no tensor.

use pushpull_messages::checkpoint::CheckpointName;
use pushpull_storage::{Catalog, CheckpointState, StoreError};

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

/// All checkpoints, the newest last: as the chief has it, which goes on from what was saved last, whatever the step.
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
                // It has just been deleted.
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
            // In a table the checkpoint is named already.
            let reason = reason.strip_prefix(&format!("{name}/")).unwrap_or(&reason).to_owned();
            (None, State::Broken(reason))
        }
    };
    Ok(Entry { name, saved_ms, bytes, files, state })
}
