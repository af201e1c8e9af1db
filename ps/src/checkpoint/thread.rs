//! The thread that executes the shards' file requests. It executes one request of each level of checkpoints
//! at a time, because a disk does not work faster on two requests at once. A slow disk must not delay
//! checkpoints in memory. Other modules define the format of the files.

use std::sync::Arc;

use actix::Recipient;
use pushpull_messages::checkpoint::{Level, StartSpec};
use pushpull_messages::message::{Refusal, RefusalCode, SaveResult};
use pushpull_messages::observe::{Meter, Queued};
use pushpull_storage::Stores;
use pushpull_transport::buffer::BufferPool;
use tokio::runtime;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{read, write};
use crate::config::PsConfig;
use crate::shard::{FileRequest, Restored};
use crate::threads;

/// A message to a shard, with the result of its file request.
#[derive(Debug, actix::Message)]
#[rtype(result = "()")]
pub(crate) struct FileDone {
    /// The result of the file request.
    pub result: FileResult,
    /// Measures how long the message waits in the shard's mailbox.
    pub queued: Queued,
}

/// The result of a file request.
#[derive(Debug)]
pub(crate) enum FileResult {
    /// The values that were read, or the reason why they could not be read.
    Read(Result<Restored, Refusal>),
    /// The level of a file that was written, or could not be written, and the result.
    Write(Level, SaveResult),
}

/// A handle to a task's checkpoint thread.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoints {
    directory: mpsc::Sender<QueuedRequest>,
    memory: mpsc::Sender<QueuedRequest>,
    meter: Arc<Meter>,
}

#[derive(Debug)]
struct QueuedRequest {
    request: FileRequest,
    queued: Queued,
    recipient: Recipient<FileDone>,
    /// The meter of the mailbox to which the result is sent.
    recipient_meter: Arc<Meter>,
}

impl Checkpoints {
    /// Starts to execute the file requests of a task, on a separate thread unless `config` forbids it. When
    /// `end` is cancelled, the current request is abandoned. A file that is not finished never appears in
    /// the store.
    ///
    /// # Panics
    /// If the system cannot start a thread.
    pub(crate) fn start(config: &PsConfig, pool: BufferPool, end: CancellationToken) -> Self {
        // Each shard has at most one read, and one write of each level, at a time.
        let (directory, of_directory) = mpsc::channel(2 * config.shards as usize);
        let (memory, in_memory) = mpsc::channel(2 * config.shards as usize);
        let stores = config.stores.clone();
        let run = async move {
            let directory = serve(of_directory, pool.clone(), stores.clone());
            let memory = serve(in_memory, pool, stores);
            end.run_until_cancelled(async { tokio::join!(directory, memory) }).await;
        };
        if config.own_threads {
            let runtime = runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime can be built");
            threads::spawn("checkpoints", move || runtime.block_on(run));
        } else {
            actix_rt::spawn(run);
        }
        Self { directory, memory, meter: Arc::default() }
    }

    /// Returns the meter of the thread's queue.
    pub(crate) const fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// Submits a file request. The result will be sent to `recipient`, whose mailbox has the meter
    /// `recipient_meter`.
    ///
    /// # Panics
    /// If the queue is full. This happens only if a shard has more than one read, or more than one write of a
    /// level, in progress.
    pub(crate) fn submit(
        &self,
        request: FileRequest,
        recipient: Recipient<FileDone>,
        recipient_meter: &Arc<Meter>,
    ) {
        let (queued, recipient_meter) = (self.meter.queue(), Arc::clone(recipient_meter));
        let requests = match level_of(&request) {
            Level::Directory => &self.directory,
            Level::Memory => &self.memory,
        };
        match requests.try_send(QueuedRequest { request, queued, recipient, recipient_meter }) {
            // If the thread has ended, the task is ending too, and will refuse all unanswered requests.
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                unreachable!("a shard has at most one read and one write at a time")
            }
        }
    }
}

/// Returns the level of the checkpoint that a request reads or writes.
fn level_of(request: &FileRequest) -> Level {
    match request {
        FileRequest::Write(cut) => Level::of(&cut.save.store),
        FileRequest::Read(create) => match &create.start {
            StartSpec::Initialise => Level::Directory,
            StartSpec::Resume { store, .. } | StartSpec::WarmStart { store, .. } => Level::of(store),
        },
    }
}

async fn serve(mut queue: mpsc::Receiver<QueuedRequest>, pool: BufferPool, stores: Stores) {
    while let Some(QueuedRequest { request, queued, recipient, recipient_meter }) = queue.recv().await {
        let handling = queued.handle();
        let (pool, stores) = (pool.clone(), stores.clone());
        // The request runs in its own tokio task, so that a panic becomes a failed result and the shard
        // continues.
        let result = match request {
            FileRequest::Read(create) => {
                let read = tokio::spawn(async move { read::read(&create, &pool, &stores).await }).await;
                let bug =
                    |bug| Err(Refusal::new(RefusalCode::Unavailable, format!("bug while reading: {bug}")));
                FileResult::Read(read.unwrap_or_else(bug))
            }
            FileRequest::Write(cut) => {
                let level = Level::of(&cut.save.store);
                let written = tokio::spawn(async move { write::write(cut, &stores).await }).await;
                let bug = |bug| SaveResult::failed(format!("bug while writing: {bug}"));
                FileResult::Write(level, written.unwrap_or_else(bug))
            }
        };
        drop(handling);
        // The send fails if the shard has ended. Nothing needs the result then.
        let _ = recipient.send(FileDone { result, queued: recipient_meter.queue() }).await;
    }
}
