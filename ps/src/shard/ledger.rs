//! Remembers each worker's last push and its verdict, so that every push counts exactly once. Wanted
//! properties: (A) a push is new only once; every retry is a duplicate and gets the verdict of the original;
//! (B) pushes of one incarnation are accepted in order, without a gap, from number 1; (C) the membership, not
//! the ledger, decides which incarnation may push; (D) each worker has one entry; (E) a ledger from a
//! checkpoint knows how many batches each worker has drawn, but no incarnation, because all have ended; (F)
//! the batches of a push count as drawn when its gradient is applied or stale, but not while it is held.

use std::collections::BTreeMap;

use pushpull_messages::checkpoint::WorkerRecord;
use pushpull_messages::id::Sequence;
use pushpull_messages::message::{PushId, Verdict};

/// The record of every worker's last push and its verdict.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    records: BTreeMap<u32, WorkerRecord>,
    /// For each worker with a held gradient: the number of batches that the worker had drawn when it pushed
    /// the gradient.
    held: BTreeMap<u32, u64>,
}

/// How a push relates to the earlier pushes of the same worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// The push is the next that the ledger expects from the worker.
    New,
    /// The push repeats the worker's last push; the field is the verdict on the last push.
    Duplicate(Verdict),
    /// The push has neither the last number nor the next one; the field is the reason for the refusal.
    OutOfOrder(String),
}

impl Ledger {
    /// Returns how the push with this id relates to the worker's earlier pushes. The incarnation must be a
    /// member.
    pub(super) fn classify(&self, id: &PushId) -> Delivery {
        let entry = self.records.get(&id.worker).filter(|entry| entry.incarnation == id.incarnation);
        let last = entry.map_or(Sequence(0), |entry| entry.sequence);
        match entry {
            Some(entry) if id.sequence == last => Delivery::Duplicate(entry.verdict),
            _ if id.sequence == last.next() => Delivery::New,
            _ => Delivery::OutOfOrder(format!(
                "worker/{} sent push number {}, but number {} was expected",
                id.worker,
                id.sequence,
                last.next()
            )),
        }
    }

    /// Records the verdict of a new push, and the number of batches that the worker had drawn from its
    /// input. Batches whose gradient is still held or came after the last step do not count as drawn,
    /// because a job that continues from the records draws them again.
    pub(super) fn record(&mut self, id: &PushId, verdict: Verdict, drawn: u64) {
        debug_assert_eq!(self.classify(id), Delivery::New);
        let &PushId { worker, incarnation, sequence } = id;
        let before = self.records.get(&worker).map_or(0, |record| record.drawn);
        let drawn = match verdict {
            Verdict::Applied | Verdict::Stale { .. } => drawn,
            Verdict::Stopped => before,
            Verdict::Held => {
                self.held.insert(worker, drawn);
                before
            }
        };
        self.records.insert(worker, WorkerRecord { worker, incarnation, sequence, verdict, drawn });
    }

    /// Records that the held gradients have been applied as an update.
    pub(super) fn updated(&mut self) {
        for (worker, drawn) in std::mem::take(&mut self.held) {
            let record = self.records.get_mut(&worker).expect("a held push was recorded");
            // A later push of the worker, with more batches drawn, may have been recorded as stale meanwhile.
            record.drawn = drawn.max(record.drawn);
        }
    }

    /// Returns the record of every worker's last push, in the order of workers.
    pub(super) fn records(&self) -> Vec<WorkerRecord> {
        self.records.values().copied().collect()
    }
}

/// Makes the ledger of a job that continues from a checkpoint.
impl From<Vec<WorkerRecord>> for Ledger {
    fn from(records: Vec<WorkerRecord>) -> Self {
        let new = |WorkerRecord { worker, drawn, .. }| (worker, WorkerRecord::new(worker, drawn));
        let records = records.into_iter().map(new).collect();
        Self { records, held: BTreeMap::new() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::id::Incarnation;

    use super::*;

    fn id(worker: u32, incarnation: u64, sequence: u64) -> PushId {
        PushId { worker, incarnation: Incarnation(incarnation), sequence: Sequence(sequence) }
    }

    #[test]
    fn a_gap_is_out_of_order_in_every_incarnation() {
        let mut ledger = Ledger::default();
        ledger.record(&id(0, 5, 1), Verdict::Applied, 7);
        assert_eq!(ledger.classify(&id(0, 5, 1)), Delivery::Duplicate(Verdict::Applied));
        assert_eq!(ledger.classify(&id(0, 5, 2)), Delivery::New);
        assert!(matches!(ledger.classify(&id(0, 5, 3)), Delivery::OutOfOrder(_)));
        // An incarnation may be numbered by a clock that was set back.
        for other in [4, 6] {
            assert_eq!(ledger.classify(&id(0, other, 1)), Delivery::New);
            assert!(matches!(ledger.classify(&id(0, other, 2)), Delivery::OutOfOrder(_)));
        }
        assert_eq!(ledger.classify(&id(1, 1, 1)), Delivery::New);
        assert!(matches!(ledger.classify(&id(1, 1, 2)), Delivery::OutOfOrder(_)));
    }

    #[test]
    fn a_checkpoint_of_a_clock_ahead_refuses_no_push() {
        let mut ledger = Ledger::default();
        ledger.record(&id(0, u64::MAX, 1), Verdict::Applied, 7);
        let mut resumed = Ledger::from(ledger.records());
        // Even the same number is another incarnation now.
        for incarnation in [0, 5, u64::MAX] {
            assert_eq!(resumed.classify(&id(0, incarnation, 1)), Delivery::New);
        }
        resumed.record(&id(0, 5, 1), Verdict::Stopped, 9);
        assert_eq!(resumed.records()[0].drawn, 7, "what was drawn is kept");
    }

    proptest! {
        /// Checks the ledger against a plain list of all accepted pushes: their verdicts, order and
        /// incarnations, the number of entries, and the drawn batches (A to D and F). At a random moment,
        /// replaces the ledger by one made from its records (E).
        #[test]
        fn a_push_is_new_exactly_once(
            pushes in prop::collection::vec((0u32..3, 1u64..4, 1u64..6, any::<bool>()), 0..200),
            restored in any::<prop::sample::Index>(),
        ) {
            let restored = restored.index(200);
            let verdicts = [Verdict::Applied, Verdict::Stopped, Verdict::Held];
            let mut ledger = Ledger::default();
            let mut accepted: Vec<PushId> = Vec::new();
            // For each worker: the number of batches drawn, without and with those of the held gradient.
            let (mut drawn, mut held) = ([0; 3], [0; 3]);
            // For each worker: the incarnations that were members, the last of which may push.
            let mut lives: [Vec<u64>; 3] = Default::default();
            for (number, (worker, incarnation, sequence, update)) in (1..).zip(pushes) {
                if number == restored {
                    let before = ledger.records();
                    ledger = Ledger::from(before.clone());
                    prop_assert!(ledger.records().iter().all(|record| record.sequence.0 == 0), "(E)");
                    let drawn = |records: &[WorkerRecord]| records.iter().map(|own| (own.worker, own.drawn)).collect::<Vec<_>>();
                    prop_assert_eq!(drawn(&ledger.records()), drawn(&before), "(E)");
                    held = [0; 3];
                    accepted.clear();
                    lives = Default::default();
                }
                let lives = &mut lives[worker as usize];
                if lives[..lives.len().saturating_sub(1)].contains(&incarnation) {
                    continue;
                }
                if lives.last() != Some(&incarnation) {
                    lives.push(incarnation);
                }
                let push = id(worker, incarnation, sequence);
                let verdict = verdicts[sequence as usize % 3];
                let of_worker = || accepted.iter().filter(|push| push.worker == worker);
                match ledger.classify(&push) {
                    Delivery::New => {
                        prop_assert!(!accepted.contains(&push), "(A)");
                        let before = of_worker().filter(|before| before.incarnation == push.incarnation).count();
                        prop_assert_eq!(before as u64 + 1, sequence, "(B) and (C)");
                        ledger.record(&push, verdict, number as u64);
                        accepted.push(push);
                        match verdict {
                            Verdict::Applied => drawn[worker as usize] = number as u64,
                            Verdict::Held => held[worker as usize] = number as u64,
                            _ => {}
                        }
                    }
                    Delivery::Duplicate(told) => {
                        prop_assert_eq!(of_worker().next_back(), Some(&push));
                        prop_assert_eq!(told, verdict);
                    }
                    Delivery::OutOfOrder(_) => prop_assert_ne!(of_worker().next_back(), Some(&push)),
                }
                if update {
                    ledger.updated();
                    (0..3).for_each(|worker| drawn[worker] = drawn[worker].max(held[worker]));
                    held = [0; 3];
                }
                prop_assert!(ledger.records.len() <= 3 && ledger.held.len() <= 3, "(D)");
                for record in ledger.records() {
                    prop_assert_eq!(record.drawn, drawn[record.worker as usize], "(F)");
                }
            }
        }
    }
}
