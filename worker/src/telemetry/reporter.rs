//! Reports a worker's progress to the chief about once a second, concurrently with the training, so that a
//! slow or lost chief delays no step. This module must not depend on shards.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use pushpull_messages::id::LocalStep;
use pushpull_messages::message::{RefusalCode, Report, Reported, Share};
use pushpull_messages::observe::Clock;
use pushpull_transport::CallError;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::alignment::{Alignment, CallTimes};
use super::evaluations::Evaluations;
use super::journal::{Journal, Progress};
use super::life::Life;
use super::plots::Plots;
use super::spans::Spans;
use crate::chief_link::ChiefLink;
use crate::error::{WorkerError, is_rolled_back};

/// The maximum time for sending the reports after the end of the training.
const LAST: Duration = Duration::from_secs(5);
/// The maximum number of reports that are sent after the end of the training. If the worker has not reported
/// before, its spans wait for the second report, because the reply to the first one aligns the clocks.
const LAST_REPORTS: usize = 2;

/// Why the chief ends the training of a worker.
#[derive(Clone, Debug)]
pub(crate) enum StopCause {
    /// The job ends early, for this reason.
    JobEnds(String),
    /// The job has rolled back. Contains the refusal of a report.
    RolledBack(CallError),
}

impl From<StopCause> for WorkerError {
    fn from(cause: StopCause) -> Self {
        match cause {
            StopCause::JobEnds(reason) => Self::Stopped(reason),
            StopCause::RolledBack(refused) => Self::Call(refused),
        }
    }
}

/// A task that reports a worker's progress to the chief.
pub(crate) struct Reporter {
    chief: Arc<ChiefLink>,
    life: Life,
    sources: ReportSources,
    clock: Clock,
    /// The estimated offset of the chief's clock from this worker's clock.
    alignment: Alignment,
    last: LastReport,
    /// The numbers of summaries, spans and evaluations in the report in flight; all are 0 after the chief
    /// has replied.
    unanswered: [usize; 3],
}

/// The sources of the contents of reports.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReportSources {
    pub journal: Journal,
    pub plots: Plots,
    pub spans: Spans,
    pub evaluations: Evaluations,
}

/// The state of the worker at the previous report. The next report covers the progress since then.
#[derive(Clone, Copy, Debug, Default)]
struct LastReport {
    number: u64,
    local_step: LocalStep,
    loss_sum: f64,
    /// The step after which the most recently reported gradient norm was measured.
    measured: Option<LocalStep>,
}

impl LastReport {
    /// Returns a report on the progress since the previous report, and stores the new state.
    fn next(&mut self, now: Progress) -> Report {
        let Progress { snapshot, loss_sum, gradient_norm } = now;
        let steps = snapshot.local_step.0 - self.local_step.0;
        let measured = gradient_norm.filter(|&(step, _)| self.measured.is_none_or(|last| last < step));
        let loss = ((loss_sum - self.loss_sum) / steps as f64) as f32;
        *self = Self {
            number: self.number + 1,
            local_step: snapshot.local_step,
            loss_sum,
            measured: measured.map(|(step, _)| step).or(self.measured),
        };
        Report {
            global_step: snapshot.global_step,
            number: self.number,
            local_step: snapshot.local_step,
            loss,
            drawn: snapshot.drawn,
            gradient_norm: measured.map(|(_, norm)| norm),
            metrics: Vec::new(),
            summaries: Vec::new(),
            snapshot: Some(Box::new(snapshot)),
            spans: Vec::new(),
            spans_lost: 0,
            evaluations: Vec::new(),
        }
    }
}

impl Reporter {
    /// Creates a reporter that has not sent a report yet. `clock` is the clock of the spans.
    pub(crate) fn new(chief: Arc<ChiefLink>, life: Life, sources: ReportSources, clock: Clock) -> Self {
        let (alignment, last) = (Alignment::default(), LastReport::default());
        Self { chief, life, sources, clock, alignment, last, unanswered: [0; 3] }
    }

    /// Sends reports at intervals of `every` until all receivers of `stop` are dropped. Sets `stop` if the
    /// chief tells the worker to stop, or if the job has rolled back. Sets `share` to the share that the
    /// chief has told last. If a report fails, returns at once,
    /// which closes `stop`. At the end, waits for the reply to the report in flight, and sends everything
    /// that no report has contained yet.
    pub(crate) async fn run(
        mut self,
        stop: watch::Sender<Option<StopCause>>,
        share: watch::Sender<Option<Share>>,
        every: Duration,
    ) {
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        ticks.tick().await;
        let mut end = None;
        loop {
            tokio::select! {
                biased;
                () = stop.closed() => break,
                _ = ticks.tick() => {}
            }
            let reported = {
                let mut report = pin!(self.report());
                tokio::select! {
                    biased;
                    reported = &mut report => Ok(reported),
                    // Later reports do not repeat the contents of this one, so its reply is awaited.
                    () = stop.closed() => timeout_at(*end.insert(Instant::now() + LAST), report).await,
                }
            };
            let Ok(reported) = reported else { return self.log_unanswered() };
            match reported {
                Ok(Reported { stop: None, share: told, .. }) => drop(share.send_replace(told)),
                Ok(Reported { stop: Some(reason), .. }) => {
                    self.life.stopping();
                    stop.send_replace(Some(StopCause::JobEnds(reason)));
                    stop.closed().await;
                    break;
                }
                // The report is about steps that the rollback has undone, so no warning is needed.
                Err(error) if is_rolled_back(&error) => {
                    stop.send_replace(Some(StopCause::RolledBack(error)));
                    return;
                }
                // A chief that was started again may refuse the worker's reports in this way.
                Err(CallError::Refused { refusal, .. }) if refusal.code == RefusalCode::Unavailable => {
                    self.life.stopping();
                    stop.send_replace(Some(StopCause::JobEnds(refusal.reason)));
                    return self.log_unanswered();
                }
                Err(error) => {
                    tracing::warn!(%error, "could not report to the chief; training goes on");
                    return self.log_unanswered();
                }
            }
        }
        let end = end.unwrap_or_else(|| Instant::now() + LAST);
        match timeout_at(end, self.report_rest()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) if is_rolled_back(&error) => {}
            _ => self.log_unanswered(),
        }
    }

    /// Sends the reports that follow the end of the training, at most [`LAST_REPORTS`].
    async fn report_rest(&mut self) -> Result<(), CallError> {
        for report in 0..LAST_REPORTS {
            let ReportSources { plots, spans, evaluations, .. } = &self.sources;
            if report == 0 || plots.len() + spans.len() + evaluations.len() > 0 {
                self.report().await?;
            }
        }
        Ok(())
    }

    /// Logs the number of summaries, spans and evaluations that the chief may not have received: those in a
    /// report without a reply, and those that still wait for a report.
    fn log_unanswered(&self) {
        let summaries = self.unanswered[0] + self.sources.plots.len();
        let spans = self.unanswered[1] + self.sources.spans.len();
        let evaluations = self.unanswered[2] + self.sources.evaluations.len();
        if summaries + spans + evaluations == 0 {
            tracing::debug!(
                "the chief may lack the final counts of this worker: it did not reply to the last report"
            );
            return;
        }
        tracing::warn!(
            summaries,
            spans,
            evaluations,
            "the chief's summary and trace files may be incomplete: it did not reply to the last report"
        );
    }

    async fn report(&mut self) -> Result<Reported, CallError> {
        let ReportSources { journal, plots, spans, evaluations } = &self.sources;
        let mut report = self.last.next(journal.progress());
        report.metrics = journal.take_metrics();
        report.summaries = plots.take();
        // Spans are sent only after the clocks have been aligned.
        report.spans = self.alignment.offset().map(|ahead| spans.take(ahead)).unwrap_or_default();
        report.spans_lost = spans.lost();
        report.evaluations = evaluations.take();
        self.unanswered = [report.summaries.len(), report.spans.len(), report.evaluations.len()];
        let sent = self.clock.now();
        let reported = self.chief.call::<Reported>(report).await?;
        self.unanswered = [0; 3];
        let (there, back) = (reported.clock_us, self.clock.now());
        self.alignment.hear(CallTimes { sent, received: there, answered: there, back });
        Ok(reported)
    }
}

#[cfg(test)]
mod tests {
    use pushpull_messages::id::GlobalStep;
    use pushpull_messages::observe::WorkerSnapshot;

    use super::*;

    #[test]
    fn each_report_covers_the_time_since_the_last() {
        let mut last = LastReport { number: 4, local_step: LocalStep(2), loss_sum: 5.0, measured: None };
        let (global_step, local_step) = (GlobalStep(9), LocalStep(6));
        let snapshot = WorkerSnapshot { global_step, local_step, drawn: 7, ..Default::default() };
        let now = Progress { snapshot, loss_sum: 7.0, gradient_norm: Some((LocalStep(5), 2.0)) };
        let report = last.next(now.clone());
        assert_eq!((report.loss, report.gradient_norm, report.drawn), (0.5, Some(2.0), 7));
        assert_eq!((report.global_step, report.local_step, report.number), (global_step, local_step, 5));
        assert_eq!(report.snapshot.as_deref(), Some(&now.snapshot));
        let nothing = last.next(now);
        assert!(nothing.loss.is_nan() && nothing.gradient_norm.is_none());
    }
}
