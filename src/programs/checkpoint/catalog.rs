//! Lists the checkpoints of a store with their states. The states follow from the manifests and the file
//! sizes alone; no tensor is read.

use pushpull_messages::checkpoint::CheckpointName;
use pushpull_storage::{Catalog, CheckpointState, StoreError};

/// A folder that has the name of a checkpoint, and the state of its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub name: CheckpointName,
    /// The time at which the checkpoint was committed, in milliseconds since 1970. It is `None` if the
    /// checkpoint is broken or unfinished.
    pub saved_ms: Option<u64>,
    /// The total size of the shard files that exist, in bytes.
    pub bytes: u64,
    /// The number of shard files that exist.
    pub files: usize,
    pub state: State,
}

/// The state of a checkpoint, as far as it can be judged without reading tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The manifest is valid, and every file exists with the right size.
    Whole,
    /// The manifest or a file is damaged or cannot be read; the text gives the reason.
    Broken(String),
    /// There is no manifest: the checkpoint is being written, or was never finished.
    Unfinished,
}

/// Returns all checkpoints in the order in which they were saved, the newest last. The chief also uses this
/// order, and not the order of steps, to choose the checkpoint to resume from.
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
            // The table has a column with the name of the checkpoint, so the reason need not repeat it.
            let reason = reason.strip_prefix(&format!("{name}/")).unwrap_or(&reason).to_owned();
            (None, State::Broken(reason))
        }
    };
    Ok(Entry { name, saved_ms, bytes, files, state })
}
