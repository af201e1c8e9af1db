//! The actor that owns a replica: computes on an arbiter of its own, so that nothing else waits for a step.

use std::sync::Arc;
use std::time::Instant;

use actix::{Actor, Addr, Context, Handler, MessageResult};
use actix_rt::ArbiterHandle;
use pushpull_messages::observe::Queued;

use crate::error::WorkerError;
use crate::gradients::Gradients;
use crate::replica::{Replica, ReplicaError};
use crate::values::Values;
use pushpull_engine::Feed;
use pushpull_input::Batch;

/// A replica on its thread.
pub(crate) struct DeviceActor {
    replica: Box<dyn Replica>,
}

impl Actor for DeviceActor {
    type Context = Context<Self>;
}

impl DeviceActor {
    /// Starts on that arbiter.
    pub(crate) fn start_on(arbiter: &ArbiterHandle, replica: Box<dyn Replica>) -> Addr<Self> {
        Self::start_in_arbiter(arbiter, move |_| Self { replica })
    }
}

/// Compute one step.
#[derive(actix::Message)]
#[rtype(result = "Stepped")]
pub(crate) struct Step {
    pub batch: Arc<Batch>,
    /// The first example of this device's part.
    pub first: usize,
    pub random: u64,
    pub values: Arc<Values>,
    pub gradients: Gradients,
    pub queued: Queued,
}

/// The step's loss, and what was lent for it. The batch and the values are let go before this is sent.
pub(crate) struct Stepped {
    pub loss: Result<f32, ReplicaError>,
    pub gradients: Gradients,
    /// From when until when it was computed.
    pub took: [Instant; 2],
}

impl Handler<Step> for DeviceActor {
    type Result = MessageResult<Step>;

    fn handle(&mut self, step: Step, _: &mut Self::Context) -> Self::Result {
        let Step { batch, first, random, values, mut gradients, queued } = step;
        let handling = queued.handle();
        let feed = Feed { columns: &batch.columns, examples: batch.examples, first, random };
        let loss = self.replica.step(feed, &values, &mut gradients, &mut Gradients::complete);
        drop((batch, values));
        MessageResult(Stepped { loss, gradients, took: [handling.began(), Instant::now()] })
    }
}

/// Add another device's gradients to one's own.
#[derive(actix::Message)]
#[rtype(result = "Reduced")]
pub(crate) struct Reduce {
    pub own: Gradients,
    pub other: Gradients,
    pub queued: Queued,
}

/// What they come to.
pub(crate) struct Reduced {
    pub gradients: Gradients,
    /// From when until when they were added.
    pub took: [Instant; 2],
}

impl Handler<Reduce> for DeviceActor {
    type Result = MessageResult<Reduce>;

    fn handle(&mut self, reduce: Reduce, _: &mut Self::Context) -> Self::Result {
        let Reduce { own: mut gradients, other, queued } = reduce;
        let handling = queued.handle();
        gradients.add(&other);
        MessageResult(Reduced { gradients, took: [handling.began(), Instant::now()] })
    }
}

/// Compute the loss and every metric.
#[derive(actix::Message)]
#[rtype(result = "Result<Vec<f32>, ReplicaError>")]
pub(crate) struct Evaluate {
    pub batch: Batch,
    pub values: Arc<Values>,
    pub queued: Queued,
}

impl Handler<Evaluate> for DeviceActor {
    type Result = Result<Vec<f32>, ReplicaError>;

    fn handle(&mut self, evaluate: Evaluate, _: &mut Self::Context) -> Self::Result {
        let Evaluate { batch, values, queued } = evaluate;
        let _handling = queued.handle();
        self.replica.evaluate(&batch, &values)
    }
}

/// A mailbox closes only when its actor has panicked.
impl From<actix::MailboxError> for WorkerError {
    fn from(_: actix::MailboxError) -> Self {
        Self::DevicePanicked
    }
}
