//! All devices of one worker: each has a clone of the graph and its part of every batch, and their gradients are added
//! up inside the worker, so that it pushes once.

use std::ops::Range;
use std::sync::Arc;

use actix::Addr;
use actix_rt::Arbiter;
use futures_util::future::{join_all, try_join_all};
use pushpull_messages::device::{Device, DeviceKind};
use pushpull_messages::id::TaskId;
use pushpull_messages::observe::Meter;

use crate::device::{DeviceActor, Evaluate, Reduce, Reduced, Step, Stepped};
use crate::error::WorkerError;
use crate::gradients::Gradients;
use crate::replica::{Replica, ReplicaError};
use crate::trace::Work;
use crate::values::Values;
use pushpull_input::Batch;

/// The devices of one worker, each on a thread of its own.
pub(crate) struct Devices {
    actors: Vec<Addr<DeviceActor>>,
    /// Of what each is sent.
    meters: Vec<Arc<Meter>>,
    arbiters: Vec<Arbiter>,
    /// Of each batch the examples that each device works on.
    parts: Vec<Range<usize>>,
}

/// What a step came to on all devices.
pub(crate) struct Computed {
    /// The mean of the batch.
    pub loss: f32,
    /// Of that mean.
    pub gradients: Gradients,
    /// What each device did, where that is asked for.
    pub work: Vec<Work>,
}

/// The virtual devices of a worker on a host without others.
pub(crate) fn virtual_cpus(task: TaskId, count: usize) -> impl Iterator<Item = Device> {
    (0..count as u32).map(move |index| Device { task, kind: DeviceKind::Cpu, index })
}

/// The part of a batch that each of so many devices works on: one behind the other, of sizes that differ by 1 at most.
pub(crate) fn parts(examples: usize, devices: usize) -> Result<Vec<Range<usize>>, ReplicaError> {
    if devices == 0 || examples < devices {
        return Err(ReplicaError::Share { examples, devices });
    }
    let bound = |device: usize| device * (examples / devices) + device.min(examples % devices);
    Ok((0..devices).map(|device| bound(device)..bound(device + 1)).collect())
}

impl Devices {
    /// Starts one for each replica; `parts` are of the same order.
    pub(crate) fn start(replicas: Vec<Box<dyn Replica>>, parts: Vec<Range<usize>>) -> Self {
        let arbiters: Vec<Arbiter> = replicas.iter().map(|_| Arbiter::new()).collect();
        let start = |(replica, arbiter): (Box<dyn Replica>, &Arbiter)| {
            DeviceActor::start_on(&arbiter.handle(), replica)
        };
        let actors = replicas.into_iter().zip(&arbiters).map(start).collect();
        let meters = arbiters.iter().map(|_| Arc::default()).collect();
        Self { actors, meters, arbiters, parts }
    }

    /// Computes one step on all devices; `memory` is for the gradients of each. Tells what each did where the step is `traced`.
    pub(crate) async fn step(
        &self,
        batch: &Arc<Batch>,
        random: u64,
        values: &Arc<Values>,
        memory: Vec<Gradients>,
        traced: bool,
    ) -> Result<Computed, WorkerError> {
        let devices = self.actors.iter().zip(&self.meters).zip(&self.parts);
        let steps = devices.zip(memory).map(|(((device, meter), part), gradients)| {
            device.send(Step {
                batch: Arc::clone(batch),
                first: part.start,
                random,
                values: Arc::clone(values),
                gradients,
                queued: meter.queue(),
            })
        });
        // All of them have to come back before the first error is told: they hold the batch.
        let (mut loss, mut reduced) = (0.0, Vec::with_capacity(self.actors.len()));
        let (mut failed, mut work) = (None, Vec::new());
        for (device, (stepped, part)) in join_all(steps).await.into_iter().zip(&self.parts).enumerate() {
            let Stepped { loss: own, gradients, took: [began, ended] } = stepped?;
            if traced {
                work.push(Work { device, name: "forward and backward", began, ended });
            }
            match own {
                Ok(own) => loss += own * (part.len() as f32 / batch.examples as f32),
                Err(error) => failed = failed.or(Some(error)),
            }
            reduced.push(gradients);
        }
        match failed {
            Some(error) => Err(error.into()),
            None => {
                let gradients = self.reduce(reduced, traced.then_some(&mut work)).await?;
                Ok(Computed { loss, gradients, work })
            }
        }
    }

    /// A tree: in each round every second one is added to the one before it, in place, all pairs at the same time.
    async fn reduce(
        &self,
        mut gradients: Vec<Gradients>,
        mut work: Option<&mut Vec<Work>>,
    ) -> Result<Gradients, WorkerError> {
        while gradients.len() > 1 {
            let mut pairs = Vec::with_capacity(gradients.len().div_ceil(2));
            let mut left = gradients.into_iter();
            while let Some(own) = left.next() {
                let (device, other) = (pairs.len(), left.next());
                pairs.push(async move {
                    let Some(other) = other else { return Ok((own, None)) };
                    let queued = self.meters[device].queue();
                    let reduced = self.actors[device].send(Reduce { own, other, queued }).await;
                    reduced.map(|Reduced { gradients, took }| (gradients, Some((device, took))))
                });
            }
            gradients = Vec::with_capacity(pairs.len());
            for (sum, took) in try_join_all(pairs).await? {
                gradients.push(sum);
                if let (Some(work), Some((device, [began, ended]))) = (&mut work, took) {
                    work.push(Work { device, name: "reduce", began, ended });
                }
            }
        }
        Ok(gradients.pop().expect("at least one device"))
    }

    /// Computes the loss and every metric of some batches, each on a device of its own.
    pub(crate) async fn evaluate(
        &self,
        batches: Vec<Batch>,
        values: &Arc<Values>,
    ) -> Result<Vec<Vec<f32>>, WorkerError> {
        let devices = self.actors.iter().zip(&self.meters).cycle();
        let evaluated = devices.zip(batches).map(|((device, meter), batch)| {
            let (values, queued) = (Arc::clone(values), meter.queue());
            let sent = device.send(Evaluate { batch, values, queued });
            async move { Ok::<_, WorkerError>(sent.await??) }
        });
        try_join_all(evaluated).await
    }

    /// Of what each is sent.
    pub(crate) fn meters(&self) -> Vec<Arc<Meter>> {
        self.meters.clone()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.actors.len()
    }
}

/// A thread that computes is let go of, not waited for.
impl Drop for Devices {
    fn drop(&mut self) {
        for arbiter in &self.arbiters {
            arbiter.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_cover_the_batch_one_behind_the_other_and_differ_by_one(devices in 1usize..20, more in 0usize..50) {
            let examples = devices + more;
            let parts = parts(examples, devices).unwrap();
            prop_assert_eq!(parts.len(), devices);
            let mut next = 0;
            for part in &parts {
                prop_assert_eq!(part.start, next);
                prop_assert!(part.len() == examples / devices || part.len() == examples / devices + 1);
                next = part.end;
            }
            prop_assert_eq!(next, examples);
        }
    }

    #[test]
    fn a_batch_smaller_than_the_devices_is_refused() {
        let error = parts(3, 4).unwrap_err().to_string();
        assert!(error.contains("3 examples") && error.contains("4 devices"), "{error}");
    }
}
