//! Starts the cluster, supervises it, and carries out commands to the job.

mod agreement;
mod claiming;
mod launcher;
mod membership;
mod ps_files;
mod ps_tasks;
mod rate_history;
mod recovery;
mod takeover;

pub(crate) use launcher::{Drain, Launcher, MemoryLevel};
pub(crate) use membership::tell_shards;
pub(crate) use ps_tasks::{CreateError, FAREWELL, PsStatus, PsTasks};
pub(crate) use takeover::HeldWorker;
