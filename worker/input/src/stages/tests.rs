//! Compares each stage with a naive implementation, and checks that a stage is refused if it does not fit
//! its column.

use proptest::prelude::*;

use super::*;

fn column(name: &str, example: TensorSpec) -> ColumnSpec {
    ColumnSpec { name: name.to_owned(), example }
}

fn floats(shape: &[usize], examples: usize) -> InMemory {
    let elements: usize = shape.iter().product();
    let values = (0..elements * examples).map(|value| value as f32 + 1.0).collect();
    let spec = column("x", TensorSpec::f32(Shape(shape.to_vec())));
    InMemory::new(examples, vec![(spec, Storage::F32(values))]).unwrap()
}

fn stages(dataset: &InMemory, map: &[StageSpec]) -> Result<Stages, InputError> {
    let name = &dataset.columns()[0].name;
    let map: Vec<MapSpec> = map.iter().map(|stage| MapSpec::new(name, stage.clone())).collect();
    let stages = Stages::new(&map, dataset.columns())?;
    stages.check(dataset)?;
    Ok(stages)
}

fn apply(dataset: &InMemory, map: &[StageSpec], example: u32, random: Option<SplitMix64>) -> Vec<f32> {
    let stages = stages(dataset, map).unwrap();
    let mut row = vec![7.0; stages.columns()[0].example.shape.elements()];
    stages.fill_f32(dataset.storage_at(0), 0, example as usize, random, &mut row, &mut Scratch::default());
    row
}

#[test]
fn numbers_are_scaled_and_standardised() {
    let set = floats(&[2, 2], 2);
    let scale = StageSpec::Scale { factor: 2.0, offset: -1.0 };
    assert_eq!(apply(&set, std::slice::from_ref(&scale), 1, None), [9.0, 11.0, 13.0, 15.0]);
    let channels = StageSpec::Standardise { mean: vec![1.0, 2.0], stddev: vec![2.0, 4.0] };
    assert_eq!(apply(&set, &[channels], 0, None), [0.0, 0.0, 1.0, 0.5]);
    let all = StageSpec::Standardise { mean: vec![1.0], stddev: vec![2.0] };
    assert_eq!(apply(&set, std::slice::from_ref(&all), 0, None), [0.0, 0.5, 1.0, 1.5]);
    // Stages apply in the order in which they are listed.
    assert_eq!(apply(&set, &[all, scale], 0, None), [-1.0, 0.0, 1.0, 2.0]);
    let scalar = StageSpec::Standardise { mean: vec![0.0], stddev: vec![0.5] };
    assert_eq!(apply(&floats(&[], 3), &[scalar], 2, None), [6.0]);
}

#[test]
fn integers_become_one_hot() {
    let one_hot = StageSpec::OneHot { classes: 3 };
    let of = |storage, shape: &[usize], examples| {
        let spec = column("labels", TensorSpec::i32(Shape(shape.to_vec())));
        InMemory::new(examples, vec![(spec, storage)]).unwrap()
    };
    let labels = of(Storage::I32(vec![2, 0]), &[], 2);
    assert_eq!(
        stages(&labels, std::slice::from_ref(&one_hot)).unwrap().columns()[0].example,
        TensorSpec::f32([3])
    );
    assert_eq!(apply(&labels, std::slice::from_ref(&one_hot), 0, None), [0.0, 0.0, 1.0]);
    let smooth = StageSpec::Scale { factor: 0.75, offset: 0.125 };
    assert_eq!(apply(&labels, &[one_hot.clone(), smooth], 1, None), [0.875, 0.125, 0.125]);
    let pairs = of(Storage::Bytes(vec![1, 2]), &[2], 1);
    assert_eq!(apply(&pairs, std::slice::from_ref(&one_hot), 0, None), [0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
    for (id, example) in [(3, 1), (-1, 1)] {
        let error =
            stages(&of(Storage::I32(vec![0, id]), &[], 2), std::slice::from_ref(&one_hot)).unwrap_err();
        assert!(
            matches!(&error, InputError::Class { example: at, id: bad, .. } if (*at, *bad) == (example, id)),
            "{error}"
        );
        assert!(error.to_string().contains("expected 0 to 2"), "{error}");
    }
}

proptest! {
    #[test]
    fn a_crop_is_a_window_of_the_padded_image(
        (height, width, channels) in (1usize..6, 1usize..6, 1usize..4), pad in 0usize..4,
        down in 1usize..12, across in 1usize..12, seed: Option<u64>,
    ) {
        let set = floats(&[height, width, channels], 1);
        let stage = StageSpec::RandomCrop { pad: pad as u32, size: [down as u32, across as u32] };
        if down > height + 2 * pad || across > width + 2 * pad {
            let refused = matches!(stages(&set, &[stage]), Err(InputError::Stage { .. }));
            prop_assert!(refused);
            return Ok(());
        }
        let padded = |y: usize, x: usize, c: usize| {
            let inside = (pad..pad + height).contains(&y) && (pad..pad + width).contains(&x);
            if inside { (((y - pad) * width + x - pad) * channels + c) as f32 + 1.0 } else { 0.0 }
        };
        let window = |top: usize, left: usize| -> Vec<f32> {
            let pixels = (0..down).flat_map(|y| (0..across).map(move |x| (y, x)));
            pixels.flat_map(|(y, x)| (0..channels).map(move |c| (y, x, c))).map(|(y, x, c)| padded(top + y, left + x, c)).collect()
        };
        let cropped = apply(&set, &[stage], 0, seed.map(|seed| SplitMix64::stream(&[seed])));
        let (most_down, most_across) = (height + 2 * pad - down, width + 2 * pad - across);
        if seed.is_some() {
            let corners = (0..=most_down).flat_map(|top| (0..=most_across).map(move |left| (top, left)));
            prop_assert!(corners.into_iter().any(|(top, left)| window(top, left) == cropped));
        } else {
            prop_assert_eq!(window(most_down / 2, most_across / 2), cropped);
        }
    }

    #[test]
    fn a_flip_reverses_every_row_or_none(
        (height, width, channels) in (1usize..5, 1usize..6, 1usize..4), seed: Option<u64>,
    ) {
        let set = floats(&[height, width, channels], 1);
        let before = apply(&set, &[], 0, None);
        let reversed: Vec<f32> = before
            .chunks(width * channels)
            .flat_map(|row| row.chunks(channels).rev().flatten().copied().collect::<Vec<_>>())
            .collect();
        let flipped = apply(&set, &[StageSpec::RandomFlip], 0, seed.map(|seed| SplitMix64::stream(&[seed])));
        prop_assert!(flipped == before || (seed.is_some() && flipped == reversed));
    }
}

#[test]
fn random_stages_are_fair() {
    let set = floats(&[1, 2, 1], 1);
    let seeds = || (0..1000).map(|seed| Some(SplitMix64::stream(&[seed])));
    let flipped =
        seeds().filter(|random| apply(&set, &[StageSpec::RandomFlip], 0, random.clone()) == [2.0, 1.0]);
    let flipped = flipped.count();
    assert!((430..570).contains(&flipped), "{flipped} of 1000");
    let crop = [StageSpec::RandomCrop { pad: 1, size: [1, 1] }];
    let mut counts = [0; 3];
    for random in seeds() {
        counts[apply(&set, &crop, 0, random)[0] as usize] += 1;
    }
    // Of the 3 × 4 positions of the window, 10 show the border.
    assert!((780..880).contains(&counts[0]) && (50..120).contains(&counts[1]), "{counts:?}");
}

#[test]
fn an_error_names_the_column_that_does_not_fit() {
    let labels = InMemory::images(Shape::from([4, 4]), vec![0; 16], vec![1], None).unwrap();
    let refused = |column: &str, stage| {
        Stages::new(&[MapSpec::new(column, stage)], labels.columns()).unwrap_err().to_string()
    };
    let standardise = |count| StageSpec::Standardise { mean: vec![0.0; count], stddev: vec![1.0; count] };
    for (column, stage, words) in [
        (
            "label",
            StageSpec::RandomFlip,
            "got no column, expected one of 'features' f32[4, 4], 'labels' i32[]",
        ),
        (
            "features",
            StageSpec::RandomFlip,
            "got f32[4, 4], expected an image of floats, [height, width, channels]",
        ),
        (
            "features",
            StageSpec::RandomCrop { pad: 1, size: [2, 2] },
            "got f32[4, 4], expected an image of floats, [height, width, channels]",
        ),
        ("labels", StageSpec::Scale { factor: 1.0, offset: 0.0 }, "got i32[], expected a column of floats"),
        ("features", standardise(3), "got f32[4, 4], expected a column of floats whose last axis has size 3"),
        ("labels", standardise(1), "got i32[], expected a column of floats whose last axis has size 1"),
        ("features", StageSpec::OneHot { classes: 3 }, "a column of integers"),
        ("labels", StageSpec::OneHot { classes: u32::MAX }, "a column of integers, with at most"),
    ] {
        let error = refused(column, stage);
        assert!(error.contains(&format!("'{column}'")) && error.contains(words), "{error}");
    }
}
