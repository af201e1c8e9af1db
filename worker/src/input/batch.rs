//! One batch, ready to be trained or tested on.
//! Knows neither where its examples came from nor what becomes of it.

use super::{Dataset, Position};

/// Some examples, laid out as a graph's inputs want them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Row-major `[examples, ..feature_shape]`, from 0 to 1.
    pub features: Vec<f32>,
    /// One per example.
    pub labels: Vec<i32>,
    /// How many examples there are.
    pub examples: usize,
    /// Where the sampler goes on after this batch: save it once the batch has been trained on. `None` where no
    /// sampler chose the batch.
    pub resume_at: Option<Position>,
}

impl Batch {
    /// Makes this the batch of these examples. Allocates only where the last batch was smaller.
    pub(super) fn set(&mut self, dataset: &Dataset, examples: &[u32], resume_at: Option<Position>) {
        self.features.resize(examples.len() * dataset.feature_elements(), 0.0);
        self.labels.resize(examples.len(), 0);
        dataset.fill(examples, &mut self.features, &mut self.labels);
        self.examples = examples.len();
        self.resume_at = resume_at;
    }
}
