//! An exponential moving average of values. This module must not know what the values stand for.

use super::super::dispatch::zip_map;
use super::super::threads::Threads;

/// Updates exponential moving averages with new values, in TensorFlow's form: `next = average − (1 − decay)
/// · (average − value)`. If `average` is `None`, `next` has the averages, which are replaced.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn average(next: &mut [f32], average: Option<&[f32]>, value: &[f32], decay: f32) {
    let share = 1.0 - decay;
    let mean = move |average: f32, value: f32| [average - share * (average - value)];
    match average {
        Some(average) => zip_map([next], [average, value], move |_, [a, value]| mean(a, value), Threads::One),
        None => zip_map([next], [value], move |[a], [value]| mean(a, value), Threads::One),
    }
}
