//! Summaries: named values at a step, for a user to plot with tools such as TensorBoard.

use serde::{Deserialize, Serialize};

use crate::excerpt::excerpt;
use crate::id::GlobalStep;

/// The maximum length of a tag, in bytes.
pub const TAG_BYTES_MAX: usize = 256;
/// The maximum number of summaries in one message.
pub const SUMMARIES_MAX: usize = 1024;
/// The maximum size, in bytes, of one summary, and of all summaries in one message together.
pub const SUMMARY_BYTES_MAX: usize = 1 << 20;

/// A named value at a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SummarySpec {
    /// The name of the value, such as `train/loss`. The part before the last slash names the group in which
    /// the plot appears.
    pub tag: String,
    /// The step of the job at which the value was taken.
    pub step: GlobalStep,
    /// The value at this step.
    pub value: SummaryValue,
}

/// A value that can be plotted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SummaryValue {
    /// One number.
    Scalar(f32),
    /// A distribution of values.
    Histogram(HistogramSpec),
    /// An image.
    Image(ImageSpec),
    /// A text in Markdown.
    Text(String),
}

/// A distribution of values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HistogramSpec {
    /// The smallest value.
    pub min: f64,
    /// The greatest value.
    pub max: f64,
    /// The number of values in the distribution.
    pub count: f64,
    /// The sum of the values.
    pub sum: f64,
    /// The sum of the squares of the values.
    pub sum_squares: f64,
    /// The upper limit of each bucket and the number of values in the bucket. The limits are in ascending
    /// order.
    pub buckets: Vec<(f64, f64)>,
}

/// An image: rows of pixels, one byte for each channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageSpec {
    /// The number of pixels in a row.
    pub width: u32,
    /// The number of rows.
    pub height: u32,
    /// The number of channels: 1 for grey, 3 for colour, 4 for colour with transparency.
    pub channels: u8,
    /// The values of the channels, one byte each, with the axes `[height, width, channels]`.
    pub pixels: Vec<u8>,
}

/// An error in a summary.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SummaryError {
    /// The tag is empty, too long, or has control characters.
    #[error("summary tag '{0}' is not valid, expected 1 to {TAG_BYTES_MAX} bytes without control characters")]
    Tag(String),
    /// The summary has too many bytes.
    #[error("summary '{tag}' has {bytes} bytes, expected at most {SUMMARY_BYTES_MAX}")]
    TooLarge {
        /// The tag.
        tag: String,
        /// The size of the value, in bytes.
        bytes: usize,
    },
    /// The image has no pixels, its number of channels is not 1, 3 or 4, or its number of bytes does not
    /// match its height, width and channels.
    #[error(
        "the image '{tag}' is {height}×{width} with {channels} channels and has {pixels} bytes, \
         expected an image that is not empty, has 1, 3 or 4 channels, and has one byte per pixel and channel"
    )]
    Image {
        /// The tag.
        tag: String,
        /// The number of rows.
        height: u32,
        /// The number of pixels in a row.
        width: u32,
        /// The number of channels of a pixel.
        channels: u8,
        /// The number of bytes that the image has.
        pixels: usize,
    },
    /// The limits of the histogram's buckets are not in ascending order.
    #[error(
        "histogram '{0}' has bucket limits that are not in ascending order, expected each limit above the previous one"
    )]
    Histogram(String),
}

impl SummarySpec {
    /// Makes a summary of one number.
    pub fn scalar(tag: impl Into<String>, step: GlobalStep, value: f32) -> Self {
        Self { tag: tag.into(), step, value: SummaryValue::Scalar(value) }
    }

    /// Returns the size of the value in bytes, without the tag.
    pub fn bytes(&self) -> usize {
        match &self.value {
            SummaryValue::Scalar(_) => 4,
            SummaryValue::Histogram(histogram) => 40 + 16 * histogram.buckets.len(),
            SummaryValue::Image(image) => image.pixels.len(),
            SummaryValue::Text(text) => text.len(),
        }
    }

    /// Checks the tag and the value.
    ///
    /// # Errors
    /// Returns the first fault found.
    pub fn validate(&self) -> Result<(), SummaryError> {
        let tag = &self.tag;
        if tag.is_empty() || tag.len() > TAG_BYTES_MAX || tag.chars().any(char::is_control) {
            return Err(SummaryError::Tag(excerpt(tag, 64)));
        }
        let bytes = self.bytes();
        if bytes > SUMMARY_BYTES_MAX {
            return Err(SummaryError::TooLarge { tag: tag.clone(), bytes });
        }
        match &self.value {
            SummaryValue::Image(ImageSpec { width, height, channels, pixels }) => {
                let expected = u64::from(*width) * u64::from(*height) * u64::from(*channels);
                if expected == pixels.len() as u64 && expected > 0 && [1, 3, 4].contains(channels) {
                    return Ok(());
                }
                let (tag, pixels) = (tag.clone(), pixels.len());
                Err(SummaryError::Image { tag, height: *height, width: *width, channels: *channels, pixels })
            }
            SummaryValue::Histogram(histogram) => {
                let ascends = |pair: &[(f64, f64)]| pair[0].0 < pair[1].0;
                if histogram.buckets.windows(2).all(ascends) {
                    Ok(())
                } else {
                    Err(SummaryError::Histogram(tag.clone()))
                }
            }
            SummaryValue::Scalar(_) | SummaryValue::Text(_) => Ok(()),
        }
    }
}
