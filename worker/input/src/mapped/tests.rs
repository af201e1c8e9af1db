//! Tests the whole input, from a worker's part of the data to its batches. An input that is restored to a
//! saved position must give the same bits as an input that was not interrupted at that position.

use proptest::prelude::*;
use pushpull_messages::input::{RepeatSpec, ShuffleSpec, StageSpec};
use pushpull_messages::tensor::{Shape, TensorSpec};

use super::*;
use crate::{Batch, DataShare, Pipeline, Position, Prefetch, Sampler, Storage};

/// Returns small images with three channels. Each example also has a label, an index and a weight.
fn images(examples: usize) -> InMemory {
    let pixels = (0..examples * 4 * 5 * 3).map(|at| (at * 7 % 251) as u8).collect();
    let column = |name: &str, example| ColumnSpec { name: name.to_owned(), example };
    let columns = vec![
        (column("features", TensorSpec::f32(Shape::from([4, 5, 3]))), Storage::Pixels(pixels)),
        (
            column("labels", TensorSpec::i32([])),
            Storage::I32((0..examples as i32).map(|label| label % 4).collect()),
        ),
        (column("index", TensorSpec::i32([])), Storage::I32((0..examples as i32).collect())),
        (column("weight", TensorSpec::f32([])), Storage::F32((0..examples).map(|at| at as f32).collect())),
    ];
    InMemory::new(examples, columns).unwrap()
}

fn any_map() -> impl Strategy<Value = Vec<MapSpec>> {
    let stages = [
        MapSpec::new("features", StageSpec::RandomCrop { pad: 2, size: [4, 5] }),
        MapSpec::new("features", StageSpec::RandomFlip),
        MapSpec::new("features", StageSpec::Standardise { mean: vec![0.4, 0.5, 0.6], stddev: vec![0.2; 3] }),
        MapSpec::new("labels", StageSpec::OneHot { classes: 4 }),
        MapSpec::new("weight", StageSpec::Scale { factor: -0.5, offset: 3.0 }),
    ];
    prop::sample::subsequence(stages.to_vec(), 0..=5).prop_shuffle()
}

fn any_shuffle() -> impl Strategy<Value = ShuffleSpec> {
    prop_oneof![Just(ShuffleSpec::Full), (1u32..40).prop_map(ShuffleSpec::Buffer), Just(ShuffleSpec::None)]
}

fn any_repeat() -> impl Strategy<Value = RepeatSpec> {
    prop_oneof![Just(RepeatSpec::Endless), (1u64..5).prop_map(RepeatSpec::Epochs)]
}

/// Returns the next `count` batches, or fewer if the input ends earlier.
fn take(prefetch: &mut Prefetch, count: usize) -> Vec<Batch> {
    (0..count).map_while(|_| prefetch.next_blocking().ok()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_restored_position_gives_the_same_bits(
        examples in 3usize..40, workers in 1u32..4, whole: bool, batch in 1usize..20, seed: u64, map in any_map(),
        shuffle in any_shuffle(), repeat in any_repeat(), ready in 1usize..5, other_ready in 1usize..5,
        before in 0usize..9,
    ) {
        let worker = workers - 1;
        let share = match whole {
            true => DataShare::whole(worker, examples).unwrap(),
            false => DataShare::new(worker, workers, examples).unwrap(),
        };
        let start = |position: Option<Position>, ready| {
            let set = Mapped::training(images(examples), &map, seed).unwrap();
            let mut sampler = Sampler::with(share, batch, seed, shuffle, repeat).unwrap();
            if let Some(position) = position {
                sampler.restore(position).unwrap();
            }
            Prefetch::start(Pipeline::held(set, sampler), ready, 1).unwrap()
        };
        let mut first = start(None, ready);
        let saved = take(&mut first, before).last().and_then(|batch| batch.resume_at);
        // Without a saved position, both inputs start at the beginning.
        let mut second = start(saved, other_ready);
        if saved.is_none() {
            first = start(None, ready);
        }
        let (on, again) = (take(&mut first, 8), take(&mut second, 8));
        prop_assert_eq!(on.len(), again.len());
        for (on, again) in on.iter().zip(&again) {
            prop_assert_eq!(on.resume_at, again.resume_at);
            for (on, again) in on.columns.iter().zip(&again.columns) {
                let bits = |column: &Column| match column {
                    Column::F32(values) => values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>(),
                    Column::I32(values) => values.iter().map(|&value| value as u32).collect(),
                };
                prop_assert_eq!(bits(on), bits(again));
            }
        }
    }

    /// Fills a batch, and then a batch of a single example for each of its examples. The values must be
    /// equal: random stages may depend only on the seed, the epoch and the example.
    #[test]
    fn randomness_depends_only_on_seed_epoch_and_example(
        map in any_map(), seed: u64, picks in prop::collection::vec((0u64..4, 0u32..9), 1..20),
    ) {
        let set = Mapped::training(images(9), &map, seed).unwrap();
        let picks: Vec<Pick> = picks.into_iter().map(|(epoch, example)| Pick { epoch, example }).collect();
        let (mut together, mut scratch) = (Vec::new(), Scratch::default());
        set.fill(&picks, &mut together, &mut scratch);
        let mut alone = Vec::new();
        for (place, pick) in picks.iter().enumerate() {
            set.fill(std::slice::from_ref(pick), &mut alone, &mut Scratch::default());
            for (together, alone) in together.iter().zip(&alone) {
                match (together, alone) {
                    (Column::F32(all), Column::F32(one)) => {
                        prop_assert_eq!(&all[place * one.len()..(place + 1) * one.len()], &one[..]);
                    }
                    (Column::I32(all), Column::I32(one)) => {
                        prop_assert_eq!(&all[place * one.len()..(place + 1) * one.len()], &one[..]);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        // The columns match their specs.
        for (column, spec) in together.iter().zip(set.columns()) {
            let elements = column.f32().map_or_else(|| column.i32().unwrap().len(), <[f32]>::len);
            prop_assert_eq!(column.dtype(), spec.example.dtype);
            prop_assert_eq!(elements, picks.len() * spec.example.shape.elements());
        }
    }
}

#[test]
fn random_stages_change_the_training_set_only() {
    let map = [
        MapSpec::new("features", StageSpec::RandomCrop { pad: 3, size: [4, 5] }),
        MapSpec::new("features", StageSpec::RandomFlip),
    ];
    let fill = |set: &Mapped, epoch| {
        let mut columns = Vec::new();
        let picks: Vec<Pick> = (0..50).map(|example| Pick { epoch, example }).collect();
        set.fill(&picks, &mut columns, &mut Scratch::default());
        columns[0].f32().unwrap().to_vec()
    };
    let train = |seed| Mapped::training(images(50), &map, seed).unwrap();
    let base = fill(&train(1), 0);
    for other in [fill(&train(1), 1), fill(&train(2), 0)] {
        let same = base.chunks(60).zip(other.chunks(60)).filter(|(base, other)| base == other).count();
        assert!(same < 10, "{same} of 50 are the same");
    }
    let test = Mapped::testing(images(50), &map).unwrap();
    let plain = Mapped::testing(images(50), &[]).unwrap();
    assert_eq!(fill(&test, 0), fill(&plain, 0));
    assert_eq!(fill(&test, 7), fill(&plain, 0));
}

#[test]
fn nothing_is_allocated_after_the_first_batches() {
    let map = [
        MapSpec::new("features", StageSpec::RandomCrop { pad: 3, size: [6, 7] }),
        MapSpec::new("features", StageSpec::RandomFlip),
        MapSpec::new("labels", StageSpec::OneHot { classes: 4 }),
    ];
    let set = Mapped::training(images(9), &map, 0).unwrap();
    let (mut columns, mut scratch) = (Vec::new(), Scratch::default());
    let mut places = Vec::new();
    for round in 0..20 {
        let picks: Vec<Pick> =
            (0..6).map(|at| Pick { epoch: round, example: (at * 5 + round as u32) % 9 }).collect();
        set.fill(&picks, &mut columns, &mut scratch);
        let mut now: Vec<usize> = columns
            .iter()
            .map(|column| {
                column.f32().map_or_else(|| column.i32().unwrap().as_ptr() as usize, |f| f.as_ptr() as usize)
            })
            .collect();
        // The stages swap two of these buffers.
        let mut addresses = scratch.addresses();
        addresses.sort_unstable();
        now.extend(addresses);
        if round == 2 {
            places = now;
        } else if round > 2 {
            assert_eq!(now, places);
        }
    }
}
