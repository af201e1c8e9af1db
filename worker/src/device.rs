//! The actor that owns a replica: computes on an arbiter of its own, so that nothing else waits for a step.

use std::sync::Arc;

use actix::{Actor, Addr, Context, Handler, MessageResult};
use actix_rt::ArbiterHandle;

use crate::error::WorkerError;
use crate::gradients::Gradients;
use crate::input::Batch;
use crate::replica::{Replica, ReplicaError};
use crate::values::Values;

/// A replica on its thread.
pub(crate) struct Device {
    replica: Box<dyn Replica>,
}

impl Actor for Device {
    type Context = Context<Self>;
}

impl Device {
    /// Starts on that arbiter.
    pub(crate) fn start_on(arbiter: &ArbiterHandle, replica: Box<dyn Replica>) -> Addr<Self> {
        Self::start_in_arbiter(arbiter, move |_| Self { replica })
    }
}

/// Compute one step.
#[derive(actix::Message)]
#[rtype(result = "Stepped")]
pub(crate) struct Step {
    pub batch: Batch,
    pub values: Arc<Values>,
    pub gradients: Gradients,
}

/// The step's loss, and everything that was lent for it. The values are let go before this is sent.
pub(crate) struct Stepped {
    pub loss: Result<f32, ReplicaError>,
    pub batch: Batch,
    pub gradients: Gradients,
}

impl Handler<Step> for Device {
    type Result = MessageResult<Step>;

    fn handle(&mut self, step: Step, _: &mut Self::Context) -> Self::Result {
        let Step { batch, values, mut gradients } = step;
        let loss = self.replica.step(&batch, &values, &mut gradients);
        MessageResult(Stepped { loss, batch, gradients })
    }
}

/// Compute the loss and every metric.
#[derive(actix::Message)]
#[rtype(result = "Result<Vec<f32>, ReplicaError>")]
pub(crate) struct Evaluate {
    pub batch: Batch,
    pub values: Arc<Values>,
}

impl Handler<Evaluate> for Device {
    type Result = Result<Vec<f32>, ReplicaError>;

    fn handle(&mut self, evaluate: Evaluate, _: &mut Self::Context) -> Self::Result {
        self.replica.evaluate(&evaluate.batch, &evaluate.values)
    }
}

/// A mailbox closes only when its actor has panicked.
impl From<actix::MailboxError> for WorkerError {
    fn from(_: actix::MailboxError) -> Self {
        Self::DevicePanicked
    }
}
