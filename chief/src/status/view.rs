//! The status of a job as its chief publishes it: a snapshot about once a second and at every change, and the
//! job's history. Readers get the last published status without querying any task.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use parking_lot::Mutex;
use pushpull_messages::id::{Incarnation, TaskId};
use pushpull_messages::observe::{
    ChiefSnapshot, CurvePoint, JobPhase, Meter, Observed, PlacementRow, RoleSnapshot, TaskSnapshot, TaskState,
};
use pushpull_transport::ServerObserver;
use tokio::sync::{mpsc, watch};

use crate::command::Command;

/// The published data besides the snapshots.
#[derive(Debug, Default)]
struct BoardContents {
    state: TaskState,
    curves: Arc<Vec<CurvePoint>>,
    placement: Arc<Vec<PlacementRow>>,
}

/// The writing end of a chief's status. When it is dropped, readers see that the chief has ended.
#[derive(Debug)]
pub(crate) struct StatusBoard {
    snapshots: watch::Sender<Arc<ChiefSnapshot>>,
    contents: Arc<Mutex<BoardContents>>,
    meter: Arc<Meter>,
    /// The observer of the chief's connections; unset until the chief listens.
    server: Arc<OnceLock<ServerObserver>>,
}

impl StatusBoard {
    pub(crate) fn new() -> Self {
        let (snapshots, _) = watch::channel(Arc::default());
        Self { snapshots, contents: Arc::default(), meter: Arc::default(), server: Arc::default() }
    }

    /// Returns a view of this board.
    pub(crate) fn view(
        &self,
        incarnation: Incarnation,
        makes_checkpoints: bool,
        commands: mpsc::Sender<Command>,
    ) -> ChiefView {
        let snapshots = self.snapshots.subscribe();
        let (contents, meter) = (Arc::clone(&self.contents), Arc::clone(&self.meter));
        let server = Arc::clone(&self.server);
        ChiefView { incarnation, makes_checkpoints, snapshots, contents, meter, server, commands }
    }

    /// Returns the meter that measures the coordinator's queue.
    pub(crate) const fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// Lets readers see the connections that the chief accepts.
    pub(crate) fn serves(&self, server: ServerObserver) {
        // A chief listens once.
        let _ = self.server.set(server);
    }

    /// Publishes the state of the chief task.
    pub(crate) fn state(&self, state: TaskState) {
        self.contents.lock().state = state;
    }

    /// Publishes the history of the job.
    pub(crate) fn curves(&self, curves: Vec<CurvePoint>) {
        self.contents.lock().curves = Arc::new(curves);
    }

    /// Publishes which shard holds each slice.
    pub(crate) fn placement(&self, placement: &[PlacementRow]) {
        let mut contents = self.contents.lock();
        if contents.placement.as_slice() != placement {
            contents.placement = Arc::new(placement.to_vec());
        }
    }

    /// Publishes a snapshot.
    pub(crate) fn publish(&self, snapshot: ChiefSnapshot) {
        self.snapshots.send_replace(Arc::new(snapshot));
    }

    /// Publishes that the job has ended. `reason` is set if the job was not trained to its end; `failed` says
    /// whether it ended with an error. Everything else stays as it was last published.
    pub(crate) fn end(self, reason: Option<String>, failed: bool) {
        self.snapshots.send_if_modified(|last| {
            let open = last.phase != JobPhase::Ended;
            if open {
                let last = Arc::make_mut(last);
                (last.phase, last.reason, last.failed) = (JobPhase::Ended, reason, failed);
            }
            open
        });
    }
}

impl Drop for StatusBoard {
    fn drop(&mut self) {
        self.state(TaskState::Ended);
    }
}

/// The reading end of a chief's status. It stays readable after the job has ended.
#[derive(Clone, Debug)]
pub struct ChiefView {
    incarnation: Incarnation,
    makes_checkpoints: bool,
    snapshots: watch::Receiver<Arc<ChiefSnapshot>>,
    contents: Arc<Mutex<BoardContents>>,
    meter: Arc<Meter>,
    server: Arc<OnceLock<ServerObserver>>,
    commands: mpsc::Sender<Command>,
}

impl ChiefView {
    /// Returns a receiver whose value is always the newest snapshot. The channel is closed when the job has
    /// ended and the last snapshot has been published.
    pub fn snapshots(&self) -> watch::Receiver<Arc<ChiefSnapshot>> {
        self.snapshots.clone()
    }

    /// Returns the history of the job, the oldest point first. The number of points is bounded, even if the
    /// job runs for a long time.
    pub fn curves(&self) -> Arc<Vec<CurvePoint>> {
        Arc::clone(&self.contents.lock().curves)
    }

    /// Returns which shard holds each slice; empty until the placement is decided.
    pub fn placement(&self) -> Arc<Vec<PlacementRow>> {
        Arc::clone(&self.contents.lock().placement)
    }

    /// Returns whether the job has a directory or bucket for checkpoints.
    pub const fn makes_checkpoints(&self) -> bool {
        self.makes_checkpoints
    }

    /// Sends a command to the job. A command that arrives before the variables are created waits until then.
    /// Returns false if the job has ended or if too many commands are waiting already.
    pub fn command(&self, command: Command) -> bool {
        self.commands.try_send(command).is_ok()
    }
}

#[async_trait]
impl Observed for ChiefView {
    async fn observe(&self) -> TaskSnapshot {
        let snapshot = Arc::clone(&self.snapshots.borrow());
        let server = self.server.get().map(ServerObserver::snapshot);
        let actor = format!("{}/desk", TaskId::CHIEF);
        TaskSnapshot {
            task: TaskId::CHIEF,
            incarnation: self.incarnation,
            state: self.contents.lock().state,
            actors: vec![self.meter.snapshot(actor, phase(snapshot.phase))],
            role: RoleSnapshot::Chief(Box::new(ChiefSnapshot { server, ..(*snapshot).clone() })),
        }
    }
}

const fn phase(phase: JobPhase) -> &'static str {
    match phase {
        JobPhase::Starting => "waits for tasks",
        JobPhase::Training => "training",
        JobPhase::Evaluating => "evaluating",
        JobPhase::Failing => "failing",
        JobPhase::Ended => "ended",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{CommandQueue, VIEW_COMMANDS_MAX};

    #[tokio::test]
    async fn commands_that_wait_are_bounded() {
        let board = StatusBoard::new();
        let mut queue = CommandQueue::new();
        let view = board.view(Incarnation(1), true, queue.for_views());
        let sent = (0..VIEW_COMMANDS_MAX + 9).filter(|_| view.command(Command::Save)).count();
        assert_eq!(sent, VIEW_COMMANDS_MAX);
        // One command is carried out, so there is room for one more.
        assert_eq!(queue.next().await, Command::Save);
        assert!(view.command(Command::Save) && !view.command(Command::Save));
        queue.close();
        assert!(!view.command(Command::Save));
    }
}
