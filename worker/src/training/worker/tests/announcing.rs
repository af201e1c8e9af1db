//! Tests that a device that copies batches learns of the next one, and that it comes next.

use std::sync::Mutex;

use pushpull_engine::Feed;
use pushpull_input::Batch;
use pushpull_messages::input::Column;

use super::*;
use crate::client::{Gradients, Values};
use crate::devices::{Complete, DeviceList, GraphReplica, Replica, ReplicaConfig, ReplicaError};

const STEPS: u64 = 40;
/// How often a worker offers its core to other threads between two steps.
const TURNS: usize = 1000;

/// A batch that a replica has seen: its number and its columns.
type Seen = (u64, Vec<Column>);

/// What a replica has seen in each step: its batch, and the next one if it was announced.
type Fed = Vec<(Seen, Option<Seen>)>;

/// A replica that says that it copies batches.
struct Copying {
    inner: GraphReplica,
    /// The place of the replica in `fed`.
    index: usize,
    fed: Arc<Mutex<Vec<Fed>>>,
}

impl Replica for Copying {
    fn step(
        &mut self,
        feed: Feed<'_>,
        values: &Values,
        gradients: &mut Gradients,
        complete: &mut Complete<'_>,
    ) -> Result<f32, ReplicaError> {
        let own = (feed.number, feed.columns.to_vec());
        let next = feed.next.map(|next| (next.number, next.columns.to_vec()));
        self.fed.lock().unwrap()[self.index].push((own, next));
        self.inner.step(feed, values, gradients, complete)
    }

    fn fetched(&self) -> &[f32] {
        self.inner.fetched()
    }

    fn copies(&self) -> bool {
        true
    }

    fn prepare(&mut self, examples: usize) -> Result<(), ReplicaError> {
        self.inner.prepare(examples)
    }

    fn evaluate(&mut self, batch: &Batch, values: &Values) -> Result<Vec<f32>, ReplicaError> {
        self.inner.evaluate(batch, values)
    }
}

/// A hook that lets the prefetch thread prepare a batch. The values of such a small job come at once, so that
/// thread might never be ahead.
struct Pause;

impl Hook for Pause {
    fn after_step(&mut self, _: &StepInfo<'_>, _: &Plots) -> Result<(), HookError> {
        (0..TURNS).for_each(|_| std::thread::yield_now());
        Ok(())
    }
}

/// Trains, and returns what each replica has seen.
fn train(devices: usize, job: JobSpec) -> Vec<Fed> {
    let fed: Arc<Mutex<Vec<Fed>>> = Arc::default();
    let own = Arc::clone(&fed);
    let replica = move |config: ReplicaConfig<'_>| {
        let mut all = own.lock().unwrap();
        let index = all.len();
        all.push(Fed::new());
        let inner = GraphReplica::new(config)?;
        Ok(Box::new(Copying { inner, index, fed: Arc::clone(&own) }) as Box<dyn Replica>)
    };
    let config = WorkerConfig {
        devices: DeviceList::cpus(devices),
        replica: Arc::new(replica),
        own_threads: true,
        hooks: vec![Arc::new(|| Box::new(Pause) as Box<dyn Hook>)],
        ..Default::default()
    };
    play(Script { job, config, ..Default::default() }, |mut play| async move {
        play.end().await.unwrap();
    });
    std::mem::take(&mut *fed.lock().unwrap())
}

#[test]
fn the_batch_that_was_announced_comes_next() {
    for (devices, accumulate, pipeline) in [(1, 1, 1), (2, 1, 1), (1, 3, 1), (1, 1, 2)] {
        let all = train(devices, JobSpec { accumulate, pipeline, ..job(STEPS) });
        assert_eq!(all.len(), devices);
        for fed in &all {
            assert!(fed.len() as u64 >= STEPS * u64::from(accumulate), "{} batches", fed.len());
            let numbers: BTreeSet<u64> = fed.iter().map(|((number, _), _)| *number).collect();
            assert!(numbers.len() == fed.len() && !numbers.contains(&0), "each batch has its number");
            let mut announced = 0;
            for pair in fed.windows(2) {
                let [(_, next), (own, _)] = pair else { unreachable!("two steps") };
                announced += usize::from(next.is_some());
                assert!(next.as_ref().is_none_or(|next| next == own), "another batch came");
            }
            assert!(announced > 0, "no batch was announced");
        }
    }
}
