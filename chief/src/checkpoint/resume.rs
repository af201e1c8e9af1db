//! Decides where each worker continues in its input after a checkpoint. Accesses no store. Wanted
//! properties: (A) if the number of workers and the batch size are unchanged, each worker continues exactly
//! where it stopped; (B) otherwise each worker continues after an equal share of all examples that were
//! read, rounded down to whole batches, and no example is counted twice; (C) if the number of workers is
//! unchanged, each worker gets the digest that the checkpoint contains for the worker's input files.

use pushpull_messages::checkpoint::WorkerRecord;
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::Resume;
use pushpull_storage::ManifestSpec;

/// Returns the position at which each worker continues in its input, indexed by worker.
pub(super) fn resumes(manifest: &ManifestSpec, job: &JobSpec, workers: u32) -> Vec<Resume> {
    let (records, batch_size) = (&manifest.workers, u64::from(job.batch_size));
    let same_workers = records.iter().map(|record| record.worker).eq(0..workers);
    // If the number of workers has changed, a worker may read other files than before.
    let files = |worker: u32| manifest.inputs.get(&worker).copied().filter(|_| same_workers);
    let after = |worker: u32, drawn: u64| {
        let examples = drawn.saturating_mul(batch_size);
        Resume { drawn, examples, files: files(worker) }
    };
    if same_workers && manifest.job.batch_size == job.batch_size {
        return records.iter().map(|record| after(record.worker, record.drawn)).collect();
    }
    let sum = |sum: u64, record: &WorkerRecord| sum.saturating_add(record.drawn);
    let read = records.iter().fold(0, sum).saturating_mul(u64::from(manifest.job.batch_size));
    let examples = read / u64::from(workers.max(1));
    // Positions are rounded down to whole batches of the new size, so that a later run needs only the number
    // of a worker's batches to compute the worker's position.
    (0..workers).map(|worker| after(worker, examples / batch_size)).collect()
}

/// Returns one record per worker; the shards keep these records. A record has the worker's position in its
/// input, and the worker's last push if the checkpoint contains one.
pub(super) fn records(manifest: &ManifestSpec, resumes: &[Resume]) -> Vec<WorkerRecord> {
    let known = |worker: u32, drawn: u64| {
        let found = manifest.workers.iter().find(|record| record.worker == worker);
        found.map_or(WorkerRecord::new(worker, drawn), |record| WorkerRecord { drawn, ..*record })
    };
    (0..).zip(resumes).map(|(worker, resume)| known(worker, resume.drawn)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::id::{Incarnation, Sequence};
    use pushpull_messages::input::FilesDigest;
    use pushpull_messages::message::Verdict;

    use super::*;
    use crate::checkpoint::tests::manifest_of;
    use crate::job::tests::job;

    proptest! {
        #[test]
        fn nothing_is_skipped_or_counted_twice(
            drawn in prop::collection::vec(0u64..50, 0..5),
            (then, now) in (1u32..20, 1u32..20),
            workers in 1u32..6,
        ) {
            let mut manifest = manifest_of(JobSpec { batch_size: then, ..job() }, 5);
            let record = |(worker, &drawn): (u32, &u64)| WorkerRecord {
                worker,
                incarnation: Incarnation(1),
                sequence: Sequence(drawn),
                verdict: Verdict::Applied,
                drawn,
            };
            manifest.workers = (0..).zip(&drawn).map(record).collect();
            let files = FilesDigest { files: 1, bytes: 2, crc32c: 3 };
            manifest.inputs = [(0, files)].into();
            let resumes = super::resumes(&manifest, &JobSpec { batch_size: now, ..job() }, workers);
            prop_assert_eq!(resumes.len(), workers as usize);
            let known = (drawn.len() == workers as usize).then_some(files);
            prop_assert!(resumes[0].files == known && resumes[1..].iter().all(|own| own.files.is_none()), "(C)");
            if drawn.len() == workers as usize && then == now {
                prop_assert!(resumes.iter().map(|resume| resume.drawn).eq(drawn.iter().copied()), "(A)");
            }
            let read: u64 = drawn.iter().sum::<u64>() * u64::from(then);
            let resumed: u64 = resumes.iter().map(|resume| resume.examples).sum();
            prop_assert!(resumed <= read && read - resumed < u64::from(workers * (now + 1)), "(B)");
            prop_assert!(resumes.iter().all(|resume| resume.examples == resume.drawn * u64::from(now)));
            // A next run with the same settings continues at these positions (A), even if this run changed
            // the batch size or the number of workers.
            manifest.workers = records(&manifest, &resumes);
            manifest.job.batch_size = now;
            let next = super::resumes(&manifest, &JobSpec { batch_size: now, ..job() }, workers);
            let positions = |all: &[Resume]| all.iter().map(|own| (own.drawn, own.examples)).collect::<Vec<_>>();
            prop_assert_eq!(positions(&next), positions(&resumes), "(A)");
        }
    }
}
