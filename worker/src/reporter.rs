//! Tells the chief about once a second how far the worker is, beside the training: a chief that is slow or gone
//! holds no step up.

use std::sync::Arc;
use std::time::Duration;

use messages::buffer::Payload;
use messages::id::{GlobalStep, LocalStep};
use messages::message::{Report, Reported};
use messages::transport::Caller;
use tokio::sync::watch;

use crate::plots::Plots;

/// So long the last report may take.
const LAST: Duration = Duration::from_secs(5);

/// How far a worker is; sums from the start on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    pub global_step: GlobalStep,
    pub local_step: LocalStep,
    /// Batches taken from the input, in all lives of the worker.
    pub drawn: u64,
    pub loss_sum: f64,
    /// The norm that was measured last, and after which step.
    pub gradient_norm: Option<(LocalStep, f32)>,
}

/// Of what has become since the last one, which it takes the place of.
fn next(reported: &mut Progress, now: Progress, plots: &Plots) -> Report {
    let before = std::mem::replace(reported, now);
    let Progress { global_step, local_step, drawn, loss_sum, gradient_norm } = now;
    let steps = local_step.0 - before.local_step.0;
    let measured =
        gradient_norm.filter(|&(step, _)| before.gradient_norm.is_none_or(|(last, _)| last < step));
    Report {
        global_step,
        local_step,
        loss: ((loss_sum - before.loss_sum) / steps as f64) as f32,
        drawn,
        gradient_norm: measured.map(|(_, norm)| norm),
        summaries: plots.take(),
    }
}

/// Reports until the trainer has gone, and sets `stop` when the chief wants the worker to stop. What is still to be plotted then
/// goes with a last report.
pub(crate) async fn report(
    chief: Arc<Caller>,
    progress: watch::Receiver<Progress>,
    stop: watch::Sender<Option<String>>,
    every: Duration,
    plots: Plots,
) {
    let mut last = *progress.borrow();
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = stop.closed() => break,
        }
        let report = next(&mut last, *progress.borrow(), &plots);
        let reported = tokio::select! {
            reported = chief.call::<Reported>(report, Payload::EMPTY) => reported,
            () = stop.closed() => break,
        };
        match reported {
            Ok((Reported { stop: None }, _)) => {}
            Ok((Reported { stop: Some(reason) }, _)) => {
                stop.send_replace(Some(reason));
                return;
            }
            Err(error) => {
                tracing::warn!("cannot report to the chief; training goes on: {error}");
                return;
            }
        }
    }
    if !plots.is_empty() {
        let report = next(&mut last, *progress.borrow(), &plots);
        let told = chief.call::<Reported>(report, Payload::EMPTY);
        if !matches!(tokio::time::timeout(LAST, told).await, Ok(Ok(_))) {
            tracing::warn!("the last summaries did not reach the chief");
        }
    }
}

#[cfg(test)]
mod tests {
    use messages::summary::SummarySpec;

    use super::*;

    #[test]
    fn each_report_is_of_what_has_become_since_the_last() {
        let plots = Plots::default();
        let mut last = Progress { local_step: LocalStep(2), loss_sum: 5.0, ..Default::default() };
        let (global_step, local_step) = (GlobalStep(9), LocalStep(6));
        let now = Progress { global_step, local_step, drawn: 7, loss_sum: 7.0, gradient_norm: None };
        let measured = Progress { gradient_norm: Some((LocalStep(5), 2.0)), ..now };
        plots.plot(SummarySpec::scalar("mine", global_step, 1.0));
        let report = next(&mut last, measured, &plots);
        assert_eq!((report.loss, report.gradient_norm, report.drawn), (0.5, Some(2.0), 7));
        assert_eq!(
            (report.global_step, report.local_step, report.summaries.len()),
            (global_step, local_step, 1)
        );
        let nothing = next(&mut last, measured, &plots);
        assert!(nothing.loss.is_nan() && nothing.gradient_norm.is_none() && nothing.summaries.is_empty());
    }
}
