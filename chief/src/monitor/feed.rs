//! Carries events for hooks from the coordinator to the hook runner. Never waits: events that do not fit
//! into the queue are dropped and counted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use pushpull_messages::id::GlobalStep;
use pushpull_messages::message::{Evaluation, Report};
use pushpull_messages::observe::SpanSpec;
use pushpull_messages::summary::SummarySpec;
use tokio::sync::mpsc;
use tracing::warn;

use super::training_snapshot::{IntervalReports, WorkerReport};

/// The largest number of events that may wait for the hook runner.
const EVENTS_MAX: usize = 1024;
/// The largest number of spans that may wait for the hook runner.
const SPANS_WAITING_MAX: usize = 1 << 16;

/// An event that is passed to the hooks.
#[derive(Debug)]
pub(crate) enum HookEvent {
    /// Summaries from the worker with this index.
    Summaries(u32, Vec<SummarySpec>),
    /// Spans of traced steps.
    Spans(SpanBatch),
    /// A checkpoint of this step is complete, under this name.
    Checkpoint(GlobalStep, String),
    /// The variables of this step have been evaluated.
    Evaluated(GlobalStep, Box<Evaluation>),
}

/// Spans on their way to the hooks. They count as waiting until this value is dropped.
#[derive(Debug)]
pub(crate) struct SpanBatch {
    pub spans: Vec<SpanSpec>,
    waiting: Arc<AtomicUsize>,
}

impl Drop for SpanBatch {
    fn drop(&mut self) {
        self.waiting.fetch_sub(self.spans.len(), Ordering::Relaxed);
    }
}

/// The sending end of the feed.
#[derive(Clone, Debug)]
pub(crate) struct Feed {
    events: mpsc::Sender<HookEvent>,
    reports: Arc<Mutex<IntervalReports>>,
    events_lost: Arc<AtomicU64>,
    spans_waiting: Arc<AtomicUsize>,
    spans_lost: Arc<AtomicU64>,
}

/// The receiving end of the feed.
#[derive(Debug)]
pub(crate) struct FeedReader {
    events: mpsc::Receiver<HookEvent>,
    reports: Arc<Mutex<IntervalReports>>,
}

impl Feed {
    /// Creates a feed and returns both ends.
    pub(crate) fn new() -> (Self, FeedReader) {
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let reports = Arc::<Mutex<IntervalReports>>::default();
        let (events_lost, spans_waiting, spans_lost) = Default::default();
        let reader = FeedReader { events, reports: Arc::clone(&reports) };
        (Self { events: sender, reports, events_lost, spans_waiting, spans_lost }, reader)
    }

    /// Passes an event to the hooks. Drops and counts the event if the queue is full.
    pub(crate) fn send(&self, event: HookEvent) {
        // Sending fails if the queue is full, or if the job has ended and the reader is gone. Only an event
        // that finds the queue full counts as lost.
        if let Err(mpsc::error::TrySendError::Full(_)) = self.events.try_send(event)
            && self.events_lost.fetch_add(1, Ordering::Relaxed) == 0
        {
            warn!("events arrive faster than hooks read them; some plots or calls of hooks are missing");
        }
    }

    /// Passes on the report of a worker that has taken `steps` steps since its previous report. Moves the
    /// summaries and the spans out of the report.
    pub(crate) fn report(&self, worker: u32, steps: u64, report: &mut Report) {
        self.reports.lock().add(worker, steps, report);
        self.spans(std::mem::take(&mut report.spans));
        let summaries = std::mem::take(&mut report.summaries);
        if !summaries.is_empty() {
            self.send(HookEvent::Summaries(worker, summaries));
        }
    }

    /// Passes on spans.
    pub(crate) fn spans(&self, spans: Vec<SpanSpec>) {
        let count = spans.len();
        if count == 0 {
            return;
        }
        let waiting = self.spans_waiting.fetch_add(count, Ordering::Relaxed);
        let batch = SpanBatch { spans, waiting: Arc::clone(&self.spans_waiting) };
        let full = |result| matches!(result, Err(mpsc::error::TrySendError::Full(_)));
        if waiting + count > SPANS_WAITING_MAX || full(self.events.try_send(HookEvent::Spans(batch))) {
            self.drop_spans(count as u64, "spans arrive faster than hooks read them");
        }
    }

    /// Counts spans that were not passed on, and logs a warning at the first loss.
    pub(crate) fn drop_spans(&self, count: u64, reason: &str) {
        if count > 0 && self.spans_lost.fetch_add(count, Ordering::Relaxed) == 0 {
            warn!(reason, "spans are missing in the timeline");
        }
    }

    /// Returns the number of spans that the feed has dropped.
    pub(crate) fn spans_lost(&self) -> u64 {
        self.spans_lost.load(Ordering::Relaxed)
    }
}

impl FeedReader {
    /// Waits for the next event; returns `None` when every sender is gone. No event is lost if the returned
    /// future is dropped.
    pub(crate) async fn next(&mut self) -> Option<HookEvent> {
        self.events.recv().await
    }

    /// Returns the next event if one is waiting.
    pub(crate) fn try_next(&mut self) -> Option<HookEvent> {
        self.events.try_recv().ok()
    }

    /// Returns the reports of each worker since the last call, keyed by the worker's index.
    pub(crate) fn take_reports(&self) -> BTreeMap<u32, WorkerReport> {
        self.reports.lock().take()
    }
}

#[cfg(test)]
mod tests {
    use pushpull_messages::id::{LocalStep, TaskId};

    use super::*;

    fn report(tags: &[&str], spans: usize) -> Report {
        let global_step = GlobalStep(2);
        let span = SpanSpec {
            task: TaskId::worker(0),
            lane: "trainer".into(),
            name: "compute".into(),
            push: None,
            local_step: None,
            start_us: 1,
            took_us: 2,
        };
        let summaries = tags.iter().map(|tag| SummarySpec::scalar(*tag, global_step, 1.0)).collect();
        let spans = vec![span; spans];
        Report { global_step, local_step: LocalStep(1), loss: 0.5, summaries, spans, ..Report::default() }
    }

    fn spans(count: usize) -> Vec<SpanSpec> {
        report(&[], count).spans
    }

    #[test]
    fn events_that_nobody_reads_are_bounded() {
        let (feed, mut reader) = Feed::new();
        for _ in 0..EVENTS_MAX + 3 {
            feed.report(0, 1, &mut report(&["a"], 0));
        }
        assert_eq!(feed.events_lost.load(Ordering::Relaxed), 3);
        assert_eq!(std::iter::from_fn(|| reader.try_next()).count(), EVENTS_MAX);
        // Steps are never lost.
        assert_eq!(reader.take_reports()[&0].steps, EVENTS_MAX as u64 + 3);
    }

    #[test]
    fn spans_leave_reports_and_are_bounded() {
        let (feed, mut reader) = Feed::new();
        let mut own = report(&[], 3);
        feed.report(0, 1, &mut own);
        assert!(own.spans.is_empty());
        feed.spans(Vec::new());
        feed.spans(spans(SPANS_WAITING_MAX - 3));
        feed.spans(spans(2));
        assert_eq!(feed.spans_lost(), 2);
        let mut counts = Vec::new();
        while let Some(HookEvent::Spans(batch)) = reader.try_next() {
            counts.push(batch.spans.len());
        }
        assert_eq!(counts, [3, SPANS_WAITING_MAX - 3]);
        // There is room again.
        feed.spans(spans(2));
        assert_eq!(feed.spans_lost(), 2);
    }
}
