//! The chief's handle on the saver, which runs concurrently with the job. The saver decides when checkpoints
//! are due.

use std::cell::OnceCell;
use std::convert::Infallible;
use std::rc::Rc;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::id::Incarnation;
use pushpull_storage::Catalog;
use tokio::sync::{mpsc, watch};
use tracing::debug;

use crate::checkpoint::{RestoreChoice, SaveStatus, Saver, SaverCommand, SaverCommands};
use crate::launch::{Drain, MemoryLevel, PsTasks};
use crate::report::JobProgress;

/// A handle on a saver that runs concurrently with the job. If the job makes no checkpoints, the handle does
/// nothing.
pub(super) struct Saving {
    /// The saver's future. After [`SaverCommand::End`] it makes the last checkpoint and ends. If the job
    /// makes no checkpoints, the future never ends.
    pub work: LocalBoxFuture<'static, Result<CheckpointName, String>>,
    pub commands: SaverCommands,
    pub status: watch::Receiver<SaveStatus>,
    /// The job's own checkpoints, and the choice of the checkpoint that the job resumes from.
    pub checkpoints: Option<(Catalog, RestoreChoice)>,
    /// The job's checkpoints in the memory of the ps tasks; `None` if it keeps none.
    pub memory: Option<MemoryLevel>,
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
        memory: Option<Saver>,
        ps: Rc<PsTasks>,
        progress: watch::Receiver<JobProgress>,
    ) -> Self {
        let (commands, [of_directory, of_memory]) = SaverCommands::new();
        let status = saver.as_ref().map_or_else(|| watch::channel(SaveStatus::default()).1, Saver::status);
        let checkpoints = saver.as_ref().map(Saver::checkpoints);
        let life = saver.as_ref().map(Saver::life).unwrap_or_default();
        let level = |saver: &Saver| MemoryLevel { catalog: saver.checkpoints().0, status: saver.status() };
        let level = memory.as_ref().map(level);
        let work = async move {
            let directory = run(saver, &ps, progress.clone(), of_directory);
            let memory = async {
                let reason = run(memory, &ps, progress, of_memory).await;
                debug!(?reason, "the saver of checkpoints in memory has ended");
                std::future::pending::<Infallible>().await
            };
            tokio::select! {
                biased;
                last = directory => last,
                never = memory => match never {},
            }
        };
        let (drain, announced) = (Rc::default(), 0);
        Self {
            work: work.boxed_local(),
            commands,
            status,
            checkpoints,
            memory: level,
            life,
            drain,
            announced,
        }
    }

    /// Returns the newest status, and whether a checkpoint was made since the last call.
    pub(super) fn update(&mut self) -> (SaveStatus, bool) {
        let status = *self.status.borrow_and_update();
        let saves = std::mem::replace(&mut self.announced, status.saves);
        (status, status.saves > saves)
    }
}

/// Runs a saver. Never returns if the job has none.
async fn run(
    saver: Option<Saver>,
    ps: &PsTasks,
    progress: watch::Receiver<JobProgress>,
    commands: mpsc::UnboundedReceiver<SaverCommand>,
) -> Result<CheckpointName, String> {
    match saver {
        Some(saver) => saver.run(ps, progress, commands).await,
        None => std::future::pending().await,
    }
}
