//! Computes initial values. They do not depend on how a variable is split or on which shards own its slices.

use pushpull_kernels::cpu::{Key, fill_normal, fill_truncated_normal, fill_uniform};
use pushpull_messages::placement::SliceSpec;
use pushpull_messages::variable::{InitializerSpec, VariableSpec};

/// Fills `values` with the initial values of `slice`, which is a part of `variable`.
pub(super) fn fill(values: &mut [f32], variable: &VariableSpec, slice: &SliceSpec, seed: u64) {
    fill_initial(values, variable, slice.first_element(variable) as u64, seed);
}

/// Fills `values` with the initial values of consecutive elements of a variable of floats, from the element
/// `first` on.
pub(crate) fn fill_initial(values: &mut [f32], variable: &VariableSpec, first: u64, seed: u64) {
    let key = Key { seed, stream: variable.random_stream() };
    match variable.initializer.resolve(&variable.shape) {
        InitializerSpec::Zeros => values.fill(0.0),
        InitializerSpec::Constant { value } => values.fill(value),
        InitializerSpec::Uniform { low, high } => fill_uniform(values, key, first, low, high),
        InitializerSpec::Normal { mean, stddev } => fill_normal(values, key, first, mean, stddev),
        InitializerSpec::TruncatedNormal { mean, stddev } => {
            fill_truncated_normal(values, key, first, mean, stddev);
        }
        scaled @ (InitializerSpec::GlorotUniform | InitializerSpec::HeNormal) => {
            unreachable!("{scaled:?} resolves to a plain distribution")
        }
    }
}
