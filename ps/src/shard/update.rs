//! The parameters of one update besides the gradient. They are the same for all slices of a shard.
//!
//! Wanted properties: (A) the sum of n gradients is applied as their mean; (B) the learning rate is the
//! optimizer's, times the schedule's factor, times the caller's factor; (C) the decay of an average never
//! exceeds the decay that the job sets.

use pushpull_kernels::cpu::GradientTerms;
use pushpull_messages::id::{GlobalStep, Version};
use pushpull_messages::optimizer::{OptimizerSpec, UpdateSpec, VariableRule};

/// The parameters of one update of all slices.
#[derive(Clone, Copy)]
pub(super) struct Update<'a> {
    pub optimizer: &'a OptimizerSpec,
    /// The factor by which the optimizer's learning rate is multiplied.
    pub learning_rate_factor: f32,
    /// The number of this update; the first one has the number 1.
    pub step: u64,
    pub terms: GradientTerms,
    /// The decay of moving averages, which is the weight of the old average.
    pub average_decay: f32,
}

impl<'a> Update<'a> {
    /// Builds the update that is applied to `version`, for the sum of `gradients` gradients. The scheduled
    /// learning rate is multiplied by `learning_rate_factor`. Hooks may set this factor, and stale gradients
    /// get a smaller factor if the job requests that.
    pub(super) fn new(
        spec: &'a UpdateSpec,
        version: Version,
        last_step: GlobalStep,
        learning_rate_factor: f32,
        gradients: u32,
    ) -> Self {
        debug_assert!(gradients > 0, "an update of no gradients");
        let applied = version.0;
        // The decay is smaller for the first updates, as in TensorFlow's ExponentialMovingAverage with
        // num_updates. The first values are far from the final ones, and so lose their weight sooner.
        let young = ((1.0 + applied as f64) / (10.0 + applied as f64)) as f32;
        Self {
            optimizer: &spec.optimizer,
            learning_rate_factor: spec.learning_rate_factor(applied, last_step.0) * learning_rate_factor,
            step: version.next().0,
            terms: GradientTerms { scale: 1.0 / gradients as f32, weight_decay: spec.weight_decay },
            average_decay: spec.average.map_or(0.0, |decay| decay.min(young)),
        }
    }

    /// Returns the same update with the optimizer and the weight decay of `rule`, for a variable that has a
    /// rule of its own.
    pub(super) const fn by<'b>(&self, rule: &'b VariableRule) -> Update<'b>
    where
        'a: 'b,
    {
        let terms = GradientTerms { scale: self.terms.scale, weight_decay: rule.weight_decay };
        Update { optimizer: &rule.optimizer, terms, ..*self }
    }

    /// Returns the same update for a variable that is not trainable, such as a moving statistic. Workers
    /// push differences for it; their mean is subtracted from the variable, with learning rate 1 and without
    /// decay.
    pub(super) const fn untrained(&self) -> Self {
        Self {
            optimizer: &OptimizerSpec::Sgd { learning_rate: 1.0 },
            learning_rate_factor: 1.0,
            step: self.step,
            terms: GradientTerms { scale: self.terms.scale, weight_decay: 0.0 },
            average_decay: 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::optimizer::ScheduleSpec;

    use super::*;

    proptest! {
        /// Checks the factor of the gradients (A), the learning rate (B) and the decay of averages (C). Also
        /// checks that the weight decay and the learning rate do not affect untrained variables.
        #[test]
        fn parameters_follow_from_the_job_and_the_version(
            version in 0u64..1000,
            warm_up in 0u64..20,
            rate in 0.01f32..1.0,
            gradients in 1u32..100,
            decay in 0.1f32..0.9999,
        ) {
            let schedule = ScheduleSpec::Cosine;
            let average = Some(decay);
            let spec =
                UpdateSpec { schedule, warm_up, weight_decay: 0.5, average, ..OptimizerSpec::sgd(0.1).into() };
            let update = Update::new(&spec, Version(version), GlobalStep(1000), rate, gradients);
            prop_assert_eq!(update.learning_rate_factor, spec.learning_rate_factor(version, 1000) * rate);
            prop_assert_eq!(update.step, version + 1);
            prop_assert!((update.terms.scale * gradients as f32 - 1.0).abs() < 1e-6);
            prop_assert!(update.average_decay > 0.0 && update.average_decay <= decay);
            let untrained = update.untrained();
            prop_assert_eq!((untrained.learning_rate_factor, untrained.terms.weight_decay), (1.0, 0.0));
            prop_assert_eq!(untrained.terms.scale, update.terms.scale);
        }
    }

    #[test]
    fn a_young_average_decays_faster() {
        let spec = UpdateSpec { average: Some(0.9), ..OptimizerSpec::sgd(0.1).into() };
        let decay = |version| Update::new(&spec, Version(version), GlobalStep(1000), 1.0, 1).average_decay;
        assert_eq!((decay(0), decay(8), decay(1000)), (0.1, 0.5, 0.9));
    }
}
