//! The history of a job, as a bounded number of points. Reads no clock.
//!
//! Wanted properties: (A) there are never more than [`POINTS_MAX`] points, and they are in the order of
//! time; (B) no count is lost: the sums over all points equal the sums of all counts that were added; (C) an
//! evaluation is attached to the point that covers its time; if a point covers two evaluations, the later
//! one is kept.

use pushpull_messages::graph::MetricSpec;
use pushpull_messages::id::GlobalStep;
use pushpull_messages::message::MetricValue;
use pushpull_messages::observe::{CurvePoint, Phases};

/// The largest number of points.
pub(crate) const POINTS_MAX: usize = 600;
/// The initial time from one point to the next, in milliseconds. The time is doubled whenever there are more
/// than [`POINTS_MAX`] points.
const EVERY_MS: u64 = 1000;
/// The shortest segment over which a rate is meaningful, in milliseconds. Reports come only about once a
/// second.
const SHORT_MS: u64 = EVERY_MS / 2;

/// The history of a job as a list of points.
#[derive(Clone, Debug)]
pub(crate) struct Curves {
    points: Vec<Segment>,
    every_ms: u64,
}

/// A segment of a job's history, with all counts in it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Segment {
    /// The beginning of the segment, in milliseconds since the start of the chief.
    pub from_ms: u64,
    /// The end of the segment, in milliseconds since the start of the chief.
    pub until_ms: u64,
    /// The number of updates that had been applied at the end of the segment.
    pub step: GlobalStep,
    /// The sum of the losses of all steps whose loss is finite.
    pub loss_sum: f64,
    /// The number of steps whose losses `loss_sum` contains.
    pub loss_steps: u64,
    /// For each metric of the graph, the sum of its values on training batches, and the number of values.
    pub metrics: Vec<(f64, u64)>,
    pub examples: u64,
    /// The number of steps that the workers took.
    pub steps: u64,
    /// The total time of each phase, in microseconds, in the order of the phases in a step.
    pub phases_us: [u64; 5],
    pub evaluation: Vec<MetricValue>,
}

impl Segment {
    /// Adds the examples of one worker, and the times of its phases.
    pub(crate) fn add_work(&mut self, examples: u64, phases: &Phases) {
        self.examples = self.examples.saturating_add(examples);
        for (sum, (_, times)) in self.phases_us.iter_mut().zip(phases.iter()) {
            *sum = sum.saturating_add(times.sum_us);
        }
    }

    /// Adds `steps` steps whose mean loss is `loss`. If the loss is not finite, the steps are counted
    /// without a loss.
    pub(crate) fn add_steps(&mut self, steps: u64, loss: f32) {
        self.steps = self.steps.saturating_add(steps);
        if loss.is_finite() {
            self.loss_sum += f64::from(loss) * steps as f64;
            self.loss_steps = self.loss_steps.saturating_add(steps);
        }
    }

    /// Appends the segment that directly follows this one.
    fn extend(&mut self, next: Self) {
        self.until_ms = next.until_ms;
        self.step = next.step;
        self.loss_sum += next.loss_sum;
        self.loss_steps = self.loss_steps.saturating_add(next.loss_steps);
        self.metrics.resize(self.metrics.len().max(next.metrics.len()), (0.0, 0));
        for ((sum, count), (more, values)) in self.metrics.iter_mut().zip(next.metrics) {
            (*sum, *count) = (*sum + more, count.saturating_add(values));
        }
        self.examples = self.examples.saturating_add(next.examples);
        self.steps = self.steps.saturating_add(next.steps);
        self.phases_us.iter_mut().zip(next.phases_us).for_each(|(sum, more)| *sum = sum.saturating_add(more));
        if !next.evaluation.is_empty() {
            self.evaluation = next.evaluation;
        }
    }

    const fn took_ms(&self) -> u64 {
        self.until_ms.saturating_sub(self.from_ms)
    }

    fn point(&self, metrics: &[MetricSpec]) -> CurvePoint {
        let seconds = self.took_ms().max(SHORT_MS) as f64 / 1000.0;
        let names = Phases::default().iter().map(|(name, _)| name.to_owned());
        let phases = self.phases_us.iter().filter_map(|sum| sum.checked_div(self.steps));
        let mean = |(metric, &(sum, count)): (&MetricSpec, &(f64, u64))| {
            let value = (sum / count as f64) as f32;
            (count > 0).then(|| MetricValue { name: metric.name.clone(), value })
        };
        CurvePoint {
            at_ms: self.until_ms,
            step: self.step,
            loss: (self.loss_steps > 0).then(|| (self.loss_sum / self.loss_steps as f64) as f32),
            metrics: metrics.iter().zip(&self.metrics).filter_map(mean).collect(),
            examples_per_s: self.examples as f64 / seconds,
            evaluation: self.evaluation.clone(),
            phases_us: names.into_iter().zip(phases).collect(),
        }
    }
}

impl Default for Curves {
    fn default() -> Self {
        Self { points: Vec::new(), every_ms: EVERY_MS }
    }
}

impl Curves {
    /// Adds the segment that directly follows the last one.
    pub(crate) fn add(&mut self, next: Segment) {
        match self.points.last_mut() {
            // Calls come about once a second, but not exactly on time.
            Some(last) if last.took_ms() + SHORT_MS < self.every_ms || next.took_ms() < SHORT_MS => {
                last.extend(next);
            }
            _ => self.points.push(next),
        }
        if self.points.len() > POINTS_MAX {
            self.every_ms *= 2;
            let mut merged: Vec<Segment> = Vec::with_capacity(POINTS_MAX);
            for (index, point) in self.points.drain(..).enumerate() {
                match merged.last_mut() {
                    Some(last) if index % 2 == 1 => last.extend(point),
                    _ => merged.push(point),
                }
            }
            self.points = merged;
        }
    }

    /// Adds an evaluation that became known at `at_ms`.
    pub(crate) fn evaluated(&mut self, at_ms: u64, step: GlobalStep, evaluation: Vec<MetricValue>) {
        match self.points.last_mut() {
            Some(last) => last.evaluation = evaluation,
            None => {
                self.add(Segment { from_ms: at_ms, until_ms: at_ms, step, evaluation, ..Default::default() });
            }
        }
    }

    /// Returns all points, the oldest first. `metrics` are those of the graph.
    pub(crate) fn points(&self, metrics: &[MetricSpec]) -> Vec<CurvePoint> {
        self.points.iter().map(|segment| segment.point(metrics)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::id::NodeId;

    use super::*;

    fn metric(value: u64) -> Vec<MetricValue> {
        vec![MetricValue { name: "loss".into(), value: value as f32 }]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// (A)–(C)
        #[test]
        fn points_are_bounded_and_nothing_is_lost(
            segments in prop::collection::vec((1u64..3000, 0u64..50, 0u8..8, 0u8..20), 1..300),
            repeat in 1usize..12,
        ) {
            let mut curves = Curves::default();
            let (mut at, mut loss, mut steps, mut examples, mut number) = (0, 0.0, 0, 0, 0);
            let mut evaluations = Vec::new();
            let (mut metric_sum, mut metric_count) = (0u32, 0);
            for &(took, taken, mean, evaluated) in segments.iter().cycle().take(segments.len() * repeat) {
                let mut next = Segment { from_ms: at, until_ms: at + took, step: GlobalStep(steps), ..Default::default() };
                next.add_work(taken * 3, &Phases::default());
                next.add_steps(taken, f32::from(mean));
                // Steps whose loss is not finite are counted, but do not change the mean loss.
                next.add_steps(taken, f32::NAN);
                // A metric is sometimes unknown.
                let known = u64::from(mean % 2);
                next.metrics = vec![(f64::from(mean * (mean % 2)), known)];
                metric_sum += u32::from(mean * (mean % 2));
                metric_count += known;
                curves.add(next);
                (at, loss) = (at + took, loss + f64::from(mean) * taken as f64);
                (steps, examples) = (steps + 2 * taken, examples + taken * 3);
                if evaluated == 0 {
                    number += 1;
                    curves.evaluated(at, GlobalStep(steps), metric(number));
                    evaluations.push((at, number));
                }
                prop_assert!(curves.points.len() <= POINTS_MAX, "(A)");
            }
            let sum = |of: fn(&Segment) -> u64| curves.points.iter().map(of).sum::<u64>();
            prop_assert_eq!((sum(|point| point.steps), sum(|point| point.examples)), (steps, examples), "(B)");
            prop_assert_eq!(2 * sum(|point| point.loss_steps), steps, "(B)");
            let losses: f64 = curves.points.iter().map(|point| point.loss_sum).sum();
            prop_assert!((losses - loss).abs() < 1e-3 * loss.max(1.0), "(B)");
            let times = curves.points.windows(2).all(|pair| pair[0].until_ms == pair[1].from_ms);
            prop_assert!(times && curves.points.last().unwrap().until_ms == at, "(A) and (B)");
            for point in &curves.points {
                let mut inside = evaluations.iter().filter(|(at, _)| point.from_ms < *at && *at <= point.until_ms);
                let wanted = inside.next_back().map_or(vec![], |&(_, number)| metric(number));
                prop_assert_eq!(&point.evaluation, &wanted, "(C)");
            }
            prop_assert_eq!(curves.points(&[]).len(), curves.points.len());
            let metrics = curves.points.iter().map(|point| point.metrics[0]);
            let metrics = metrics.fold((0.0, 0), |sum, own| (sum.0 + own.0, sum.1 + own.1));
            prop_assert_eq!(metrics, (f64::from(metric_sum), metric_count), "(B)");
        }
    }

    #[test]
    fn counts_saturate() {
        let mut curves = Curves::default();
        for second in 0..2000 {
            let mut next =
                Segment { from_ms: second * 1000, until_ms: second * 1000 + 1000, ..Default::default() };
            let mut phases = Phases::default();
            phases.input.sum_us = u64::MAX;
            (0..2).for_each(|_| next.add_work(u64::MAX - 1, &phases));
            (0..2).for_each(|_| next.add_steps(u64::MAX, f32::MAX));
            curves.add(next);
        }
        for (segment, point) in curves.points.iter().zip(curves.points(&[])) {
            assert_eq!((segment.steps, segment.examples, segment.loss_steps), (u64::MAX, u64::MAX, u64::MAX));
            assert!(point.loss.is_some() && point.examples_per_s.is_finite(), "{point:?}");
        }
    }

    #[test]
    fn a_short_segment_makes_no_job_fast() {
        let mut curves = Curves::default();
        let mut add = |from_ms, until_ms, examples| {
            let mut next = Segment { from_ms, until_ms, ..Default::default() };
            next.add_work(examples, &Phases::default());
            next.add_steps(1, 0.5);
            curves.add(next);
            curves.points(&[]).iter().map(|point| (point.at_ms, point.examples_per_s)).collect::<Vec<_>>()
        };
        // The reports of the previous second come in the first milliseconds.
        assert_eq!(add(0, 3, 1000), [(3, 2000.0)]);
        assert_eq!(add(3, 1000, 1000), [(1000, 2000.0)]);
        assert_eq!(add(1000, 2000, 500), [(1000, 2000.0), (2000, 500.0)]);
        assert_eq!(add(2000, 2001, 500), [(1000, 2000.0), (2001, 1000.0 / 1.001)]);
    }

    #[test]
    fn a_point_shows_means() {
        let mut curves = Curves::default();
        curves.evaluated(5, GlobalStep(0), metric(1));
        let mut next = Segment { from_ms: 5, until_ms: 2005, step: GlobalStep(4), ..Default::default() };
        let mut phases = Phases::default();
        phases.compute.record(std::time::Duration::from_micros(40));
        next.add_work(100, &phases);
        next.add_steps(3, 1.0);
        next.add_steps(1, 5.0);
        next.metrics = vec![(1.5, 2), (0.0, 0)];
        curves.add(next);
        let spec = |name: &str| MetricSpec { name: name.into(), node: NodeId(0) };
        let points = curves.points(&[spec("accuracy"), spec("auc")]);
        let [point] = points.as_slice() else { panic!("{points:?}") };
        assert_eq!((point.at_ms, point.step, point.loss), (2005, GlobalStep(4), Some(2.0)));
        assert_eq!((point.examples_per_s, point.phases_us[1].clone()), (50.0, ("compute".to_owned(), 10)));
        assert_eq!(point.evaluation, metric(1));
        assert_eq!(point.metrics, [MetricValue { name: "accuracy".into(), value: 0.75 }]);
    }
}
