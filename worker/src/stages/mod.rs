//! Replicas whose graph is cut into stages, each on a worker task of its own. The leader, stage 0, is the
//! worker of which the chief and the shards know: it reads the batches and decides what happens in a step.
//! Every other stage computes its part when the leader asks, and pushes and pulls the variables that it owns
//! in the leader's name. This module must not depend on the training loop.

mod arrivals;
mod compiled;
mod departures;
mod error;
mod flight;
mod group;
mod pipeline;
mod replica;
mod service;
mod session;
mod sets;
mod task;
#[cfg(test)]
mod tests;
mod transfers;

pub use error::{StageError, StageErrorKind};
pub(crate) use group::{Group, GroupStart};
pub use pipeline::{BeforePass, StagePass};
pub(crate) use replica::StagedReplica;
pub(crate) use task::{Registration, StageTask};
