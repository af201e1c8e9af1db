//! The events that can change the state of a job. Data only.

use pushpull_messages::id::{GlobalStep, Incarnation};
use pushpull_messages::message::Message;
use pushpull_messages::observe::Queued;
use pushpull_messages::placement::Placement;
use pushpull_transport::{Peer, Reply};

use crate::checkpoint::SaveStatus;
use crate::error::ChiefError;
use crate::job::{JobStart, Settled};
use crate::launch::HeldWorker;

/// An event that can change the state of a job.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub(crate) enum JobEvent {
    /// A worker sent a request.
    Request { peer: Peer, message: Message, reply: Reply },
    /// A worker opened a connection.
    Connected(Peer),
    /// A worker's connection broke.
    Disconnected(Peer),
    /// A worker did not reconnect in time after this connection broke.
    Lost { index: u32, connection: u64 },
    /// Every variable has its initial value; the job begins with this placement and state.
    Created(Placement, JobStart),
    /// This chief continues the job of an earlier run of the chief, with these members.
    Continued(Placement, JobStart, Vec<HeldWorker>),
    /// A ps task is lost. Its variables may be lost, too.
    Suspend,
    /// All shards still have their variables, so the suspended job goes on.
    Resume,
    /// The job rolls back to a checkpoint. If an earlier run of the chief has begun the job, the field lists
    /// the workers that the remaining shards know; otherwise it is empty. [`Created`](Self::Created) follows
    /// when the variables are restored.
    RollBack(Vec<HeldWorker>),
    /// The ps task that this worker hosts was lost for good, and with it the worker.
    HostLost(u32),
    /// The job has been saved and reported, so its workers may leave now.
    Release,
    /// All shards know that this incarnation of a worker is appointed.
    Appointed(u32, Incarnation),
    /// A checkpoint was committed, or a save failed.
    Saved(SaveStatus),
    /// The chief is about to tell the shards at which step to stop. If `drains` is true, another job will
    /// continue from that step.
    Stop { reason: String, drains: bool },
    /// The shards have agreed on the step at which they stop.
    StoppingAt(GlobalStep),
    /// The job is draining, and the time for workers to finish is over.
    EndDrain,
    /// The trained job has settled: its last step was saved, or the attempt has ended.
    Settled(Settled),
    /// The job cannot continue because of this error.
    Fail(ChiefError),
    /// A signal told the chief to stop, and the job cannot be saved.
    Interrupt,
    /// The job has failed, and the time for workers to leave is over.
    EndFailing,
}

/// An event from a connection, with the time at which it was queued.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub(super) struct PeerEvent {
    pub event: JobEvent,
    pub queued: Queued,
}
