//! The work on a draft that is done beside the session that receives the gradients: which blocks are under
//! way, and what came of those that are done.
//!
//! Wanted properties: (A) the work is bounded; (B) whoever takes the draft waits for all of it.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::outcome::Outcome;
use super::threads::UpdateThreads;

/// The largest number of blocks of a draft that are under way at a time. A block that is received meanwhile
/// stays in the caches that the cores share.
const BLOCKS_MAX: usize = 2;

/// The work of other threads on one draft.
pub(super) struct SharedWork {
    threads: UpdateThreads,
    work: Arc<Work>,
}

#[derive(Default)]
struct Work {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The number of blocks that are under way.
    under_way: usize,
    outcome: Outcome,
}

impl SharedWork {
    pub(super) fn new(threads: UpdateThreads) -> Self {
        Self { threads, work: Arc::default() }
    }

    /// Returns whether another thread may do the work on a block now.
    pub(super) fn may_begin(&self) -> bool {
        self.threads.are_there() && self.work.state.lock().under_way < BLOCKS_MAX
    }

    /// Lets another thread do the work on a block.
    ///
    /// # Panics
    /// If there is no other thread.
    pub(super) fn begin(&self, block: impl FnOnce() -> Outcome + Send + 'static) {
        self.work.state.lock().under_way += 1;
        let work = Arc::clone(&self.work);
        let begun = self.threads.begin(move || {
            // All that the block has is dropped before it counts as done.
            let outcome = block();
            let mut state = work.state.lock();
            state.under_way -= 1;
            state.outcome.add(outcome);
            drop(state);
            work.changed.notify_all();
        });
        assert!(begun, "a block begins when there is another thread");
    }

    /// Returns whether a fault has been found.
    pub(super) fn has_fault(&self) -> bool {
        self.work.state.lock().outcome.fault.is_some()
    }

    /// Waits until no block is under way. Returns what came of all of them.
    pub(super) fn wait(&self) -> Outcome {
        let mut state = self.work.state.lock();
        self.work.changed.wait_while(&mut state, |state| state.under_way > 0);
        state.outcome
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pushpull_messages::id::SliceId;

    use super::*;
    use crate::shard::outcome::Fault;

    fn start(threads: usize) -> Option<rayon::ThreadPool> {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().ok()
    }

    fn fault(slice: usize, is_finite: bool) -> Option<([usize; 2], Fault)> {
        Some(([slice, 0], Fault { slice: SliceId(slice as u32), is_finite }))
    }

    #[test]
    fn a_draft_waits_for_its_blocks() {
        let work_ = SharedWork::new(UpdateThreads::new(3, start));
        let gates = [(); BLOCKS_MAX].map(|()| std::sync::mpsc::channel::<()>());
        let mut opened = Vec::new();
        for (at, (open, gate)) in gates.into_iter().enumerate() {
            assert!(work_.may_begin());
            opened.push(open);
            work_.begin(move || {
                gate.recv().unwrap();
                Outcome { took: Duration::from_secs(1), fault: fault(2 - at, at == 0) }
            });
        }
        assert!(!work_.may_begin(), "(A)");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| work_.wait());
            opened.iter().for_each(|open| open.send(()).unwrap());
            let outcome = waits.join().unwrap();
            assert_eq!(outcome.took, Duration::from_secs(BLOCKS_MAX as u64), "(B)");
            let (place, first) = outcome.fault.unwrap();
            assert_eq!((place, first.is_finite), ([1, 0], false), "the first fault counts");
        });
        assert!(work_.may_begin() && work_.has_fault());
    }

    #[test]
    fn a_shard_without_threads_has_no_work_() {
        assert!(!SharedWork::new(UpdateThreads::NONE).may_begin());
        assert!(!SharedWork::new(UpdateThreads::new(2, |_| None)).may_begin());
    }
}
