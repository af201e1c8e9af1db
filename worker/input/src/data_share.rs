//! The examples of the training set that each worker reads (sharding). This module must not depend on the
//! contents of examples or on the order in which they are read.

use crate::InputError;

/// The part of a data set that one worker reads: the examples whose index modulo `workers` is `worker`, or
/// all examples.
///
/// Properties of the shares from [`new`](Self::new): (A) The shares of all workers are disjoint and cover
/// the set. (B) The sizes of any two shares differ by at most 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataShare {
    worker: u32,
    begin: u32,
    step: u32,
    examples: u32,
}

impl DataShare {
    /// Returns the share of one worker in a set of `examples` examples. `worker` is the worker's index, from
    /// 0 to `workers` − 1.
    ///
    /// # Errors
    /// [`InputError::Share`] if `worker` is not below `workers`, or if there are fewer examples
    /// than workers; [`InputError::Extent`] if `examples` does not fit in a `u32`.
    pub fn new(worker: u32, workers: u32, examples: usize) -> Result<Self, InputError> {
        let examples = u32::try_from(examples).map_err(|_| InputError::Extent {
            examples: examples as u64,
            elements: 1,
            max: u32::MAX.into(),
        })?;
        if worker >= workers || workers > examples {
            return Err(InputError::Share { worker, workers, examples });
        }
        Ok(Self { worker, begin: worker, step: workers, examples })
    }

    /// Returns a share that contains all examples, for a worker that has its own files or for a job without
    /// sharding. The index of the worker still determines the order, so each worker reads in a different
    /// order.
    ///
    /// # Errors
    /// The same as those of [`new`](Self::new).
    pub fn whole(worker: u32, examples: usize) -> Result<Self, InputError> {
        let Self { examples, .. } = Self::new(0, 1, examples)?;
        Ok(Self { worker, begin: 0, step: 1, examples })
    }

    /// Returns the number of examples in the share; at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a share is never empty")]
    pub fn len(&self) -> u32 {
        (self.examples - self.begin).div_ceil(self.step)
    }

    /// Returns the examples of the share as ascending indices into the whole set.
    pub fn examples(&self) -> impl Iterator<Item = u32> + use<> {
        (self.begin..self.examples).step_by(self.step as usize)
    }

    /// Returns the index of the worker.
    pub fn worker(&self) -> u32 {
        self.worker
    }

    /// Returns the number of examples in the whole set.
    pub fn examples_of_all(&self) -> u32 {
        self.examples
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn shares_are_disjoint_even_and_cover_the_set(workers in 1u32..20, more in 0usize..200) {
            let examples = workers as usize + more;
            let mut owners = vec![0; examples];
            let mut sizes = Vec::new();
            for worker in 0..workers {
                let share = DataShare::new(worker, workers, examples).unwrap();
                prop_assert_eq!(share.examples().count(), share.len() as usize);
                sizes.push(share.len());
                for example in share.examples() {
                    prop_assert_eq!(example % workers, worker);
                    owners[example as usize] += 1;
                }
            }
            prop_assert!(owners.iter().all(|&owners| owners == 1), "{:?}", owners);
            prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{:?}", sizes);
        }
    }

    #[test]
    fn refuses_a_worker_without_a_share() {
        assert!(matches!(DataShare::new(2, 2, 100), Err(InputError::Share { worker: 2, .. })));
        assert!(matches!(DataShare::new(0, 0, 100), Err(InputError::Share { workers: 0, .. })));
        assert!(matches!(DataShare::new(0, 3, 2), Err(InputError::Share { examples: 2, .. })));
        assert!(matches!(
            DataShare::new(0, 1, 1 << 32),
            Err(InputError::Extent { examples: 0x1_0000_0000, .. })
        ));
        assert_eq!(DataShare::new(0, 1, u32::MAX as usize).unwrap().len(), u32::MAX);
    }
}
