//! The map stages, prepared for the columns that they are applied to. This module must not depend on the
//! order of examples or on the source of random numbers.

use pushpull_messages::input::{ColumnSpec, MapSpec, StageSpec};
use pushpull_messages::tensor::{DType, Shape, TensorSpec};

use crate::dataset::Rows;
use crate::random::SplitMix64;
use crate::{Column, InMemory, InputError, Storage};

/// The maximum number of elements of one example after its stages.
const ELEMENTS_MAX: usize = pushpull_messages::input::EXAMPLE_ELEMENTS_MAX;

/// Buffers that are reused for every example. They hold an example before and after a stage that changes the
/// shape of the example.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    ints: Vec<i32>,
    before: Vec<f32>,
    after: Vec<f32>,
}

#[cfg(test)]
impl Scratch {
    /// Returns the addresses of the buffers.
    pub(super) fn addresses(&self) -> Vec<usize> {
        vec![self.ints.as_ptr() as usize, self.before.as_ptr() as usize, self.after.as_ptr() as usize]
    }
}

/// The stages of all columns.
#[derive(Clone, Debug)]
pub(super) struct Stages {
    /// The specs of the columns after the stages.
    columns: Vec<ColumnSpec>,
    plans: Vec<Plan>,
}

/// The stages of one column.
#[derive(Clone, Debug, Default)]
struct Plan {
    /// The number of elements of one example in the data set, before the stages.
    elements: usize,
    steps: Vec<Step>,
    /// True if one of the column's stages changes the shape of the example.
    reshapes: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Scale {
        factor: f32,
        offset: f32,
    },
    /// The mean and the standard deviation for each index of the last axis, or one pair for all elements.
    Standardise(Vec<(f32, f32)>),
    OneHot {
        classes: usize,
    },
    Crop {
        image: Image,
        pad: usize,
        height: usize,
        width: usize,
    },
    Flip(Image),
}

/// The height, width and number of channels of an image.
#[derive(Clone, Copy, Debug)]
struct Image {
    height: usize,
    width: usize,
    channels: usize,
}

impl Stages {
    pub(super) fn new(map: &[MapSpec], columns: &[ColumnSpec]) -> Result<Self, InputError> {
        if let Some(other) = columns.iter().find(|column| !column.example.dtype.is_of_examples()) {
            return Err(InputError::ColumnType { column: other.to_string() });
        }
        let plan =
            |column: &ColumnSpec| Plan { elements: column.example.shape.elements(), ..Plan::default() };
        let mut stages = Self { columns: columns.to_vec(), plans: columns.iter().map(plan).collect() };
        for MapSpec { column, stage } in map {
            let Some(position) = columns.iter().position(|spec| spec.name == *column) else {
                let (name, expected) = (column.clone(), ColumnSpec::list(columns));
                return Err(InputError::Stage {
                    name,
                    expected: format!("one of {expected}"),
                    got: "no column".into(),
                });
            };
            let example = &mut stages.columns[position].example;
            let (step, after) = prepare(stage, example).map_err(|expected| InputError::Stage {
                name: column.clone(),
                expected,
                got: example.to_string(),
            })?;
            stages.plans[position].reshapes |= matches!(step, Step::OneHot { .. } | Step::Crop { .. });
            stages.plans[position].steps.push(step);
            *example = after;
        }
        Ok(stages)
    }

    /// Returns the specs of the columns after the stages.
    pub(super) fn columns(&self) -> &[ColumnSpec] {
        &self.columns
    }

    /// Returns true if a stage one-hot encodes integers. In this case, [`check`](Self::check) must read the
    /// examples.
    pub(super) fn need_classes(&self) -> bool {
        self.plans.iter().any(|plan| matches!(plan.steps.first(), Some(Step::OneHot { .. })))
    }

    /// Checks that every integer that is to be one-hot encoded is the number of a class.
    pub(super) fn check(&self, dataset: &InMemory) -> Result<(), InputError> {
        self.check_columns(|position| dataset.storage_at(position), dataset.len(), 0)
    }

    /// Checks a block of examples as [`check`](Self::check) does. `first` is the index of the block's first
    /// example in the data set.
    pub(super) fn check_rows(&self, rows: &Rows, first: u64) -> Result<(), InputError> {
        self.check_columns(|position| rows.storage(position), rows.len(), first)
    }

    fn check_columns<'a>(
        &self,
        storage: impl Fn(usize) -> &'a Storage,
        examples: usize,
        first: u64,
    ) -> Result<(), InputError> {
        for (position, plan) in self.plans.iter().enumerate() {
            let Some(Step::OneHot { classes }) = plan.steps.first() else { continue };
            let mut row = vec![0; plan.elements];
            for example in 0..examples {
                storage(position).fill_i32(example, &mut row);
                if let Some(&id) = row.iter().find(|&&id| !usize::try_from(id).is_ok_and(|id| id < *classes))
                {
                    let (column, example) = (self.columns[position].name.clone(), first + example as u64);
                    return Err(InputError::Class { column, example, id, classes: *classes });
                }
            }
        }
        Ok(())
    }

    /// Writes one example of the column with the index `position` to a batch. The example is read at `index`
    /// of `storage`, and is written to the row `place` of `column`. If `random` is `None`, random stages are
    /// disabled.
    pub(super) fn fill(
        &self,
        position: usize,
        (storage, index): (&Storage, usize),
        random: Option<SplitMix64>,
        (column, place): (&mut Column, usize),
        scratch: &mut Scratch,
    ) {
        let elements = self.columns[position].example.shape.elements();
        let range = place * elements..(place + 1) * elements;
        match column {
            Column::F32(rows) => self.fill_f32(storage, position, index, random, &mut rows[range], scratch),
            Column::I32(rows) => storage.fill_i32(index, &mut rows[range]),
        }
    }

    /// Writes one example of an `f32` column to `row`. If `random` is `None`, random stages are disabled.
    fn fill_f32(
        &self,
        storage: &Storage,
        position: usize,
        example: usize,
        mut random: Option<SplitMix64>,
        row: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let plan = &self.plans[position];
        if !plan.reshapes {
            storage.fill_f32(example, row);
            plan.steps.iter().for_each(|step| in_place(step, random.as_mut(), row));
            return;
        }
        let Scratch { ints, before, after } = scratch;
        read(storage, example, plan.elements, ints, before);
        for step in &plan.steps {
            match step {
                Step::OneHot { classes } => {
                    after.clear();
                    after.resize(ints.len() * classes, 0.0);
                    for (row, &id) in after.chunks_exact_mut(*classes).zip(&*ints) {
                        row[id as usize] = 1.0;
                    }
                    std::mem::swap(before, after);
                }
                Step::Crop { image, pad, height, width } => {
                    let (down, across) = (image.height + 2 * pad - height, image.width + 2 * pad - width);
                    let corner = match &mut random {
                        Some(random) => [down, across].map(|most| random.below(most as u32 + 1) as usize),
                        None => [down / 2, across / 2],
                    };
                    crop(before, after, *image, *pad, corner, [*height, *width]);
                    std::mem::swap(before, after);
                }
                other => in_place(other, random.as_mut(), before),
            }
        }
        row.copy_from_slice(before);
    }
}

/// Reads one example in the type in which it is stored: floats into `floats`, integers into `ints`.
fn read(storage: &Storage, example: usize, elements: usize, ints: &mut Vec<i32>, floats: &mut Vec<f32>) {
    match storage.dtype() {
        DType::F32 => {
            floats.resize(elements, 0.0);
            storage.fill_f32(example, floats);
        }
        _ => {
            ints.resize(elements, 0);
            storage.fill_i32(example, ints);
        }
    }
}

/// Prepares a stage for a column whose examples have the spec `example`. Returns the prepared stage, and the
/// spec of an example after the stage.
///
/// # Errors
/// If the stage cannot be applied to such a column; the error describes the columns that the stage accepts.
fn prepare(stage: &StageSpec, example: &TensorSpec) -> Result<(Step, TensorSpec), String> {
    let floats = example.dtype == DType::F32;
    let image = || match (floats, example.shape.0.as_slice()) {
        (true, &[height, width, channels]) => Ok(Image { height, width, channels }),
        _ => Err("an image of floats, [height, width, channels]".to_owned()),
    };
    match stage {
        StageSpec::Scale { factor, offset } if floats => {
            Ok((Step::Scale { factor: *factor, offset: *offset }, example.clone()))
        }
        StageSpec::Scale { .. } => Err("a column of floats".into()),
        StageSpec::Standardise { mean, stddev } => {
            let last = example.shape.0.last().copied().unwrap_or(1);
            if !floats || mean.len() != stddev.len() || (mean.len() != 1 && mean.len() != last) {
                return Err(format!("a column of floats whose last axis has size {}", mean.len()));
            }
            let numbers = mean.iter().copied().zip(stddev.iter().copied()).collect();
            Ok((Step::Standardise(numbers), example.clone()))
        }
        StageSpec::OneHot { classes } => {
            let classes = *classes as usize;
            let elements =
                example.shape.checked_elements().and_then(|elements| elements.checked_mul(classes));
            match elements {
                Some(1..=ELEMENTS_MAX) if !floats => {
                    let mut extents = example.shape.0.clone();
                    extents.push(classes);
                    Ok((Step::OneHot { classes }, TensorSpec::f32(Shape(extents))))
                }
                _ => Err(format!("a column of integers, with at most {ELEMENTS_MAX} elements after one-hot")),
            }
        }
        StageSpec::RandomCrop { pad, size } => {
            let (image, pad, [height, width]) = (image()?, *pad as usize, size.map(|size| size as usize));
            let wide = |extent: usize| extent.saturating_add(2 * pad).min(u32::MAX as usize - 1);
            let elements = height.checked_mul(width).and_then(|pixels| pixels.checked_mul(image.channels));
            if height > wide(image.height)
                || width > wide(image.width)
                || elements.is_none_or(|all| all > ELEMENTS_MAX)
            {
                return Err(format!(
                    "an image of at least {height} × {width}, including a border of {pad} on each side"
                ));
            }
            let after = TensorSpec::f32([height, width, image.channels]);
            Ok((Step::Crop { image, pad, height, width }, after))
        }
        StageSpec::RandomFlip => Ok((Step::Flip(image()?), example.clone())),
    }
}

/// Applies a stage that does not change the shape.
fn in_place(step: &Step, random: Option<&mut SplitMix64>, values: &mut [f32]) {
    match step {
        Step::Scale { factor, offset } => {
            values.iter_mut().for_each(|value| *value = *value * factor + offset)
        }
        Step::Standardise(numbers) => {
            for values in values.chunks_exact_mut(numbers.len()) {
                for (value, (mean, stddev)) in values.iter_mut().zip(numbers) {
                    *value = (*value - mean) / stddev;
                }
            }
        }
        Step::Flip(image) => {
            if random.is_some_and(|random| random.below(2) == 1) {
                for row in values.chunks_exact_mut(image.width * image.channels) {
                    for column in 0..image.width / 2 {
                        for channel in 0..image.channels {
                            let other = image.width - 1 - column;
                            row.swap(column * image.channels + channel, other * image.channels + channel);
                        }
                    }
                }
            }
        }
        Step::OneHot { .. } | Step::Crop { .. } => unreachable!("a stage that changes the shape"),
    }
}

/// Copies a window of an image to `to`. The image is first extended by a border of `pad` zeros on each side;
/// `corner` is the row and the column of the window's top left corner in the extended image.
fn crop(from: &[f32], to: &mut Vec<f32>, image: Image, pad: usize, corner: [usize; 2], size: [usize; 2]) {
    let ([top, left], [height, width], channels) = (corner, size, image.channels);
    to.clear();
    to.resize(height * width * channels, 0.0);
    // The columns of the window that lie in the image.
    let begin = pad.saturating_sub(left).min(width);
    let end = (pad + image.width).saturating_sub(left).clamp(begin, width);
    for (row, line) in to.chunks_exact_mut(width * channels).enumerate() {
        let Some(y) = (top + row).checked_sub(pad).filter(|&y| y < image.height) else { continue };
        if begin < end {
            let x = left + begin - pad;
            let source = (y * image.width + x) * channels;
            let length = (end - begin) * channels;
            line[begin * channels..end * channels].copy_from_slice(&from[source..source + length]);
        }
    }
}

#[cfg(test)]
mod tests;
