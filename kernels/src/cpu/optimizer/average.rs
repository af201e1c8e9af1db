//! An exponential moving average of values. This module must not know what the values stand for.

use super::super::dispatch::zip_map;
use super::super::threads::Threads;

/// Updates exponential moving averages with new values, in TensorFlow's form: `next = average − (1 − decay)
/// · (average − value)`.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn average(next: &mut [f32], average: &[f32], value: &[f32], decay: f32) {
    let share = 1.0 - decay;
    zip_map(
        [next],
        [average, value],
        move |_, [average, value]| [average - share * (average - value)],
        Threads::One,
    );
}
