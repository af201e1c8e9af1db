//! The thread that carries out the shards' file requests, one at a time: the disk is not faster for two.
//! Knows neither the format of files nor what they mean.

use std::sync::Arc;

use actix::Recipient;
use pushpull_messages::message::{Refusal, RefusalCode, SaveResult};
use pushpull_messages::observe::{Meter, Queued};
use pushpull_transport::buffer::BufferPool;
use tokio::runtime;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{read, write};
use crate::shard::{FileRequest, Restored};

/// A message to a shard that its file request is done.
#[derive(Debug, actix::Message)]
#[rtype(result = "()")]
pub(crate) struct FileDone {
    /// The result.
    pub result: FileResult,
    /// Counts the time it waits in the shard's mailbox.
    pub queued: Queued,
}

/// The result of a file request.
#[derive(Debug)]
pub(crate) enum FileResult {
    /// The values read, or why they could not be.
    Read(Result<Restored, Refusal>),
    /// The file written, or why it could not be.
    Write(SaveResult),
}

/// A handle to the checkpoint thread of a task.
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
    /// The meter of the recipient's mailbox.
    recipient_meter: Arc<Meter>,
}

impl Checkpoints {
    /// Starts the thread for a task with this number of shards. It ends when `end` is cancelled and abandons
    /// the request it is at: an unfinished file does not count as one.
    ///
    /// # Panics
    /// If the system cannot start a thread.
    pub(crate) fn start(shards: u32, pool: BufferPool, end: CancellationToken) -> Self {
        // Each shard has at most one read and one write at a time.
        let (requests, queue) = mpsc::channel(2 * shards as usize);
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime can be built");
        let run = move || {
            runtime.block_on(end.run_until_cancelled(serve(queue, pool)));
        };
        let thread = std::thread::Builder::new().name("checkpoints".to_owned()).spawn(run);
        thread.expect("a thread can be started");
        Self { requests, meter: Arc::default() }
    }

    /// Returns the meter of the thread's queue.
    pub(crate) const fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// Submits a request; its result is sent to `recipient`, whose mailbox has the meter `recipient_meter`.
    ///
    /// # Panics
    /// If a shard has more than one request of a kind.
    pub(crate) fn submit(
        &self,
        request: FileRequest,
        recipient: Recipient<FileDone>,
        recipient_meter: &Arc<Meter>,
    ) {
        let (queued, recipient_meter) = (self.meter.queue(), Arc::clone(recipient_meter));
        match self.requests.try_send(QueuedRequest { request, queued, recipient, recipient_meter }) {
            // Once the thread has ended, the task ends too and refuses all open requests.
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                unreachable!("a shard has one file request of a kind at a time")
            }
        }
    }
}

async fn serve(mut queue: mpsc::Receiver<QueuedRequest>, pool: BufferPool) {
    while let Some(QueuedRequest { request, queued, recipient, recipient_meter }) = queue.recv().await {
        let handling = queued.handle();
        let pool = pool.clone();
        // In a task of its own, so that a panic becomes a result too: the shard is unaffected.
        let result = match request {
            FileRequest::Read(create) => {
                let read = tokio::spawn(async move { read::read(&create, &pool).await }).await;
                let bug = |bug| Err(Refusal::new(RefusalCode::Unavailable, format!("a bug: {bug}")));
                FileResult::Read(read.unwrap_or_else(bug))
            }
            FileRequest::Write(cut) => {
                let written = tokio::spawn(write::write(cut)).await;
                FileResult::Write(written.unwrap_or_else(|bug| SaveResult::failed(format!("a bug: {bug}"))))
            }
        };
        drop(handling);
        // A shard that has ended needs no result.
        let _ = recipient.send(FileDone { result, queued: recipient_meter.queue() }).await;
    }
}
