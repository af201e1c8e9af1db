//! A separate thread writes the job's summaries to an event file, so that a slow or full disk does not delay
//! the job. Only the summaries that cannot be written are lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::time::Duration;

use pushpull_messages::id::GlobalStep;
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::Evaluation;
use pushpull_messages::summary::SummarySpec;
use tracing::{info, warn};

use super::cadence::Cadence;
use crate::error::ChiefError;
use crate::hook::{Hook, HookContext};
use crate::monitor::TrainingSnapshot;
use crate::report::JobEnd;
use crate::tensorboard::{Collector, EventError, EventWriter, SummaryConfig, evaluated};
use crate::threads;

/// The maximum number of sets of summaries that may wait for the disk. Each call of the hook makes at most
/// one set. While this number of sets waits, further sets are lost.
const WAITING_MAX: usize = 64;
/// The maximum time for which the end of the job waits for the disk.
const FAREWELL: Duration = Duration::from_secs(5);

/// A hook that writes event files for TensorBoard: the job's graph and settings, the metrics of its training
/// at the configured cadence, its evaluations, and all summaries that workers and hooks plot.
///
/// Summaries that cannot be written are counted and logged once; the training goes on.
#[derive(Debug)]
pub struct SummaryEvery {
    config: SummaryConfig,
    cadence: Cadence,
    collector: Option<Collector>,
    writer: Option<WriterThread>,
    lost: Arc<AtomicU64>,
}

impl SummaryEvery {
    /// Creates the hook with these settings.
    pub fn new(config: SummaryConfig) -> Self {
        let cadence = Cadence::new(config.every_steps, config.every);
        Self { config, cadence, collector: None, writer: None, lost: Arc::default() }
    }

    fn send(&self, summaries: Vec<SummarySpec>) {
        let Some(writer) = self.writer.as_ref().filter(|_| !summaries.is_empty()) else { return };
        let count = summaries.len();
        if writer.lines.try_send(summaries).is_err() {
            lose(&self.lost, count, &"the disk is too slow");
        }
    }
}

/// The number of a worker's steps between two plots of the graph's summaries if `every_steps` is not
/// configured.
const GRAPH_STEPS: u64 = 100;

impl Hook for SummaryEvery {
    fn summary_steps(&self) -> Option<u64> {
        Some(self.config.every_steps.unwrap_or(GRAPH_STEPS).max(1))
    }

    fn begin(&mut self, job: &JobSpec, step: GlobalStep) {
        self.collector = Some(Collector::new(job, step));
        match WriterThread::start(self.config.clone(), job.clone(), step, Arc::clone(&self.lost)) {
            Ok(writer) => self.writer = Some(writer),
            Err(error) => warn!(%error, "could not start a thread, so no summaries are written"),
        }
    }

    fn progress(&mut self, snapshot: &TrainingSnapshot, _: &mut HookContext) {
        let Some(collector) = &mut self.collector else { return };
        collector.note(snapshot);
        // The final metrics of the training are always written.
        if self.cadence.is_due(snapshot.step().0, snapshot.at) || !snapshot.progress.running {
            let summaries = collector.collect(snapshot);
            self.send(summaries);
        }
    }

    fn summaries(&mut self, summaries: &[SummarySpec]) {
        self.send(summaries.to_vec());
    }

    fn evaluated(&mut self, step: GlobalStep, evaluation: &Evaluation, _: &mut HookContext) {
        self.send(evaluated(step, evaluation));
    }

    fn end(&mut self, _: Result<&JobEnd, &ChiefError>) {
        let Some(WriterThread { lines, ended }) = self.writer.take() else { return };
        drop(lines);
        if ended.recv_timeout(FAREWELL) == Err(RecvTimeoutError::Timeout) {
            warn!("the last summaries were not written in time");
        }
        match self.lost.load(Ordering::Relaxed) {
            0 => {}
            lost => warn!(lost, "some summaries could not be written"),
        }
    }
}

/// Counts the summaries that could not be written, and logs a warning for the first of them.
fn lose(lost: &AtomicU64, count: usize, reason: &dyn std::fmt::Display) {
    if lost.fetch_add(count as u64, Ordering::Relaxed) == 0 {
        warn!(%reason, "could not write summaries; training goes on");
    }
}

/// The thread that writes the file.
#[derive(Debug)]
struct WriterThread {
    lines: SyncSender<Vec<SummarySpec>>,
    /// Closed when everything has been written.
    ended: Receiver<()>,
}

impl WriterThread {
    fn start(
        config: SummaryConfig,
        job: JobSpec,
        step: GlobalStep,
        lost: Arc<AtomicU64>,
    ) -> std::io::Result<Self> {
        let (lines, waiting) = sync_channel(WAITING_MAX);
        let (ends, ended) = channel();
        threads::spawn("summaries", move || {
            write_all(&config, &job, step, &waiting, &lost);
            drop(ends);
        })?;
        Ok(Self { lines, ended })
    }
}

/// Writes summaries until no more come.
fn write_all(
    config: &SummaryConfig,
    job: &JobSpec,
    step: GlobalStep,
    waiting: &Receiver<Vec<SummarySpec>>,
    lost: &AtomicU64,
) {
    let begin = || {
        let mut file = EventWriter::create(&config.dir)?;
        file.begin(job, step)?;
        info!(path = %file.path().display(), "writing summaries");
        Ok::<_, EventError>(file)
    };
    let mut file = begin().inspect_err(|error| lose(lost, 1, error)).ok();
    for summaries in waiting {
        let written = match &mut file {
            Some(file) => file.write(&summaries),
            // Tries a new file, because the disk may have room again. The graph is not written a second
            // time.
            None => EventWriter::create(&config.dir).and_then(|new| file.insert(new).write(&summaries)),
        };
        match written {
            Ok(()) => {}
            Err(error @ EventError::Io { .. }) => {
                // The file may end within a record, so the next summaries go to a new file.
                file = None;
                lose(lost, summaries.len(), &error);
            }
            Err(error) => lose(lost, 1, &error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::job::tests::job;
    use crate::report::JobProgress;

    fn run(dir: &Path) -> SummaryEvery {
        let mut hook = SummaryEvery::new(SummaryConfig::new(dir));
        hook.begin(&job(), GlobalStep(0));
        for at in 0..5 {
            let progress = JobProgress { loss: Some(0.5), running: true, ..Default::default() };
            let snapshot = TrainingSnapshot { progress, at: Duration::from_secs(at), ..Default::default() };
            hook.progress(&snapshot, &mut HookContext::default());
        }
        hook.summaries(&[SummarySpec::scalar("mine", GlobalStep(1), 1.0)]);
        hook.end(Err(&ChiefError::NoWorkers {
            step: GlobalStep(1),
            last_step: GlobalStep(2),
            gave_up: None,
        }));
        hook
    }

    #[test]
    fn the_cadence_of_summaries_is_that_of_the_graph() {
        let steps = |every_steps| {
            let config = SummaryConfig { every_steps, ..SummaryConfig::new("none") };
            SummaryEvery::new(config).summary_steps()
        };
        assert_eq!([Some(7), Some(0), None].map(steps), [Some(7), Some(1), Some(100)]);
    }

    #[test]
    fn each_run_writes_a_file_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        for runs in 1..=2 {
            let hook = run(folder.path());
            assert_eq!(hook.lost.load(Ordering::Relaxed), 0);
            let files: Vec<_> =
                std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path()).collect();
            assert_eq!(files.len(), runs);
            let bytes = std::fs::read(&files[0]).unwrap();
            let count = |tag: &[u8]| bytes.windows(tag.len()).filter(|bytes| bytes == &tag).count();
            // At a cadence of 10 seconds only the first snapshot is due.
            assert_eq!((count(b"train/loss"), count(b"mine")), (1, 1));
        }
    }

    #[test]
    fn lost_summaries_are_counted_and_nothing_fails() {
        let folder = tempfile::tempdir().unwrap();
        let taken = folder.path().join("file");
        std::fs::write(&taken, "no directory").unwrap();
        // One for the start of the file, three for the metrics of the first snapshot, and one for the
        // summary `mine`.
        assert_eq!(run(&taken).lost.load(Ordering::Relaxed), 5);
    }
}
