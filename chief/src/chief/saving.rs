//! The chief's handle on the saver, which runs concurrently with the job. The saver decides when checkpoints
//! are due.

use std::cell::OnceCell;
use std::rc::Rc;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::id::Incarnation;
use pushpull_storage::Catalog;
use tokio::sync::{mpsc, watch};

use crate::checkpoint::{RestoreChoice, SaveStatus, Saver, SaverCommand};
use crate::launch::{Drain, PsTasks};
use crate::report::JobProgress;

/// A handle on a saver that runs concurrently with the job. If the job makes no checkpoints, the handle does
/// nothing.
pub(super) struct Saving {
    /// The saver's future. After [`SaverCommand::End`] it makes the last checkpoint and ends. If the job
    /// makes no checkpoints, the future never ends.
    pub work: LocalBoxFuture<'static, Result<CheckpointName, String>>,
    pub commands: mpsc::UnboundedSender<SaverCommand>,
    pub status: watch::Receiver<SaveStatus>,
    /// The job's own checkpoints, and the choice of the checkpoint that the job resumes from.
    pub checkpoints: Option<(Catalog, RestoreChoice)>,
    /// The incarnation number that the checkpoints of this run carry until the job rolls back.
    pub life: Incarnation,
    /// The reason and the deadline of a drain; set when the job is told to drain.
    pub drain: Rc<OnceCell<Drain>>,
    /// The number of checkpoints that have been announced.
    announced: u64,
}

impl Saving {
    pub(super) fn start(
        saver: Option<Saver>,
        ps: Rc<PsTasks>,
        progress: watch::Receiver<JobProgress>,
    ) -> Self {
        let (commands, receiver) = mpsc::unbounded_channel();
        let status = saver.as_ref().map_or_else(|| watch::channel(SaveStatus::default()).1, Saver::status);
        let checkpoints = saver.as_ref().map(Saver::checkpoints);
        let life = saver.as_ref().map(Saver::life).unwrap_or_default();
        let work = async move {
            match saver {
                Some(saver) => saver.run(&ps, progress, receiver).await,
                None => std::future::pending().await,
            }
        };
        let (drain, announced) = (Rc::default(), 0);
        Self { work: work.boxed_local(), commands, status, checkpoints, life, drain, announced }
    }

    /// Returns the newest status, and whether a checkpoint was made since the last call.
    pub(super) fn update(&mut self) -> (SaveStatus, bool) {
        let status = *self.status.borrow_and_update();
        let saves = std::mem::replace(&mut self.announced, status.saves);
        (status, status.saves > saves)
    }
}
