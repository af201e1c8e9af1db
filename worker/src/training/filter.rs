//! Filters a worker's gradients before they are pushed: depending on the job, checks them, clips them by
//! value and by norm, or drops them. This module must not depend on shards or devices.
//!
//! Wanted properties: (A) values that are not finite never become finite, and are never pushed if the job
//! drops them; (B) no element exceeds the bound for values, and the norm does not exceed the bound for
//! norms; (C) gradients within the bounds, and gradients of untrained variables, remain bitwise identical.

use pushpull_kernels::cpu::{Threads, all_below, clip_in_place, scale_in_place, sum_of_squares};
use pushpull_messages::gradient::{GRADIENT_LIMIT, GradientSpec, NotFiniteSpec};
use pushpull_messages::id::{LocalStep, VariableId};
use pushpull_messages::variable::VariableSpec;

use crate::client::Gradients;
use crate::error::WorkerError;

/// The number of consecutive dropped steps after which the worker ends with an error.
const DROPPED_IN_A_ROW_MAX: u32 = 100;

/// The filter for the gradients of one worker. It counts the steps that it has dropped.
pub(crate) struct Filter {
    spec: GradientSpec,
    variables: Vec<FilteredVariable>,
    dropped: u64,
    dropped_in_a_row: u32,
    /// The norm of the gradients that were filtered last, measured before they were clipped by norm; `None`
    /// if the job does not clip by norm.
    norm: Option<f64>,
}

/// The properties of a variable that the filter needs.
struct FilteredVariable {
    name: String,
    trainable: bool,
}

impl Filter {
    /// Creates the filter that `spec` describes.
    pub(crate) fn new(spec: GradientSpec, variables: &[VariableSpec]) -> Self {
        let variable = |variable: &VariableSpec| FilteredVariable {
            name: variable.name.clone(),
            trainable: variable.trainable,
        };
        let variables = variables.iter().map(variable).collect();
        Self { spec, variables, dropped: 0, dropped_in_a_row: 0, norm: None }
    }

    /// Returns true if the filter lets all gradients pass, unchanged and unchecked.
    pub(crate) fn is_open(&self) -> bool {
        self.spec == GradientSpec::default()
    }

    /// Returns the number of steps that have been dropped.
    pub(crate) const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the Euclidean norm of the gradients that were filtered last, measured before they were
    /// clipped by norm. If the job does not clip by norm, `wanted` decides: if it is true, measures and
    /// returns the norm of `gradients`; if it is false, returns `None`. Also returns `None` if the norm is
    /// not finite.
    pub(crate) fn norm(&self, gradients: &Gradients, wanted: bool) -> Option<f32> {
        let norm = self.norm.or_else(|| wanted.then(|| self.measure(gradients)))?;
        Some(norm as f32).filter(|norm| norm.is_finite())
    }

    fn measure(&self, gradients: &Gradients) -> f64 {
        let squares: f64 = self.trained().map(|variable| sum_of_squares(gradients.variable(variable))).sum();
        squares.sqrt()
    }

    /// Clips the gradients of a step as the job requires. Returns true if they are to be pushed, and false if
    /// they are to be dropped.
    ///
    /// # Errors
    /// If a gradient is not finite and the job's settings say that this ends the worker; if too many steps in
    /// a row were dropped.
    pub(crate) fn pass(
        &mut self,
        gradients: &mut Gradients,
        local_step: LocalStep,
    ) -> Result<bool, WorkerError> {
        let Err(variable) = self.change(gradients) else {
            self.dropped_in_a_row = 0;
            return Ok(true);
        };
        let variable = self.variables[variable.index()].name.clone();
        if self.spec.not_finite == NotFiniteSpec::Stop {
            return Err(WorkerError::NotFinite { variable, local_step });
        }
        self.dropped += 1;
        self.dropped_in_a_row += 1;
        if self.dropped_in_a_row >= DROPPED_IN_A_ROW_MAX {
            return Err(WorkerError::NeverFinite { variable, steps: self.dropped_in_a_row });
        }
        if self.dropped == 1 {
            tracing::warn!(
                "dropped a step, because the gradient of variable '{variable}' is not finite; later dropped steps are only counted"
            );
        }
        Ok(false)
    }

    /// Clips the gradients as the job requires.
    ///
    /// # Errors
    /// Returns the first variable whose gradient is not finite, if the job's settings require this
    /// check.
    fn change(&mut self, gradients: &mut Gradients) -> Result<(), VariableId> {
        let GradientSpec { clip_value, clip_global_norm, not_finite } = self.spec;
        // The shards also check that gradients are finite. But clipping by value would turn an infinity into
        // a finite number, and the shards would accept that number.
        if not_finite == NotFiniteSpec::Skip || clip_value.is_some() {
            self.check(gradients)?;
        }
        if let Some(bound) = clip_value {
            for variable in self.trained() {
                clip_in_place(gradients.variable_mut(variable), bound, Threads::One);
            }
        }
        if let Some(bound) = clip_global_norm {
            let norm = self.measure(gradients);
            self.norm = Some(norm);
            if !norm.is_finite() {
                self.check(gradients)?;
            }
            if norm > f64::from(bound) {
                let factor = (f64::from(bound) / norm) as f32;
                for variable in self.trained() {
                    scale_in_place(gradients.variable_mut(variable), factor, Threads::One);
                }
            }
        }
        Ok(())
    }

    fn check(&self, gradients: &Gradients) -> Result<(), VariableId> {
        let bad = |variable: &VariableId| !all_below(gradients.variable(*variable), self.limit(*variable));
        self.all().find(bad).map_or(Ok(()), Err)
    }

    /// Returns the bound for a variable's gradient before clipping: the magnitude of each element must be
    /// below the bound. The bound is [`GRADIENT_LIMIT`] if nothing else keeps the gradient below this limit.
    /// It is infinity if clipping keeps the gradient below the limit. It is also infinity if the job stops at
    /// gradients that are not finite, because the shards then check the limit.
    fn limit(&self, variable: VariableId) -> f32 {
        let GradientSpec { clip_value, clip_global_norm, not_finite } = self.spec;
        let small = |bound: f32| bound < GRADIENT_LIMIT;
        let clipped = clip_value.is_some_and(small) || clip_global_norm.is_some_and(small);
        let fits = clipped && self.variables[variable.index()].trainable;
        if not_finite == NotFiniteSpec::Skip && !fits { GRADIENT_LIMIT } else { f32::INFINITY }
    }

    fn all(&self) -> impl Iterator<Item = VariableId> + use<> {
        (0..self.variables.len() as u32).map(VariableId)
    }

    fn trained(&self) -> impl Iterator<Item = VariableId> + '_ {
        self.all().filter(|variable| self.variables[variable.index()].trainable)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use pushpull_kernels::cpu::all_finite;
    use pushpull_messages::id::{PlacementEpoch, ShardId};
    use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
    use pushpull_messages::variable::InitializerSpec;
    use pushpull_transport::buffer::BufferPool;

    use super::*;
    use crate::client::Layout;

    const ROWS: usize = 6;

    /// Returns two trained variables with an untrained one between them. The first trained variable is split
    /// over two shards.
    fn variables() -> Vec<VariableSpec> {
        [("split", true), ("moving", false), ("whole", true)]
            .map(|(name, trainable)| VariableSpec {
                name: name.into(),
                shape: [ROWS].into(),
                dtype: pushpull_messages::tensor::DType::F32,
                initializer: InitializerSpec::Zeros,
                trainable,
                device: None,
            })
            .into()
    }

    fn gradients(values: &[Vec<f32>; 3]) -> Gradients {
        let slice = |variable, row, rows, ps| PlacedSlice {
            slice: SliceSpec { variable: VariableId(variable), row, rows },
            shard: ShardId::new(ps, 0),
        };
        let placement = Placement {
            epoch: PlacementEpoch(1),
            shards: vec![ShardId::new(0, 0), ShardId::new(1, 0)],
            slices: vec![slice(0, 0, 2, 0), slice(0, 2, 4, 1), slice(1, 0, 6, 0), slice(2, 0, 6, 1)],
        };
        let layout = Arc::new(Layout::new(&placement, &variables()));
        let mut gradients = Gradients::take(&layout, &BufferPool::default());
        for (variable, values) in values.iter().enumerate() {
            gradients.variable_mut(VariableId(variable as u32)).copy_from_slice(values);
        }
        gradients
    }

    fn values(gradients: &Gradients) -> [Vec<f32>; 3] {
        [0, 1, 2].map(|variable| gradients.variable(VariableId(variable)).to_vec())
    }

    fn bits(values: &[Vec<f32>; 3]) -> Vec<u32> {
        values.iter().flatten().map(|value| value.to_bits()).collect()
    }

    fn norm(values: &[Vec<f32>; 3]) -> f64 {
        let trained = values[0].iter().chain(&values[2]);
        trained.map(|&value| f64::from(value) * f64::from(value)).sum::<f64>().sqrt()
    }

    fn some() -> impl Strategy<Value = [Vec<f32>; 3]> {
        let element = prop_oneof![-10f32..10.0, Just(0.0), -1e30f32..1e30];
        let one = || prop::collection::vec(element.clone(), ROWS);
        (one(), one(), one()).prop_map(|(a, b, c)| [a, b, c])
    }

    proptest! {
        /// Checks that the gradients are within the bounds (B) and otherwise unchanged (C), and that the
        /// filter measures the norm before it clips the gradients by norm.
        #[test]
        fn bounds_hold_and_nothing_else_changes(
            before in some(),
            clip_value in prop::option::of(1e-3f32..1e3),
            clip_global_norm in prop::option::of(1e-3f32..1e3),
        ) {
            let mut gradients = gradients(&before);
            let spec = GradientSpec { clip_value, clip_global_norm, ..Default::default() };
            let mut filter = Filter::new(spec, &variables());
            prop_assert!(filter.pass(&mut gradients, LocalStep(0)).unwrap());
            let after = values(&gradients);
            prop_assert_eq!(&after[1], &before[1]);
            let value_bound = clip_value.unwrap_or(f32::INFINITY);
            let mut clipped = before.clone();
            for variable in [0, 2] {
                clipped[variable].iter_mut().for_each(|value| *value = value.clamp(-value_bound, value_bound));
            }
            prop_assert_eq!(filter.norm(&gradients, false).is_some(), clip_global_norm.is_some());
            let measured = f64::from(filter.norm(&gradients, true).unwrap());
            prop_assert!((measured - norm(&clipped)).abs() <= 1e-5 * norm(&clipped));
            let bound = clip_global_norm.map_or(f64::INFINITY, f64::from);
            if norm(&clipped) <= bound {
                prop_assert_eq!(bits(&after), bits(&clipped));
            } else {
                prop_assert!((norm(&after) - bound).abs() <= 1e-5 * bound);
                let factor = bound / norm(&clipped);
                for (after, clipped) in [0, 2].into_iter().flat_map(|at| after[at].iter().zip(&clipped[at])) {
                    let want = f64::from(*clipped) * factor;
                    prop_assert!((f64::from(*after) - want).abs() <= 1e-5 * want.abs() + 1e-30);
                }
            }
        }

        /// Checks that a value that is not finite never becomes finite (A). One value, in a trained or an
        /// untrained variable, is not finite. With the setting `Skip`, the filter must drop the step. With
        /// `Stop`, it must return an error that names the variable, or let the value pass without making it
        /// finite.
        #[test]
        fn gradients_that_are_not_finite_are_named_or_dropped(
            mut values in some(),
            variable in 0usize..3,
            element in 0..ROWS,
            bad in prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
            clip_value in prop::option::of(1e-3f32..1e3),
            clip_global_norm in prop::option::of(1e-3f32..1e3),
        ) {
            values[variable][element] = bad;
            let filter = |not_finite| {
                Filter::new(GradientSpec { clip_value, clip_global_norm, not_finite }, &variables())
            };
            let mut dropping = filter(NotFiniteSpec::Skip);
            prop_assert!(!dropping.pass(&mut gradients(&values), LocalStep(0)).unwrap());
            prop_assert_eq!(dropping.dropped(), 1);
            let mut passed = gradients(&values);
            match filter(NotFiniteSpec::Stop).pass(&mut passed, LocalStep(3)) {
                // If the filter lets the gradient pass, it is still not finite, so the shard refuses it.
                Ok(_) => prop_assert!(!all_finite(passed.variable(VariableId(variable as u32)))),
                Err(error) => {
                    let name = ["split", "moving", "whole"][variable];
                    let expected = format!("the gradient of variable '{name}' is not finite");
                    prop_assert!(error.to_string().contains(&expected), "{}", error);
                    prop_assert!(error.is_not_finite());
                }
            }
        }
    }

    /// The shards would refuse such a gradient. One that is clipped, they accept.
    #[test]
    fn a_gradient_that_is_too_large_is_dropped_unless_clipped() {
        let passes = |variable: usize, clip_global_norm| {
            let spec =
                GradientSpec { not_finite: NotFiniteSpec::Skip, clip_global_norm, ..Default::default() };
            let mut values = [0, 1, 2].map(|_| vec![1.0; ROWS]);
            values[variable][3] = -GRADIENT_LIMIT;
            Filter::new(spec, &variables()).pass(&mut gradients(&values), LocalStep(7)).unwrap()
        };
        for variable in [0, 1, 2] {
            assert!(!passes(variable, None) && !passes(variable, Some(f32::MAX)));
            // The second variable is not trained, so it is not clipped.
            assert_eq!(passes(variable, Some(1.0)), variable != 1);
        }
    }

    #[test]
    fn a_hundred_dropped_steps_in_a_row_are_an_error() {
        let spec = GradientSpec { not_finite: NotFiniteSpec::Skip, ..Default::default() };
        let mut filter = Filter::new(spec, &variables());
        let (good, mut bad) = ([0, 1, 2].map(|_| vec![1.0; ROWS]), [0, 1, 2].map(|_| vec![1.0; ROWS]));
        bad[2][5] = f32::NAN;
        let mut pass = |values: &[Vec<f32>; 3]| filter.pass(&mut gradients(values), LocalStep(7));
        for _ in 1..DROPPED_IN_A_ROW_MAX {
            assert!(!pass(&bad).unwrap());
        }
        assert!(pass(&good).unwrap());
        for _ in 1..DROPPED_IN_A_ROW_MAX {
            assert!(!pass(&bad).unwrap());
        }
        let error = pass(&bad).unwrap_err().to_string();
        assert!(error.contains("100 steps in a row") && error.contains("'whole'"), "{error}");
        assert_eq!(filter.dropped(), 2 * u64::from(DROPPED_IN_A_ROW_MAX) - 1);
    }
}
