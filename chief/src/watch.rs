//! Watches over a running job: sees its shards about once a second, lets the hooks know, and passes on what they wish. It
//! holds nothing up: shards that do not answer in time are left out. Knows no hook by name.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use pushpull_messages::id::{GlobalStep, Incarnation};
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::{Evaluation, Report};
use pushpull_messages::observe::SpanSpec;
use pushpull_messages::summary::SummarySpec;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::error::ChiefError;
use crate::hook::{Asks, Hook};
use crate::lookout::Lookout;
use crate::moment::{Moment, Reports};
use crate::report::{JobEnd, JobProgress};
use crate::wish::Wish;

/// So long the shards may take to be asked and to answer.
const OBSERVE: Duration = Duration::from_secs(6);
/// News that wait to be passed on at most.
const NEWS_MAX: usize = 1024;
/// Spans that wait to be passed on at most.
const SPANS_WAITING_MAX: usize = 1 << 16;

/// Something that hooks are told.
#[derive(Debug)]
pub(crate) enum News {
    /// A worker, by its index, has reported.
    Report(u32, Incarnation, Box<Report>),
    /// What took a while somewhere.
    Spans(GlobalStep, Batch),
    /// A checkpoint of that step is complete, under that name.
    Checkpoint(GlobalStep, String),
    /// The variables of that step have been evaluated.
    Evaluated(GlobalStep, Box<Evaluation>),
}

/// Spans on their way.
#[derive(Debug)]
pub(crate) struct Batch {
    spans: Vec<SpanSpec>,
    waiting: Arc<AtomicUsize>,
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.waiting.fetch_sub(self.spans.len(), Ordering::Relaxed);
    }
}

/// Takes news, never waits, and counts what is lost.
#[derive(Clone, Debug)]
pub(crate) struct Feed {
    news: mpsc::Sender<News>,
    lost: Arc<AtomicU64>,
    spans_waiting: Arc<AtomicUsize>,
    spans_lost: Arc<AtomicU64>,
}

impl Feed {
    /// And where the news come out.
    pub(crate) fn new() -> (Self, mpsc::Receiver<News>) {
        let (news, heard) = mpsc::channel(NEWS_MAX);
        let (lost, spans_waiting, spans_lost) = Default::default();
        (Self { news, lost, spans_waiting, spans_lost }, heard)
    }

    /// Passes it on.
    pub(crate) fn tell(&self, news: News) {
        // After the job's end nobody listens, and nothing is lost.
        if let Err(mpsc::error::TrySendError::Full(_)) = self.news.try_send(news)
            && self.lost.fetch_add(1, Ordering::Relaxed) == 0
        {
            tracing::warn!("reports of workers come faster than they are read: some are not plotted");
        }
    }

    /// Passes on a report, whose summaries and spans are taken out of it.
    pub(crate) fn report(&self, worker: u32, life: Incarnation, report: &mut Report) {
        let summaries = std::mem::take(&mut report.summaries);
        self.spans(report.global_step, std::mem::take(&mut report.spans));
        self.tell(News::Report(worker, life, Box::new(Report { summaries, ..report.clone() })));
    }

    /// Passes on what took a while, as was known after so many updates.
    pub(crate) fn spans(&self, step: GlobalStep, spans: Vec<SpanSpec>) {
        let count = spans.len();
        if count == 0 {
            return;
        }
        let waiting = self.spans_waiting.fetch_add(count, Ordering::Relaxed);
        let batch = Batch { spans, waiting: Arc::clone(&self.spans_waiting) };
        let lost = waiting + count > SPANS_WAITING_MAX
            || matches!(
                self.news.try_send(News::Spans(step, batch)),
                Err(mpsc::error::TrySendError::Full(_))
            );
        if lost {
            self.lose_spans(count as u64, "they come faster than they are read");
        }
    }

    /// So many spans cannot be passed on; that is told the first time.
    pub(crate) fn lose_spans(&self, count: u64, reason: &str) {
        if count > 0 && self.spans_lost.fetch_add(count, Ordering::Relaxed) == 0 {
            tracing::warn!("spans are missing in the timeline, and training goes on: {reason}");
        }
    }

    /// Spans that were lost here, in all.
    pub(crate) fn spans_lost(&self) -> u64 {
        self.spans_lost.load(Ordering::Relaxed)
    }
}

/// The hooks of one job, and what they have to be told.
pub(crate) struct Watch {
    job: JobSpec,
    /// How many workers the job has.
    workers: u32,
    hooks: Vec<Box<dyn Hook>>,
    wishes: mpsc::UnboundedSender<Wish>,
    reports: Reports,
    begun: bool,
    stopping: bool,
    draining: bool,
}

impl Watch {
    pub(crate) fn new(
        job: JobSpec,
        workers: u32,
        hooks: Vec<Box<dyn Hook>>,
        wishes: mpsc::UnboundedSender<Wish>,
    ) -> Self {
        let (reports, begun, stopping, draining) = (Reports::default(), false, false, false);
        Self { job, workers, hooks, wishes, reports, begun, stopping, draining }
    }

    /// Watches until it is dropped.
    pub(crate) async fn run(
        &mut self,
        lookout: &Lookout,
        mut progress: watch::Receiver<JobProgress>,
        news: &mut mpsc::Receiver<News>,
    ) -> Infallible {
        if progress.wait_for(|now| now.running).await.is_err() {
            return std::future::pending().await;
        }
        let began = Instant::now();
        let mut last = began;
        lookout.look_now();
        loop {
            let all = tokio::time::timeout_at(last + OBSERVE, lookout.all_since(last));
            let shards = {
                let mut all = std::pin::pin!(all);
                loop {
                    tokio::select! {
                        shards = &mut all => break shards.unwrap_or_else(|_| {
                            tracing::debug!("the shards do not all answer within {} s", OBSERVE.as_secs());
                            Vec::new()
                        }),
                        Some(news) = news.recv() => self.hear(news),
                    }
                }
            };
            last = Instant::now();
            let progress = progress.borrow().clone();
            if progress.running {
                let reports = self.reports.take();
                self.look(&Moment { at: began.elapsed(), progress, shards, reports });
            }
        }
    }

    fn hear(&mut self, news: News) {
        match news {
            News::Report(worker, life, mut report) => {
                self.reports.add(worker, life, &report);
                let mut summaries = std::mem::take(&mut report.summaries);
                self.name(worker, &mut summaries);
                self.plot(report.global_step, &summaries);
            }
            News::Spans(step, batch) => {
                self.begin(step);
                self.hooks.iter_mut().for_each(|hook| hook.spans(&batch.spans));
            }
            News::Checkpoint(step, name) => {
                self.begin(step);
                self.hooks.iter_mut().for_each(|hook| hook.checkpoint(step, &name));
            }
            News::Evaluated(step, evaluation) => self.evaluated(step, &evaluation),
        }
    }

    /// Of several workers each plots beside the others, in a group that has the tag's name: `loss/worker_1`.
    fn name(&self, worker: u32, summaries: &mut [SummarySpec]) {
        if self.workers > 1 {
            summaries.iter_mut().for_each(|summary| summary.tag.push_str(&format!("/worker_{worker}")));
        }
    }

    fn begin(&mut self, step: GlobalStep) {
        if !std::mem::replace(&mut self.begun, true) {
            self.hooks.iter_mut().for_each(|hook| hook.begin(&self.job, step));
        }
    }

    fn plot(&mut self, step: GlobalStep, summaries: &[SummarySpec]) {
        if !summaries.is_empty() {
            self.begin(step);
            self.hooks.iter_mut().for_each(|hook| hook.summaries(summaries));
        }
    }

    /// Lets all hooks see the job.
    fn look(&mut self, moment: &Moment) {
        let began = moment.shards.iter().map(|(_, shard)| GlobalStep(shard.began.0)).min();
        self.begin(began.unwrap_or(moment.progress.global_step));
        let leaving = moment.shards.iter().find(|(_, shard)| shard.leaving);
        if let Some((shard, _)) = leaving
            && !std::mem::replace(&mut self.draining, true)
        {
            self.wish(Wish::Drain { reason: format!("{} was told to stop", shard.task()) });
        }
        let mut asks = Asks::default();
        self.hooks.iter_mut().for_each(|hook| hook.progress(moment, &mut asks));
        self.pass_on(moment.step(), asks);
    }

    fn evaluated(&mut self, step: GlobalStep, evaluation: &Evaluation) {
        self.begin(step);
        let mut asks = Asks::default();
        self.hooks.iter_mut().for_each(|hook| hook.evaluated(step, evaluation, &mut asks));
        self.pass_on(step, asks);
    }

    fn pass_on(&mut self, step: GlobalStep, mut asks: Asks) {
        let summaries = asks.take_summaries();
        self.plot(step, &summaries);
        for wish in asks.into_wishes() {
            let again = matches!(wish, Wish::Stop { .. }) && std::mem::replace(&mut self.stopping, true);
            if !again {
                self.wish(wish);
            }
        }
    }

    fn wish(&self, wish: Wish) {
        // When the job has ended nobody listens.
        let _ = self.wishes.send(wish);
    }

    /// The job is over: what has been heard last is told, and how it ended.
    pub(crate) fn end(
        mut self,
        result: Result<&JobEnd, &ChiefError>,
        progress: &JobProgress,
        news: &mut mpsc::Receiver<News>,
    ) {
        while let Ok(news) = news.try_recv() {
            self.hear(news);
        }
        if let Ok(JobEnd::Completed(report)) = result {
            let step = report.steps;
            let progress = JobProgress {
                running: false,
                global_step: step,
                loss: Some(report.train_loss).filter(|loss| loss.is_finite()),
                ..progress.clone()
            };
            let (at, reports, shards) = (report.training, self.reports.take(), report.shards.clone());
            self.look(&Moment { at, progress, shards, reports });
            self.evaluated(step, &report.evaluation);
        }
        self.hooks.iter_mut().for_each(|hook| hook.end(result));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use pushpull_messages::id::{LocalStep, ShardId, TaskId};
    use pushpull_messages::message::ShardSnapshot;

    use super::*;
    use crate::hooks::{StopAtStep, StopOnNan};
    use crate::job::tests::job;
    use crate::report::JobReport;

    /// Writes down what it is told.
    #[derive(Clone, Default)]
    struct Diary(Arc<Mutex<Vec<String>>>);

    impl Diary {
        fn note(&self, line: String) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }

        fn take(&self) -> String {
            std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)).join(", ")
        }
    }

    impl Hook for Diary {
        fn begin(&mut self, _: &JobSpec, step: GlobalStep) {
            self.note(format!("begin {step}"));
        }

        fn progress(&mut self, moment: &Moment, asks: &mut Asks) {
            self.note(format!("progress {}", moment.step()));
            asks.plot(SummarySpec::scalar("mine", moment.step(), 1.0));
        }

        fn summaries(&mut self, summaries: &[SummarySpec]) {
            self.note(summaries.iter().map(|summary| summary.tag.clone()).collect::<Vec<_>>().join("+"));
        }

        fn spans(&mut self, spans: &[SpanSpec]) {
            self.note(format!("{} spans", spans.len()));
        }

        fn checkpoint(&mut self, step: GlobalStep, name: &str) {
            self.note(format!("checkpoint {step} {name}"));
        }

        fn evaluated(&mut self, step: GlobalStep, _: &Evaluation, _: &mut Asks) {
            self.note(format!("evaluated {step}"));
        }

        fn end(&mut self, result: Result<&JobEnd, &ChiefError>) {
            self.note(format!("end {}", result.is_ok()));
        }
    }

    fn report(local_step: u64, loss: f32, tags: &[&str]) -> Box<Report> {
        let (global_step, local_step) = (GlobalStep(2), LocalStep(local_step));
        let summaries = tags.iter().map(|tag| SummarySpec::scalar(*tag, global_step, 1.0)).collect();
        Box::new(Report { global_step, local_step, loss, summaries, ..Report::default() })
    }

    fn shards(version: u64, leaving: bool) -> Vec<(ShardId, ShardSnapshot)> {
        let version = pushpull_messages::id::Version(version);
        vec![(ShardId::new(1, 0), ShardSnapshot { version, leaving, began: version, ..Default::default() })]
    }

    fn evaluation() -> Evaluation {
        Evaluation { loss: 0.5, metrics: Vec::new(), examples: 1, variables_crc32c: 0 }
    }

    #[test]
    fn hooks_are_told_everything_in_order() {
        let (diary, (wishes, _wished)) = (Diary::default(), mpsc::unbounded_channel());
        let (feed, mut news) = Feed::new();
        let mut watch = Watch::new(job(), 2, vec![Box::new(diary.clone())], wishes);
        watch.look(&Moment { shards: shards(3, false), ..Default::default() });
        assert_eq!(diary.take(), "begin 3, progress 3, mine");
        watch.hear(News::Report(1, Incarnation(1), report(5, 0.5, &["a", "b"])));
        watch.hear(News::Report(0, Incarnation(1), report(5, 0.5, &[])));
        assert_eq!(diary.take(), "a/worker_1+b/worker_1");
        feed.tell(News::Checkpoint(GlobalStep(4), "step-4".into()));
        feed.tell(News::Evaluated(GlobalStep(4), Box::new(evaluation())));
        let report = JobReport {
            training: Duration::from_secs(1),
            steps: GlobalStep(9),
            stopped: None,
            updates_applied: 9,
            gradients: 9,
            skipped: 0,
            train_loss: 0.5,
            evaluation: evaluation(),
            shards: shards(9, false),
            workers: 2,
            saves: 1,
            saves_failed: 0,
            last_checkpoint: None,
        };
        watch.end(Ok(&JobEnd::Completed(report)), &JobProgress::default(), &mut news);
        let end = "checkpoint 4 step-4, evaluated 4, progress 9, mine, evaluated 9, end true";
        assert_eq!(diary.take(), end);
        // A job that never began has an end, too.
        let (wishes, _wished) = mpsc::unbounded_channel();
        let watch = Watch::new(job(), 1, vec![Box::new(diary.clone())], wishes);
        let lost = ChiefError::WorkerFailed { worker: TaskId::worker(0), reason: "gone".into() };
        watch.end(Err(&lost), &JobProgress::default(), &mut news);
        assert_eq!(diary.take(), "end false");
    }

    #[test]
    fn a_wish_to_end_is_passed_on_once() {
        let (wishes, mut wished) = mpsc::unbounded_channel();
        let hooks: Vec<Box<dyn Hook>> = vec![Box::new(StopOnNan), Box::new(StopAtStep(GlobalStep(8)))];
        let mut watch = Watch::new(job(), 1, hooks, wishes);
        // No step is no loss.
        watch.hear(News::Report(0, Incarnation(1), report(0, f32::NAN, &[])));
        let mut look = |watch: &mut Watch, version, leaving| {
            let reports = watch.reports.take();
            watch.look(&Moment { shards: shards(version, leaving), reports, ..Default::default() });
            std::iter::from_fn(|| wished.try_recv().ok()).collect::<Vec<Wish>>()
        };
        assert_eq!(look(&mut watch, 7, false), []);
        let drain = Wish::Drain { reason: "ps/1 was told to stop".into() };
        assert_eq!(look(&mut watch, 7, true), [drain]);
        watch.hear(News::Report(0, Incarnation(1), report(3, f32::NAN, &[])));
        let stop = Wish::Stop { reason: "the loss of worker/0 is NaN near step 8".into() };
        assert_eq!(look(&mut watch, 8, true), [stop]);
        assert_eq!(look(&mut watch, 9, true), []);
    }

    #[test]
    fn news_that_nobody_reads_are_bounded() {
        let (feed, mut news) = Feed::new();
        for _ in 0..NEWS_MAX + 3 {
            feed.report(0, Incarnation(1), &mut report(1, 0.5, &["a"]));
        }
        assert_eq!(feed.lost.load(Ordering::Relaxed), 3);
        let kept = std::iter::from_fn(|| news.try_recv().ok()).count();
        assert_eq!(kept, NEWS_MAX);
    }

    fn spans(count: usize) -> Vec<SpanSpec> {
        let span = SpanSpec {
            task: TaskId::worker(0),
            lane: "trainer".into(),
            name: "compute".into(),
            push: None,
            local_step: None,
            start_us: 1,
            took_us: 2,
        };
        vec![span; count]
    }

    #[test]
    fn spans_are_taken_out_of_reports_bounded_and_passed_on() {
        let (feed, mut news) = Feed::new();
        let mut own = report(1, 0.5, &[]);
        own.spans = spans(3);
        feed.report(0, Incarnation(1), &mut own);
        assert!(own.spans.is_empty());
        feed.spans(GlobalStep(1), Vec::new());
        feed.spans(GlobalStep(1), spans(SPANS_WAITING_MAX - 3));
        feed.spans(GlobalStep(1), spans(2));
        assert_eq!(feed.spans_lost(), 2);
        let (diary, (wishes, _wished)) = (Diary::default(), mpsc::unbounded_channel());
        let mut watch = Watch::new(job(), 1, vec![Box::new(diary.clone())], wishes);
        while let Ok(news) = news.try_recv() {
            watch.hear(news);
        }
        assert_eq!(diary.take(), format!("begin 2, 3 spans, {} spans", SPANS_WAITING_MAX - 3));
        // There is room again.
        feed.spans(GlobalStep(1), spans(2));
        assert_eq!(feed.spans_lost(), 2);
    }
}
