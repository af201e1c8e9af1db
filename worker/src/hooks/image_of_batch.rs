//! A hook that plots an example of the input as an image. All map stages have been applied to the example,
//! so the image shows what the model is trained on. This module must not depend on data sets.
//!
//! Wanted properties: (A) an image whose pixels are all from 0 to 1 is shown unchanged; (B) any other image
//! is scaled so that its smallest pixel is black and its greatest is white; (C) any numbers, even NaN, give
//! a valid image.

use std::time::{Duration, Instant};

use pushpull_messages::input::ColumnSpec;
use pushpull_messages::observe;
use pushpull_messages::summary::{ImageSpec, SUMMARY_BYTES_MAX, SummarySpec, SummaryValue};
use pushpull_messages::tensor::DType;

use super::hook::{Hook, HookError, Start, StepInfo};
use crate::telemetry::Plots;

/// A hook that plots the first example of a batch as `input/NAME` at regular intervals. It plots the first
/// column of floats that has the shape of an image. Such a shape is `[height, width, channels]` with 1, 3 or
/// 4 channels and at least 2 pixels on each side, or `[height, width]` with at least 8 pixels on each side.
/// A shape with more than `SUMMARY_BYTES_MAX` elements does not count as an image. If there is no such
/// column, the hook does nothing.
#[derive(Clone, Debug)]
pub struct ImageOfBatch {
    every: Duration,
    last: Option<Instant>,
    column: Option<ImageColumn>,
}

/// The column that is plotted.
#[derive(Clone, Debug)]
struct ImageColumn {
    position: usize,
    tag: String,
    height: u32,
    width: u32,
    channels: u8,
}

impl ImageOfBatch {
    /// Creates a hook that plots one image per interval `every`.
    pub const fn every(every: Duration) -> Self {
        Self { every, last: None, column: None }
    }
}

impl Hook for ImageOfBatch {
    fn begin(&mut self, start: &Start<'_>) -> Result<(), HookError> {
        self.column = start.columns.iter().enumerate().find_map(|(position, spec)| column(position, spec));
        if self.column.is_none() {
            tracing::info!("found no column with the shape of an image; plotting no images");
        }
        Ok(())
    }

    fn after_step(&mut self, step: &StepInfo<'_>, plots: &Plots) -> Result<(), HookError> {
        let Some(ImageColumn { position, tag, height, width, channels }) = &self.column else {
            return Ok(());
        };
        if self.last.is_some_and(|last| observe::since(last) < self.every) {
            return Ok(());
        }
        self.last = Some(observe::now());
        let elements = *height as usize * *width as usize * usize::from(*channels);
        let column = step.batch.columns.get(*position).and_then(|column| column.f32());
        if let Some(first) = column.and_then(|column| column.get(..elements)) {
            let (width, height, channels) = (*width, *height, *channels);
            let image = ImageSpec { width, height, channels, pixels: pixels(first) };
            let value = SummaryValue::Image(image);
            plots.plot(SummarySpec { tag: tag.clone(), step: step.global_step, value });
        }
        Ok(())
    }
}

fn column(position: usize, spec: &ColumnSpec) -> Option<ImageColumn> {
    let (height, width, channels, least) = match spec.example.shape.0[..] {
        [height, width, channels] => (height, width, channels, 2),
        // A smaller matrix is probably a table and not an image.
        [height, width] => (height, width, 1, 8),
        _ => return None,
    };
    let fits = matches!(channels, 1 | 3 | 4) && height.min(width) >= least;
    if spec.example.dtype != DType::F32 || !fits || height * width * channels > SUMMARY_BYTES_MAX {
        return None;
    }
    let (tag, channels) = (format!("input/{}", spec.name), channels as u8);
    Some(ImageColumn { position, tag, height: height as u32, width: width as u32, channels })
}

/// Converts each value to one byte.
fn pixels(values: &[f32]) -> Vec<u8> {
    let finite = values.iter().filter(|value| value.is_finite()).map(|&value| f64::from(value));
    let (least, greatest) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, greatest), value| {
        (value.min(least), value.max(greatest))
    });
    // The next condition is also true if no value is finite.
    let (least, greatest) = if least >= 0.0 && greatest <= 1.0 { (0.0, 1.0) } else { (least, greatest) };
    // The conversion turns NaN into 0.
    let pixel = |&value: &f32| ((f64::from(value) - least) / (greatest - least) * 255.0).round() as u8;
    values.iter().map(pixel).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_input::{Batch, Column};
    use pushpull_messages::id::{GlobalStep, LocalStep, TaskId};
    use pushpull_messages::tensor::{Shape, TensorSpec};

    use super::*;
    use crate::hooks::tests::{job, step};

    proptest! {
        /// Checks that pixels from 0 to 1 are unchanged (A), that other pixels are scaled (B), and that any
        /// numbers give an image (C). Also checks that a greater number is never shown darker than a smaller
        /// one.
        #[test]
        fn larger_values_are_brighter(
            values in prop::collection::vec(prop_oneof![0f32..1.0, any::<f32>()], 1..20),
            shown in prop::collection::vec(0f32..=1.0, 1..20),
        ) {
            let bytes = pixels(&values);
            prop_assert_eq!(bytes.len(), values.len());
            for (value, byte) in values.iter().zip(&bytes) {
                for (other, other_byte) in values.iter().zip(&bytes) {
                    prop_assert!(value.is_nan() || other.is_nan() || value > other || byte <= other_byte);
                }
            }
            if values.iter().any(|value| *value < 0.0 || *value > 1.0) && values.iter().all(|value| value.is_finite()) {
                let least = *bytes.iter().min().unwrap();
                let greatest = *bytes.iter().max().unwrap();
                prop_assert!((least, greatest) == (0, 255) || values.iter().all(|value| value == &values[0]));
            }
            let as_they_are: Vec<u8> = shown.iter().map(|value| (value * 255.0).round() as u8).collect();
            for (ours, wanted) in pixels(&shown).iter().zip(&as_they_are) {
                prop_assert!(ours.abs_diff(*wanted) <= 1);
            }
        }
    }

    #[test]
    fn the_first_column_of_images_is_plotted_in_time() {
        let columns = [
            ColumnSpec { name: "labels".into(), example: TensorSpec::i32([]) },
            ColumnSpec { name: "words".into(), example: TensorSpec::i32([2, 3, 1]) },
            ColumnSpec { name: "features".into(), example: TensorSpec::f32([2, 3, 1]) },
        ];
        let rows = (0..12).map(|at| at as f32 / 11.0).collect();
        let columns_of_batch = vec![Column::I32(vec![0; 2]), Column::I32(vec![0; 12]), Column::F32(rows)];
        let batch = Batch { columns: columns_of_batch, examples: 2, resume_at: None };
        let (job, plots) = (job(), Plots::default());
        let start = Start { job: &job, task: TaskId::worker(0), columns: &columns };
        let mut hook = ImageOfBatch::every(Duration::from_secs(3600));
        hook.begin(&start).unwrap();
        for local_step in 0..3 {
            hook.after_step(&step(&batch, LocalStep(local_step), 0.5), &plots).unwrap();
        }
        let [only] = &plots.take()[..] else { panic!("one image is plotted") };
        let pixels = vec![0, 23, 46, 70, 93, 116];
        let image = ImageSpec { width: 3, height: 2, channels: 1, pixels };
        assert_eq!((only.tag.as_str(), only.step), ("input/features", GlobalStep(7)));
        assert_eq!(only.value, SummaryValue::Image(image));
        let looks = |example| column(0, &ColumnSpec { name: "x".into(), example }).is_some();
        assert!(looks(TensorSpec::f32([28, 28])) && looks(TensorSpec::f32([2, 2, 4])));
        for other in [vec![28, 28, 2], vec![4, 28], vec![784], vec![1024, 1025]] {
            assert!(!looks(TensorSpec::f32(Shape(other))));
        }
        // If there is no such column, the hook does nothing.
        hook.begin(&Start { columns: &columns[..2], ..start }).unwrap();
        hook.last = None;
        hook.after_step(&step(&batch, LocalStep(9), 0.5), &plots).unwrap();
        assert!(plots.len() == 0);
    }
}
