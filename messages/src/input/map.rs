//! What happens to a column on its way from the data set to the batch, as data.
//! Knows neither the numbers nor how it is done.

use serde::{Deserialize, Serialize};

use super::{COLUMNS_MAX, EXAMPLE_ELEMENTS_MAX, InputSpecError};

/// One stage of one column. Stages of a column follow one another in the order in which they are listed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapSpec {
    /// The column.
    pub column: String,
    /// What happens to it.
    pub stage: StageSpec,
}

/// What happens to an example.
///
/// What is random is drawn from the job's seed, the epoch and the example's position, so that it comes out the same
/// whenever the example is read again in that epoch; two columns with the same stages are cropped and flipped alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum StageSpec {
    /// Of floats: value · factor + offset.
    Scale {
        /// The factor.
        factor: f32,
        /// The offset.
        #[serde(default)]
        offset: f32,
    },
    /// Of floats: (value − mean) / stddev, with numbers for each position along the last axis, or one for all.
    Standardise {
        /// The means.
        mean: Vec<f32>,
        /// The standard deviations, above 0.
        stddev: Vec<f32>,
    },
    /// Of integers from 0 to `classes` − 1: floats, with another axis behind of 1 at the class and 0 elsewhere.
    OneHot {
        /// How many classes there are.
        classes: u32,
    },
    /// Of images, `[height, width, channels]` of floats: a window at a random place of the image with a border of
    /// zeros. Of the test set, the window in the middle.
    RandomCrop {
        /// The border's width, on every side.
        pad: u32,
        /// Height and width of the window.
        size: [u32; 2],
    },
    /// Of images, `[height, width, channels]` of floats: left and right change places in every other image, by
    /// chance. Of the test set, never.
    RandomFlip,
}

impl MapSpec {
    /// A stage of the column of that name.
    pub fn new(column: &str, stage: StageSpec) -> Self {
        Self { column: column.to_owned(), stage }
    }

    pub(super) fn validate(&self) -> Result<(), InputSpecError> {
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
                    let expected = format!("1 to {COLUMNS_MAX}, and as many of one as of the other");
                    let got = format!("{} means and {} deviations", mean.len(), stddev.len());
                    return InputSpecError::range(what("the numbers to standardise by"), expected, got);
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
