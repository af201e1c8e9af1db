//! The coordinator: the actor that keeps the job's state, and the service that passes the workers' requests
//! to the actor.

mod actor;
mod event;
mod service;
mod snapshot;
#[cfg(test)]
mod tests;

pub(crate) use actor::{Coordinator, CoordinatorChannels, Milestone, Observe};
pub(crate) use event::JobEvent;
pub(crate) use service::CoordinatorService;
pub(crate) use snapshot::CoordinatorSnapshot;
