//! Calls the hooks of a running job: reads the state of the shards about once a second, passes it to the
//! hooks, and forwards their requests. Does not delay the job: if a shard does not reply in time, the hooks
//! receive a snapshot without shards.

use std::convert::Infallible;
use std::time::Duration;

use pushpull_messages::id::GlobalStep;
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::Evaluation;
use pushpull_messages::summary::SummarySpec;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::debug;

use super::feed::{FeedReader, HookEvent};
use super::shard_monitor::ShardMonitor;
use super::training_snapshot::TrainingSnapshot;
use crate::command::Command;
use crate::error::ChiefError;
use crate::hook::{Hook, HookContext};
use crate::report::{JobEnd, JobProgress};

/// The time limit for querying the shards, including their replies.
const OBSERVE_TIMEOUT: Duration = Duration::from_secs(6);

/// A runner of one job's hooks. It keeps track of what the hooks have been told.
pub(crate) struct HookRunner {
    job: JobSpec,
    /// The number of workers in the job.
    workers: u32,
    hooks: Vec<Box<dyn Hook>>,
    commands: mpsc::UnboundedSender<Command>,
    /// Whether the hooks were told that the training has begun.
    begun: bool,
    /// The number of updates that had been applied when this run of the chief began or continued the job.
    began: GlobalStep,
    /// Whether a hook has requested the end of the training.
    stopping: bool,
    /// The learning rate factor that a hook has requested last.
    requested_rate: Option<f32>,
    /// The learning rate factor that the shards have reported last.
    seen_rate: Option<f32>,
    /// Whether a shard has reported that its ps task is leaving.
    draining: bool,
}

impl HookRunner {
    pub(crate) fn new(
        job: JobSpec,
        workers: u32,
        hooks: Vec<Box<dyn Hook>>,
        commands: mpsc::UnboundedSender<Command>,
    ) -> Self {
        let (begun, began, stopping, draining) = (false, GlobalStep(0), false, false);
        let (requested_rate, seen_rate) = (None, None);
        Self { job, workers, hooks, commands, begun, began, stopping, requested_rate, seen_rate, draining }
    }

    /// Calls the hooks until the returned future is dropped.
    pub(crate) async fn run(
        &mut self,
        shard_monitor: &ShardMonitor,
        mut progress: watch::Receiver<JobProgress>,
        feed: &mut FeedReader,
    ) -> Infallible {
        if progress.wait_for(|now| now.running).await.is_err() {
            return std::future::pending().await;
        }
        self.began = progress.borrow().began;
        let began = Instant::now();
        let mut last = began;
        shard_monitor.observe_now();
        loop {
            let all = tokio::time::timeout_at(last + OBSERVE_TIMEOUT, shard_monitor.all_since(last));
            let shards = {
                let mut all = std::pin::pin!(all);
                loop {
                    tokio::select! {
                        biased;
                        shards = &mut all => break shards.unwrap_or_else(|_| {
                            debug!(timeout_s = OBSERVE_TIMEOUT.as_secs(), "some shards did not reply in time");
                            Vec::new()
                        }),
                        Some(event) = feed.next() => self.dispatch(event),
                    }
                }
            };
            last = Instant::now();
            let progress = progress.borrow().clone();
            if progress.running {
                let (at, reports) = (began.elapsed(), feed.take_reports());
                self.progress(TrainingSnapshot { at, progress, shards, reports });
            }
        }
    }

    fn dispatch(&mut self, event: HookEvent) {
        match event {
            HookEvent::Summaries(worker, mut summaries) => {
                self.tag(worker, &mut summaries);
                self.plot(&summaries);
            }
            HookEvent::Spans(batch) => {
                self.begin();
                self.hooks.iter_mut().for_each(|hook| hook.spans(&batch.spans));
            }
            HookEvent::Checkpoint(step, name) => {
                self.begin();
                self.hooks.iter_mut().for_each(|hook| hook.checkpoint(step, &name));
            }
            HookEvent::Evaluated(step, evaluation) => self.evaluated(step, &evaluation),
        }
    }

    /// Appends the worker's name to the tags if the job has several workers: `loss` becomes `loss/worker_1`.
    /// TensorBoard then shows the plots of all workers next to each other, in a group named after the
    /// original tag.
    fn tag(&self, worker: u32, summaries: &mut [SummarySpec]) {
        if self.workers > 1 {
            summaries.iter_mut().for_each(|summary| summary.tag.push_str(&format!("/worker_{worker}")));
        }
    }

    fn begin(&mut self) {
        if !std::mem::replace(&mut self.begun, true) {
            self.hooks.iter_mut().for_each(|hook| hook.begin(&self.job, self.began));
        }
    }

    fn plot(&mut self, summaries: &[SummarySpec]) {
        if !summaries.is_empty() {
            self.begin();
            self.hooks.iter_mut().for_each(|hook| hook.summaries(summaries));
        }
    }

    /// Passes the snapshot, without the shards that own no slices, to all hooks, and carries out their
    /// requests.
    fn progress(&mut self, mut snapshot: TrainingSnapshot) {
        let leaving = snapshot.shards.iter().find(|(_, shard)| shard.leaving);
        if let Some((shard, _)) = leaving
            && !std::mem::replace(&mut self.draining, true)
        {
            self.send(Command::Drain { reason: format!("{} was told to stop", shard.task()) });
        }
        snapshot.leave_out_empty_shards();
        self.begin();
        self.seen_rate = snapshot.learning_rate_factor().or(self.seen_rate);
        let mut context = self.context();
        self.hooks.iter_mut().for_each(|hook| hook.progress(&snapshot, &mut context));
        self.pass_on(context);
    }

    /// Returns the context for the next call of the hooks. It has the learning rate factor that a hook has
    /// requested last or, before the first request, the factor that the shards have reported last. After a
    /// request, the shards still report the old factor until the change takes effect.
    fn context(&self) -> HookContext {
        HookContext::new(self.requested_rate.or(self.seen_rate))
    }

    fn evaluated(&mut self, step: GlobalStep, evaluation: &Evaluation) {
        self.begin();
        let mut context = self.context();
        self.hooks.iter_mut().for_each(|hook| hook.evaluated(step, evaluation, &mut context));
        self.pass_on(context);
    }

    fn pass_on(&mut self, mut context: HookContext) {
        let summaries = context.take_summaries();
        self.plot(&summaries);
        for command in context.into_commands() {
            if let Command::LearningRate { factor } = command
                && self.requested_rate.replace(factor) == Some(factor)
            {
                continue;
            }
            let again =
                matches!(command, Command::Stop { .. }) && std::mem::replace(&mut self.stopping, true);
            if !again {
                self.send(command);
            }
        }
    }

    fn send(&self, command: Command) {
        // A failure means that the job has ended, so the command is no longer needed.
        let _ = self.commands.send(command);
    }

    /// Passes the last events and the result of the job to the hooks.
    pub(crate) fn end(
        mut self,
        result: Result<&JobEnd, &ChiefError>,
        progress: &JobProgress,
        feed: &mut FeedReader,
    ) {
        // A very short job has ended before it was seen to run.
        self.began = progress.began;
        if let Ok(JobEnd::Completed(_)) = result {
            self.begin();
        }
        while let Some(event) = feed.try_next() {
            self.dispatch(event);
        }
        if let Ok(JobEnd::Completed(report)) = result {
            let step = report.steps;
            let progress = JobProgress {
                running: false,
                global_step: step,
                loss: Some(report.train_loss).filter(|loss| loss.is_finite()),
                ..progress.clone()
            };
            let (at, reports, shards) = (report.training, feed.take_reports(), report.shards.clone());
            self.progress(TrainingSnapshot { at, progress, shards, reports });
            self.evaluated(step, &report.evaluation);
        }
        self.hooks.iter_mut().for_each(|hook| hook.end(result));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use pushpull_messages::id::{LocalStep, ShardId, TaskId, Version};
    use pushpull_messages::message::{Report, ShardSnapshot};
    use pushpull_messages::observe::SpanSpec;

    use super::super::feed::Feed;
    use super::*;
    use crate::hooks::{StopAtStep, StopOnNan};
    use crate::job::tests::job;
    use crate::report::JobReport;

    /// A hook that records one line of text for each call of its methods.
    #[derive(Clone, Default)]
    struct CallLog(Arc<Mutex<Vec<String>>>);

    impl CallLog {
        fn note(&self, line: String) {
            self.0.lock().push(line);
        }

        fn take(&self) -> String {
            std::mem::take(&mut *self.0.lock()).join(", ")
        }
    }

    impl Hook for CallLog {
        fn begin(&mut self, _: &JobSpec, step: GlobalStep) {
            self.note(format!("begin {step}"));
        }

        fn progress(&mut self, snapshot: &TrainingSnapshot, context: &mut HookContext) {
            self.note(format!("progress {}", snapshot.step()));
            context.plot(SummarySpec::scalar("mine", snapshot.step(), 1.0));
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

        fn evaluated(&mut self, step: GlobalStep, _: &Evaluation, _: &mut HookContext) {
            self.note(format!("evaluated {step}"));
        }

        fn end(&mut self, result: Result<&JobEnd, &ChiefError>) {
            self.note(format!("end {}", result.is_ok()));
        }
    }

    fn report(local_step: u64, loss: f32, tags: &[&str]) -> Report {
        let (global_step, local_step) = (GlobalStep(2), LocalStep(local_step));
        let summaries = tags.iter().map(|tag| SummarySpec::scalar(*tag, global_step, 1.0)).collect();
        Report { global_step, local_step, loss, summaries, ..Report::default() }
    }

    fn shards(version: u64, leaving: bool) -> Vec<(ShardId, ShardSnapshot)> {
        let version = Version(version);
        vec![(ShardId::new(1, 0), ShardSnapshot { version, leaving, began: version, ..Default::default() })]
    }

    fn evaluation() -> Evaluation {
        Evaluation { loss: 0.5, metrics: Vec::new(), examples: 1, variables_crc32c: 0 }
    }

    fn job_report() -> JobReport {
        JobReport {
            training: Duration::from_secs(1),
            steps: GlobalStep(9),
            stopped: None,
            updates_applied: 9,
            updates_timed: 9,
            gradients: 9,
            skipped: 0,
            train_loss: 0.5,
            evaluation: evaluation(),
            shards: shards(9, false),
            workers: 2,
            rollbacks: 0,
            saves: 1,
            saves_failed: 0,
            last_checkpoint: None,
            unsaved: None,
        }
    }

    #[test]
    fn hooks_are_told_everything_in_order() {
        let (log, (commands, _received)) = (CallLog::default(), mpsc::unbounded_channel());
        let (feed, mut reader) = Feed::new();
        let mut runner = HookRunner::new(job(), 2, vec![Box::new(log.clone())], commands);
        // An earlier run of the chief has begun the job.
        runner.began = GlobalStep(2);
        runner.progress(TrainingSnapshot { shards: shards(3, false), ..Default::default() });
        assert_eq!(log.take(), "begin 2, progress 3, mine");
        feed.report(1, 5, &mut report(5, 0.5, &["a", "b"]));
        feed.report(0, 5, &mut report(5, 0.5, &[]));
        runner.dispatch(reader.try_next().unwrap());
        assert_eq!(log.take(), "a/worker_1+b/worker_1");
        assert!(reader.try_next().is_none());
        feed.send(HookEvent::Checkpoint(GlobalStep(4), "step-4".into()));
        feed.send(HookEvent::Evaluated(GlobalStep(4), Box::new(evaluation())));
        runner.end(Ok(&JobEnd::Completed(job_report())), &JobProgress::default(), &mut reader);
        let end = "checkpoint 4 step-4, evaluated 4, progress 9, mine, evaluated 9, end true";
        assert_eq!(log.take(), end);
        // Hooks are also told about the end of a job that never began.
        let (commands, _received) = mpsc::unbounded_channel();
        let runner = HookRunner::new(job(), 1, vec![Box::new(log.clone())], commands);
        let lost = ChiefError::WorkerFailed { worker: TaskId::worker(0), reason: "gone".into() };
        runner.end(Err(&lost), &JobProgress::default(), &mut reader);
        assert_eq!(log.take(), "end false");
    }

    #[test]
    fn a_job_begins_where_it_began_even_if_it_is_short() {
        let (log, (commands, _received)) = (CallLog::default(), mpsc::unbounded_channel());
        let (feed, mut reader) = Feed::new();
        let runner = HookRunner::new(job(), 1, vec![Box::new(log.clone())], commands);
        feed.send(HookEvent::Evaluated(GlobalStep(7), Box::new(evaluation())));
        let progress = JobProgress { began: GlobalStep(3), ..JobProgress::default() };
        runner.end(Ok(&JobEnd::Completed(job_report())), &progress, &mut reader);
        assert_eq!(log.take(), "begin 3, evaluated 7, progress 9, mine, evaluated 9, end true");
    }

    #[test]
    fn spans_begin_the_training_for_the_hooks() {
        let (log, (commands, _received)) = (CallLog::default(), mpsc::unbounded_channel());
        let (feed, mut reader) = Feed::new();
        let span = SpanSpec {
            task: TaskId::worker(0),
            lane: "trainer".into(),
            name: "compute".into(),
            push: None,
            local_step: None,
            start_us: 1,
            took_us: 2,
        };
        feed.report(0, 1, &mut Report { spans: vec![span; 3], ..report(1, 0.5, &[]) });
        let mut runner = HookRunner::new(job(), 1, vec![Box::new(log.clone())], commands);
        runner.began = GlobalStep(1);
        while let Some(event) = reader.try_next() {
            runner.dispatch(event);
        }
        assert_eq!(log.take(), "begin 1, 3 spans");
    }

    #[test]
    fn a_request_to_stop_is_passed_on_once() {
        let (commands, mut received) = mpsc::unbounded_channel();
        let (feed, reader) = Feed::new();
        let hooks: Vec<Box<dyn Hook>> = vec![Box::new(StopOnNan), Box::new(StopAtStep(GlobalStep(8)))];
        let mut runner = HookRunner::new(job(), 1, hooks, commands);
        // Without steps there is no loss.
        feed.report(0, 0, &mut report(0, f32::NAN, &[]));
        let mut progress = |version, leaving| {
            let reports = reader.take_reports();
            runner.progress(TrainingSnapshot {
                shards: shards(version, leaving),
                reports,
                ..Default::default()
            });
            std::iter::from_fn(|| received.try_recv().ok()).collect::<Vec<Command>>()
        };
        assert_eq!(progress(7, false), []);
        let drain = Command::Drain { reason: "ps/1 was told to stop".into() };
        assert_eq!(progress(7, true), [drain]);
        feed.report(0, 3, &mut report(3, f32::NAN, &[]));
        let stop = Command::Stop { reason: "the loss of worker/0 is NaN near step 8".into() };
        assert_eq!(progress(8, true), [stop]);
        assert_eq!(progress(9, true), []);
    }
}
