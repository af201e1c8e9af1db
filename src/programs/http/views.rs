//! The tasks of this process that can be observed, and their last snapshots, which all clients share. This
//! module must not depend on HTTP.
//!
//! Wanted properties: (A) each task is observed at most once per [`FRESH`], for any number of clients; (B) a
//! client waits for at most [`PATIENCE`] plus [`FRESH`]. If a task does not answer within [`PATIENCE`], its
//! last snapshot is used.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use actix_web::web::Bytes;
use futures_util::future::join_all;
use parking_lot::Mutex;
use pushpull_chief::ChiefView;
use pushpull_messages::id::TaskId;
use pushpull_messages::observe::{Observed, TaskSnapshot};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

use crate::embedded::Observers;
use crate::programs::exposure::Exposure;

/// The maximum age of snapshots that are still used for new requests.
pub(super) const FRESH: Duration = Duration::from_millis(250);
/// The time limit for a task to answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// The tasks of one process. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Views(Arc<Shared>);

#[derive(Default)]
struct Shared {
    tasks: Mutex<Tasks>,
    /// Notified when a client waits for newer snapshots.
    wanted: Notify,
    seen: watch::Sender<Seen>,
    /// The address at which other hosts reach the endpoint; unset if they cannot.
    http: OnceLock<String>,
    /// Whether other hosts reach the process without a proof of who they are.
    exposure: Exposure,
}

#[derive(Default)]
struct Tasks {
    observed: Vec<Arc<dyn Observed>>,
    chief: Option<ChiefView>,
    failed: Vec<(TaskId, String)>,
}

/// The tasks' last snapshots.
#[derive(Clone, Default)]
pub(super) struct Seen {
    at: Option<Instant>,
    /// The snapshots of all tasks that have ever answered, in the order in which the tasks were added.
    pub tasks: Arc<Vec<TaskSnapshot>>,
    /// The number of tasks that have never answered.
    pub silent: usize,
    /// The same snapshots in the formats that clients receive.
    pub written: Arc<Written>,
}

/// The snapshots in each output format. Each format is written when the first client requests it.
#[derive(Default)]
pub(super) struct Written {
    pub metrics: OnceLock<Bytes>,
    pub actors: OnceLock<Bytes>,
    pub tasks: OnceLock<Bytes>,
}

impl Seen {
    fn is_fresh(&self) -> bool {
        self.at.is_some_and(|at| at.elapsed() < FRESH)
    }
}

impl Views {
    /// Sets the address at which other hosts reach the endpoint.
    pub(super) fn set_http(&self, address: String) {
        // An endpoint is bound only once, so the address is not set already.
        let _ = self.0.http.set(address);
    }

    /// Returns whether other hosts reach the process without a proof of who they are.
    pub(super) fn exposure(&self) -> &Exposure {
        &self.0.exposure
    }

    /// Returns the tasks that ended with an error, and their errors.
    pub(super) fn failed(&self) -> Vec<(TaskId, String)> {
        self.0.tasks.lock().failed.clone()
    }

    pub(super) fn chief(&self) -> Option<ChiefView> {
        self.0.tasks.lock().chief.clone()
    }

    /// Returns the tasks' snapshots. They are at most [`FRESH`] old if the tasks answer in time.
    pub(super) async fn seen(&self) -> Seen {
        let mut seen = self.0.seen.subscribe();
        let last = seen.borrow_and_update().clone();
        if last.is_fresh() {
            return last;
        }
        self.0.wanted.notify_one();
        // If nothing newer arrives in time, the older snapshots are returned.
        let _ = timeout(PATIENCE + FRESH, seen.changed()).await;
        seen.borrow().clone()
    }

    /// Requests snapshots from the tasks whenever a client waits for newer ones. Never returns.
    pub(super) async fn look(self) -> std::convert::Infallible {
        let mut last: Vec<Option<TaskSnapshot>> = Vec::new();
        loop {
            self.0.wanted.notified().await;
            if self.0.seen.borrow().is_fresh() {
                continue;
            }
            let observed = self.0.tasks.lock().observed.clone();
            last.resize(observed.len(), None);
            let answers = join_all(observed.iter().map(|task| timeout(PATIENCE, task.observe()))).await;
            for (last, answer) in last.iter_mut().zip(answers) {
                if let Ok(answer) = answer {
                    *last = Some(answer);
                }
            }
            let tasks: Vec<_> = last.iter().flatten().cloned().collect();
            let silent = last.len() - tasks.len();
            self.0.seen.send_replace(Seen {
                at: Some(Instant::now()),
                tasks: Arc::new(tasks),
                silent,
                written: Arc::default(),
            });
        }
    }
}

impl Observers for Views {
    fn add(&self, task: Arc<dyn Observed>) {
        self.0.tasks.lock().observed.push(task);
    }

    fn lead(&self, chief: ChiefView) {
        let mut tasks = self.0.tasks.lock();
        tasks.observed.push(Arc::new(chief.clone()));
        tasks.chief = Some(chief);
    }

    fn fail(&self, task: TaskId, reason: String) {
        self.0.tasks.lock().failed.push((task, reason));
    }

    fn http(&self) -> Option<String> {
        self.0.http.get().cloned()
    }
}
