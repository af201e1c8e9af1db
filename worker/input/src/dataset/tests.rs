//! Tests the data sets that are made of other data sets: a reader returns the expected examples, and a
//! reader that skips some examples returns the rest.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use pushpull_messages::input::Column;
use pushpull_messages::tensor::{DType, Shape, TensorSpec};

use super::*;

fn column(name: &str, example: TensorSpec) -> ColumnSpec {
    ColumnSpec { name: name.to_owned(), example }
}

/// Returns a data set of `examples` examples, in which the column `id` counts up from `first`.
fn ids(first: i32, examples: u64) -> impl Dataset + Clone {
    let make = move |index| vec![Column::I32(vec![first + index as i32])];
    from_fn(vec![column("id", TensorSpec::i32([]))], Some(examples), make)
}

/// Skips `skipped` examples, then reads the others, `block` at a time. Returns the `id` of every example
/// that was read.
fn read_after(set: &dyn Dataset, skipped: u64, block: usize) -> Vec<i32> {
    let (mut reader, mut rows) = (set.reader().unwrap(), set.rows().unwrap());
    let count = reader.skip(skipped, &mut rows).unwrap();
    assert!(count <= skipped);
    let (mut all, mut block_rows) = (Vec::new(), set.rows().unwrap());
    loop {
        block_rows.clear();
        let read = reader.read(block, &mut block_rows).unwrap();
        assert_eq!(read, block_rows.len());
        if read == 0 {
            break;
        }
        all.extend((0..read).flat_map(|index| block_rows.row(index).i32("id").unwrap()));
    }
    // A set that has ended stays at its end.
    assert_eq!(reader.read(block, &mut block_rows).unwrap(), 0);
    assert_eq!(reader.skip(3, &mut rows).unwrap(), 0);
    all
}

/// Checks that reading `set` gives the examples with the ids `expected`, for several numbers of skipped
/// examples and block sizes.
#[track_caller]
fn check(set: &dyn Dataset, expected: &[i32]) {
    for (skipped, block) in [(0, 1), (0, 7), (3, 2), (expected.len() as u64, 1), (1000, 5)] {
        let from = (skipped as usize).min(expected.len());
        assert_eq!(read_after(set, skipped, block), expected[from..], "{skipped} {block}");
    }
    assert!(set.examples().is_none_or(|examples| examples == expected.len() as u64));
    assert_eq!(count(set, None).unwrap(), expected.len() as u64);
    if !expected.is_empty() {
        assert_eq!(collect(set).unwrap().integers("id").unwrap(), expected);
    }
}

proptest! {
    #[test]
    fn sets_of_sets_have_the_expected_examples(first in 0i32..9, examples in 0u64..200, other in 0u64..200) {
        let all: Vec<i32> = (first..first + examples as i32).collect();
        let set = ids(first, examples);
        check(&set, &all);

        let double = |row: &Row<'_>| vec![Column::I32(vec![2 * row.i32("id").unwrap()[0]])];
        let doubled = set.clone().map(set.columns().to_vec(), double);
        check(&doubled, &all.iter().map(|id| 2 * id).collect::<Vec<_>>());

        let thirds = set.clone().filter(|row| row.i32("id").unwrap()[0] % 3 == 0);
        check(&thirds, &all.iter().copied().filter(|id| id % 3 == 0).collect::<Vec<_>>());

        let weights = from_fn(vec![column("weight", TensorSpec::f32([2]))], Some(other), |index| {
            vec![Column::F32(vec![index as f32, -1.0])]
        });
        let both = set.clone().zip(weights).unwrap();
        check(&both, &all[..all.len().min(other as usize)]);
        prop_assert_eq!(both.columns().len(), 2);
    }

    /// Checks that `Interleave` reads each example exactly once (A), and that its open sets take turns, with
    /// one example per turn.
    #[test]
    fn interleave_takes_one_example_from_each(sizes in prop::collection::vec(0u64..20, 1..7), cycle in 0usize..5) {
        let set = |(at, &size): (usize, &u64)| Arc::new(ids(100 * at as i32, size)) as Arc<dyn Dataset>;
        let set = Interleave::new(sizes.iter().enumerate().map(set).collect(), cycle).unwrap();
        // The same order, found with lists of examples.
        let lists = sizes.iter().enumerate();
        let mut waiting = lists.map(|(at, &size)| (0..size as i32).map(move |id| 100 * at as i32 + id));
        let mut open: Vec<_> = waiting.by_ref().take(cycle.max(1)).collect();
        let (mut expected, mut turn) = (Vec::new(), 0);
        while !open.is_empty() {
            turn %= open.len();
            match open[turn].next() {
                Some(id) => {
                    expected.push(id);
                    turn += 1;
                }
                None => match waiting.next() {
                    Some(next) => open[turn] = next,
                    None => drop(open.remove(turn)),
                },
            }
        }
        check(&set, &expected);
    }
}

#[test]
fn a_function_that_fails_names_the_example() {
    let columns = || vec![column("id", TensorSpec::i32([]))];
    let made = from_fn(columns(), Some(9), |index| match index {
        0..7 => Ok(vec![Column::I32(vec![index as i32])]),
        _ => Err("no\nmore"),
    });
    let mapped = made.clone().map(columns(), |row| match row.i32("id") {
        Some(id) if id[0] < 5 => Ok(vec![Column::I32(id)]),
        other => Err(format!("{other:?}")),
    });
    let error = |set: &dyn Dataset, skipped: u64| {
        let (mut reader, mut rows) = (set.reader().unwrap(), set.rows().unwrap());
        assert_eq!(reader.skip(skipped, &mut rows).unwrap(), skipped);
        loop {
            if let Err(error) = reader.read(2, &mut rows) {
                return error.to_string();
            }
        }
    };
    for skipped in [0, 3] {
        let expected = "the function of the data set failed at example 7: no; more";
        assert_eq!(error(&made, skipped), expected);
        let expected = "the function of the data set failed at example 5: Some([5])";
        assert_eq!(error(&mapped, skipped), expected);
    }
}

#[test]
fn a_cache_reads_its_set_once() {
    let made = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&made);
    let set = from_fn(vec![column("id", TensorSpec::i32([]))], Some(5), move |index| {
        counter.fetch_add(1, Ordering::Relaxed);
        vec![Column::I32(vec![index as i32])]
    });
    let cached = set.cache();
    check(&cached, &[0, 1, 2, 3, 4]);
    assert_eq!(made.load(Ordering::Relaxed), 5);
}

#[test]
fn sets_divide_as_their_inner_sets_do() {
    let four = (0..4).map(|at| Arc::new(ids(10 * at, 2)) as Arc<dyn Dataset>).collect();
    let set = Interleave::new(four, 1).unwrap().filter(|_| true).cache();
    check(&*set.part(1, 2).unwrap(), &[10, 11, 30, 31]);
    assert!(set.part(0, 3).is_none());
    assert!(ids(0, 9).part(0, 3).is_none());
}

#[test]
fn pixels_and_texts_are_read_as_they_are_stored() {
    let tokens: Arc<[u8]> = Arc::from(&b"abcdefg"[..]);
    let set = InMemory::new(
        2,
        vec![
            (column("id", TensorSpec::i32([])), Storage::I32(vec![4, 5])),
            (column("image", TensorSpec::f32([2])), Storage::Pixels(vec![0, 255, 51, 102])),
            (column("text", TensorSpec::i32([3])), Storage::Windows { tokens, begin: 1, stride: 2 }),
        ],
    )
    .unwrap();
    check(&set, &[4, 5]);
    let again = collect(&set.clone().filter(|_| true)).unwrap();
    let (mut first, mut second) = (Vec::new(), Vec::new());
    set.fill(&[1, 0], &mut first);
    again.fill(&[1, 0], &mut second);
    assert_eq!(first, second);
    assert_eq!(again.storage("image").unwrap().element_bytes(), 1);
}

#[test]
fn a_set_without_an_end_is_never_counted_or_held() {
    let endless = || from_fn(vec![column("id", TensorSpec::i32([]))], None, |_| vec![Column::I32(vec![0])]);
    let weights = from_fn(vec![column("w", TensorSpec::i32([]))], None, |_| vec![Column::I32(vec![0])]);
    let never = endless().filter(|_| false);
    let both = endless().zip(weights.clone()).unwrap();
    let mixed = Interleave::new(vec![Arc::new(ids(0, 3)), Arc::new(endless())], 2).unwrap();
    let sets: [&dyn Dataset; 5] = [&endless(), &never, &both, &mixed, &endless().cache()];
    for set in sets {
        assert!(set.is_endless());
        assert!(matches!(count(set, None), Err(InputError::Endless)));
        assert!(matches!(collect(set), Err(InputError::Endless)));
    }
    check(&ids(0, 7).zip(weights).unwrap(), &[0, 1, 2, 3, 4, 5, 6]);
}

/// A reader that appends `appended` examples, but returns `told` as their number.
struct Liar {
    told: usize,
    appended: usize,
}

impl Reader for Liar {
    fn read(&mut self, _: usize, rows: &mut Rows) -> Result<usize, InputError> {
        for _ in 0..self.appended {
            rows.push(&[Column::I32(vec![1])])?;
        }
        Ok(self.told)
    }
}

#[test]
fn a_reader_must_do_what_it_says() {
    let mut rows = ids(0, 1).rows().unwrap();
    for (most, told, appended) in [(1, 2, 2), (5, 3, 2), (5, 0, 1), (5, 1, 0)] {
        rows.clear();
        let error = read_some(&mut Liar { told, appended }, most, &mut rows).unwrap_err();
        assert!(matches!(error, InputError::Reader { .. }), "{error}");
    }
    assert_eq!(read_some(&mut Liar { told: 2, appended: 2 }, 2, &mut rows).unwrap(), 2);
}

#[test]
fn arrays_are_held_once() {
    let set = InMemory::new(2, vec![(column("id", TensorSpec::i32([])), Storage::I32(vec![4, 5]))]).unwrap();
    let held = InMemory::collect(&set.clone().cache()).unwrap();
    let place = |set: &InMemory| match set.storage("id") {
        Some(Storage::I32(ids)) => ids.as_ptr(),
        _ => panic!("integers"),
    };
    assert_eq!(place(&held), place(&set));
}

#[test]
fn all_sets_at_once_are_as_many_as_there_are() {
    let sets: Vec<Arc<dyn Dataset>> = vec![Arc::new(ids(0, 2)), Arc::new(ids(10, 2))];
    check(&Interleave::new(sets, usize::MAX).unwrap(), &[0, 10, 1, 11]);
}

#[test]
fn wrong_examples_and_columns_are_refused() {
    let id = || vec![column("id", TensorSpec::i32([2]))];
    let bad = [
        vec![],
        vec![Column::I32(vec![1])],
        vec![Column::F32(vec![1.0, 2.0])],
        vec![Column::I32(vec![1, 2]), Column::I32(vec![1, 2])],
    ];
    for example in bad {
        let set = from_fn(id(), Some(1), move |_| example.clone());
        let error = collect(&set).unwrap_err();
        assert!(matches!(error, InputError::Example { .. }), "{error}");
    }
    let set = || ids(0, 3);
    assert!(matches!(set().zip(set()), Err(InputError::Column { .. })));
    let other = from_fn(id(), Some(3), |_| vec![Column::I32(vec![1, 2])]);
    let sets: Vec<Arc<dyn Dataset>> = vec![Arc::new(set()), Arc::new(other)];
    assert!(matches!(Interleave::new(sets, 2), Err(InputError::Example { .. })));
    assert!(matches!(Interleave::new(vec![], 2), Err(InputError::NoColumn)));
    let endless = column("x", TensorSpec::f32(Shape::from([usize::MAX, 2])));
    assert!(matches!(Rows::of(&[endless]), Err(InputError::Extent { .. })));
    assert!(matches!(Rows::of(&[]), Err(InputError::NoColumn)));
    let text = column("x", TensorSpec::new(DType::Text, [2]));
    let error = Rows::of(&[text]).unwrap_err().to_string();
    assert!(
        error.starts_with("the data set has the column 'x' text[2], expected elements of f32"),
        "{error}"
    );
}
