//! The exactly-once memory: which push each worker made last, and what it was told.
//!
//! Wanted properties: (A) a push is new once; every retry of it is a duplicate with the first verdict. (B) Pushes
//! of one incarnation are taken in order, without a gap. (C) A later incarnation starts afresh, and an earlier one
//! is refused from then on. (D) One entry per worker, however long the job runs. (E) One made of the records of another
//! is that one. (F) How far a worker was in its input is what its last push said that is not held, nor came too late to count.

use std::collections::BTreeMap;

use pushpull_messages::checkpoint::WorkerRecord;
use pushpull_messages::id::Sequence;
use pushpull_messages::message::{PushId, Verdict};

/// What became of the last push of every worker.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    records: BTreeMap<u32, WorkerRecord>,
    /// How far the workers were in their inputs whose gradients are held.
    held: BTreeMap<u32, u64>,
}

/// What a push is, before it is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The next of its worker.
    New,
    /// The last of its worker once more.
    Duplicate(Verdict),
    /// Not its turn; says why.
    NotDue(String),
}

impl Ledger {
    /// What this push is.
    pub(super) fn turn(&self, id: &PushId) -> Turn {
        let entry = self.records.get(&id.worker);
        if let Some(entry) = entry
            && id.incarnation < entry.incarnation
        {
            return Turn::NotDue(format!(
                "worker/{} has been started again, or the clock there was set back: incarnation {} is over",
                id.worker, id.incarnation
            ));
        }
        let entry = entry.filter(|entry| entry.incarnation == id.incarnation);
        let last = entry.map_or(Sequence(0), |entry| entry.sequence);
        match entry {
            Some(entry) if id.sequence == last => Turn::Duplicate(entry.verdict),
            _ if id.sequence == last.next() => Turn::New,
            _ => Turn::NotDue(format!(
                "worker/{} pushes number {} where number {} is expected",
                id.worker,
                id.sequence,
                last.next()
            )),
        }
    }

    /// Remembers what a new push was told, and how far its worker was in its input. What has not been learnt from yet, or
    /// came after the last step, whoever goes on from here draws again.
    pub(super) fn record(&mut self, id: &PushId, verdict: Verdict, drawn: u64) {
        debug_assert_eq!(self.turn(id), Turn::New);
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

    /// What was held has become an update.
    pub(super) fn updated(&mut self) {
        for (worker, drawn) in std::mem::take(&mut self.held) {
            let record = self.records.get_mut(&worker).expect("what is held was recorded");
            // A later push may have come too late.
            record.drawn = drawn.max(record.drawn);
        }
    }

    /// All that it remembers, by worker.
    pub(super) fn records(&self) -> Vec<WorkerRecord> {
        self.records.values().copied().collect()
    }
}

impl From<Vec<WorkerRecord>> for Ledger {
    fn from(records: Vec<WorkerRecord>) -> Self {
        let records = records.into_iter().map(|record| (record.worker, record)).collect();
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
    fn a_gap_and_an_old_incarnation_are_out_of_turn() {
        let mut ledger = Ledger::default();
        ledger.record(&id(0, 5, 1), Verdict::Applied, 7);
        assert_eq!(ledger.turn(&id(0, 5, 1)), Turn::Duplicate(Verdict::Applied));
        assert_eq!(ledger.turn(&id(0, 5, 2)), Turn::New);
        assert!(matches!(ledger.turn(&id(0, 5, 3)), Turn::NotDue(_)));
        assert!(matches!(ledger.turn(&id(0, 4, 1)), Turn::NotDue(_)));
        assert_eq!(ledger.turn(&id(0, 6, 1)), Turn::New);
        assert_eq!(ledger.turn(&id(1, 1, 1)), Turn::New);
        assert!(matches!(ledger.turn(&id(1, 1, 2)), Turn::NotDue(_)));
    }

    proptest! {
        /// (A)–(D) and (F) against a plain list of everything that was ever taken; (E) at any moment.
        #[test]
        fn a_push_is_new_exactly_once(
            pushes in prop::collection::vec((0u32..3, 1u64..4, 1u64..6, any::<bool>()), 0..200),
            restored in any::<prop::sample::Index>(),
        ) {
            let restored = restored.index(200);
            let verdicts = [Verdict::Applied, Verdict::Stopped, Verdict::Held];
            let mut ledger = Ledger::default();
            let mut taken: Vec<PushId> = Vec::new();
            // Of each worker: how far it was, and how far with what is held.
            let (mut drawn, mut held) = ([0; 3], [0; 3]);
            for (number, (worker, incarnation, sequence, update)) in (1..).zip(pushes) {
                if number == restored {
                    let records = ledger.records();
                    ledger = Ledger::from(records.clone());
                    prop_assert_eq!(ledger.records(), records, "(E)");
                    held = [0; 3];
                }
                let push = id(worker, incarnation, sequence);
                let verdict = verdicts[sequence as usize % 3];
                let of_worker = || taken.iter().filter(|taken| taken.worker == worker);
                match ledger.turn(&push) {
                    Turn::New => {
                        prop_assert!(!taken.contains(&push));
                        prop_assert!(of_worker().all(|taken| taken.incarnation <= push.incarnation));
                        let before = of_worker().filter(|taken| taken.incarnation == push.incarnation).count();
                        prop_assert_eq!(before as u64 + 1, sequence);
                        ledger.record(&push, verdict, number as u64);
                        taken.push(push);
                        match verdict {
                            Verdict::Applied => drawn[worker as usize] = number as u64,
                            Verdict::Held => held[worker as usize] = number as u64,
                            _ => {}
                        }
                    }
                    Turn::Duplicate(told) => {
                        prop_assert_eq!(of_worker().next_back(), Some(&push));
                        prop_assert_eq!(told, verdict);
                    }
                    Turn::NotDue(_) => prop_assert_ne!(of_worker().next_back(), Some(&push)),
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
