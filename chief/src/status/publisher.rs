//! Publishes the status of the chief: about once a second, and without delay when a worker, the job or a
//! checkpoint changes its state. Queries the coordinator, waits for nothing else, and decides nothing.

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use pushpull_messages::observe::{Clock, TaskState, WallClock};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tracing::debug;

use super::overview::{Overview, Rows};
use super::view::StatusBoard;
use crate::checkpoint::SaveStatus;
use crate::coordinator::{Coordinator, Observe};
use crate::elapsed::{elapsed, elapsed_at};
use crate::launch::PsTasks;
use crate::monitor::{Feed, ShardMonitor};

/// The time between two updates when nothing happens.
const INTERVAL: Duration = Duration::from_secs(1);
/// The minimum time between two updates, even if many events occur.
const INTERVAL_MIN: Duration = Duration::from_millis(250);
/// The time limit for the coordinator's reply. Without a reply, its last snapshot is published again.
const COORDINATOR_TIMEOUT: Duration = Duration::from_millis(250);

/// A publisher that keeps an overview up to date from its sources, and publishes it.
pub(crate) struct Publisher {
    pub overview: Rc<RefCell<Overview>>,
    pub board: Rc<StatusBoard>,
    pub clock: Clock,
    pub wall_clock: WallClock,
    pub coordinator: Addr<Coordinator>,
    /// Notified when the status should be published without delay.
    pub bell: Arc<Notify>,
    pub ps: Rc<PsTasks>,
    pub shard_monitor: Rc<ShardMonitor>,
    pub saves: watch::Receiver<SaveStatus>,
    pub feed: Feed,
}

impl Publisher {
    /// Publishes until the returned future is dropped.
    pub(crate) async fn run(mut self) -> Infallible {
        let (shard_monitor, ps) = (Rc::clone(&self.shard_monitor), Rc::clone(&self.ps));
        let mut monitoring = std::pin::pin!(shard_monitor.run(&ps));
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                _ = ticks.tick() => self.update(true).await,
                () = self.bell.notified() => self.update(false).await,
                Ok(()) = self.saves.changed() => self.update(false).await,
                never = &mut monitoring => match never {},
            }
            tokio::select! {
                biased;
                () = tokio::time::sleep(INTERVAL_MIN) => {}
                never = &mut monitoring => match never {},
            }
        }
    }

    /// Updates the overview and publishes it. If `tick` is true, also updates the curves and the findings.
    pub(crate) async fn update(&mut self, tick: bool) {
        let snapshot = tokio::time::timeout(COORDINATOR_TIMEOUT, self.coordinator.send(Observe)).await;
        let at = elapsed(&self.clock);
        let mut overview = self.overview.borrow_mut();
        match snapshot {
            Ok(Ok(snapshot)) => overview.coordinator(at, snapshot),
            _ => debug!("coordinator did not reply in time; publishing its last snapshot"),
        }
        overview.ps(self.ps.statuses());
        let shards = self.shard_monitor.shards().into_iter().filter(|(shard, _)| self.ps.has_slices(*shard));
        for (shard, known) in shards {
            let heard = elapsed_at(&self.clock, known.last_heard().into_std());
            overview.shard(heard, shard, known.answer.map(|(_, _, snapshot)| snapshot));
        }
        overview.saves(at, &self.saves.borrow_and_update());
        overview.spans_lost(self.feed.spans_lost());
        let rows = overview.rows(at);
        if tick {
            overview.tick(&rows);
            self.board.curves(overview.curves());
        }
        if overview.stops() {
            self.board.state(TaskState::Stopping);
        }
        publish(&overview, &self.board, rows, &self.wall_clock);
    }
}

/// A handle on a publisher that runs concurrently with the job, until it is stopped or dropped.
pub(crate) struct PublisherTask(JoinHandle<Infallible>);

impl PublisherTask {
    pub(crate) fn start(publisher: Publisher) -> Self {
        Self(actix::spawn(publisher.run()))
    }

    /// Stops publishing, and waits until everything that the publisher holds has been dropped.
    pub(crate) async fn stop(mut self) {
        self.0.abort();
        let _ = (&mut self.0).await;
    }
}

impl Drop for PublisherTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Publishes an overview as it is, without updating it.
pub(crate) fn publish(overview: &Overview, board: &StatusBoard, rows: Rows, wall_clock: &WallClock) {
    board.placement(overview.placement());
    board.publish(overview.snapshot(rows, wall_clock.unix_ms()));
}
