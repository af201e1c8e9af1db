//! The runs of a task, from their request to their end. A value may arrive before the request to run the part
//! that reads it, or while the run is planned; it then waits here until the run begins.
//!
//! Required properties: (A) a run that was cancelled, aborted or lost its requester never begins, or ends;
//! (B) a value for a run that has ended is refused at once, with the reason.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pushpull_messages::message::RunKey;
use tokio::sync::Notify;

use crate::control::Control;
use crate::error::{RunError, SessionError};
use crate::run::Run;

/// How long a value waits for the request to run its part.
const EARLY_WAIT: Duration = Duration::from_secs(30);
/// The number of ended runs that are remembered, so that their late values are refused at once.
const ENDED_MAX: usize = 4096;
/// The maximum number of runs of a task.
const RUNS_MAX: usize = 256;
/// The maximum number of runs of one client at a time.
const CLIENT_RUNS_MAX: usize = 64;

/// The runs of a task.
pub(crate) struct Runs {
    table: Mutex<Table>,
    changed: Notify,
    early_wait: Duration,
}

impl Default for Runs {
    fn default() -> Self {
        Self { table: Mutex::default(), changed: Notify::new(), early_wait: EARLY_WAIT }
    }
}

#[derive(Default)]
struct Table {
    runs: HashMap<RunKey, Entry>,
    /// The reasons why the last runs that other tasks led have ended.
    ended: HashMap<RunKey, String>,
    /// The keys of `ended`, the oldest first.
    order: VecDeque<RunKey>,
    /// Whether the task begins no more runs.
    draining: bool,
}

struct Entry {
    requester: Requester,
    control: Arc<Control>,
    /// The run, when it has begun.
    run: Option<Arc<Run>>,
}

/// Who has requested a run: the number of the connection and, for a client, the client's number of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Requester {
    pub connection: u64,
    pub number: Option<u64>,
}

/// A run in the table. When this guard is dropped, the run has ended.
pub(crate) struct Registered {
    runs: Arc<Runs>,
    pub key: RunKey,
    pub control: Arc<Control>,
}

impl Registered {
    /// Lets the values of the run arrive.
    pub fn begin(&self, run: Run) -> Arc<Run> {
        let run = Arc::new(run);
        if let Some(entry) = self.runs.table.lock().runs.get_mut(&self.key) {
            entry.run = Some(Arc::clone(&run));
        }
        self.runs.changed.notify_waiters();
        run
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let runs = &self.runs;
        let mut table = runs.table.lock();
        table.runs.remove(&self.key);
        let reason =
            self.control.check().err().map_or_else(|| "it is complete".into(), |error| error.to_string());
        table.remember(self.key, reason);
        drop(table);
        runs.changed.notify_waiters();
    }
}

impl Table {
    fn remember(&mut self, key: RunKey, reason: String) {
        if self.ended.insert(key, reason).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > ENDED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.ended.remove(&oldest);
        }
    }
}

impl Runs {
    /// Adds a run at its request, while the connection of its requester is open.
    ///
    /// # Errors
    /// If the task begins no more runs, if there are too many, or if the same run was requested before.
    pub fn register(self: &Arc<Self>, requester: Requester, key: RunKey) -> Result<Registered, SessionError> {
        let mut table = self.table.lock();
        if table.draining {
            return Err(SessionError::Draining);
        }
        let remedy = "wait until some have ended";
        if table.runs.len() >= RUNS_MAX {
            return Err(SessionError::TooMany { what: "runs on this task", max: RUNS_MAX, remedy });
        }
        let own = table.runs.values().filter(|entry| entry.requester.connection == requester.connection);
        if requester.number.is_some() && own.count() >= CLIENT_RUNS_MAX {
            return Err(SessionError::TooMany { what: "runs of this client", max: CLIENT_RUNS_MAX, remedy });
        }
        if table.runs.contains_key(&key) || table.ended.contains_key(&key) {
            return Err(SessionError::RunAgain(key.number));
        }
        let control = Arc::new(Control::default());
        table.runs.insert(key, Entry { requester, control: Arc::clone(&control), run: None });
        Ok(Registered { runs: Arc::clone(self), key, control })
    }

    /// Returns the number of runs that were requested and have not ended.
    pub fn count(&self) -> usize {
        self.table.lock().runs.len()
    }

    /// Returns true if the task begins no more runs.
    pub fn is_draining(&self) -> bool {
        self.table.lock().draining
    }

    /// Begins no more runs.
    pub fn refuse(&self) {
        self.table.lock().draining = true;
    }

    /// Waits until a run that another task leads has begun here, and returns it.
    ///
    /// # Errors
    /// If the run has ended, fails, or is not requested in time.
    pub async fn wait(&self, key: &RunKey) -> Result<Arc<Run>, RunError> {
        let deadline = tokio::time::Instant::now() + self.early_wait;
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let requested = {
                let table = self.table.lock();
                if let Some(reason) = table.ended.get(key) {
                    return Err(RunError::Aborted(format!("run {} has ended: {reason}", key.number)));
                }
                match table.runs.get(key) {
                    Some(Entry { run: Some(run), .. }) => return Ok(Arc::clone(run)),
                    entry => entry.is_some(),
                }
            };
            if requested {
                // It is being planned, which may take long.
                changed.await;
            } else if tokio::time::timeout_at(deadline, changed).await.is_err() {
                let seconds = self.early_wait.as_secs_f64();
                return Err(RunError::Aborted(format!(
                    "run {} was not requested within {seconds} s",
                    key.number
                )));
            }
        }
    }

    /// Ends a run with this error.
    pub fn fail(&self, key: &RunKey, error: RunError) {
        let control = self.table.lock().runs.get(key).map(|entry| Arc::clone(&entry.control));
        if let Some(control) = control {
            control.fail(error);
        }
    }

    /// Ends all runs that were requested on a connection, or all runs if `connection` is `None`.
    pub fn fail_all(&self, connection: Option<u64>, reason: &str) {
        let all = self.chosen(|requester| connection.is_none_or(|own| own == requester.connection));
        all.iter().for_each(|control| control.fail(RunError::Aborted(reason.to_owned())));
    }

    /// Ends a run on its client's request. Returns false if there is no such run.
    pub fn cancel(&self, connection: u64, number: u64) -> bool {
        let requester = Requester { connection, number: Some(number) };
        let own = self.chosen(|own| own == requester);
        let reason = || RunError::Aborted("the client has cancelled the run".into());
        own.iter().for_each(|control| control.fail(reason()));
        !own.is_empty()
    }

    fn chosen(&self, requester: impl Fn(Requester) -> bool) -> Vec<Arc<Control>> {
        let table = self.table.lock();
        let found = table.runs.values().filter(|entry| requester(entry.requester));
        found.map(|entry| Arc::clone(&entry.control)).collect()
    }

    /// Waits until all runs have ended.
    pub async fn idle(&self) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.table.lock().runs.is_empty() {
                return;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use pushpull_messages::id::{Incarnation, TaskId};

    use super::*;

    const CLIENT: Requester = Requester { connection: 1, number: Some(1) };

    fn key(number: u64) -> RunKey {
        RunKey { task: TaskId::worker(0), incarnation: Incarnation(1), number }
    }

    fn refused(result: Result<Registered, SessionError>) -> String {
        result.err().expect("too many runs").to_string()
    }

    #[test]
    fn a_client_has_at_most_64_runs() {
        let runs = Arc::new(Runs::default());
        let mut held: Vec<_> = (0..64).map(|number| runs.register(CLIENT, key(number)).unwrap()).collect();
        let error =
            "there are 64 runs of this client already, which is the maximum: wait until some have ended";
        assert_eq!(refused(runs.register(CLIENT, key(100))), error);
        // Other clients and other servers are not affected.
        let other = runs.register(Requester { connection: 2, ..CLIENT }, key(101)).unwrap();
        let server = runs.register(Requester { connection: 3, number: None }, key(102)).unwrap();
        assert_eq!(runs.count(), 66);
        held.pop();
        held.push(runs.register(CLIENT, key(103)).unwrap());
        assert_eq!(refused(runs.register(CLIENT, key(104))), error);
        drop((held, other, server));
        assert_eq!(runs.count(), 0);
    }

    #[test]
    fn a_task_has_at_most_256_runs() {
        let runs = Arc::new(Runs::default());
        let begin = |number| runs.register(Requester { connection: number / 32, ..CLIENT }, key(number));
        let held: Vec<_> = (0..256).map(|number| begin(number).unwrap()).collect();
        assert!(refused(begin(256)).starts_with("there are 256 runs on this task already"));
        drop(held);
        begin(256).unwrap();
    }

    /// Waits for a run, and returns the error.
    async fn missed(runs: &Runs, key: &RunKey) -> String {
        runs.wait(key).await.err().expect("the run does not begin").to_string()
    }

    #[tokio::test]
    async fn an_early_value_waits_for_a_limited_time() {
        let wait = Duration::from_millis(20);
        let runs = Arc::new(Runs { early_wait: wait, ..Runs::default() });
        let began = tokio::time::Instant::now();
        assert_eq!(missed(&runs, &key(1)).await, "run 1 was not requested within 0.02 s");
        assert!(began.elapsed() >= wait, "{:?}", began.elapsed());
        assert_eq!(Runs::default().early_wait, Duration::from_secs(30));
    }

    #[tokio::test]
    async fn a_value_of_a_requested_run_waits_longer() {
        let wait = Duration::from_millis(20);
        let runs = Arc::new(Runs { early_wait: wait, ..Runs::default() });
        let registered = runs.register(CLIENT, key(1)).unwrap();
        let (first, second) = (key(1), key(1));
        let planned = async {
            tokio::time::sleep(2 * wait).await;
            registered.control.fail(RunError::Aborted("the plan failed".into()));
            drop(registered);
        };
        let (first, second, ()) = tokio::join!(missed(&runs, &first), missed(&runs, &second), planned);
        let expected = "run 1 has ended: the plan failed";
        assert_eq!((first.as_str(), second.as_str()), (expected, expected));
    }
}
