//! All devices of one worker. Each has a clone of the graph and computes a part of every batch. The worker
//! sums the gradients of all devices and sends the sums in a single push. This module must not depend on
//! shards.

mod batch_parts;
mod compute;
mod cuda_replica;
mod device;
mod error;
mod graph_replica;
mod list;
mod operations;
mod replica;
#[cfg(test)]
mod tests;
mod work;

use std::ops::Range;
use std::sync::Arc;

use actix::Addr;
use actix_rt::Arbiter;
use futures_util::future::{join_all, try_join_all};
use pushpull_cuda::{Card, Precision};
use pushpull_engine::OpTime;
use pushpull_input::Batch;
use pushpull_messages::device::DeviceKind;
use pushpull_messages::graph::GraphSpec;
use pushpull_messages::observe::Meter;

pub(crate) use self::batch_parts::parts;
pub use self::compute::Compute;
pub use self::cuda_replica::CudaReplica;
pub(crate) use self::device::Coming;
use self::device::{AddGradients, AddedGradients, ComputeGradients, Device, DeviceGradients, EvaluateBatch};
pub(crate) use self::error::DeviceError;
pub use self::error::ReplicaError;
pub use self::graph_replica::GraphReplica;
pub use self::list::{DEVICES_MAX, DeviceChoice, DeviceList, DeviceListError};
pub(crate) use self::operations::{
    check as check_operations, check_stages, table as table_of_operations, table_of_stages,
};
pub use self::replica::{Complete, MakeReplica, Replica, ReplicaConfig};
pub(crate) use self::work::{Recorded, Work};
use crate::client::{Gradients, Values};
use crate::fetches::FetchedPart;
use crate::threads::arbiter;

/// Returns a function that creates replicas which run pushpull's own engine, on the processor or on a card. A
/// replica takes at most `memory_fraction` of the memory of its card, and rounds the factors of products to
/// `precision` there.
pub fn engine_replicas(memory_fraction: f64, precision: Precision) -> MakeReplica {
    Arc::new(move |config| match config.device.kind {
        DeviceKind::Cpu => Ok(Box::new(GraphReplica::new(config)?)),
        DeviceKind::Gpu => {
            let card = Card::open(config.device.index as usize)?;
            Ok(Box::new(CudaReplica::new(config, Box::new(card), memory_fraction, precision)?))
        }
    })
}

/// The devices of one worker.
pub(crate) struct Devices {
    actors: Vec<Addr<Device>>,
    /// The meter of each device, which counts and times the device's messages.
    meters: Vec<Arc<Meter>>,
    /// The devices' threads; empty if the devices run on the worker's own thread.
    arbiters: Vec<Arbiter>,
    /// For each device, the range of a batch's examples that the device computes.
    parts: Vec<Range<usize>>,
    /// The names of the nodes of the graph, for the timeline.
    nodes: Vec<String>,
    /// Whether a device can copy a batch before its step.
    copies: bool,
}

/// A batch of the input.
#[derive(Clone)]
pub(crate) struct Fed<'a> {
    pub batch: &'a Arc<Batch>,
    /// The number of the batch; 0 if it has none.
    pub number: u64,
    /// The next batch, if it is known.
    pub next: Option<Coming>,
}

/// The result of one batch, before the gradients of different devices are added up.
pub(crate) struct DeviceParts {
    /// The mean loss over the batch.
    pub loss: f32,
    /// The gradients of each device's part of the batch.
    pub gradients: Vec<Gradients>,
    /// For each device, the tensors that it has fetched; empty if the batch fetches nothing.
    pub fetched: Vec<FetchedPart>,
    /// The pieces of work that the devices have done; empty unless the step is traced.
    pub work: Vec<Work>,
}

/// The result of a step, combined over all devices.
pub(crate) struct Computed {
    /// The mean loss over the batch.
    pub loss: f32,
    /// The gradients of the mean loss.
    pub gradients: Gradients,
    /// For each device, the tensors that it has fetched; empty if the step fetches nothing.
    pub fetched: Vec<FetchedPart>,
    /// The pieces of work that the devices have done; empty unless the step is traced.
    pub work: Vec<Work>,
}

impl Devices {
    /// Starts a device for each replica of a graph, each on a thread of its own if `own_threads` is true.
    /// `parts` holds the range of examples of each replica, in the order of the replicas.
    pub(crate) fn start(
        replicas: Vec<Box<dyn Replica>>,
        own_threads: bool,
        parts: Vec<Range<usize>>,
        graph: &GraphSpec,
    ) -> Self {
        let meters = replicas.iter().map(|_| Arc::default()).collect();
        let copies = replicas.iter().any(|replica| replica.copies());
        let mut arbiters = Vec::new();
        let actors = replicas.into_iter().map(|replica| {
            if own_threads {
                arbiters.push(arbiter());
            }
            Device::start_on(arbiters.last().map(Arbiter::handle).as_ref(), replica)
        });
        let actors = actors.collect();
        let nodes = graph.nodes.iter().map(|node| node.name.clone()).collect();
        Self { actors, meters, arbiters, parts, nodes, copies }
    }

    /// Returns whether the devices have threads of their own.
    pub(crate) const fn own_threads(&self) -> bool {
        !self.arbiters.is_empty()
    }

    /// Returns whether a device can copy a batch before its step.
    pub(crate) const fn copies(&self) -> bool {
        self.copies
    }

    /// Computes one step on all devices, and adds up their gradients. The arguments and errors are those of
    /// [`compute`](Self::compute).
    pub(crate) async fn step(
        &self,
        fed: Fed<'_>,
        random: u64,
        values: &Arc<Values>,
        memory: Vec<Gradients>,
        recorded: Recorded,
    ) -> Result<Computed, DeviceError> {
        let parts = self.compute(fed, random, values, memory, recorded).await?;
        let DeviceParts { loss, gradients, fetched, mut work } = parts;
        let gradients = self.reduce(gradients, recorded.traced.then_some(&mut work)).await?;
        Ok(Computed { loss, gradients, fetched, work })
    }

    /// Computes one batch on all devices, and records what `recorded` selects. `memory` holds the buffers
    /// for the gradients of each device.
    ///
    /// # Errors
    /// If the batch does not fit the model, or a device panicked.
    pub(crate) async fn compute(
        &self,
        fed: Fed<'_>,
        random: u64,
        values: &Arc<Values>,
        memory: Vec<Gradients>,
        recorded: Recorded,
    ) -> Result<DeviceParts, DeviceError> {
        let Recorded { traced, ops: timed, groups } = recorded;
        let Fed { batch, number, next } = fed;
        let devices = self.actors.iter().zip(&self.meters).zip(&self.parts);
        let steps = devices.zip(memory).map(|(((device, meter), part), gradients)| {
            device.send(ComputeGradients {
                batch: Arc::clone(batch),
                number,
                next: next.clone(),
                first: part.start,
                random,
                groups,
                timed,
                traced,
                values: Arc::clone(values),
                gradients,
                queued: meter.queue(),
            })
        });
        // All devices must reply before the first error is returned, because a device holds a reference to
        // the batch until it replies.
        let (mut loss, mut all) = (0.0, Vec::with_capacity(self.actors.len()));
        let (mut failed, mut work, mut fetched) = (None, Vec::new(), Vec::new());
        for (device, (stepped, part)) in join_all(steps).await.into_iter().zip(&self.parts).enumerate() {
            let DeviceGradients { loss: own, gradients, fetched: values, op_times, worked, took } = stepped?;
            if traced {
                let [began, ended] = took;
                let name = "forward and backward".into();
                work.push(Work { device, stream: None, name, began, ended });
                work.extend(op_times.into_iter().map(|op| self.work_of(device, op)));
                work.extend(worked.into_iter().map(|worked| Work::of_stream(device, worked)));
            }
            match own {
                Ok(own) => loss += own * (part.len() as f32 / batch.examples as f32),
                Err(error) => failed = failed.or(Some(error)),
            }
            if !groups.is_empty() {
                fetched.push(FetchedPart { examples: part.len(), values });
            }
            all.push(gradients);
        }
        match failed {
            Some(error) => Err(error.into()),
            None => Ok(DeviceParts { loss, gradients: all, fetched, work }),
        }
    }

    /// Converts the time of an operation into a piece of work, named after the kind of the operation and its
    /// node.
    fn work_of(&self, device: usize, op: OpTime) -> Work {
        let OpTime { node, kind, backward, began, ended } = op;
        let node = self.nodes.get(node.index()).map_or("", String::as_str);
        let pass = if backward { " (backward)" } else { "" };
        Work { device, stream: None, name: format!("{kind}{pass} {node}").into(), began, ended }
    }

    /// Sums the gradients of all devices in a tree. In each round, the gradients are added in pairs: the
    /// second of each pair is added in place to the first. All additions of a round run in parallel.
    async fn reduce(
        &self,
        mut gradients: Vec<Gradients>,
        mut work: Option<&mut Vec<Work>>,
    ) -> Result<Gradients, DeviceError> {
        while gradients.len() > 1 {
            let mut pairs = Vec::with_capacity(gradients.len().div_ceil(2));
            let mut left = gradients.into_iter();
            while let Some(own) = left.next() {
                let (device, other) = (pairs.len(), left.next());
                pairs.push(async move {
                    let Some(other) = other else { return Ok((own, None)) };
                    let queued = self.meters[device].queue();
                    let reduced = self.actors[device].send(AddGradients { own, other, queued }).await;
                    reduced.map(|AddedGradients { gradients, took }| (gradients, Some((device, took))))
                });
            }
            gradients = Vec::with_capacity(pairs.len());
            for (sum, took) in try_join_all(pairs).await? {
                gradients.push(sum);
                if let (Some(work), Some((device, [began, ended]))) = (&mut work, took) {
                    work.push(Work { device, stream: None, name: "reduce".into(), began, ended });
                }
            }
        }
        Ok(gradients.pop().expect("at least one device"))
    }

    /// Computes the loss and every metric of each batch, with one batch per device.
    ///
    /// # Errors
    /// If a batch does not fit the model, or a device panicked.
    pub(crate) async fn evaluate(
        &self,
        batches: Vec<Batch>,
        values: &Arc<Values>,
    ) -> Result<Vec<Vec<f32>>, DeviceError> {
        let devices = self.actors.iter().zip(&self.meters).cycle();
        let evaluated = devices.zip(batches).map(|((device, meter), batch)| {
            let (values, queued) = (Arc::clone(values), meter.queue());
            let sent = device.send(EvaluateBatch { batch, values, queued });
            async move { Ok::<_, DeviceError>(sent.await??) }
        });
        try_join_all(evaluated).await
    }

    /// Returns the meter of each device, which counts and times the device's messages.
    pub(crate) fn meters(&self) -> Vec<Arc<Meter>> {
        self.meters.clone()
    }

    /// Returns the number of devices.
    pub(crate) fn count(&self) -> usize {
        self.actors.len()
    }
}

/// Stops the threads of the devices. Does not wait for a computation to end.
impl Drop for Devices {
    fn drop(&mut self) {
        for arbiter in &self.arbiters {
            arbiter.stop();
        }
    }
}
