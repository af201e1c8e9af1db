//! Hands spans to a thread of its own, so that a slow disk or network holds nothing up. Bounded: what there
//! is no room for is counted, and told. Knows not what becomes of a span.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use pushpull_messages::observe::SpanSpec;

/// Spans that wait for the thread at most.
const WAITING_MAX: usize = 1 << 16;
/// So long the end of the job waits for the thread.
const FAREWELL: Duration = Duration::from_secs(5);

/// Where the spans go in.
#[derive(Debug)]
pub(super) struct Spool {
    spans: Sender<Vec<SpanSpec>>,
    load: Arc<Load>,
    /// Closed when the thread has ended.
    ended: Receiver<()>,
}

/// Where they come out, on the thread.
#[derive(Debug)]
pub(super) struct Spooled {
    spans: Receiver<Vec<SpanSpec>>,
    load: Arc<Load>,
}

#[derive(Debug)]
struct Load {
    /// What is made of the spans, for people.
    what: &'static str,
    waiting: AtomicUsize,
    lost: AtomicU64,
}

impl Load {
    /// Counts what is lost, and tells it the first time.
    fn lose(&self, count: usize, reason: &dyn Display) {
        if self.lost.fetch_add(count as u64, Ordering::Relaxed) == 0 {
            tracing::warn!("spans are missing in the {}, and training goes on: {reason}", self.what);
        }
    }
}

impl Spool {
    /// Has a thread do that with the spans, until it gets no more.
    ///
    /// # Errors
    /// Where there is no thread to be had.
    pub(super) fn start(
        what: &'static str,
        work: impl FnOnce(Spooled) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (spans, waiting) = channel();
        let (ends, ended) = channel();
        let load = Arc::new(Load { what, waiting: AtomicUsize::new(0), lost: AtomicU64::new(0) });
        let spooled = Spooled { spans: waiting, load: Arc::clone(&load) };
        std::thread::Builder::new().name("spans".into()).spawn(move || {
            work(spooled);
            drop(ends);
        })?;
        Ok(Self { spans, load, ended })
    }

    /// Passes them on, if there is room.
    pub(super) fn send(&self, spans: &[SpanSpec]) {
        if spans.is_empty() {
            return;
        }
        let waiting = self.load.waiting.fetch_add(spans.len(), Ordering::Relaxed);
        if waiting + spans.len() > WAITING_MAX || self.spans.send(spans.to_vec()).is_err() {
            self.load.waiting.fetch_sub(spans.len(), Ordering::Relaxed);
            self.load.lose(spans.len(), &"they come faster than they are taken");
        }
    }

    /// Waits for the thread, not for too long. Gives how many spans were lost.
    pub(super) fn end(self) -> u64 {
        let Self { spans, load, ended } = self;
        drop(spans);
        if ended.recv_timeout(FAREWELL) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the {} is not complete yet, and is not waited for", load.what);
        }
        let lost = load.lost.load(Ordering::Relaxed);
        if lost > 0 {
            tracing::warn!("{lost} spans in all are missing in the {}", load.what);
        }
        lost
    }
}

impl Spooled {
    /// The next ones; `None` when no more will come.
    pub(super) fn next(&self) -> Option<Vec<SpanSpec>> {
        let spans = self.spans.recv().ok()?;
        self.load.waiting.fetch_sub(spans.len(), Ordering::Relaxed);
        Some(spans)
    }

    /// So many could not be used.
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

    /// One push to two shards.
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
        // In whatever order they come.
        spans.push(span(worker, "trainer", "compute", 1_000, 600));
        spans.push(SpanSpec { local_step: None, ..span(TaskId::CHIEF, "checkpoints", "step-4", 100, 50) });
        spans
    }

    #[test]
    fn what_there_is_no_room_for_is_counted() {
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
