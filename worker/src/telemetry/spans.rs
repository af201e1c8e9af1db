//! Spans that wait for a worker's next report. This module must not depend on connections or on
//! measurements.
//!
//! Wanted properties: (A) the spans that are taken together fit in a report; (B) the spans of a step are
//! taken together exactly once, or they are all counted as lost; (C) order and nesting are preserved, even
//! if the estimate of the chief's clock changes between two steps.

use std::sync::Arc;

use parking_lot::Mutex;
use pushpull_messages::observe::{Micros, SPANS_MAX, SpanSpec};

/// Spans with times on the worker's clock. Their number is limited to what a report can contain. Clones share
/// the same spans.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spans(Arc<Mutex<WaitingSpans>>);

#[derive(Debug, Default)]
struct WaitingSpans {
    spans: Vec<SpanSpec>,
    lost: u64,
    /// The latest end of all spans taken so far, on the chief's clock; `None` if no span was taken.
    taken_until: Option<Micros>,
}

impl Spans {
    /// Adds the spans of one step if all of them fit. Otherwise all of them are lost; this is logged only
    /// the first time.
    pub(crate) fn put(&self, spans: Vec<SpanSpec>) {
        let mut waiting = self.0.lock();
        if waiting.spans.len() + spans.len() <= SPANS_MAX {
            waiting.spans.extend(spans);
            return;
        }
        if waiting.lost == 0 {
            tracing::warn!(
                spans_max = SPANS_MAX,
                "lost the spans of a traced step, because the next report is full; trace fewer steps"
            );
        }
        waiting.lost += spans.len() as u64;
    }

    /// Removes and returns all spans that are waiting, with times on the chief's clock. The chief's clock is
    /// ahead of the worker's clock by `ahead`.
    pub(crate) fn take(&self, ahead: Micros) -> Vec<SpanSpec> {
        let mut waiting = self.0.lock();
        let mut spans = std::mem::take(&mut waiting.spans);
        let first = waiting.taken_until.unwrap_or(Micros::MIN);
        let theirs = |ours: Micros| ours.saturating_add(ahead).max(first);
        for span in &mut spans {
            let (start, end) = (theirs(span.start_us), theirs(span.start_us.saturating_add(span.took_us)));
            (span.start_us, span.took_us) = (start, end.saturating_sub(start));
            waiting.taken_until = waiting.taken_until.max(Some(end));
        }
        spans
    }

    /// Returns the number of spans that are waiting.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().spans.len()
    }

    /// Returns the number of spans that have been lost.
    pub(crate) fn lost(&self) -> u64 {
        self.0.lock().lost
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::id::TaskId;

    use super::*;

    fn span(start_us: Micros, took_us: Micros) -> SpanSpec {
        let (lane, name) = ("trainer".to_owned(), "step".to_owned());
        SpanSpec { task: TaskId::worker(0), lane, name, push: None, local_step: None, start_us, took_us }
    }

    proptest! {
        /// Checks that the spans taken together fit in a report (A), and that the spans of a step are taken
        /// together or lost (B). The steps have random numbers of spans, which are taken at random moments.
        #[test]
        fn the_spans_of_a_step_are_taken_together_or_lost(
            steps in prop::collection::vec((1usize..1500, 0u8..4), 1..20),
        ) {
            let spans = Spans::default();
            let (mut put, mut taken) = (0, 0);
            for (at, &(step, take)) in steps.iter().enumerate() {
                spans.put(vec![span(at as Micros, 1); step]);
                put += step as u64;
                if take == 0 {
                    let now = spans.take(7);
                    prop_assert!(now.len() <= SPANS_MAX, "(A)");
                    for some in now.chunk_by(|a, b| a.start_us == b.start_us) {
                        prop_assert_eq!(some.len(), steps[(some[0].start_us - 7) as usize].0, "(B)");
                    }
                    taken += now.len() as u64;
                }
            }
            taken += spans.take(7).len() as u64;
            prop_assert!(spans.len() == 0);
            prop_assert_eq!(taken + spans.lost(), put, "(B)");
        }

        /// Checks that order and nesting are preserved (C) for consecutive steps. The span of each step
        /// contains one other span.
        #[test]
        fn order_and_nesting_outlive_a_new_estimate(
            steps in prop::collection::vec((0i64..1000, 0i64..1000, -50i64..50, any::<bool>()), 1..40),
        ) {
            let spans = Spans::default();
            let (mut at, mut out, mut ahead) = (0, Vec::new(), 1000);
            for (before, took, change, take) in steps {
                spans.put(vec![span(at, before + took), span(at + before, took / 2)]);
                at += before + took;
                if take {
                    ahead += change;
                    out.extend(spans.take(ahead));
                }
            }
            out.extend(spans.take(ahead));
            let mut last = Micros::MIN;
            for step in out.chunks(2) {
                let [whole, part] = step else { unreachable!() };
                let end = |span: &SpanSpec| span.start_us + span.took_us;
                prop_assert!(last <= whole.start_us && whole.took_us >= 0 && part.took_us >= 0);
                prop_assert!(whole.start_us <= part.start_us && end(part) <= end(whole));
                last = end(whole);
            }
        }
    }
}
