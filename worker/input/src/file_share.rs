//! The files that each worker reads if the job shards by file. This module must not depend on the contents
//! of the files.

use pushpull_messages::input::{DatasetSpec, ShardSpec};

use crate::{DataShare, InputError};

/// The part of a data set that one worker reads: some of the files, some of the examples, or everything.
///
/// (A) If the job shards by file or by example, the shares of all workers are disjoint and cover the set.
#[derive(Clone, Debug, PartialEq)]
pub struct FileShare {
    /// The data set. If the job shards by file, it consists of this worker's files only.
    pub dataset: DatasetSpec,
    worker: u32,
    workers: u32,
    /// True if the worker reads all examples of its files.
    whole: bool,
}

impl FileShare {
    /// Returns the share of one worker under `policy`. `worker` is the worker's index, from 0 to
    /// `workers` − 1.
    ///
    /// # Errors
    /// [`InputError::FileShare`] if `policy` is [`ShardSpec::File`] and there are fewer files than workers.
    pub fn new(spec: &DatasetSpec, policy: ShardSpec, worker: u32, workers: u32) -> Result<Self, InputError> {
        let files = match spec {
            // A file of images and its file of labels count as one file.
            DatasetSpec::Idx { .. } | DatasetSpec::Text(_) => 1,
            other => other.files().len(),
        };
        let count = workers as usize;
        let by_file = match policy {
            ShardSpec::File if files < count || count == 0 => {
                return Err(InputError::FileShare { files, workers });
            }
            ShardSpec::File => true,
            ShardSpec::Auto => count > 0 && files >= count && files.is_multiple_of(count),
            ShardSpec::Data | ShardSpec::Off => false,
        };
        let mut dataset = spec.clone();
        if by_file {
            let Some(files) = dataset.file_list_mut() else {
                return Ok(Self { dataset, worker, workers, whole: true });
            };
            let mine = std::mem::take(files).into_iter().skip(worker as usize).step_by(count);
            *files = mine.collect();
        }
        Ok(Self { dataset, worker, workers, whole: by_file || policy == ShardSpec::Off })
    }

    /// Returns true if the worker reads all examples of [`dataset`](Self::dataset).
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Returns this worker's share of the examples. `examples` is the number of examples in
    /// [`dataset`](Self::dataset).
    ///
    /// # Errors
    /// The same as those of [`DataShare::new`].
    pub fn examples(&self, examples: usize) -> Result<DataShare, InputError> {
        if self.whole {
            DataShare::whole(self.worker, examples)
        } else {
            DataShare::new(self.worker, self.workers, examples)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use proptest::prelude::*;

    use super::*;

    fn cifar(files: usize) -> DatasetSpec {
        DatasetSpec::Cifar10 { files: (0..files).map(|file| PathBuf::from(file.to_string())).collect() }
    }

    proptest! {
        /// Checks (A): with sharding, each example is read by exactly one worker. Without sharding, every
        /// worker must read all examples.
        #[test]
        fn shares_are_disjoint_and_cover_the_set(files in 1usize..12, workers in 1u32..6, each in 6usize..20, policy in 0..4) {
            let policy = [ShardSpec::Auto, ShardSpec::File, ShardSpec::Data, ShardSpec::Off][policy as usize];
            let mut readers = vec![0; files * each];
            for worker in 0..workers {
                let share = FileShare::new(&cifar(files), policy, worker, workers);
                if policy == ShardSpec::File && files < workers as usize {
                    let refused = matches!(share, Err(InputError::FileShare { .. }));
                    prop_assert!(refused);
                    return Ok(());
                }
                let share = share.unwrap();
                let mine: Vec<usize> =
                    share.dataset.files().iter().map(|file| file.to_str().unwrap().parse().unwrap()).collect();
                for example in share.examples(mine.len() * each).unwrap().examples() {
                    let example = example as usize;
                    readers[mine[example / each] * each + example % each] += 1;
                }
            }
            let expected = if policy == ShardSpec::Off { workers } else { 1 };
            prop_assert!(readers.iter().all(|&readers| readers == expected), "{:?}", readers);
        }
    }

    #[test]
    fn auto_shards_by_file_if_the_files_divide_evenly() {
        for (files, workers, mine) in [(4, 2, 2), (2, 2, 1), (3, 2, 3), (1, 2, 1), (6, 3, 2)] {
            let share = FileShare::new(&cifar(files), ShardSpec::Auto, 1, workers).unwrap();
            assert_eq!(share.dataset.files().len(), mine, "{files} {workers}");
        }
    }

    #[test]
    fn generated_data_is_not_sharded_by_file() {
        let digits = DatasetSpec::Digits { seed: 0, examples: 10 };
        let error = FileShare::new(&digits, ShardSpec::File, 0, 1).unwrap_err().to_string();
        assert!(error.contains("0 files"), "{error}");
        let share = FileShare::new(&digits, ShardSpec::Auto, 1, 2).unwrap().examples(10).unwrap();
        assert_eq!(share.examples().collect::<Vec<_>>(), [1, 3, 5, 7, 9]);
        let idx = DatasetSpec::Idx { images: "a".into(), labels: "b".into() };
        assert_eq!(FileShare::new(&idx, ShardSpec::File, 0, 1).unwrap().dataset, idx);
        assert!(FileShare::new(&idx, ShardSpec::File, 0, 2).is_err());
    }
}
