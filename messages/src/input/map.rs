//! Map stages: changes to a column between the data set and the batch. The crate `pushpull-input` applies
//! them.

use serde::{Deserialize, Serialize};

use super::{COLUMNS_MAX, EXAMPLE_ELEMENTS_MAX, InputSpecError};

/// A map stage of one column. If a column has several stages, they are applied in the order in which they
/// are listed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapSpec {
    /// The name of the column.
    pub column: String,
    /// The change to each example of the column.
    pub stage: StageSpec,
}

/// A change that a map stage makes to each example of a column.
///
/// Random stages depend on the job's seed, the epoch and the example's position. An example that is read
/// twice in an epoch therefore has the same result both times. Two columns with the same stages, such as an
/// image and its mask, are cropped and flipped in the same way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum StageSpec {
    /// Replaces each float by value · factor + offset.
    Scale {
        /// The factor.
        factor: f32,
        /// The offset.
        #[serde(default)]
        offset: f32,
    },
    /// Replaces each float by (value − mean) / stddev. There is one mean and one standard deviation for each
    /// position along the last axis, or a single pair for all positions.
    Standardise {
        /// The means.
        mean: Vec<f32>,
        /// The standard deviations, above 0.
        stddev: Vec<f32>,
    },
    /// One-hot encodes integers from 0 to `classes` − 1: adds a last axis of floats, with 1 at the class and
    /// 0 at all other positions.
    OneHot {
        /// The number of classes.
        classes: u32,
    },
    /// Adds a border of zeros to images, which are floats of the shape `[height, width, channels]`, and
    /// crops them to a window. For the training set, the window is at a random position; for the test set,
    /// it is at the centre.
    RandomCrop {
        /// The width of the border on every side, in pixels.
        pad: u32,
        /// The height and width of the window, in pixels.
        size: [u32; 2],
    },
    /// Flips images, which are floats of the shape `[height, width, channels]`, left to right with
    /// probability 1/2. Images of the test set are never flipped.
    RandomFlip,
}

impl MapSpec {
    /// Makes a map stage for the column called `column`.
    pub fn new(column: &str, stage: StageSpec) -> Self {
        Self { column: column.to_owned(), stage }
    }

    /// Checks the settings of the stage.
    ///
    /// # Errors
    /// If a number is out of range.
    pub fn validate(&self) -> Result<(), InputSpecError> {
        InputSpecError::name(|| "a map stage's column".into(), &self.column)?;
        let what = |what: &str| format!("{what} of column '{}'", self.column);
        let limit = EXAMPLE_ELEMENTS_MAX as u32;
        match &self.stage {
            StageSpec::Scale { factor, offset } => {
                match [factor, offset].into_iter().find(|number| !number.is_finite()) {
                    Some(number) => InputSpecError::range(what("the scale"), "finite", number),
                    None => Ok(()),
                }
            }
            StageSpec::Standardise { mean, stddev } => {
                if mean.len() != stddev.len() || !(1..=COLUMNS_MAX).contains(&mean.len()) {
                    let expected = format!("1 to {COLUMNS_MAX} pairs");
                    let got = format!("{} means and {} standard deviations", mean.len(), stddev.len());
                    return InputSpecError::range(
                        what("the list of means and standard deviations"),
                        expected,
                        got,
                    );
                }
                if let Some(mean) = mean.iter().find(|mean| !mean.is_finite()) {
                    return InputSpecError::range(what("a mean"), "finite", mean);
                }
                match stddev.iter().find(|stddev| !(stddev.is_finite() && **stddev > 0.0)) {
                    Some(stddev) => {
                        InputSpecError::range(what("a standard deviation"), "finite and above 0", stddev)
                    }
                    None => Ok(()),
                }
            }
            StageSpec::OneHot { classes } if !(1..=limit).contains(classes) => {
                InputSpecError::range(what("the number of classes"), format!("1 to {limit}"), classes)
            }
            StageSpec::RandomCrop { pad, size } => {
                if *pad > 1 << 14 {
                    return InputSpecError::range(what("the border"), format!("at most {}", 1 << 14), pad);
                }
                match size.iter().find(|size| !(1..=1 << 15).contains(*size)) {
                    Some(size) => {
                        InputSpecError::range(what("the window's size"), format!("1 to {}", 1 << 15), size)
                    }
                    None => Ok(()),
                }
            }
            StageSpec::OneHot { .. } | StageSpec::RandomFlip => Ok(()),
        }
    }
}
