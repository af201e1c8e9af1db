//! What other threads can see of a shard: its last snapshot and the state of its mailbox. The mailbox's
//! state is known even while the shard is busy.
//!
//! Wanted properties: (A) a snapshot is requested only after the shard has handled, or lost, the previous
//! request; (B) after the shard has ended, the view has its final snapshot.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use actix::Recipient;
use pushpull_messages::id::ShardId;
use pushpull_messages::message::ShardSnapshot;
use pushpull_messages::observe::Meter;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::shard::Stage;

/// A request to a shard to publish a snapshot.
#[derive(Debug, actix::Message)]
#[rtype(result = "()")]
pub(crate) struct Refresh {
    /// True while this request exists. As long as it is true, no other request is made.
    pending: Arc<AtomicBool>,
}

impl Drop for Refresh {
    fn drop(&mut self) {
        self.pending.store(false, Ordering::Release);
    }
}

#[derive(Clone, Debug, Default)]
struct Published {
    stage: Stage,
    snapshot: Arc<ShardSnapshot>,
}

/// The publishing end of a view. The shard owns this end, and publishes snapshots with it.
#[derive(Debug)]
pub(crate) struct Publisher {
    meter: Arc<Meter>,
    published: watch::Sender<Published>,
}

impl Publisher {
    /// Returns the meter of the shard's mailbox.
    pub(crate) const fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// Publishes the shard's stage and snapshot.
    pub(crate) fn publish(&self, stage: Stage, snapshot: ShardSnapshot) {
        self.published.send_replace(Published { stage, snapshot: Arc::new(snapshot) });
    }
}

/// The observers' end of the view of one shard.
#[derive(Clone, Debug)]
pub(crate) struct ShardView {
    id: ShardId,
    meter: Arc<Meter>,
    published: watch::Receiver<Published>,
    pending: Arc<AtomicBool>,
}

impl ShardView {
    /// Returns both ends of a new view of a shard: the shard's and the observers'. Nothing has been published
    /// yet.
    pub(crate) fn new(id: ShardId) -> (Publisher, Self) {
        let (sender, receiver) = watch::channel(Published::default());
        let meter = Arc::<Meter>::default();
        let publisher = Publisher { meter: Arc::clone(&meter), published: sender };
        (publisher, Self { id, meter, published: receiver, pending: Arc::default() })
    }

    /// Returns the meter of the shard's mailbox.
    pub(crate) const fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// Requests a snapshot from the shard, unless an earlier request is still pending, and waits for a
    /// snapshot until the deadline.
    pub(crate) async fn refresh(&self, shard: &Recipient<Refresh>, deadline: Instant) {
        let mut published = self.published.clone();
        published.mark_unchanged();
        if !self.pending.swap(true, Ordering::AcqRel) {
            // If the request cannot be sent, it is dropped, and the next call can make another request.
            let _ = shard.try_send(Refresh { pending: Arc::clone(&self.pending) });
        }
        // If the shard is late or has ended, the view keeps the last snapshot.
        let _ = timeout_at(deadline, published.changed()).await;
    }

    /// Waits until the shard has ended.
    pub(crate) async fn wait_for_end(&self) {
        let mut published = self.published.clone();
        while published.changed().await.is_ok() {}
    }

    /// Returns the shard's last stage and snapshot, with the current state of its mailbox.
    pub(crate) fn snapshot(&self) -> (Stage, ShardId, ShardSnapshot) {
        let Published { stage, snapshot } = self.published.borrow().clone();
        let actor = self.meter.snapshot(self.id, stage.as_str());
        (stage, self.id, ShardSnapshot { actor, ..ShardSnapshot::clone(&snapshot) })
    }
}
