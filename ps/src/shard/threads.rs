//! The threads that help a shard with large additions, updates and drafts.

use std::sync::{Arc, OnceLock};

use pushpull_kernels::cpu::Threads;
use rayon::ThreadPool;

/// The size in bytes of the smallest gradients for which other threads are asked to help. Smaller ones take
/// about as long as to wake the threads.
const SHARED_BYTES_MIN: usize = 8 << 20;

/// The threads that share a large addition, update or draft. All shards of a task have the same ones. They
/// start with the first one.
#[derive(Clone)]
pub struct UpdateThreads(Option<Arc<Lazy>>);

struct Lazy {
    threads: usize,
    /// `None` inside if the threads could not be started.
    pool: OnceLock<Option<ThreadPool>>,
    start: Start,
}

/// Starts some threads; returns `None` if it cannot.
type Start = Box<dyn Fn(usize) -> Option<ThreadPool> + Send + Sync>;

impl UpdateThreads {
    /// The threads of a shard that does all work on its own thread.
    pub const NONE: Self = Self(None);

    /// Returns threads that `start` starts when they are needed. With fewer than two, or if `start` cannot
    /// start them, a shard works on its own thread.
    pub(crate) fn new(
        threads: usize,
        start: impl Fn(usize) -> Option<ThreadPool> + Send + Sync + 'static,
    ) -> Self {
        Self((threads > 1).then(|| Arc::new(Lazy { threads, pool: OnceLock::new(), start: Box::new(start) })))
    }

    /// Returns whether there are other threads. Starts them if there are.
    pub(super) fn are_there(&self) -> bool {
        self.pool().is_some()
    }

    /// Lets another thread do some work, and does not wait for it. Returns whether there is another thread.
    pub(super) fn begin(&self, work: impl FnOnce() + Send + 'static) -> bool {
        self.pool().inspect(|pool| pool.spawn(work)).is_some()
    }

    fn pool(&self) -> Option<&ThreadPool> {
        self.0.as_deref().and_then(Lazy::pool)
    }

    /// Does some work on gradients of this size: on the calling thread, or among the threads if the
    /// gradients are large.
    pub(super) fn share<T: Send>(&self, bytes: usize, work: impl FnOnce(Threads) -> T + Send) -> T {
        match &self.0 {
            Some(lazy) if bytes >= SHARED_BYTES_MIN => match lazy.pool() {
                Some(pool) => pool.install(|| work(Threads::Pool(lazy.threads))),
                None => work(Threads::One),
            },
            _ => work(Threads::One),
        }
    }
}

impl Lazy {
    /// Returns the threads, which are started by the first call; `None` if they cannot be started.
    fn pool(&self) -> Option<&ThreadPool> {
        self.pool.get_or_init(|| (self.start)(self.threads)).as_ref()
    }
}

/// Returns the index of the first item for which `holds` is false; `None` if it holds for all of them.
/// `threads` may share the items.
pub(super) fn first_not<T: Sync>(
    items: &[T],
    threads: Threads,
    holds: &(impl Fn(&T) -> bool + Sync),
) -> Option<usize> {
    if threads == Threads::One || items.len() < 2 {
        return items.iter().position(|item| !holds(item));
    }
    let (first, rest) = items.split_at(items.len() / 2);
    let (in_first, in_rest) =
        rayon::join(|| first_not(first, threads, holds), || first_not(rest, threads, holds));
    in_first.or(in_rest.map(|at| first.len() + at))
}

/// Does some work on each item. `threads` may share the items.
///
/// # Errors
/// Returns one of the errors of the work.
pub(super) fn for_each<T: Send, E: Send>(
    items: &mut [T],
    threads: Threads,
    work: &(impl Fn(&mut T) -> Result<(), E> + Sync),
) -> Result<(), E> {
    if threads == Threads::One || items.len() < 2 {
        return items.iter_mut().try_for_each(work);
    }
    let (first, rest) = items.split_at_mut(items.len() / 2);
    let (first, rest) = rayon::join(|| for_each(first, threads, work), || for_each(rest, threads, work));
    first.and(rest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_first_item_is_found_by_any_number_of_threads(items in prop::collection::vec(0u8..3, 0..20)) {
            let (expected, holds) = (items.iter().position(|&item| item == 0), |&item: &u8| item > 0);
            prop_assert_eq!(first_not(&items, Threads::One, &holds), expected);
            prop_assert_eq!(first_not(&items, Threads::Pool(2), &holds), expected);
        }
    }

    proptest! {
        #[test]
        fn any_number_of_threads_does_the_work_on_each_item(items in prop::collection::vec(0u8..3, 0..20)) {
            for threads in [Threads::One, Threads::Pool(2)] {
                let mut items = items.clone();
                let done: Result<(), ()> = for_each(&mut items, threads, &|item| {
                    *item += 1;
                    Ok(())
                });
                prop_assert!(done.is_ok());
                prop_assert!(items.iter().all(|&item| item > 0));
                let zeros = items.iter().filter(|&&item| item == 1).count();
                let failed = for_each(&mut items, threads, &|&mut item| if item == 1 { Err(item) } else { Ok(()) });
                prop_assert_eq!(failed.is_err(), zeros > 0);
            }
        }
    }

    #[test]
    fn only_large_work_starts_threads() {
        fn start(threads: usize) -> Option<ThreadPool> {
            rayon::ThreadPoolBuilder::new().num_threads(threads).build().ok()
        }
        let threads = UpdateThreads::new(3, start);
        assert_eq!(threads.share(SHARED_BYTES_MIN - 1, |threads| threads), Threads::One);
        assert!(threads.0.as_ref().unwrap().pool.get().is_none());
        assert_eq!(threads.share(SHARED_BYTES_MIN, |threads| threads), Threads::Pool(3));
        let failed = UpdateThreads::new(3, |_| None);
        assert_eq!(failed.share(SHARED_BYTES_MIN, |threads| threads), Threads::One);
        let alone = UpdateThreads::new(1, start);
        assert_eq!(alone.share(SHARED_BYTES_MIN, |threads| threads), Threads::One);
        let (done, waits) = std::sync::mpsc::channel();
        for (threads, expected) in [(&threads, true), (&failed, false), (&alone, false)] {
            let done = done.clone();
            assert_eq!(threads.begin(move || done.send(()).unwrap()), expected);
        }
        drop(done);
        assert_eq!(waits.iter().count(), 1);
    }
}
