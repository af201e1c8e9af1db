//! The work on a draft that other threads than that of the session may do.
//!
//! Wanted properties: (A) the work is bounded; (B) a shard takes a draft when all of it is done, also if the
//! other threads are busy; (C) a draft that is dropped leaves no work behind that has not begun.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::outcome::Outcome;
use super::threads::UpdateThreads;

/// The largest number of blocks of a draft that are under way at a time. More of them do not stay in the
/// caches that the cores share.
const BLOCKS_MAX: usize = 2;

/// The work of other threads on one draft.
pub(super) struct SharedWork {
    threads: UpdateThreads,
    blocks: Arc<Blocks>,
}

/// The work on one block.
type Block = Box<dyn FnOnce() -> Outcome + Send>;

#[derive(Default)]
struct Blocks {
    state: Mutex<State>,
    /// Notified when a block is done.
    done: Condvar,
}

#[derive(Default)]
struct State {
    /// The blocks that no thread has begun.
    waiting: VecDeque<Block>,
    /// The number of blocks that a thread has begun, and not done.
    begun: usize,
    outcome: Outcome,
    /// The panic of a block.
    panic: Option<Box<dyn Any + Send>>,
}

impl SharedWork {
    pub(super) fn new(threads: UpdateThreads) -> Self {
        Self { threads, blocks: Arc::default() }
    }

    /// Returns whether another thread may do the work on a block now.
    pub(super) fn may_begin(&self) -> bool {
        let state = self.blocks.state.lock();
        state.waiting.len() + state.begun < BLOCKS_MAX && self.threads.are_there()
    }

    /// Lets another thread do the work on a block.
    pub(super) fn begin(&self, block: impl FnOnce() -> Outcome + Send + 'static) {
        self.blocks.state.lock().waiting.push_back(Box::new(block));
        let blocks = Arc::clone(&self.blocks);
        self.threads.begin(move || {
            blocks.run_one();
        });
    }

    /// Returns whether a fault has been found.
    pub(super) fn has_fault(&self) -> bool {
        self.blocks.state.lock().outcome.fault.is_some()
    }

    /// Does the work that no thread has begun, and waits for the rest. Returns what came of all blocks.
    ///
    /// # Panics
    /// If a block has.
    pub(super) fn wait(&self) -> Outcome {
        while self.blocks.run_one() {}
        let mut state = self.blocks.state.lock();
        self.blocks.done.wait_while(&mut state, |state| state.begun > 0);
        match state.panic.take() {
            None => state.outcome,
            Some(panic) => {
                drop(state);
                resume_unwind(panic)
            }
        }
    }
}

impl Drop for SharedWork {
    fn drop(&mut self) {
        let waiting = std::mem::take(&mut self.blocks.state.lock().waiting);
        drop(waiting);
    }
}

impl Blocks {
    /// Does the work on a block that no thread has begun. Returns whether there was one.
    fn run_one(&self) -> bool {
        let mut state = self.state.lock();
        let Some(block) = state.waiting.pop_front() else { return false };
        state.begun += 1;
        drop(state);
        // All that the block has is dropped before it counts as done.
        let result = catch_unwind(AssertUnwindSafe(block));
        let mut state = self.state.lock();
        state.begun -= 1;
        match result {
            Ok(outcome) => state.outcome.add(outcome),
            Err(panic) => state.panic = Some(panic),
        }
        drop(state);
        self.done.notify_all();
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use pushpull_messages::id::SliceId;

    use super::*;
    use crate::shard::outcome::Fault;

    fn threads(threads: usize) -> UpdateThreads {
        // With fewer than two, a shard has no other threads.
        UpdateThreads::new(threads.max(2), |threads| {
            rayon::ThreadPoolBuilder::new().num_threads(threads - 1).build().ok()
        })
    }

    fn fault(slice: usize, is_finite: bool) -> Option<([usize; 2], Fault)> {
        Some(([slice, 0], Fault { slice: SliceId(slice as u32), is_finite }))
    }

    #[test]
    fn a_draft_waits_for_its_blocks() {
        let work = SharedWork::new(threads(3));
        let gates = [(); BLOCKS_MAX].map(|()| channel::<()>());
        let mut opened = Vec::new();
        for (at, (open, gate)) in gates.into_iter().enumerate() {
            assert!(work.may_begin());
            opened.push(open);
            work.begin(move || {
                gate.recv().unwrap();
                Outcome { took: Duration::from_secs(1), fault: fault(2 - at, at == 0) }
            });
        }
        assert!(!work.may_begin(), "(A)");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| work.wait());
            opened.iter().for_each(|open| open.send(()).unwrap());
            let outcome = waits.join().unwrap();
            assert_eq!(outcome.took, Duration::from_secs(BLOCKS_MAX as u64), "(B)");
            let (place, first) = outcome.fault.unwrap();
            assert_eq!((place, first.is_finite), ([1, 0], false), "the first fault counts");
        });
        assert!(work.may_begin() && work.has_fault());
    }

    /// Returns threads that are busy until the sender is dropped.
    fn busy() -> (UpdateThreads, std::sync::mpsc::Sender<()>) {
        let (threads, (until, gate)) = (threads(2), channel::<()>());
        let (begun, begins) = channel();
        threads.begin(move || {
            begun.send(()).unwrap();
            let _ = gate.recv();
        });
        begins.recv().unwrap();
        (threads, until)
    }

    #[test]
    fn a_draft_does_not_wait_for_other_work() {
        let (threads, _until) = busy();
        let work = SharedWork::new(threads);
        for at in 0..BLOCKS_MAX {
            work.begin(move || Outcome { took: Duration::from_secs(1), fault: fault(at, true) });
        }
        assert_eq!(work.wait().took, Duration::from_secs(BLOCKS_MAX as u64), "(B)");
    }

    #[test]
    fn a_dropped_draft_leaves_no_work_behind() {
        let (threads, until) = busy();
        let (work, (held, gone)) = (SharedWork::new(threads), channel::<()>());
        work.begin(move || {
            held.send(()).unwrap();
            Outcome::default()
        });
        drop(work);
        assert!(gone.recv().is_err(), "(C): what the block has is dropped, and it did not run");
        drop(until);
    }

    #[test]
    fn a_panic_reaches_the_shard_that_takes_the_draft() {
        let work = SharedWork::new(threads(2));
        work.begin(|| panic!("a block failed"));
        let panic = catch_unwind(AssertUnwindSafe(|| work.wait())).err().expect("the panic of the block");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"a block failed"));
        assert!(work.may_begin(), "it is not under way");
    }

    #[test]
    fn a_shard_may_have_no_other_threads() {
        assert!(!SharedWork::new(UpdateThreads::NONE).may_begin());
        assert!(!SharedWork::new(UpdateThreads::new(2, |_| None)).may_begin());
    }
}
