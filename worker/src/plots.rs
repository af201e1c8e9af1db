//! What a worker's hooks want to be plotted, until its next report. Knows neither hooks nor connection.
//!
//! Wanted properties: (A) what is taken at a time fits in a report; (B) what is plotted is taken once, in order, or counted as
//! lost.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pushpull_messages::summary::{SUMMARIES_MAX, SUMMARY_BYTES_MAX, SummarySpec};

/// Summaries that wait, of no more than fit in one report.
#[derive(Clone, Debug, Default)]
pub struct Plots(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    summaries: Vec<SummarySpec>,
    bytes: usize,
    lost: u64,
}

impl Plots {
    /// Has it plotted, about a second later. Where it cannot be taken, or there is no room before the next report, it is lost: that
    /// is told the first time.
    pub fn plot(&self, summary: SummarySpec) {
        let mut waiting = self.lock();
        let bytes = waiting.bytes.saturating_add(summary.bytes());
        let reason = match summary.validate() {
            Err(error) => error.to_string(),
            Ok(()) if waiting.summaries.len() == SUMMARIES_MAX || bytes > SUMMARY_BYTES_MAX => {
                format!("a report takes {SUMMARIES_MAX} of them, of {SUMMARY_BYTES_MAX} bytes in all")
            }
            Ok(()) => {
                waiting.bytes = bytes;
                waiting.summaries.push(summary);
                return;
            }
        };
        waiting.lost += 1;
        if waiting.lost == 1 {
            tracing::warn!("a summary is lost, and training goes on: {reason}");
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().summaries.len()
    }

    /// All that wait.
    pub(crate) fn take(&self) -> Vec<SummarySpec> {
        let mut waiting = self.lock();
        waiting.bytes = 0;
        std::mem::take(&mut waiting.summaries)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::id::GlobalStep;
    use pushpull_messages::summary::SummaryValue;

    use super::*;

    proptest! {
        /// (A) and (B).
        #[test]
        fn what_is_taken_fits_in_a_report_and_the_rest_is_counted(
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
            prop_assert_eq!(taken as u64 + plots.lock().lost, sent);
        }
    }

    #[test]
    fn there_are_never_more_than_a_report_takes() {
        let plots = Plots::default();
        for _ in 0..SUMMARIES_MAX + 5 {
            plots.plot(SummarySpec::scalar("a", GlobalStep(1), 1.0));
        }
        plots.plot(SummarySpec::scalar("", GlobalStep(1), 1.0));
        assert_eq!((plots.take().len(), plots.lock().lost), (SUMMARIES_MAX, 6));
    }
}
