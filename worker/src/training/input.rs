//! The input of a worker: the batches of its share of the examples. When workers join or leave, the chief
//! gives the worker another share, and the worker goes on in that one. This module must not depend on how a
//! step is computed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pushpull_input::{Batch, Datasets, Pipeline, PipelineWorker, Prefetch};
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::Share;
use tokio::sync::watch;

use crate::blocking::blocking;
use crate::devices::Coming;
use crate::error::WorkerError;
use crate::telemetry::Journal;

/// The input of a worker.
///
/// Batches that were ready, but not used, when the share changes are not counted as read.
pub(super) struct WorkerInput {
    batches: Prefetch,
    source: Arc<InputSource>,
    /// The share that is being read; `None` if the shares of the job never change.
    share: Option<Share>,
    /// The newest share that the chief has told.
    told: watch::Receiver<Option<Share>>,
    /// The number of the latest batch.
    number: u64,
    /// The batch after it, which was taken before its turn.
    next: Option<Coming>,
}

/// Returns a number that no other batch of this process has; never 0.
fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// What it takes to open the input of a share.
pub(super) struct InputSource {
    /// The job. The paths of its input are paths on this host.
    pub job: JobSpec,
    pub datasets: Datasets,
    /// Whether batches are prepared on a thread of their own.
    pub own_threads: bool,
    /// The number of batches that are in use at a time, with one that is taken before its turn.
    pub used: usize,
    pub journal: Journal,
}

impl InputSource {
    /// Opens the input of a share, after the examples that count as read.
    fn open(&self, share: Share) -> Result<Pipeline, WorkerError> {
        let Self { job, datasets, .. } = self;
        let worker = PipelineWorker { index: share.position, workers: share.shares };
        let mut pipeline = Pipeline::open(&job.input, datasets, job.batch_size as usize, job.seed, worker)?;
        pipeline.restore(share.examples)?;
        Ok(pipeline)
    }

    /// Begins to prepare the batches of `pipeline`.
    fn start(&self, pipeline: Pipeline) -> Result<Prefetch, WorkerError> {
        self.journal.skipped(pipeline.skipped());
        Ok(match self.own_threads {
            true => Prefetch::start(pipeline, self.job.input.prefetch as usize, self.used)?,
            false => Prefetch::on_demand(pipeline, self.used)?,
        })
    }
}

impl WorkerInput {
    /// Begins to prepare the batches of `pipeline`, which reads `share`.
    ///
    /// # Errors
    /// If the batches would take too much memory, or no thread can be started.
    pub(super) fn start(
        source: Arc<InputSource>,
        pipeline: Pipeline,
        share: Option<Share>,
    ) -> Result<Self, WorkerError> {
        let batches = source.start(pipeline)?;
        Ok(Self { batches, source, share, told: watch::channel(None).1, number: 0, next: None })
    }

    /// Follows the shares that the chief tells from now on.
    #[must_use]
    pub(super) fn following(self, told: watch::Receiver<Option<Share>>) -> Self {
        Self { told, ..self }
    }

    /// Waits for the next batch of the newest share.
    ///
    /// # Errors
    /// If the input has ended, or the data cannot be read.
    pub(super) async fn next(&mut self) -> Result<Arc<Batch>, WorkerError> {
        let told = *self.told.borrow_and_update();
        if let (Some(own), Some(told)) = (self.share, told)
            && (own.position, own.shares) != (told.position, told.shares)
        {
            self.change(told).await?;
        }
        if let Some(Coming { number, batch }) = self.next.take() {
            self.number = number;
            return Ok(batch);
        }
        let batch = self.batches.next().await?;
        self.number = unique();
        Ok(Arc::new(batch))
    }

    /// Returns the number of the latest batch.
    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// Returns the batch after the latest one, if it is ready. It comes next, unless the share changes.
    pub(super) fn peek(&mut self) -> Option<Coming> {
        if self.next.is_none() {
            let batch = Arc::new(self.batches.try_next()?);
            self.next = Some(Coming { number: unique(), batch });
        }
        self.next.clone()
    }

    /// Lets another batch be prepared now, while the worker waits for something else.
    pub(super) fn make_room(&mut self) {
        self.batches.make_room();
    }

    /// Goes on in another share.
    async fn change(&mut self, share: Share) -> Result<(), WorkerError> {
        let Share { position, shares, examples } = share;
        tracing::info!("reading share {position} of {shares} from now on, after {examples} of its examples");
        let source = Arc::clone(&self.source);
        let open = blocking(self.source.own_threads, "share", move || source.open(share));
        self.batches = self.source.start(open.await?)?;
        self.next = None;
        self.share = Some(share);
        Ok(())
    }

    /// Returns the number of batches that are ready, and the maximum number that can be ready.
    pub(super) fn ready(&self) -> [usize; 2] {
        let [ready, ready_max] = self.batches.ready();
        [ready_max.min(ready + usize::from(self.next.is_some())), ready_max]
    }

    /// Gives a batch back. Its memory is then used for a later batch. Never blocks.
    pub(super) fn recycle(&self, batch: Batch) {
        self.batches.recycle(batch);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use pushpull_messages::graph::GraphBuilder;
    use pushpull_messages::input::{DatasetSpec, InputSpec, ShuffleSpec};
    use pushpull_messages::variable::InitializerSpec;

    use super::*;

    const EXAMPLES: u64 = 24;

    fn source(own_threads: bool) -> Arc<InputSource> {
        let mut g = GraphBuilder::new("linear");
        let x = g.input("features", [784]);
        let labels = g.labels("labels");
        let kernel = g.variable("kernel", [784, 10], InitializerSpec::Zeros);
        let logits = g.matmul(x, kernel);
        let loss = g.softmax_cross_entropy(logits, labels);
        let digits = |examples| DatasetSpec::Digits { seed: 1, examples };
        let input = InputSpec { shuffle: ShuffleSpec::None, ..InputSpec::new(digits(EXAMPLES), digits(1)) };
        let job = JobSpec { batch_size: 1, ..JobSpec::new(g.finish(loss, &[]).unwrap(), input, 10) };
        let (datasets, journal) = (Datasets::default(), Journal::default());
        Arc::new(InputSource { job, datasets, own_threads, used: 2, journal })
    }

    fn start(source: &Arc<InputSource>, share: Share) -> WorkerInput {
        let pipeline = source.open(share).unwrap();
        WorkerInput::start(Arc::clone(source), pipeline, Some(share)).unwrap()
    }

    /// Returns the pixels of the next examples, as bits.
    async fn read(input: &mut WorkerInput, examples: u64) -> Vec<Vec<u32>> {
        let mut read = Vec::new();
        for _ in 0..examples {
            let batch = input.next().await.unwrap();
            read.push(batch.columns[0].f32().expect("pixels").iter().map(|pixel| pixel.to_bits()).collect());
            input.recycle(Arc::into_inner(batch).expect("the last reference"));
        }
        read
    }

    /// Checks that workers that get new shares in the middle of an epoch read, in the next epochs, what
    /// workers read that have had these shares from the beginning.
    #[tokio::test]
    async fn another_share_is_read_from_its_place() {
        for own_threads in [true, false] {
            let source = source(own_threads);
            let mut all = BTreeSet::new();
            for position in 0..3 {
                let (tell, told) = watch::channel(None);
                let mut input = start(&source, Share { position: 0, shares: 1, examples: 0 }).following(told);
                assert_eq!(read(&mut input, 3).await.len(), 3);
                let share = Share { position, shares: 3, examples: 5 };
                tell.send_replace(Some(share));
                let rest = read(&mut input, EXAMPLES / 3).await;
                assert_eq!(rest, read(&mut start(&source, share), EXAMPLES / 3).await);
                // The same share again, with more examples, changes nothing.
                tell.send_replace(Some(Share { examples: 6, ..share }));
                let next = read(&mut input, 1).await;
                assert_eq!(next[0], rest[0], "the share has 8 examples, so the ninth is the first");
                all.extend(rest);
            }
            assert_eq!(all.len() as u64, EXAMPLES, "the shares cover all examples");
        }
    }

    /// Waits until a batch is ready before its turn.
    async fn peek(input: &mut WorkerInput) -> Coming {
        loop {
            match input.peek() {
                Some(next) => return next,
                None => tokio::task::yield_now().await,
            }
        }
    }

    #[tokio::test]
    async fn a_batch_that_was_seen_early_comes_next() {
        let source = source(true);
        let whole = Share { position: 0, shares: 1, examples: 0 };
        let expected = read(&mut start(&source, whole), EXAMPLES + 5).await;
        let (tell, told) = watch::channel(None);
        let mut input = start(&source, whole).following(told);
        let (mut numbers, mut early) = (BTreeSet::new(), None::<Coming>);
        for (at, expected) in expected.iter().enumerate() {
            let batch = input.next().await.unwrap();
            let pixels = batch.columns[0].f32().unwrap().iter().map(|pixel| pixel.to_bits());
            assert_eq!(&pixels.collect::<Vec<_>>(), expected);
            assert!(numbers.insert(input.number()), "each batch has a number of its own");
            if let Some(Coming { number, batch: early }) = early.take() {
                assert!(number == input.number() && Arc::ptr_eq(&batch, &early), "it was seen before");
            }
            input.recycle(Arc::into_inner(batch).expect("the last reference"));
            if at % 3 < 2 {
                let next = peek(&mut input).await;
                assert_eq!(peek(&mut input).await.number, next.number);
                assert!(input.ready()[0] >= 1, "it counts as ready");
                early = Some(next);
            }
        }
        // A batch of the earlier share does not come.
        let next = peek(&mut input).await;
        let share = Share { position: 1, shares: 3, examples: 5 };
        tell.send_replace(Some(share));
        assert_eq!(read(&mut input, 4).await, read(&mut start(&source, share), 4).await);
        assert!(input.number() != next.number);
    }

    #[tokio::test]
    async fn no_batch_is_ready_without_a_thread() {
        let mut input = start(&source(false), Share { position: 0, shares: 1, examples: 0 });
        assert!(input.peek().is_none());
        assert_eq!(read(&mut input, 1).await.len(), 1);
        assert!(input.peek().is_none());
    }

    #[tokio::test]
    async fn a_job_whose_shares_never_change_heeds_none() {
        let source = source(false);
        let whole = Share { position: 0, shares: 1, examples: 0 };
        let pipeline = source.open(whole).unwrap();
        let told = watch::channel(Some(Share { position: 1, shares: 3, examples: 0 })).1;
        let mut input = WorkerInput::start(Arc::clone(&source), pipeline, None).unwrap().following(told);
        assert_eq!(read(&mut input, 5).await, read(&mut start(&source, whole), 5).await);
    }
}
