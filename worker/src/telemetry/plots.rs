//! Summaries that a worker's hooks plot, stored until the next report. This module must not depend on hooks
//! or connections.
//!
//! Wanted properties: (A) the summaries that are taken together fit in a report; (B) each summary is either
//! taken once, in order, or counted as lost.

use std::sync::Arc;

use parking_lot::Mutex;
use pushpull_messages::summary::{SUMMARIES_MAX, SUMMARY_BYTES_MAX, SummarySpec};

/// Summaries that wait for the next report. Their number and their size are limited to what a report can
/// contain. Clones share the same summaries.
#[derive(Clone, Debug, Default)]
pub struct Plots(Arc<Mutex<WaitingSummaries>>);

#[derive(Debug, Default)]
struct WaitingSummaries {
    summaries: Vec<SummarySpec>,
    bytes: usize,
    lost: u64,
}

impl Plots {
    /// Adds a summary to the worker's next report, which is sent at the end of the report interval. A
    /// summary is lost if it is invalid or if the report is full; this is logged only the first time.
    pub fn plot(&self, summary: SummarySpec) {
        let mut waiting = self.0.lock();
        let bytes = waiting.bytes.saturating_add(summary.bytes());
        let reason = match summary.validate() {
            Err(error) => error.to_string(),
            Ok(()) if waiting.summaries.len() == SUMMARIES_MAX || bytes > SUMMARY_BYTES_MAX => {
                format!(
                    "the next report is full: it holds at most {SUMMARIES_MAX} summaries and {SUMMARY_BYTES_MAX} bytes"
                )
            }
            Ok(()) => {
                waiting.bytes = bytes;
                waiting.summaries.push(summary);
                return;
            }
        };
        waiting.lost += 1;
        if waiting.lost == 1 {
            tracing::warn!(%reason, "lost a summary; training goes on");
        }
    }

    /// Returns the number of summaries that are waiting.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().summaries.len()
    }

    /// Removes and returns all summaries that are waiting.
    pub(crate) fn take(&self) -> Vec<SummarySpec> {
        let mut waiting = self.0.lock();
        waiting.bytes = 0;
        std::mem::take(&mut waiting.summaries)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::id::GlobalStep;
    use pushpull_messages::summary::SummaryValue;

    use super::*;

    proptest! {
        /// Checks that the summaries taken together fit in a report (A), and that each is taken once or
        /// counted as lost (B). The summaries are texts of random lengths, which are taken at random
        /// moments.
        #[test]
        fn taken_summaries_fit_in_a_report_and_losses_are_counted(
            plotted in prop::collection::vec((0usize..SUMMARY_BYTES_MAX + 10, 0u8..4), 1..30),
        ) {
            let plots = Plots::default();
            let (mut taken, mut sent) = (0, 0);
            for (step, &(bytes, take)) in plotted.iter().enumerate() {
                let value = SummaryValue::Text("x".repeat(bytes));
                plots.plot(SummarySpec { tag: "text".into(), step: GlobalStep(step as u64), value });
                sent += 1;
                if take == 0 {
                    let summaries = plots.take();
                    taken += summaries.len();
                    prop_assert!(summaries.iter().map(SummarySpec::bytes).sum::<usize>() <= SUMMARY_BYTES_MAX);
                    prop_assert!(summaries.windows(2).all(|pair| pair[0].step < pair[1].step));
                }
            }
            taken += plots.take().len();
            prop_assert!(plots.len() == 0);
            prop_assert_eq!(taken as u64 + plots.0.lock().lost, sent);
        }
    }

    #[test]
    fn there_are_never_more_than_a_report_takes() {
        let plots = Plots::default();
        for _ in 0..SUMMARIES_MAX + 5 {
            plots.plot(SummarySpec::scalar("a", GlobalStep(1), 1.0));
        }
        plots.plot(SummarySpec::scalar("", GlobalStep(1), 1.0));
        assert_eq!((plots.take().len(), plots.0.lock().lost), (SUMMARIES_MAX, 6));
    }
}
