//! Starts the cluster, supervises it, and carries out commands to the job.

mod agreement;
mod claiming;
mod launcher;
mod ps_tasks;
mod rate_history;

pub(crate) use launcher::{Drain, Launcher};
pub(crate) use ps_tasks::{CreateError, FAREWELL, PsStatus, PsTasks};
