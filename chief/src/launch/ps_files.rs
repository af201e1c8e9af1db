//! The files in the memory of the ps tasks, as the chief reaches them. Does not know what the files contain.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use pushpull_messages::id::TaskId;
use pushpull_messages::message::{FileAccess, FilesResult};
use pushpull_storage::{FileCallError, FileTasks, MemoryFiles};
use pushpull_transport::ReconnectingClient;

/// The clients of the ps tasks that the chief has reached. They are not kept alive here, because a client
/// keeps its connection open.
#[derive(Clone, Debug, Default)]
pub(crate) struct PsFiles(Arc<Mutex<BTreeMap<TaskId, Weak<ReconnectingClient>>>>);

impl PsFiles {
    /// Sets the client of a task.
    pub(super) fn reach(&self, task: TaskId, client: &Arc<ReconnectingClient>) {
        self.0.lock().insert(task, Arc::downgrade(client));
    }

    /// Forgets a task whose files are lost.
    pub(super) fn forget(&self, task: TaskId) {
        self.0.lock().remove(&task);
    }

    fn client(&self, task: TaskId) -> Option<Arc<ReconnectingClient>> {
        self.0.lock().get(&task).and_then(Weak::upgrade)
    }
}

/// Returns the index of the ps task that wrote a file, from the file's name, such as
/// `ps-1-shard-0.safetensors`.
fn writer(name: &str) -> Option<u32> {
    let file = name.rsplit('/').next()?;
    file.strip_prefix("ps-")?.split_once('-')?.0.parse().ok()
}

impl FileTasks for PsFiles {
    fn tasks(&self, name: &str) -> Vec<TaskId> {
        let mut tasks: Vec<_> = self.0.lock().keys().copied().collect();
        if let Some(first) = writer(name).and_then(|ps| tasks.iter().position(|task| task.index == ps)) {
            tasks.rotate_left(first);
        }
        tasks
    }

    fn own(&self) -> Option<(TaskId, &Mutex<MemoryFiles>)> {
        None
    }

    fn call(
        &self,
        task: TaskId,
        access: FileAccess,
        piece: Bytes,
    ) -> BoxFuture<'_, Result<(FilesResult, Bytes), FileCallError>> {
        async move {
            let failed = |reason: String| FileCallError { task, reason };
            let client = self.client(task).ok_or_else(|| failed("the chief has left it".to_owned()))?;
            let called = client.access_files(access, &piece).await;
            called.map(|(result, found)| (result, found.into())).map_err(|error| failed(error.to_string()))
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_looked_for_where_it_was_written() {
        let files = PsFiles::default();
        (0..3).for_each(|ps| drop(files.0.lock().insert(TaskId::ps(ps), Weak::new())));
        let order = |name| files.tasks(name).into_iter().map(|task| task.index).collect::<Vec<_>>();
        assert_eq!(order("step-5-00/ps-1-shard-0.safetensors"), [1, 2, 0]);
        for other in ["step-5-00/manifest.json", "step-5-00/ps-9-shard-0.safetensors", "", "ps-"] {
            assert_eq!(order(other), [0, 1, 2], "{other}");
        }
    }
}
