//! A test set read once, from its first example to its last.
//! Knows no shuffling and no epoch.

use super::sampler::check_batch;
use super::{Batch, Dataset, InputError};

/// Every example of `dataset` once, in order, in batches of `batch`; the last one may be shorter.
///
/// # Errors
/// [`InputError::Batch`] for a batch of no example or of more than [`super::BATCH_EXAMPLES_MAX`].
pub fn in_order(dataset: &Dataset, batch: usize) -> Result<InOrder<'_>, InputError> {
    check_batch(batch)?;
    Ok(InOrder { dataset, batch, read: 0 })
}

/// See [`in_order`].
#[derive(Clone, Debug)]
pub struct InOrder<'a> {
    dataset: &'a Dataset,
    batch: usize,
    read: usize,
}

impl Iterator for InOrder<'_> {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        let end = self.dataset.len().min(self.read + self.batch);
        if self.read == end {
            return None;
        }
        let examples: Vec<u32> = (self.read as u32..end as u32).collect();
        let mut batch = Batch::default();
        batch.set(self.dataset, &examples, None);
        self.read = end;
        Some(batch)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.dataset.len() - self.read).div_ceil(self.batch);
        (left, Some(left))
    }
}

impl ExactSizeIterator for InOrder<'_> {}

#[cfg(test)]
mod tests {
    use messages::tensor::Shape;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn reads_every_example_once_and_in_order(examples in 1usize..70, batch in 1usize..80) {
            let features: Vec<u8> = (0..examples as u8).flat_map(|example| [example, 255]).collect();
            let labels: Vec<i32> = (0..examples as i32).collect();
            let set = Dataset::new(Shape::from([2]), features, labels.clone(), None).unwrap();
            let batches: Vec<Batch> = in_order(&set, batch).unwrap().collect();
            prop_assert_eq!(in_order(&set, batch).unwrap().len(), batches.len());
            let (last, full) = batches.split_last().unwrap();
            prop_assert!(full.iter().all(|full| full.examples == batch));
            prop_assert!((1..=batch).contains(&last.examples));
            prop_assert_eq!(batches.iter().flat_map(|b| b.labels.clone()).collect::<Vec<_>>(), labels);
            for batch in &batches {
                prop_assert_eq!(batch.labels.len(), batch.examples);
                for (row, &label) in batch.features.chunks_exact(2).zip(&batch.labels) {
                    prop_assert_eq!(row, [label as f32 / 255.0, 1.0]);
                }
            }
        }
    }

    #[test]
    fn refuses_an_empty_batch() {
        let set = Dataset::new(Shape::from([1]), vec![0], vec![0], None).unwrap();
        assert!(matches!(in_order(&set, 0), Err(InputError::Batch { got: 0, .. })));
    }
}
