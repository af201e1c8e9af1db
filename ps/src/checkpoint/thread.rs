//! The thread that carries out what shards order, one after the other: the disk is not faster for two. Knows neither the
//! format of files nor what they mean.

use std::sync::Arc;

use actix::Recipient;
use pushpull_messages::message::{Refusal, RefusalCode, SaveResult};
use pushpull_messages::observe::{Meter, Queued};
use pushpull_transport::buffer::BufferPool;
use tokio::runtime;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{read, write};
use crate::shard::{Order, Restored};

/// An order was carried out, or cannot be.
#[derive(Debug, actix::Message)]
#[rtype(result = "()")]
pub(crate) struct Done {
    /// What has become of it.
    pub outcome: Outcome,
    /// Since when the shard could know.
    pub queued: Queued,
}

/// What has become of an order.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Of one to read.
    Read(Result<Restored, Refusal>),
    /// Of one to write.
    Written(SaveResult),
}

/// Where the shards of a task leave their orders.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoints {
    orders: mpsc::Sender<Errand>,
    meter: Arc<Meter>,
}

#[derive(Debug)]
struct Errand {
    order: Order,
    queued: Queued,
    to: Recipient<Done>,
    /// Of that one.
    meter: Arc<Meter>,
}

impl Checkpoints {
    /// Starts the thread, for so many shards. It ends when that is cancelled, and leaves what it is doing as it is: an
    /// unfinished file is none.
    ///
    /// # Panics
    /// Where the system has no thread left.
    pub(crate) fn start(shards: u32, pool: BufferPool, end: CancellationToken) -> Self {
        // Of each shard one to read and one to write at a time.
        let (orders, queue) = mpsc::channel(2 * shards as usize);
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime can be built");
        let run = move || {
            runtime.block_on(end.run_until_cancelled(serve(queue, pool)));
        };
        let thread = std::thread::Builder::new().name("checkpoints".to_owned()).spawn(run);
        thread.expect("a thread can be started");
        Self { orders, meter: Arc::default() }
    }

    /// What the thread has to do, and how long it takes for that.
    pub(crate) const fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// Has that done, and tells what has become of it, which counts for `meter`.
    pub(crate) fn order(&self, order: Order, to: Recipient<Done>, meter: &Arc<Meter>) {
        let errand = Errand { order, queued: self.meter.queue(), to, meter: Arc::clone(meter) };
        match self.orders.try_send(errand) {
            // Where the thread has ended the task does, too, and refuses what is open.
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                unreachable!("a shard has one order of a kind at a time")
            }
        }
    }
}

async fn serve(mut queue: mpsc::Receiver<Errand>, pool: BufferPool) {
    while let Some(Errand { order, queued, to, meter }) = queue.recv().await {
        let handling = queued.handle();
        let pool = pool.clone();
        // A task of its own, so that a bug of ours is an answer, too: the shard is as it was.
        let outcome = match order {
            Order::Read(create) => {
                let read = tokio::spawn(async move { read::read(&create, &pool).await }).await;
                let bug = |bug| Err(Refusal::new(RefusalCode::Unavailable, format!("a bug: {bug}")));
                Outcome::Read(read.unwrap_or_else(bug))
            }
            Order::Write(cut) => {
                let written = tokio::spawn(write::write(cut)).await;
                Outcome::Written(written.unwrap_or_else(|bug| SaveResult::failed(format!("a bug: {bug}"))))
            }
        };
        drop(handling);
        // A shard that is gone does not want to know.
        let _ = to.send(Done { outcome, queued: meter.queue() }).await;
    }
}
