//! The thread that prepares batches: order, memory, panics and its end.

use std::sync::atomic::{AtomicUsize, Ordering};

use messages::tensor::Shape;

use super::*;
use crate::input::DataShare;

fn ten_examples() -> Arc<Dataset> {
    let features = (0..20).map(|i| i * 10).collect();
    Arc::new(Dataset::new(Shape::from([2]), features, (0..10).collect(), Some(10)).unwrap())
}

fn sampler(set: &Dataset) -> Sampler {
    Sampler::new(DataShare::new(0, 1, set.len()).unwrap(), 4, 9).unwrap()
}

/// What is dropped when the thread ends.
struct Guard(Arc<AtomicUsize>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn gives_the_samplers_batches_in_order_with_their_positions() {
    let set = ten_examples();
    let mut expected = sampler(&set);
    let mut prefetch = Prefetch::start(Arc::clone(&set), sampler(&set), READY_BATCHES).unwrap();
    for _ in 0..30 {
        let examples = expected.next().unwrap();
        let mut wanted = Batch::default();
        wanted.set(&set, &examples, Some(expected.position()));
        let batch = prefetch.next_blocking().unwrap();
        assert_eq!(batch, wanted);
        assert_eq!(batch.examples, 4);
        prefetch.recycle(batch);
    }
}

#[tokio::test]
async fn can_be_awaited() {
    let set = ten_examples();
    let mut prefetch = Prefetch::start(Arc::clone(&set), sampler(&set), 1).unwrap();
    let expected: Vec<Vec<u32>> = sampler(&set).take(10).collect();
    for examples in expected {
        let batch = prefetch.next().await.unwrap();
        assert_eq!(batch.labels, examples.iter().map(|&example| example as i32).collect::<Vec<_>>());
        prefetch.recycle(batch);
    }
}

#[test]
fn recycled_batches_are_all_the_memory_there_is() {
    let made = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&made);
    let mut prefetch = Prefetch::start_with(3, move |batch| {
        if batch.features.capacity() == 0 {
            count.fetch_add(1, Ordering::SeqCst);
        }
        batch.features.resize(8, 0.0);
    })
    .unwrap();
    for _ in 0..200 {
        let batch = prefetch.next_blocking().unwrap();
        prefetch.recycle(batch);
    }
    let made = made.load(Ordering::SeqCst);
    assert!(made <= 5, "{made} batches were allocated for 3 ready ones");
}

#[test]
fn a_batch_is_filled_again_in_its_own_memory() {
    let set = ten_examples();
    let mut batch = Batch::default();
    batch.set(&set, &[1, 2, 3], None);
    let place = batch.features.as_ptr();
    for examples in [&[4, 5][..], &[], &[9, 8, 7]] {
        batch.set(&set, examples, None);
        assert_eq!((batch.features.as_ptr(), batch.examples), (place, examples.len()));
    }
    assert_eq!(batch.labels, [9, 8, 7]);
}

#[test]
fn runs_ahead_no_further_than_asked() {
    let filled = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&filled);
    let mut prefetch = Prefetch::start_with(2, move |_| {
        count.fetch_add(1, Ordering::SeqCst);
    })
    .unwrap();
    for taken in 1..50 {
        let batch = prefetch.next_blocking().unwrap();
        prefetch.recycle(batch);
        // Two wait and one is in the thread's hand.
        assert!(filled.load(Ordering::SeqCst) <= taken + 3);
    }
}

#[test]
fn dropping_it_ends_the_thread() {
    for taken in [0, 1, 5] {
        let ended = Arc::new(AtomicUsize::new(0));
        let guard = Guard(Arc::clone(&ended));
        let mut prefetch = Prefetch::start_with(2, move |_| {
            let _moved_here = &guard;
        })
        .unwrap();
        for _ in 0..taken {
            prefetch.next_blocking().unwrap();
        }
        drop(prefetch);
        assert_eq!(ended.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test]
async fn can_be_dropped_by_a_task_that_waits_for_it() {
    let (go, wait) = sync_mpsc::channel::<()>();
    let mut prefetch = Prefetch::start_with(1, move |_| {
        // Fills nothing until the test says so, so that `next` below waits for certain.
        let _ = wait.recv();
    })
    .unwrap();
    tokio::select! {
        biased;
        batch = prefetch.next() => panic!("nothing is ready, got {batch:?}"),
        () = std::future::ready(()) => {}
    }
    drop(go);
    drop(prefetch);
}

#[tokio::test]
async fn a_panic_comes_out_as_an_error_every_time() {
    let mut left = 2;
    let mut prefetch = Prefetch::start_with(1, move |batch| {
        assert!(left > 0, "no batch\nleft");
        batch.examples = left;
        left -= 1;
    })
    .unwrap();
    assert_eq!(prefetch.next().await.unwrap().examples, 2);
    assert_eq!(prefetch.next().await.unwrap().examples, 1);
    for _ in 0..3 {
        let error = prefetch.next().await.unwrap_err();
        assert!(matches!(&error, InputError::Panicked { message } if message == "no batch; left"), "{error}");
        prefetch.recycle(Batch::default());
    }
}

#[test]
#[should_panic(expected = "a sampler for another data set")]
fn a_sampler_for_another_set_is_our_bug() {
    let set = ten_examples();
    let share = DataShare::new(0, 1, 11).unwrap();
    let _ = Prefetch::start(set, Sampler::new(share, 1, 0).unwrap(), 1);
}
