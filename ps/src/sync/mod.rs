//! Synchronisation policies: plain state machines that say what becomes of a push. They carry nothing out.

mod asynchronous;

use messages::id::{GlobalStep, Version};
use messages::sync::SyncSpec;

pub(crate) use asynchronous::Asynchronous;

/// What shall become of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It becomes an update of its own, now.
    Apply,
    /// The job has reached its last step: it becomes nothing.
    Stop,
}

/// Decides about each push that is new, fits and is finite.
pub(crate) trait Policy: Send {
    /// What shall become of a push that comes at this version of the shard.
    fn admit(&mut self, version: Version) -> Admission;
}

/// The policy that a job asks for.
pub(crate) fn policy(spec: SyncSpec, last_step: GlobalStep) -> Box<dyn Policy> {
    match spec {
        SyncSpec::Async => Box::new(Asynchronous::new(last_step)),
    }
}
