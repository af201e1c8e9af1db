//! The values of metrics over several batches. This module must not depend on the source of the batches.
//!
//! Wanted property: (A) the totals over several parts of a batch equal the totals over the whole batch, up
//! to rounding.

use pushpull_kernels::cpu::auc;
use pushpull_messages::graph::{GraphSpec, MetricKind};

/// The sums of metrics over the batches that have been added so far.
#[derive(Clone, Debug)]
pub(crate) struct MetricTotals {
    /// For each metric, how the results of several batches are combined, and the sum of the results so far.
    sums: Vec<(MetricKind, Vec<f64>)>,
    examples: u64,
}

impl MetricTotals {
    /// Creates totals to which no batch has been added yet.
    pub(crate) fn new(kinds: impl IntoIterator<Item = MetricKind>) -> Self {
        Self { sums: kinds.into_iter().map(|kind| (kind, Vec::new())).collect(), examples: 0 }
    }

    /// Returns how the results of each metric of a graph are combined, in the order of the graph.
    pub(crate) fn kinds(graph: &GraphSpec) -> impl Iterator<Item = MetricKind> {
        graph.metrics.iter().map(|metric| graph.metric_kind(metric.node))
    }

    /// Returns the number of elements that a metric of this kind has in the results of one batch.
    pub(crate) const fn elements(kind: MetricKind) -> usize {
        match kind {
            MetricKind::Mean => 1,
            MetricKind::Auc { bins } => 2 * bins,
        }
    }

    /// Adds a batch of `examples` examples. `results` has the elements of all metrics, one metric after
    /// another; any further elements are ignored.
    ///
    /// # Panics
    /// If `results` has fewer elements than all metrics together.
    pub(crate) fn add(&mut self, mut results: &[f32], examples: usize) {
        for (kind, sum) in &mut self.sums {
            let weight = match kind {
                MetricKind::Mean => examples as f64,
                MetricKind::Auc { .. } => 1.0,
            };
            let (own, rest) = results.split_at(Self::elements(*kind));
            sum.resize(own.len(), 0.0);
            sum.iter_mut().zip(own).for_each(|(sum, &number)| *sum += f64::from(number) * weight);
            results = rest;
        }
        self.examples += examples as u64;
    }

    /// Returns the number of examples in all batches so far.
    pub(crate) const fn examples(&self) -> u64 {
        self.examples
    }

    /// Returns the value of every metric over all batches so far. Before the first batch, all values are
    /// NaN.
    pub(crate) fn values(&self) -> Vec<f32> {
        let value = |(kind, sum): &(MetricKind, Vec<f64>)| match kind {
            _ if sum.is_empty() => f32::NAN,
            MetricKind::Mean => (sum[0] / self.examples as f64) as f32,
            MetricKind::Auc { .. } => auc(sum) as f32,
        };
        self.sums.iter().map(value).collect()
    }

    /// Removes all batches from the totals, but keeps the allocated memory.
    pub(crate) fn clear(&mut self) {
        self.sums.iter_mut().for_each(|(_, sum)| sum.clear());
        self.examples = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// (A)
        #[test]
        fn parts_of_a_batch_have_the_totals_of_the_batch(
            parts in prop::collection::vec((1usize..9, 0u8..10, [0u8..9, 0u8..9, 0u8..9, 0u8..9]), 1..8),
        ) {
            let mut totals = MetricTotals::new([MetricKind::Mean, MetricKind::Auc { bins: 2 }]);
            prop_assert!(totals.values().iter().all(|value| value.is_nan()));
            let (mut sum, mut all, mut counts) = (0.0, 0, [0.0; 4]);
            for (examples, mean, own) in parts {
                let own = own.map(f32::from);
                totals.add(&[&[f32::from(mean)][..], &own, &[f32::NAN]].concat(), examples);
                sum += f64::from(mean) * examples as f64;
                all += examples;
                counts.iter_mut().zip(own).for_each(|(sum, own)| *sum += f64::from(own));
            }
            let [mean, area] = totals.values()[..] else { panic!("two metrics") };
            prop_assert!((f64::from(mean) - sum / all as f64).abs() < 1e-5);
            prop_assert_eq!(area.to_bits(), (auc(&counts) as f32).to_bits());
            prop_assert_eq!(totals.examples(), all as u64);
            totals.clear();
            prop_assert!(totals.examples() == 0 && totals.values()[0].is_nan());
        }
    }
}
