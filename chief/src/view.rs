//! A job as its chief shows it: a snapshot about once a second and at every turn, and what has become of it so far. Whoever
//! looks takes what is there, and asks nobody.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use pushpull_messages::id::{Incarnation, TaskId};
use pushpull_messages::observe::{
    ChiefSnapshot, CurvePoint, JobPhase, Meter, Observed, PlacementRow, RoleSnapshot, TaskSnapshot, TaskState,
};
use tokio::sync::{mpsc, watch};

use crate::wish::Wish;

/// Wishes of all who look that wait to be fulfilled, at most.
pub const VIEW_WISHES_MAX: usize = 64;

/// What is shown beside the snapshots.
#[derive(Debug, Default)]
struct Beside {
    state: TaskState,
    curves: Arc<Vec<CurvePoint>>,
    placement: Arc<Vec<PlacementRow>>,
}

/// Where a chief shows itself. Dropped, it has ended.
#[derive(Debug)]
pub(crate) struct Shown {
    snapshots: watch::Sender<Arc<ChiefSnapshot>>,
    beside: Arc<Mutex<Beside>>,
    desk: Arc<Meter>,
}

impl Shown {
    pub(crate) fn new() -> Self {
        let (snapshots, _) = watch::channel(Arc::default());
        Self { snapshots, beside: Arc::default(), desk: Arc::default() }
    }

    /// For whoever looks.
    pub(crate) fn view(
        &self,
        incarnation: Incarnation,
        makes_checkpoints: bool,
        wishes: mpsc::Sender<Wish>,
    ) -> ChiefView {
        let snapshots = self.snapshots.subscribe();
        let (beside, desk) = (Arc::clone(&self.beside), Arc::clone(&self.desk));
        ChiefView { incarnation, makes_checkpoints, snapshots, beside, desk, wishes }
    }

    /// What its desk has to do.
    pub(crate) const fn desk(&self) -> &Arc<Meter> {
        &self.desk
    }

    fn beside(&self, change: impl FnOnce(&mut Beside)) {
        change(&mut self.beside.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Where the task is in its life.
    pub(crate) fn state(&self, state: TaskState) {
        self.beside(|beside| beside.state = state);
    }

    /// The job so far.
    pub(crate) fn curves(&self, curves: Vec<CurvePoint>) {
        self.beside(|beside| beside.curves = Arc::new(curves));
    }

    /// Where every slice lives.
    pub(crate) fn placement(&self, placement: &[PlacementRow]) {
        self.beside(|beside| {
            if beside.placement.as_slice() != placement {
                beside.placement = Arc::new(placement.to_vec());
            }
        });
    }

    /// The job as it is now.
    pub(crate) fn show(&self, snapshot: ChiefSnapshot) {
        self.snapshots.send_replace(Arc::new(snapshot));
    }

    /// It is over, for that reason, by an error or not; what was shown last stays.
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

impl Drop for Shown {
    fn drop(&mut self) {
        self.state(TaskState::Ended);
    }
}

/// A chief that can be observed, also after the job has ended.
#[derive(Clone, Debug)]
pub struct ChiefView {
    incarnation: Incarnation,
    makes_checkpoints: bool,
    snapshots: watch::Receiver<Arc<ChiefSnapshot>>,
    beside: Arc<Mutex<Beside>>,
    desk: Arc<Meter>,
    wishes: mpsc::Sender<Wish>,
}

impl ChiefView {
    /// The newest snapshot, and every one after it; closed when the job has ended and the last one is there.
    pub fn snapshots(&self) -> watch::Receiver<Arc<ChiefSnapshot>> {
        self.snapshots.clone()
    }

    fn beside<T>(&self, look: impl FnOnce(&Beside) -> T) -> T {
        look(&self.beside.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The job so far, the oldest point first; a bounded number of them, however long the job takes.
    pub fn curves(&self) -> Arc<Vec<CurvePoint>> {
        self.beside(|beside| Arc::clone(&beside.curves))
    }

    /// Where every slice lives; none before that is decided.
    pub fn placement(&self) -> Arc<Vec<PlacementRow>> {
        self.beside(|beside| Arc::clone(&beside.placement))
    }

    /// Whether it can be had to save.
    pub const fn makes_checkpoints(&self) -> bool {
        self.makes_checkpoints
    }

    /// Wishes for something: before the training begins it is fulfilled when the variables are there. False where nobody
    /// listens any more, or where so many wait already that nobody can mean them all.
    pub fn wish(&self, wish: Wish) -> bool {
        self.wishes.try_send(wish).is_ok()
    }
}

#[async_trait]
impl Observed for ChiefView {
    async fn observe(&self) -> TaskSnapshot {
        let snapshot = Arc::clone(&self.snapshots.borrow());
        let desk = format!("{}/desk", TaskId::CHIEF);
        TaskSnapshot {
            task: TaskId::CHIEF,
            incarnation: self.incarnation,
            state: self.beside(|beside| beside.state),
            actors: vec![self.desk.snapshot(desk, phase(snapshot.phase))],
            role: RoleSnapshot::Chief(Box::new((*snapshot).clone())),
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

    #[test]
    fn wishes_that_nobody_fulfils_are_bounded() {
        let shown = Shown::new();
        let (wishes, mut wished) = mpsc::channel(VIEW_WISHES_MAX);
        let view = shown.view(Incarnation(1), true, wishes);
        let made = (0..VIEW_WISHES_MAX + 9).filter(|_| view.wish(Wish::Save)).count();
        assert_eq!(made, VIEW_WISHES_MAX);
        // One is fulfilled, and there is room for one.
        assert_eq!(wished.try_recv(), Ok(Wish::Save));
        assert!(view.wish(Wish::Save) && !view.wish(Wish::Save));
        drop(wished);
        assert!(!view.wish(Wish::Save));
    }
}
