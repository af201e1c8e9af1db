//! The tasks of this process that can be observed, and what they said last: asked on behalf of everybody who wants to know.
//! Knows no HTTP.
//!
//! Wanted properties: (A) each task is asked at most once in [`FRESH`], by however many; (B) nobody waits for longer than
//! [`PATIENCE`] and a little: a task that does not answer is shown as it was.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use actix_web::web::Bytes;
use futures_util::future::join_all;
use pushpull_chief::ChiefView;
use pushpull_messages::id::TaskId;
use pushpull_messages::observe::{Observed, TaskSnapshot};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

/// What is not older counts as of now.
pub(super) const FRESH: Duration = Duration::from_millis(250);
/// So long a task may take to answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// The tasks of one process. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Views(Arc<Shared>);

#[derive(Default)]
struct Shared {
    tasks: Mutex<Tasks>,
    /// Somebody waits for something newer.
    wanted: Notify,
    seen: watch::Sender<Seen>,
}

#[derive(Default)]
struct Tasks {
    observed: Vec<Arc<dyn Observed>>,
    chief: Option<ChiefView>,
    failed: Vec<(TaskId, String)>,
}

/// What the tasks said when they were asked last.
#[derive(Clone, Default)]
pub(super) struct Seen {
    at: Option<Instant>,
    /// Those that have ever answered, in the order in which they came.
    pub tasks: Arc<Vec<TaskSnapshot>>,
    /// How many have never answered yet.
    pub silent: usize,
    /// The same as it is answered.
    pub written: Arc<Written>,
}

/// What the tasks said, in each of its forms, once somebody has asked for that.
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
    fn tasks(&self) -> MutexGuard<'_, Tasks> {
        self.0.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more task can be observed.
    pub(crate) fn add(&self, task: Arc<dyn Observed>) {
        self.tasks().observed.push(task);
    }

    /// The chief of the job is in this process, and can be observed.
    pub(crate) fn lead(&self, chief: ChiefView) {
        self.add(Arc::new(chief.clone()));
        self.tasks().chief = Some(chief);
    }

    /// That task has ended badly.
    pub(crate) fn fail(&self, task: TaskId, reason: impl ToString) {
        self.tasks().failed.push((task, reason.to_string()));
    }

    /// Those that have ended badly, and why.
    pub(super) fn failed(&self) -> Vec<(TaskId, String)> {
        self.tasks().failed.clone()
    }

    pub(super) fn chief(&self) -> Option<ChiefView> {
        self.tasks().chief.clone()
    }

    /// What the tasks say now, or said a moment ago.
    pub(super) async fn seen(&self) -> Seen {
        let mut seen = self.0.seen.subscribe();
        let last = seen.borrow_and_update().clone();
        if last.is_fresh() {
            return last;
        }
        self.0.wanted.notify_one();
        // Where it does not come in time, what there is has to do.
        let _ = timeout(PATIENCE + FRESH, seen.changed()).await;
        seen.borrow().clone()
    }

    /// Asks the tasks whenever somebody wants to know, for as long as it is polled.
    pub(super) async fn look(self) -> std::convert::Infallible {
        let mut last: Vec<Option<TaskSnapshot>> = Vec::new();
        loop {
            self.0.wanted.notified().await;
            if self.0.seen.borrow().is_fresh() {
                continue;
            }
            let observed = self.tasks().observed.clone();
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
