//! Remembers each worker's last pushes and their verdicts, so that every push counts exactly once. Wanted
//! properties: (A) a push is new only once; a retry of one of the last `pipeline` pushes is a duplicate and
//! gets the verdict of the original; (B) pushes of one incarnation are accepted in order, without a gap, from
//! 1; (C) the membership, not the ledger, decides which incarnation may push; (D) each worker has one entry;
//! (E) a restored ledger knows the drawn batches of each worker, but no incarnation, because all have ended;
//! (F) the batches of a push count as drawn when its gradient is applied or stale, but not while it is held.

use std::collections::{BTreeMap, VecDeque};

use pushpull_messages::checkpoint::WorkerRecord;
use pushpull_messages::id::{Incarnation, Sequence};
use pushpull_messages::message::{PushId, Verdict};

/// The record of every worker's last pushes and their verdicts.
#[derive(Debug)]
pub(super) struct Ledger {
    /// The number of pushes that a worker may have in flight; at least 1.
    pipeline: u32,
    records: BTreeMap<u32, WorkerRecord>,
    /// For each worker whose last incarnation has pushed more than once: the verdicts on the pushes before
    /// its last one, the oldest first, at most `pipeline - 1`. Empty without a pipeline.
    earlier: BTreeMap<u32, VecDeque<Verdict>>,
    /// For each worker with a held gradient: the number of batches that the worker had drawn when it pushed
    /// the gradient.
    held: BTreeMap<u32, u64>,
}

/// How a push relates to the earlier pushes of the same worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// The push is the next that the ledger expects from the worker.
    New,
    /// The push repeats one of the worker's last pushes; the field is the verdict on that push.
    Duplicate(Verdict),
    /// The push has arrived before a push that the worker has sent earlier. The worker has to send it again
    /// when the earlier one is answered.
    Early,
    /// The push has none of the numbers that a worker may use now; the field is the reason for the refusal.
    OutOfOrder(String),
}

impl Ledger {
    /// Makes the ledger of a job in which a worker may have `pipeline` pushes in flight. `records` are those
    /// of the checkpoint from which the job continues, if there is one.
    pub(super) fn new(pipeline: u32, records: Vec<WorkerRecord>) -> Self {
        let known = |WorkerRecord { worker, drawn, .. }| (worker, WorkerRecord::new(worker, drawn));
        let records = records.into_iter().map(known).collect();
        Self { pipeline, records, earlier: BTreeMap::new(), held: BTreeMap::new() }
    }

    /// Returns the number of the last push of this incarnation of a worker; 0 if it has not pushed.
    pub(super) fn last(&self, worker: u32, incarnation: Incarnation) -> Sequence {
        let entry = self.records.get(&worker).filter(|entry| entry.incarnation == incarnation);
        entry.map_or(Sequence(0), |entry| entry.sequence)
    }

    /// Returns how the push with this id relates to the worker's earlier pushes. The incarnation must be a
    /// member.
    pub(super) fn classify(&self, id: &PushId) -> Delivery {
        let last = self.last(id.worker, id.incarnation);
        // A worker has at most `pipeline` pushes in flight, and all before them are answered.
        let early = last.0.saturating_add(u64::from(self.pipeline));
        match id.sequence {
            sequence if sequence == last.next() => Delivery::New,
            sequence if sequence > last && sequence.0 <= early => Delivery::Early,
            sequence => match self.verdict(id, last.0.wrapping_sub(sequence.0)) {
                Some(verdict) if sequence <= last => Delivery::Duplicate(verdict),
                _ => Delivery::OutOfOrder(format!(
                    "worker/{} sent push number {sequence}, but number {} was expected",
                    id.worker,
                    last.next()
                )),
            },
        }
    }

    /// Returns the verdict on the push that came `back` pushes before the last one of the same incarnation;
    /// `None` if there is no such push, or if its verdict is forgotten.
    fn verdict(&self, id: &PushId, back: u64) -> Option<Verdict> {
        let last = self.records.get(&id.worker).filter(|entry| entry.incarnation == id.incarnation)?;
        match back {
            0 => Some(last.verdict),
            _ => {
                let earlier = self.earlier.get(&id.worker)?;
                earlier.get(earlier.len().checked_sub(usize::try_from(back).ok()?)?).copied()
            }
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
        let last =
            self.records.insert(worker, WorkerRecord { worker, incarnation, sequence, verdict, drawn });
        if self.pipeline > 1 {
            self.remember(worker, last.filter(|last| last.incarnation == incarnation));
        }
    }

    /// Remembers the verdict on the push before the worker's last one, `before`; `None` if the last one is
    /// the first of its incarnation. Forgets the verdicts that no retry can ask for any more.
    fn remember(&mut self, worker: u32, before: Option<WorkerRecord>) {
        let earlier = self.earlier.entry(worker).or_default();
        let Some(before) = before.filter(|before| before.sequence.0 > 0) else { return earlier.clear() };
        if earlier.len() + 1 >= self.pipeline as usize {
            earlier.pop_front();
        }
        earlier.push_back(before.verdict);
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(worker: u32, incarnation: u64, sequence: u64) -> PushId {
        PushId { worker, incarnation: Incarnation(incarnation), sequence: Sequence(sequence) }
    }

    fn empty(pipeline: u32) -> Ledger {
        Ledger::new(pipeline, Vec::new())
    }

    #[test]
    fn a_gap_is_out_of_order_in_every_incarnation() {
        let mut ledger = empty(1);
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
    fn every_push_in_flight_gets_its_own_verdict() {
        let mut ledger = empty(3);
        for (sequence, by) in (1..=4).zip(10..) {
            ledger.record(&id(0, 5, sequence), Verdict::Stale { by }, 0);
        }
        for (sequence, by) in (2..=4).zip(11..) {
            assert_eq!(ledger.classify(&id(0, 5, sequence)), Delivery::Duplicate(Verdict::Stale { by }));
        }
        assert!(matches!(ledger.classify(&id(0, 5, 1)), Delivery::OutOfOrder(_)), "it was answered");
        assert_eq!(ledger.classify(&id(0, 5, 5)), Delivery::New);
        for early in [6, 7] {
            assert_eq!(ledger.classify(&id(0, 5, early)), Delivery::Early);
        }
        assert!(matches!(ledger.classify(&id(0, 5, 8)), Delivery::OutOfOrder(_)), "too many in flight");
        // The next incarnation begins anew.
        assert_eq!(ledger.classify(&id(0, 6, 2)), Delivery::Early);
        ledger.record(&id(0, 6, 1), Verdict::Applied, 0);
        assert_eq!(ledger.classify(&id(0, 6, 1)), Delivery::Duplicate(Verdict::Applied));
        assert!(matches!(ledger.classify(&id(0, 6, 0)), Delivery::OutOfOrder(_)), "an earlier incarnation's");
    }

    #[test]
    fn a_checkpoint_of_a_clock_ahead_refuses_no_push() {
        for pipeline in [1, 3] {
            let mut ledger = empty(pipeline);
            ledger.record(&id(0, u64::MAX, 1), Verdict::Applied, 7);
            let mut resumed = Ledger::new(pipeline, ledger.records());
            // Even the same number is another incarnation now.
            for incarnation in [0, 5, u64::MAX] {
                assert_eq!(resumed.classify(&id(0, incarnation, 1)), Delivery::New);
            }
            resumed.record(&id(0, 5, 1), Verdict::Stopped, 9);
            assert_eq!(resumed.records()[0].drawn, 7, "what was drawn is kept");
        }
    }

    proptest! {
        /// Checks the ledger against a plain list of all accepted pushes: their verdicts, order and
        /// incarnations, the number of entries, and the drawn batches (A to D and F). At a random moment,
        /// replaces the ledger by one made from its records (E).
        #[test]
        fn a_push_is_new_exactly_once(
            pipeline in 1u32..5,
            pushes in prop::collection::vec((0u32..3, 1u64..4, 1u64..9, any::<bool>()), 0..300),
            restored in any::<prop::sample::Index>(),
        ) {
            let restored = restored.index(300);
            let verdicts = [Verdict::Applied, Verdict::Stopped, Verdict::Held];
            let mut ledger = empty(pipeline);
            let mut accepted: Vec<PushId> = Vec::new();
            // For each worker: the number of batches drawn, without and with those of the held gradient.
            let (mut drawn, mut held) = ([0; 3], [0; 3]);
            // For each worker: the incarnations that were members, the last of which may push.
            let mut lives: [Vec<u64>; 3] = Default::default();
            for (number, (worker, incarnation, sequence, update)) in (1..).zip(pushes) {
                if number == restored {
                    let before = ledger.records();
                    ledger = Ledger::new(pipeline, before.clone());
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
                let last = of_worker().filter(|push| push.incarnation.0 == incarnation).count() as u64;
                let in_flight = u64::from(pipeline);
                match ledger.classify(&push) {
                    Delivery::New => {
                        prop_assert!(!accepted.contains(&push), "(A)");
                        prop_assert_eq!(last + 1, sequence, "(B) and (C)");
                        ledger.record(&push, verdict, number as u64);
                        accepted.push(push);
                        match verdict {
                            Verdict::Applied => drawn[worker as usize] = number as u64,
                            Verdict::Held => held[worker as usize] = number as u64,
                            _ => {}
                        }
                    }
                    Delivery::Duplicate(told) => {
                        prop_assert!(accepted.contains(&push) && sequence + in_flight > last, "(A)");
                        prop_assert_eq!(told, verdict, "(A)");
                    }
                    Delivery::Early => prop_assert!((last + 2..=last + in_flight).contains(&sequence)),
                    Delivery::OutOfOrder(_) => {
                        prop_assert!(sequence + in_flight <= last || sequence > last + in_flight, "(A)");
                    }
                }
                if update {
                    ledger.updated();
                    (0..3).for_each(|worker| drawn[worker] = drawn[worker].max(held[worker]));
                    held = [0; 3];
                }
                prop_assert!(ledger.records.len() <= 3 && ledger.held.len() <= 3, "(D)");
                prop_assert!(ledger.earlier.values().all(|earlier| earlier.len() < pipeline as usize), "(D)");
                for record in ledger.records() {
                    prop_assert_eq!(record.drawn, drawn[record.worker as usize], "(F)");
                }
            }
        }
    }
}
