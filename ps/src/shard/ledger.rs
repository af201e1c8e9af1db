//! The exactly-once memory: which push each worker made last, and what it was told.
//!
//! Wanted properties: (A) a push is new once; every retry of it is a duplicate with the first verdict. (B) Pushes
//! of one incarnation are taken in order, without a gap. (C) A later incarnation starts afresh, and an earlier one
//! is refused from then on. (D) One entry per worker, however long the job runs.

use std::collections::BTreeMap;

use messages::id::{Incarnation, Sequence};
use messages::message::{PushId, Verdict};

/// What became of the last push of every worker.
#[derive(Debug, Default)]
pub(super) struct Ledger(BTreeMap<u32, Entry>);

#[derive(Debug)]
struct Entry {
    incarnation: Incarnation,
    sequence: Sequence,
    verdict: Verdict,
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
        let entry = self.0.get(&id.worker);
        if let Some(entry) = entry
            && id.incarnation < entry.incarnation
        {
            return Turn::NotDue(format!(
                "worker/{} has been started again: incarnation {} is over",
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

    /// Remembers what a new push was told.
    pub(super) fn record(&mut self, id: &PushId, verdict: Verdict) {
        debug_assert_eq!(self.turn(id), Turn::New);
        self.0.insert(id.worker, Entry { incarnation: id.incarnation, sequence: id.sequence, verdict });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(worker: u32, incarnation: u64, sequence: u64) -> PushId {
        PushId { worker, incarnation: Incarnation(incarnation), sequence: Sequence(sequence) }
    }

    #[test]
    fn a_gap_and_an_old_incarnation_are_out_of_turn() {
        let mut ledger = Ledger::default();
        ledger.record(&id(0, 5, 1), Verdict::Applied);
        assert_eq!(ledger.turn(&id(0, 5, 1)), Turn::Duplicate(Verdict::Applied));
        assert_eq!(ledger.turn(&id(0, 5, 2)), Turn::New);
        assert!(matches!(ledger.turn(&id(0, 5, 3)), Turn::NotDue(_)));
        assert!(matches!(ledger.turn(&id(0, 4, 1)), Turn::NotDue(_)));
        assert_eq!(ledger.turn(&id(0, 6, 1)), Turn::New);
        assert_eq!(ledger.turn(&id(1, 1, 1)), Turn::New);
        assert!(matches!(ledger.turn(&id(1, 1, 2)), Turn::NotDue(_)));
    }

    proptest! {
        /// (A)–(D) against a plain list of everything that was ever taken.
        #[test]
        fn a_push_is_new_exactly_once(
            pushes in prop::collection::vec((0u32..3, 1u64..4, 1u64..6), 0..200),
        ) {
            let mut ledger = Ledger::default();
            let mut taken: Vec<PushId> = Vec::new();
            for (worker, incarnation, sequence) in pushes {
                let push = id(worker, incarnation, sequence);
                let of_worker = || taken.iter().filter(|taken| taken.worker == worker);
                match ledger.turn(&push) {
                    Turn::New => {
                        prop_assert!(!taken.contains(&push));
                        prop_assert!(of_worker().all(|taken| taken.incarnation <= push.incarnation));
                        let before = of_worker().filter(|taken| taken.incarnation == push.incarnation).count();
                        prop_assert_eq!(before as u64 + 1, sequence);
                        let verdict = if sequence % 2 == 0 { Verdict::Applied } else { Verdict::Stopped };
                        ledger.record(&push, verdict);
                        taken.push(push);
                    }
                    Turn::Duplicate(verdict) => {
                        prop_assert_eq!(of_worker().next_back(), Some(&push));
                        prop_assert_eq!(verdict == Verdict::Applied, sequence % 2 == 0);
                    }
                    Turn::NotDue(_) => prop_assert_ne!(of_worker().next_back(), Some(&push)),
                }
                prop_assert!(ledger.0.len() <= 3);
            }
        }
    }
}
