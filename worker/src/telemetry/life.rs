//! The state of a worker or evaluator task: its phase from start to end, whether it is connected to the
//! chief, and what its devices do. It can be read without a request to the task. This module must not depend
//! on how a step is computed.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pushpull_messages::id::TaskId;
use pushpull_messages::observe::{ActorSnapshot, Meter, TaskState};
use pushpull_transport::ReconnectingClient;
use tokio_util::sync::CancellationToken;

/// The state of one task. Clones share the same state.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    now: Arc<Mutex<LifeState>>,
    /// Cancelled when a signal tells the task to stop.
    interrupt: CancellationToken,
}

#[derive(Debug)]
struct LifeState {
    /// The connection to the chief; `None` until the task has connected for the first time.
    chief: Option<Weak<ReconnectingClient>>,
    state: TaskState,
    doing: &'static str,
    devices: Vec<Arc<Meter>>,
}

/// A guard that, when dropped, marks its task as ended, even if the task panics.
#[derive(Debug)]
pub(crate) struct EndOfLife(Life);

impl Life {
    /// Creates the state of a task that is starting.
    pub(crate) fn new(doing: &'static str, interrupt: CancellationToken) -> Self {
        let now = LifeState { chief: None, state: TaskState::Starting, doing, devices: Vec::new() };
        Self { now: Arc::new(Mutex::new(now)), interrupt }
    }

    /// Returns a guard that marks the task as ended when the guard is dropped. The task holds the guard
    /// until the task ends.
    pub(crate) fn end(&self) -> EndOfLife {
        EndOfLife(self.clone())
    }

    /// Marks the task as ready.
    pub(crate) fn ready(&self) {
        let mut now = self.now.lock();
        if now.state == TaskState::Starting {
            now.state = TaskState::Ready;
        }
    }

    /// Marks the task as stopping.
    pub(crate) fn stopping(&self) {
        let mut now = self.now.lock();
        if now.state != TaskState::Ended {
            now.state = TaskState::Stopping;
        }
    }

    /// Sets a description of what the task is doing, in a few words.
    pub(crate) fn doing(&self, what: &'static str) {
        let mut now = self.now.lock();
        if now.state != TaskState::Ended {
            now.doing = what;
        }
    }

    /// Sets the meters of the task's devices. A meter counts and times the messages of one device.
    pub(crate) fn devices(&self, meters: Vec<Arc<Meter>>) {
        self.now.lock().devices = meters;
    }

    /// Sets the connection to the chief.
    pub(crate) fn chief(&self, chief: &Arc<ReconnectingClient>) {
        self.now.lock().chief = Some(Arc::downgrade(chief));
    }

    /// Returns whether the task is connected to the chief; `None` if the task has never been connected.
    pub(crate) fn is_chief_connected(&self) -> Option<bool> {
        let chief = self.now.lock().chief.clone()?;
        Some(chief.upgrade().is_some_and(|chief| chief.is_up()))
    }

    /// Returns the state of the task.
    pub(crate) fn state(&self) -> TaskState {
        match self.now.lock().state {
            TaskState::Starting | TaskState::Ready if self.interrupt.is_cancelled() => TaskState::Stopping,
            state => state,
        }
    }

    /// Returns a description of what the task is doing, and a snapshot of each of its devices.
    pub(crate) fn actors(&self, task: TaskId) -> (&'static str, Vec<ActorSnapshot>) {
        let (doing, ended, devices) = {
            let now = self.now.lock();
            (now.doing, now.state == TaskState::Ended, now.devices.clone())
        };
        let device = |(index, meter): (usize, &Arc<Meter>)| {
            let mut device = meter.snapshot(format!("{task}/device/{index}"), "idle");
            match (ended, device.busy_us) {
                (true, _) => device.state = "ended".to_owned(),
                (false, Some(_)) => device.state = "computing".to_owned(),
                (false, None) => {}
            }
            device
        };
        (doing, devices.iter().enumerate().map(device).collect())
    }
}

impl Drop for EndOfLife {
    fn drop(&mut self) {
        let mut now = self.0.now.lock();
        (now.state, now.doing) = (TaskState::Ended, "ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_goes_one_way_and_ends_with_its_task() {
        let interrupt = CancellationToken::new();
        let life = Life::new("waking", interrupt.clone());
        let end = life.end();
        assert_eq!((life.state(), life.actors(TaskId::worker(1)).0), (TaskState::Starting, "waking"));
        life.ready();
        assert_eq!(life.state(), TaskState::Ready);
        interrupt.cancel();
        assert_eq!(life.state(), TaskState::Stopping);
        drop(end);
        life.stopping();
        life.doing("more");
        assert_eq!((life.state(), life.actors(TaskId::worker(1)).0), (TaskState::Ended, "ended"));
    }

    #[test]
    fn devices_are_seen_at_work() {
        let life = Life::new("waking", CancellationToken::new());
        let meters = [(); 2].map(|()| Arc::new(Meter::default()));
        life.devices(meters.to_vec());
        let waits = meters[1].queue();
        let handling = meters[1].queue().handle();
        let (_, seen) = life.actors(TaskId::worker(1));
        let brief = seen.iter().map(|device| (device.name.as_str(), device.state.as_str(), device.queue));
        let brief: Vec<_> = brief.collect();
        assert_eq!(brief, [("worker/1/device/0", "idle", 0), ("worker/1/device/1", "computing", 1)]);
        drop((waits, handling));
        drop(life.end());
        assert!(life.actors(TaskId::worker(1)).1.iter().all(|device| device.state == "ended"));
    }
}
