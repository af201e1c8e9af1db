//! Reads a test set once, from the first example to the last. This module must not depend on shuffling or
//! epochs.

use crate::prefetch::check_ready_bytes;
use crate::sampler::check_batch;
use crate::stages::Scratch;
use crate::{Batch, InputError, Mapped, Pick};

/// Returns an iterator over `dataset` in batches of `batch` examples, in order. The last batch may be
/// smaller.
///
/// # Errors
/// [`InputError::Batch`] if `batch` is 0 or greater than [`crate::BATCH_EXAMPLES_MAX`];
/// [`InputError::ReadyBytes`] if one batch would take more than [`crate::READY_BYTES_MAX`].
pub fn in_order(dataset: &Mapped, batch: usize) -> Result<InOrder<'_>, InputError> {
    check_batch(batch)?;
    check_ready_bytes(dataset.columns(), batch.min(dataset.len()), 1)?;
    Ok(InOrder { dataset, batch, read: 0 })
}

/// The iterator that [`in_order`] returns. It yields the batches of a test set in order.
#[derive(Clone, Debug)]
pub struct InOrder<'a> {
    dataset: &'a Mapped,
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
        let pick = |example| Pick { epoch: 0, example };
        let picks: Vec<Pick> = (self.read as u32..end as u32).map(pick).collect();
        let mut batch = Batch::default();
        batch.set(self.dataset, &picks, None, &mut Scratch::default());
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
    use proptest::prelude::*;
    use pushpull_messages::input::{MapSpec, StageSpec};
    use pushpull_messages::tensor::Shape;

    use super::*;
    use crate::InMemory;

    proptest! {
        #[test]
        fn every_example_is_read_once_in_order(examples in 1usize..70, batch in 1usize..80) {
            let features: Vec<u8> = (0..examples as u8).flat_map(|example| [example, 255]).collect();
            let labels: Vec<i32> = (0..examples as i32).collect();
            let set = InMemory::images(Shape::from([2]), features, labels.clone(), None).unwrap();
            let set = Mapped::testing(set, &[]).unwrap();
            let batches: Vec<Batch> = in_order(&set, batch).unwrap().collect();
            prop_assert_eq!(in_order(&set, batch).unwrap().len(), batches.len());
            let (last, full) = batches.split_last().unwrap();
            prop_assert!(full.iter().all(|full| full.examples == batch));
            prop_assert!((1..=batch).contains(&last.examples));
            let read = |batch: &Batch| batch.columns[1].i32().unwrap().to_vec();
            prop_assert_eq!(batches.iter().flat_map(read).collect::<Vec<_>>(), labels);
            for batch in &batches {
                prop_assert_eq!(read(batch).len(), batch.examples);
                for (row, &label) in batch.columns[0].f32().unwrap().chunks_exact(2).zip(&read(batch)) {
                    prop_assert_eq!(row, [label as f32 / 255.0, 1.0]);
                }
            }
        }
    }

    #[test]
    fn refuses_an_empty_batch() {
        let set = InMemory::images(Shape::from([1]), vec![0], vec![0], None).unwrap();
        let set = Mapped::testing(set, &[]).unwrap();
        assert!(matches!(in_order(&set, 0), Err(InputError::Batch { got: 0, .. })));
    }

    #[test]
    fn refuses_a_batch_too_large_for_memory() {
        let set = InMemory::images(Shape::from([1]), vec![0; 9], vec![0; 9], None).unwrap();
        let classes = StageSpec::OneHot { classes: 1 << 28 };
        let set = Mapped::testing(set, &[MapSpec::new("labels", classes)]).unwrap();
        assert!(matches!(in_order(&set, 250), Err(InputError::ReadyBytes { examples: 9, batches: 1, .. })));
    }
}
