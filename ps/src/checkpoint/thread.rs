//! The thread that executes the shards' file requests. It executes one request at a time, because a disk
//! does not work faster on two requests at once. Other modules define the format of the files.

use std::sync::Arc;

use actix::Recipient;
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
    /// The file that was written, or the reason why it could not be written.
    Write(SaveResult),
}

/// A handle to a task's checkpoint thread.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoints {
    requests: mpsc::Sender<QueuedRequest>,
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
        // Each shard has at most one read and one write at a time.
        let (requests, queue) = mpsc::channel(2 * config.shards as usize);
        let stores = config.stores.clone();
        let run = async move {
            end.run_until_cancelled(serve(queue, pool, stores)).await;
        };
        if config.own_threads {
            let runtime = runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime can be built");
            threads::spawn("checkpoints", move || runtime.block_on(run));
        } else {
            actix_rt::spawn(run);
        }
        Self { requests, meter: Arc::default() }
    }

    /// Returns the meter of the thread's queue.
    pub(crate) const fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// Submits a file request. The result will be sent to `recipient`, whose mailbox has the meter
    /// `recipient_meter`.
    ///
    /// # Panics
    /// If the queue is full. This happens only if a shard has more than one read or more than one write in
    /// progress.
    pub(crate) fn submit(
        &self,
        request: FileRequest,
        recipient: Recipient<FileDone>,
        recipient_meter: &Arc<Meter>,
    ) {
        let (queued, recipient_meter) = (self.meter.queue(), Arc::clone(recipient_meter));
        match self.requests.try_send(QueuedRequest { request, queued, recipient, recipient_meter }) {
            // If the thread has ended, the task is ending too, and will refuse all unanswered requests.
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                unreachable!("a shard has at most one read and one write at a time")
            }
        }
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
                let written = tokio::spawn(async move { write::write(cut, &stores).await }).await;
                FileResult::Write(
                    written.unwrap_or_else(|bug| SaveResult::failed(format!("bug while writing: {bug}"))),
                )
            }
        };
        drop(handling);
        // The send fails if the shard has ended. Nothing needs the result then.
        let _ = recipient.send(FileDone { result, queued: recipient_meter.queue() }).await;
    }
}
