//! The actor that owns a replica. It computes on its own arbiter (a thread with an event loop), so a step
//! blocks no other actor. This module must not depend on other devices.

use std::sync::Arc;
use std::time::Instant;

use actix::{Actor, Addr, Context, Handler, MessageResult};
use actix_rt::ArbiterHandle;
use pushpull_cuda::Worked;
use pushpull_engine::{Feed, Groups, NextBatch, OpTime};
use pushpull_input::Batch;
use pushpull_messages::observe::{self, Queued};

use super::error::ReplicaError;
use super::replica::Replica;
use crate::client::{Gradients, Values};

/// A replica that computes on its own thread.
pub(crate) struct Device {
    replica: Box<dyn Replica>,
}

impl Actor for Device {
    type Context = Context<Self>;
}

impl Device {
    /// Starts the device on `arbiter`, or on the current thread if there is none.
    pub(crate) fn start_on(arbiter: Option<&ArbiterHandle>, replica: Box<dyn Replica>) -> Addr<Self> {
        match arbiter {
            Some(arbiter) => Self::start_in_arbiter(arbiter, move |_| Self { replica }),
            None => Self { replica }.start(),
        }
    }
}

/// The batch of the next step, which a device may copy already.
#[derive(Clone, Debug)]
pub(crate) struct Coming {
    /// The number of the batch, which no other batch has.
    pub number: u64,
    pub batch: Arc<Batch>,
}

/// A request to compute the gradients of this device's part of a batch.
#[derive(actix::Message)]
#[rtype(result = "DeviceGradients")]
pub(crate) struct ComputeGradients {
    pub batch: Arc<Batch>,
    /// The number of the batch; 0 if it has none.
    pub number: u64,
    /// The next batch, if it is known.
    pub next: Option<Coming>,
    /// The index of the first example of this device's part.
    pub first: usize,
    pub random: u64,
    /// The groups of tensors that the step fetches.
    pub groups: Groups,
    /// Whether the time of each operation is recorded.
    pub timed: bool,
    /// Whether it is recorded when the device copies and computes.
    pub traced: bool,
    pub values: Arc<Values>,
    pub gradients: Gradients,
    pub queued: Queued,
}

/// The loss and the gradients of a device's part of a batch. The device drops its references to batches
/// and values before it replies.
pub(crate) struct DeviceGradients {
    pub loss: Result<f32, ReplicaError>,
    pub gradients: Gradients,
    /// The fetched tensors of all groups, one after another, as [`Replica::fetched`] returns them.
    pub fetched: Vec<f32>,
    /// The time of each operation; empty unless it was requested.
    pub op_times: Vec<OpTime>,
    /// When the device copied and computed; empty unless it was requested.
    pub worked: Vec<Worked>,
    /// When the computation began and ended.
    pub took: [Instant; 2],
}

impl Handler<ComputeGradients> for Device {
    type Result = MessageResult<ComputeGradients>;

    fn handle(&mut self, step: ComputeGradients, _: &mut Self::Context) -> Self::Result {
        let ComputeGradients { batch, number, next, first, random, groups, timed, traced, values, .. } = step;
        let (mut gradients, queued) = (step.gradients, step.queued);
        let handling = queued.handle();
        let announced = next.as_ref().map(|Coming { number, batch }| NextBatch {
            number: *number,
            columns: &batch.columns,
            examples: batch.examples,
        });
        let (columns, examples) = (&batch.columns, batch.examples);
        let feed = Feed { columns, examples, first, random, groups, timed, traced, number, next: announced };
        let loss = self.replica.step(feed, &values, &mut gradients, &mut Gradients::complete);
        if loss.is_ok() {
            gradients.complete_all();
        }
        let fetched = if groups.is_empty() { Vec::new() } else { self.replica.fetched().to_vec() };
        let op_times = if timed { self.replica.op_times() } else { Vec::new() };
        let worked = if traced { self.replica.worked() } else { Vec::new() };
        drop((batch, next, values));
        let took = [handling.began(), observe::now()];
        MessageResult(DeviceGradients { loss, gradients, fetched, op_times, worked, took })
    }
}

/// A request to add the gradients of another device, `other`, to this device's gradients, `own`.
#[derive(actix::Message)]
#[rtype(result = "AddedGradients")]
pub(crate) struct AddGradients {
    pub own: Gradients,
    pub other: Gradients,
    pub queued: Queued,
}

/// The sum of two devices' gradients.
pub(crate) struct AddedGradients {
    pub gradients: Gradients,
    /// When the addition began and ended.
    pub took: [Instant; 2],
}

impl Handler<AddGradients> for Device {
    type Result = MessageResult<AddGradients>;

    fn handle(&mut self, reduce: AddGradients, _: &mut Self::Context) -> Self::Result {
        let AddGradients { own: mut gradients, other, queued } = reduce;
        let handling = queued.handle();
        gradients.add(&other);
        MessageResult(AddedGradients { gradients, took: [handling.began(), observe::now()] })
    }
}

/// A request to compute the loss and every metric of a batch.
#[derive(actix::Message)]
#[rtype(result = "Result<Vec<f32>, ReplicaError>")]
pub(crate) struct EvaluateBatch {
    pub batch: Batch,
    pub values: Arc<Values>,
    pub queued: Queued,
}

impl Handler<EvaluateBatch> for Device {
    type Result = Result<Vec<f32>, ReplicaError>;

    fn handle(&mut self, evaluate: EvaluateBatch, _: &mut Self::Context) -> Self::Result {
        let EvaluateBatch { batch, values, queued } = evaluate;
        let _handling = queued.handle();
        self.replica.evaluate(&batch, &values)
    }
}
