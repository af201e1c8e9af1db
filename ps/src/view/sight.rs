//! One shard as it is seen from other threads: what it showed last, and what can be known while it is busy. Knows nothing of
//! what a shard does.
//!
//! Wanted properties: (A) a shard is asked to show itself only when it has done so since it was asked before, or is gone;
//! (B) what it showed last is what it was when it ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use actix::Recipient;
use pushpull_messages::id::ShardId;
use pushpull_messages::message::ShardSnapshot;
use pushpull_messages::observe::Meter;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::shard::Stage;

/// A shard is to show itself.
#[derive(Debug, actix::Message)]
#[rtype(result = "()")]
pub(crate) struct Look {
    /// While there is this one there is no other.
    asked: Arc<AtomicBool>,
}

impl Drop for Look {
    fn drop(&mut self) {
        self.asked.store(false, Ordering::Release);
    }
}

#[derive(Clone, Debug, Default)]
struct Shown {
    stage: Stage,
    snapshot: Arc<ShardSnapshot>,
}

/// The shard's own end.
#[derive(Debug)]
pub(crate) struct Showing {
    meter: Arc<Meter>,
    shown: watch::Sender<Shown>,
}

impl Showing {
    /// What the shard has to do.
    pub(crate) const fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// From now on it is seen like that.
    pub(crate) fn show(&self, stage: Stage, snapshot: ShardSnapshot) {
        self.shown.send_replace(Shown { stage, snapshot: Arc::new(snapshot) });
    }
}

/// The other end.
#[derive(Clone, Debug)]
pub(crate) struct Sight {
    id: ShardId,
    meter: Arc<Meter>,
    shown: watch::Receiver<Shown>,
    asked: Arc<AtomicBool>,
}

impl Sight {
    /// Of that shard; it is yet to show itself.
    pub(crate) fn new(id: ShardId) -> (Showing, Self) {
        let (show, shown) = watch::channel(Shown::default());
        let meter = Arc::<Meter>::default();
        let showing = Showing { meter: Arc::clone(&meter), shown: show };
        (showing, Self { id, meter, shown, asked: Arc::default() })
    }

    /// Counts what the shard is sent.
    pub(crate) const fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// Asks the shard to show itself, if it is not asked already, and waits until it has, but not beyond the deadline.
    pub(crate) async fn refresh(&self, shard: &Recipient<Look>, deadline: Instant) {
        let mut shown = self.shown.clone();
        shown.mark_unchanged();
        if !self.asked.swap(true, Ordering::AcqRel) {
            // Where it cannot be sent it is dropped, and may be sent later.
            let _ = shard.try_send(Look { asked: Arc::clone(&self.asked) });
        }
        // Later, or gone: it is as it is.
        let _ = timeout_at(deadline, shown.changed()).await;
    }

    /// Waits until the shard has ended.
    pub(crate) async fn ended(&self) {
        let mut shown = self.shown.clone();
        while shown.changed().await.is_ok() {}
    }

    /// The shard as it showed itself last; what it has to do as that is now.
    pub(crate) fn seen(&self) -> (Stage, ShardId, ShardSnapshot) {
        let Shown { stage, snapshot } = self.shown.borrow().clone();
        let actor = self.meter.snapshot(self.id, stage.as_str());
        (stage, self.id, ShardSnapshot { actor, ..ShardSnapshot::clone(&snapshot) })
    }
}
