//! Tells the chief about once a second how far the worker is, beside the training: a chief that is slow or gone
//! holds no step up.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use pushpull_messages::id::LocalStep;
use pushpull_messages::message::{Report, Reported};
use pushpull_messages::observe::Clock;
use pushpull_transport::buffer::Payload;
use pushpull_transport::{CallError, ReconnectingClient};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::alignment::{Alignment, CallTimes};
use crate::journal::{Journal, Progress};
use crate::life::Life;
use crate::plots::Plots;
use crate::spans::Spans;

/// So long the last reports may take.
const LAST: Duration = Duration::from_secs(5);
/// With two of them everything has been told: spans wait for the first answer, by which the clocks are aligned.
const LAST_REPORTS: usize = 2;

/// What makes reports.
pub(crate) struct Reporter {
    pub chief: Arc<ReconnectingClient>,
    pub journal: Journal,
    pub life: Life,
    pub plots: Plots,
    pub spans: Spans,
    pub clock: Clock,
    /// How the chief's clock runs.
    pub alignment: Alignment,
    pub last: Last,
    /// Summaries and spans of a report that is not answered.
    pub untold: [usize; 2],
}

/// As of the last report.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Last {
    number: u64,
    local_step: LocalStep,
    loss_sum: f64,
    /// After which step the norm was measured that was told.
    measured: Option<LocalStep>,
}

impl Last {
    /// Of what has become since, which it takes the place of.
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
            summaries: Vec::new(),
            snapshot: Some(Box::new(snapshot)),
            spans: Vec::new(),
            spans_lost: 0,
        }
    }
}

impl Reporter {
    /// Reports until the trainer has gone, and sets `stop` when the chief wants the worker to stop. A report that is on its way
    /// then is still told, and what has become since goes with a last one.
    pub(crate) async fn run(mut self, stop: watch::Sender<Option<String>>, every: Duration) {
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
                    reported = &mut report => Ok(reported),
                    // What it bears is in no other.
                    () = stop.closed() => timeout_at(*end.insert(Instant::now() + LAST), report).await,
                }
            };
            let Ok(reported) = reported else { return self.give_up() };
            match reported {
                Ok(Reported { stop: None, .. }) => {}
                Ok(Reported { stop: Some(reason), .. }) => {
                    self.life.stopping();
                    stop.send_replace(Some(reason));
                    stop.closed().await;
                    break;
                }
                Err(error) => {
                    tracing::warn!("cannot report to the chief; training goes on: {error}");
                    return self.give_up();
                }
            }
        }
        let last = async {
            for report in 0..LAST_REPORTS {
                // Of what was counted since the one before.
                if report == 0 || self.plots.len() + self.spans.len() > 0 {
                    self.report().await?;
                }
            }
            Ok::<_, CallError>(())
        };
        if !matches!(timeout_at(end.unwrap_or_else(|| Instant::now() + LAST), last).await, Ok(Ok(()))) {
            self.give_up();
        }
    }

    fn give_up(&self) {
        // What is in a report that was not answered, and what has waited since.
        let [summaries, spans] = [self.untold[0] + self.plots.len(), self.untold[1] + self.spans.len()];
        if [summaries, spans] == [0; 2] {
            tracing::debug!("the last report was not answered: the chief may not know the last counts");
            return;
        }
        tracing::warn!(
            "reports have ended without an answer: {summaries} summaries and {spans} spans may be missing from the chief's files"
        );
    }

    async fn report(&mut self) -> Result<Reported, CallError> {
        let mut report = self.last.next(self.journal.progress());
        report.summaries = self.plots.take();
        // Before the clocks are aligned they wait.
        report.spans = self.alignment.offset().map(|ahead| self.spans.take(ahead)).unwrap_or_default();
        report.spans_lost = self.spans.lost();
        self.untold = [report.summaries.len(), report.spans.len()];
        let sent = self.clock.now();
        let (reported, _) = self.chief.call::<Reported>(report, Payload::EMPTY).await?;
        self.untold = [0; 2];
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
    fn each_report_is_of_what_has_become_since_the_last() {
        let mut last = Last { number: 4, local_step: LocalStep(2), loss_sum: 5.0, measured: None };
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
