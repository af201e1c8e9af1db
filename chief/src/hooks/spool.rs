//! A bounded queue that hands spans to a separate thread, so that a slow disk or network does not delay the
//! job. Spans that do not fit are dropped, counted and logged. The hook decides what the thread does with a
//! span.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use pushpull_messages::observe::SpanSpec;
use tracing::warn;

use crate::threads;

/// The largest number of spans that may wait for the thread.
const WAITING_MAX: usize = 1 << 16;
/// The maximum time for which the end of the job waits for the thread.
const FAREWELL: Duration = Duration::from_secs(5);

/// The sending end of a spool.
#[derive(Debug)]
pub(super) struct Spool {
    spans: Sender<Vec<SpanSpec>>,
    load: Arc<SpoolLoad>,
    /// Closed when the thread has ended.
    ended: Receiver<()>,
}

/// The receiving end of a spool, on the thread.
#[derive(Debug)]
pub(super) struct SpoolReader {
    spans: Receiver<Vec<SpanSpec>>,
    load: Arc<SpoolLoad>,
}

/// The counts of waiting and lost spans, which both ends share.
#[derive(Debug)]
struct SpoolLoad {
    /// The name of the hook's output, used in log messages.
    product: &'static str,
    waiting: AtomicUsize,
    lost: AtomicU64,
}

impl SpoolLoad {
    /// Counts lost spans, and logs the first loss.
    fn lose(&self, count: usize, reason: &dyn Display) {
        if self.lost.fetch_add(count as u64, Ordering::Relaxed) == 0 {
            warn!(%reason, "spans are missing in the {}; training goes on", self.product);
        }
    }
}

impl Spool {
    /// Starts a thread that calls `work` with the receiving end. `work` must return when no more spans come.
    ///
    /// # Errors
    /// Returns an error if no thread can be started.
    pub(super) fn start(
        product: &'static str,
        work: impl FnOnce(SpoolReader) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (spans, waiting) = channel();
        let (ends, ended) = channel();
        let load = Arc::new(SpoolLoad { product, waiting: AtomicUsize::new(0), lost: AtomicU64::new(0) });
        let spooled = SpoolReader { spans: waiting, load: Arc::clone(&load) };
        threads::spawn("spans", move || {
            work(spooled);
            drop(ends);
        })?;
        Ok(Self { spans, load, ended })
    }

    /// Passes spans to the thread, if there is room for them.
    pub(super) fn send(&self, spans: &[SpanSpec]) {
        if spans.is_empty() {
            return;
        }
        let waiting = self.load.waiting.fetch_add(spans.len(), Ordering::Relaxed);
        if waiting + spans.len() > WAITING_MAX || self.spans.send(spans.to_vec()).is_err() {
            self.load.waiting.fetch_sub(spans.len(), Ordering::Relaxed);
            self.load.lose(spans.len(), &"spans arrive faster than the thread takes them");
        }
    }

    /// Waits at most [`FAREWELL`] for the thread to end, and returns the number of spans that were lost.
    pub(super) fn end(self) -> u64 {
        let Self { spans, load, ended } = self;
        drop(spans);
        if ended.recv_timeout(FAREWELL) == Err(RecvTimeoutError::Timeout) {
            warn!("could not finish the {} in time", load.product);
        }
        let lost = load.lost.load(Ordering::Relaxed);
        if lost > 0 {
            warn!(lost, "spans are missing in the {}", load.product);
        }
        lost
    }
}

impl SpoolReader {
    /// Waits for the next spans; returns `None` when no more will come.
    pub(super) fn next(&self) -> Option<Vec<SpanSpec>> {
        let spans = self.spans.recv().ok()?;
        self.load.waiting.fetch_sub(spans.len(), Ordering::Relaxed);
        Some(spans)
    }

    /// Counts spans that the thread could not use, and logs the first loss.
    pub(super) fn lose(&self, count: usize, reason: &dyn Display) {
        self.load.lose(count, reason);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use pushpull_messages::id::{Incarnation, Sequence, ShardId, TaskId};
    use pushpull_messages::message::PushId;
    use pushpull_messages::observe::Micros;

    use super::*;

    pub(crate) fn span(task: TaskId, lane: &str, name: &str, start_us: Micros, took_us: Micros) -> SpanSpec {
        let (lane, name) = (lane.to_owned(), name.to_owned());
        SpanSpec { task, lane, name, push: None, local_step: Some(8), start_us, took_us }
    }

    pub(crate) fn of_push(sequence: u64, shard: ShardId, span: SpanSpec) -> SpanSpec {
        let id = PushId { worker: 1, incarnation: Incarnation(3), sequence: Sequence(sequence) };
        SpanSpec { push: Some((id, shard)), ..span }
    }

    /// Returns the spans of one push to two shards.
    pub(crate) fn one_push() -> Vec<SpanSpec> {
        let worker = TaskId::worker(1);
        let mut spans = Vec::new();
        for shard in [ShardId::new(0, 1), ShardId::new(1, 0)] {
            let lane = format!("to {shard}");
            spans.push(of_push(9, shard, span(worker, &lane, "push", 1_500, 900)));
            let lane = format!("shard/{}", shard.shard);
            spans.push(of_push(9, shard, span(shard.task(), &lane, "queue", 1_700, 100)));
            spans.push(of_push(9, shard, span(shard.task(), &lane, "apply", 1_800, 300)));
        }
        // Spans may arrive in any order.
        spans.push(span(worker, "trainer", "compute", 1_000, 600));
        spans.push(SpanSpec { local_step: None, ..span(TaskId::CHIEF, "checkpoints", "step-4", 100, 50) });
        spans
    }

    #[test]
    fn spans_without_room_are_counted() {
        let (go, gone) = channel::<()>();
        let spool = Spool::start("test", move |spooled| {
            gone.recv().unwrap_err();
            while let Some(spans) = spooled.next() {
                spooled.lose(usize::from(spans.len() == 1), &"one is odd");
            }
        })
        .unwrap();
        let many = vec![span(TaskId::CHIEF, "a", "b", 0, 1); WAITING_MAX - 1];
        spool.send(&many);
        spool.send(&many[..2]);
        spool.send(&many[..1]);
        spool.send(&[]);
        drop(go);
        assert_eq!(spool.end(), 3);
    }
}
