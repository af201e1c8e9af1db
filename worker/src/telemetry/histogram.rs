//! Makes the histograms that are plotted, with TensorFlow's bucket limits. This module must not depend on
//! the source of the numbers.
//!
//! Wanted properties: (A) the counts of the buckets add up to the number of finite values; (B) each value is
//! below the limit of its bucket, and not below the limit of the previous bucket; (C) the limits ascend.

use std::sync::LazyLock;

use pushpull_messages::summary::HistogramSpec;

/// The limits of the buckets, ascending: −10⁻¹² · 1.1ⁱ from almost −10²⁰, then 0, then 10⁻¹² · 1.1ⁱ up to
/// almost 10²⁰, and at the end the greatest `f64`.
static LIMITS: LazyLock<Vec<f64>> = LazyLock::new(|| {
    let next = |limit: &f64| Some(limit * 1.1).filter(|&limit| limit < 1e20);
    let positive: Vec<f64> = std::iter::successors(Some(1e-12), next).collect();
    let negative = positive.iter().rev().map(|limit| -limit);
    negative.chain([0.0]).chain(positive.iter().copied()).chain([f64::MAX]).collect()
});

/// Returns the histogram of the finite values, without empty buckets at its beginning and its end; `None` if
/// no value is finite. Consecutive empty buckets between two buckets with values are merged into one.
pub(crate) fn histogram(values: &[f32]) -> Option<HistogramSpec> {
    let limits = &*LIMITS;
    let mut counts = vec![0u64; limits.len()];
    let (mut spec, mut count) = (HistogramSpec::default(), 0u64);
    (spec.min, spec.max) = (f64::INFINITY, f64::NEG_INFINITY);
    for value in values.iter().filter(|value| value.is_finite()).map(|&value| f64::from(value)) {
        (spec.min, spec.max) = (spec.min.min(value), spec.max.max(value));
        spec.sum += value;
        spec.sum_squares += value * value;
        counts[limits.partition_point(|&limit| limit <= value)] += 1;
        count += 1;
    }
    spec.count = count as f64;
    let mut last = None;
    for (bucket, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        if last.is_some_and(|last| last + 1 < bucket) {
            spec.buckets.push((limits[bucket - 1], 0.0));
        }
        spec.buckets.push((limits[bucket], count as f64));
        last = Some(bucket);
    }
    (count > 0).then_some(spec)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::id::GlobalStep;
    use pushpull_messages::summary::{SummarySpec, SummaryValue};

    use super::*;

    proptest! {
        /// (A)–(C)
        #[test]
        fn every_finite_value_is_in_its_bucket(
            values in prop::collection::vec(prop_oneof![-2f32..2.0, any::<f32>(), Just(0.0)], 0..60),
        ) {
            let finite: Vec<f64> =
                values.iter().filter(|value| value.is_finite()).map(|&value| value.into()).collect();
            let Some(spec) = histogram(&values) else {
                prop_assert!(finite.is_empty());
                return Ok(());
            };
            prop_assert_eq!((spec.count, spec.min, spec.max), (
                finite.len() as f64,
                finite.iter().copied().fold(f64::INFINITY, f64::min),
                finite.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            ));
            prop_assert_eq!(spec.buckets.iter().map(|bucket| bucket.1).sum::<f64>(), spec.count, "(A)");
            let mut below = f64::NEG_INFINITY;
            for &(limit, count) in &spec.buckets {
                let inside = finite.iter().filter(|&&value| below <= value && value < limit).count();
                prop_assert_eq!(inside as f64, count, "(B)");
                below = limit;
            }
            let value = SummaryValue::Histogram(spec);
            prop_assert!(SummarySpec { tag: "a".into(), step: GlobalStep(1), value }.validate().is_ok(), "(C)");
        }
    }
}
