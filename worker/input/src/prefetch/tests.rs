//! Tests the thread that prepares batches: the order of the batches, their memory, panics, and the end of
//! the thread.

use std::sync::atomic::{AtomicUsize, Ordering};

use pushpull_messages::input::{MapSpec, RepeatSpec, ShuffleSpec, StageSpec};
use pushpull_messages::tensor::Shape;

use super::*;
use crate::stages::Scratch;
use crate::{Column, DataShare, InMemory, Mapped, Pick, Sampler};

fn ten_examples() -> Mapped {
    let features = (0..20).map(|i| i * 10).collect();
    let set = InMemory::images(Shape::from([2]), features, (0..10).collect(), Some(10)).unwrap();
    Mapped::training(set, &[], 0).unwrap()
}

fn sampler(set: &Mapped) -> Sampler {
    Sampler::new(DataShare::new(0, 1, set.len()).unwrap(), 4, 9).unwrap()
}

/// Starts a prefetch whose batches come from `fill` and never end.
fn start_filling(
    ready: usize,
    mut fill: impl FnMut(&mut Batch) + Send + 'static,
) -> Result<Prefetch, InputError> {
    Prefetch::start_with(ready, 2, move |batch| {
        fill(batch);
        Ok(())
    })
}

/// A guard that counts its drops. The tests move it into a prefetch's thread, so it is dropped once, when
/// the thread ends.
struct Guard(Arc<AtomicUsize>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn batches_come_in_the_samplers_order_with_positions() {
    let set = ten_examples();
    let mut prefetch = Prefetch::start(Pipeline::held(set.clone(), sampler(&set)), READY_BATCHES, 1).unwrap();
    let mut sampler = sampler(&set);
    for _ in 0..30 {
        let mut picks = Vec::new();
        sampler.next_into(&mut picks).unwrap();
        let mut expected = Batch::default();
        expected.set(&set, &picks, Some(sampler.position()), &mut Scratch::default());
        let batch = prefetch.next_blocking().unwrap();
        assert_eq!(batch, expected);
        assert_eq!(batch.examples, 4);
        prefetch.recycle(batch);
    }
}

#[test]
fn refuses_batches_too_large_before_allocating() {
    let set = |classes| {
        let set = InMemory::images(Shape::from([2]), vec![0; 20], (0..10).collect(), Some(10)).unwrap();
        Mapped::training(set, &[MapSpec::new("labels", StageSpec::OneHot { classes })], 0).unwrap()
    };
    let start = |classes, batch, ready| {
        let set = set(classes);
        let sampler = Sampler::new(DataShare::new(0, 1, set.len()).unwrap(), batch, 9).unwrap();
        Prefetch::start(Pipeline::held(set, sampler), ready, 1)
    };
    let error = start(1 << 28, 64, 2).unwrap_err().to_string();
    let bytes = ((1u64 << 28) + 2) * 4 * 64 * 4;
    let expected = format!("4 batches of 64 examples would take {bytes} bytes, expected at most 1073741824");
    assert!(error.contains(&expected) && error.contains("'labels' f32[268435456]"), "{error}");
    // The number of ready batches is clamped to 64; one more is being filled, and one more is in use.
    assert!(matches!(start(1 << 16, 64, usize::MAX), Err(InputError::ReadyBytes { batches: 66, .. })));
    assert!(start(1 << 16, 4, 1).is_ok());
}

#[tokio::test]
async fn the_next_batch_can_be_awaited() {
    let set = ten_examples();
    let mut prefetch = Prefetch::start(Pipeline::held(set.clone(), sampler(&set)), 1, 1).unwrap();
    let expected: Vec<Vec<u32>> = sampler(&set).take(10).collect();
    for examples in expected {
        let batch = prefetch.next().await.unwrap();
        assert_eq!(batch.columns[1], Column::I32(examples.iter().map(|&example| example as i32).collect()));
        prefetch.recycle(batch);
    }
}

#[test]
fn recycled_batches_bound_the_memory() {
    let made = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&made);
    let mut prefetch = start_filling(3, move |batch| {
        if batch.columns.is_empty() {
            count.fetch_add(1, Ordering::SeqCst);
            batch.columns.push(Column::F32(vec![0.0; 8]));
        }
    })
    .unwrap();
    for _ in 0..200 {
        let batch = prefetch.next_blocking().unwrap();
        let early = prefetch.try_next();
        prefetch.recycle(batch);
        early.into_iter().for_each(|early| prefetch.recycle(early));
    }
    let made = made.load(Ordering::SeqCst);
    // Two are in use.
    assert!(made <= 6, "{made} batches were allocated for 3 ready ones");
}

#[test]
fn a_batch_is_refilled_in_place() {
    let set = ten_examples();
    let mut batch = Batch::default();
    let mut scratch = Scratch::default();
    let mut set = |batch: &mut Batch, examples: &[u32]| {
        let picks: Vec<Pick> = examples.iter().map(|&example| Pick { epoch: 0, example }).collect();
        batch.set(&set, &picks, None, &mut scratch);
    };
    set(&mut batch, &[1, 2, 3]);
    let place = |batch: &Batch| batch.columns[0].f32().unwrap().as_ptr();
    let first = place(&batch);
    for examples in [&[4, 5][..], &[], &[9, 8, 7]] {
        set(&mut batch, examples);
        assert_eq!((place(&batch), batch.examples), (first, examples.len()));
    }
    assert_eq!(batch.columns[1], Column::I32(vec![9, 8, 7]));
}

#[test]
fn prepares_no_more_batches_than_requested() {
    let filled = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&filled);
    let mut prefetch = start_filling(2, move |_| {
        count.fetch_add(1, Ordering::SeqCst);
    })
    .unwrap();
    for taken in 1..50 {
        let batch = prefetch.next_blocking().unwrap();
        prefetch.recycle(batch);
        // Without room for another one, one batch waits, and the thread holds one more.
        assert!(filled.load(Ordering::SeqCst) <= taken + 2);
    }
}

/// Waits at most 60 s until a number of batches has been filled.
#[track_caller]
fn wait_for_filled(filled: &AtomicUsize, expected: usize) {
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while filled.load(Ordering::SeqCst) < expected {
        assert!(std::time::Instant::now() < limit, "{filled:?} of {expected} batches are filled");
        std::thread::yield_now();
    }
}

#[test]
fn room_is_made_before_a_batch_is_taken() {
    for (ready, makes_room) in [(1, false), (2, true), (5, true)] {
        let filled = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&filled);
        let fill = move |batch: &mut Batch| batch.examples = count.fetch_add(1, Ordering::SeqCst);
        let mut prefetch = start_filling(ready, fill).unwrap();
        for taken in 0..10 {
            // As many as wait, and the one that the thread holds.
            wait_for_filled(&filled, taken + ready + usize::from(!makes_room));
            for _ in 0..2 {
                prefetch.make_room();
            }
            wait_for_filled(&filled, taken + ready + 1);
            assert!(filled.load(Ordering::SeqCst) <= taken + ready + 1);
            let batch = prefetch.next_blocking().unwrap();
            assert_eq!(batch.examples, taken, "no batch is lost, and none overtakes another");
            prefetch.recycle(batch);
        }
        assert_eq!(prefetch.ready()[1], ready);
    }
}

#[test]
fn dropping_it_ends_the_thread() {
    for taken in [0, 1, 5] {
        let ended = Arc::new(AtomicUsize::new(0));
        let guard = Guard(Arc::clone(&ended));
        let mut prefetch = start_filling(2, move |_| {
            let _moved_here = &guard;
        })
        .unwrap();
        for _ in 0..taken {
            prefetch.next_blocking().unwrap();
        }
        drop(prefetch);
        wait_for(&ended);
    }
}

/// Waits at most 60 s until a [`Guard`] has been dropped.
#[track_caller]
fn wait_for(ended: &AtomicUsize) {
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while ended.load(Ordering::SeqCst) == 0 {
        assert!(std::time::Instant::now() < limit, "the thread goes on");
        std::thread::yield_now();
    }
}

#[test]
fn dropping_it_does_not_wait_for_a_slow_input() {
    let (go, wait) = sync_mpsc::channel::<()>();
    let ended = Arc::new(AtomicUsize::new(0));
    let guard = Guard(Arc::clone(&ended));
    let prefetch = start_filling(1, move |_| {
        let _moved_here = &guard;
        // The input stands still until `go` is dropped.
        let _ = wait.recv();
    });
    drop(prefetch.unwrap());
    assert_eq!(ended.load(Ordering::SeqCst), 0);
    drop(go);
    wait_for(&ended);
}

#[tokio::test]
async fn can_be_dropped_after_a_cancelled_wait() {
    let (go, wait) = sync_mpsc::channel::<()>();
    let mut prefetch = start_filling(1, move |_| {
        // `fill` returns nothing until `go` is dropped, so that `next` below must wait.
        let _ = wait.recv();
    })
    .unwrap();
    tokio::select! {
        biased;
        batch = prefetch.next() => panic!("got {batch:?}, expected no batch"),
        () = std::future::ready(()) => {}
    }
    drop(go);
    drop(prefetch);
}

#[tokio::test]
async fn every_call_after_a_panic_returns_its_error() {
    let mut left = 2;
    let mut prefetch = start_filling(1, move |batch| {
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
fn a_sampler_for_another_set_panics() {
    let set = ten_examples();
    let share = DataShare::new(0, 1, 11).unwrap();
    let _ = Prefetch::start(Pipeline::held(set, Sampler::new(share, 1, 0).unwrap()), 1, 1);
}

#[tokio::test]
async fn every_call_after_the_last_batch_returns_ended() {
    let set = ten_examples();
    let share = DataShare::new(0, 1, set.len()).unwrap();
    let sampler = Sampler::with(share, 4, 0, ShuffleSpec::None, RepeatSpec::Epochs(2)).unwrap();
    let mut prefetch = Prefetch::start(Pipeline::held(set, sampler), 3, 1).unwrap();
    for first in [0, 4, 8, 2, 6] {
        let batch = prefetch.next().await.unwrap();
        assert_eq!(batch.columns[1].i32().unwrap()[0], first);
    }
    for _ in 0..3 {
        let error = prefetch.next().await.unwrap_err();
        assert!(matches!(error, InputError::Ended { epochs: 2, examples: 10, batch: 4 }), "{error}");
        prefetch.recycle(Batch::default());
    }
}
