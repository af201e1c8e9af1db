//! Where a task of this room is in its life, and what its devices do: what can be told of it without asking anybody.
//! Knows no step.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pushpull_messages::id::TaskId;
use pushpull_messages::observe::{ActorSnapshot, Meter, TaskState};
use tokio_util::sync::CancellationToken;

/// Of one task; shared with whoever looks at it.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    now: Arc<Mutex<Now>>,
    /// Cancelled when a signal wants it to stop.
    interrupt: CancellationToken,
}

#[derive(Debug)]
struct Now {
    state: TaskState,
    doing: &'static str,
    devices: Vec<Arc<Meter>>,
}

/// Ends the life of its task when it is dropped, however that comes.
#[derive(Debug)]
pub(crate) struct Ends(Life);

impl Life {
    /// One that begins.
    pub(crate) fn new(doing: &'static str, interrupt: CancellationToken) -> Self {
        let now = Now { state: TaskState::Starting, doing, devices: Vec::new() };
        Self { now: Arc::new(Mutex::new(now)), interrupt }
    }

    /// Kept by the task.
    pub(crate) fn ends(&self) -> Ends {
        Ends(self.clone())
    }

    /// From now on it can do what it is for.
    pub(crate) fn ready(&self) {
        let mut now = self.lock();
        if now.state == TaskState::Starting {
            now.state = TaskState::Ready;
        }
    }

    /// It was told to stop.
    pub(crate) fn stopping(&self) {
        let mut now = self.lock();
        if now.state != TaskState::Ended {
            now.state = TaskState::Stopping;
        }
    }

    /// What it does now, in a few words.
    pub(crate) fn doing(&self, what: &'static str) {
        let mut now = self.lock();
        if now.state != TaskState::Ended {
            now.doing = what;
        }
    }

    /// These are its devices now.
    pub(crate) fn devices(&self, meters: Vec<Arc<Meter>>) {
        self.lock().devices = meters;
    }

    /// Where it is.
    pub(crate) fn state(&self) -> TaskState {
        match self.lock().state {
            TaskState::Starting | TaskState::Ready if self.interrupt.is_cancelled() => TaskState::Stopping,
            state => state,
        }
    }

    /// What it does, and each device of that task.
    pub(crate) fn actors(&self, task: TaskId) -> (&'static str, Vec<ActorSnapshot>) {
        let (doing, ended, devices) = {
            let now = self.lock();
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

    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        let mut now = self.0.lock();
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
        let ends = life.ends();
        assert_eq!((life.state(), life.actors(TaskId::worker(1)).0), (TaskState::Starting, "waking"));
        life.ready();
        assert_eq!(life.state(), TaskState::Ready);
        interrupt.cancel();
        assert_eq!(life.state(), TaskState::Stopping);
        drop(ends);
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
        drop(life.ends());
        assert!(life.actors(TaskId::worker(1)).1.iter().all(|device| device.state == "ended"));
    }
}
