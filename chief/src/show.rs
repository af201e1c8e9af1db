//! Keeps up to date what a chief shows: about once a second, and at once when a worker, the job or a checkpoint is at another
//! point. Asks the desk, waits for nobody else, and decides nothing.

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use actix::Addr;
use pushpull_messages::observe::{Clock, TaskState};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use crate::checkpoint::SaveStatus;
use crate::desk::{Desk, Observe};
use crate::lookout::Lookout;
use crate::overview::{Overview, Rows};
use crate::ps_tasks::PsTasks;
use crate::view::Shown;
use crate::watch::Feed;

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// However much happens, there is so much time between two looks.
const PAUSE: Duration = Duration::from_millis(250);
/// So long the desk may take to answer before it is shown as it was.
const DESK: Duration = Duration::from_millis(250);

/// What is shown, and where it comes from.
pub(crate) struct Show {
    pub overview: Rc<RefCell<Overview>>,
    pub shown: Rc<Shown>,
    pub clock: Clock,
    pub desk: Addr<Desk>,
    /// Told when something is to be seen at once.
    pub bell: Arc<Notify>,
    pub ps: Rc<PsTasks>,
    pub lookout: Rc<Lookout>,
    pub saves: watch::Receiver<SaveStatus>,
    pub feed: Feed,
}

impl Show {
    /// Shows it until it is dropped.
    pub(crate) async fn run(mut self) -> Infallible {
        let (lookout, ps) = (Rc::clone(&self.lookout), Rc::clone(&self.ps));
        let mut looking = std::pin::pin!(lookout.run(&ps));
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => self.look(true).await,
                () = self.bell.notified() => self.look(false).await,
                Ok(()) = self.saves.changed() => self.look(false).await,
                never = &mut looking => match never {},
            }
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                never = &mut looking => match never {},
            }
        }
    }

    /// Looks at everything, and shows it.
    pub(crate) async fn look(&mut self, tick: bool) {
        let desk = tokio::time::timeout(DESK, self.desk.send(Observe)).await;
        let at = now(&self.clock);
        let mut overview = self.overview.borrow_mut();
        match desk {
            Ok(Ok(desk)) => overview.desk(at, desk),
            _ => tracing::debug!("the desk does not answer, and is shown as it was"),
        }
        overview.ps(self.ps.lines());
        for (shard, looked) in self.lookout.shards() {
            let heard = since(&self.clock, looked.heard().into_std());
            overview.shard(heard, shard, looked.answer.map(|(_, _, snapshot)| snapshot));
        }
        overview.saves(at, &self.saves.borrow_and_update());
        overview.spans_lost(self.feed.spans_lost());
        let rows = overview.rows(at);
        if tick {
            overview.tick(&rows);
            self.shown.curves(overview.curves());
        }
        if overview.stops() {
            self.shown.state(TaskState::Stopping);
        }
        show(&overview, &self.shown, rows);
    }
}

/// Beside the job, until it is dropped.
pub(crate) struct Showing(JoinHandle<Infallible>);

impl Showing {
    pub(crate) fn start(show: Show) -> Self {
        Self(actix::spawn(show.run()))
    }

    /// Shows nothing more, and lets go of everything.
    pub(crate) async fn stop(mut self) {
        self.0.abort();
        let _ = (&mut self.0).await;
    }
}

impl Drop for Showing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Shows what is known.
pub(crate) fn show(overview: &Overview, shown: &Shown, rows: Rows) {
    let at_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    shown.placement(overview.placement());
    shown.show(overview.snapshot(rows, u64::try_from(at_ms).unwrap_or(u64::MAX)));
}

/// Since the chief was started.
pub(crate) fn now(clock: &Clock) -> Duration {
    since(clock, std::time::Instant::now())
}

/// The same at some moment.
pub(crate) fn since(clock: &Clock, moment: std::time::Instant) -> Duration {
    Duration::from_micros(u64::try_from(clock.at(moment)).unwrap_or(0))
}
