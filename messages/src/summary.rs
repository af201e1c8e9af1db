//! Summaries: named values at a step, which a user plots. Does not know which tools show them.

use serde::{Deserialize, Serialize};

use crate::id::GlobalStep;

/// The most bytes of a tag.
pub const TAG_BYTES_MAX: usize = 256;
/// The most summaries in one message.
pub const SUMMARIES_MAX: usize = 1024;
/// The most bytes of one summary, and of all summaries in one message.
pub const SUMMARY_BYTES_MAX: usize = 1 << 20;

/// A named value at a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SummarySpec {
    /// The name, such as `train/loss`; the part before the last slash groups the plots.
    pub tag: String,
    /// The job's step.
    pub step: GlobalStep,
    /// The value.
    pub value: SummaryValue,
}

/// A value that can be plotted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SummaryValue {
    /// One number.
    Scalar(f32),
    /// A distribution of numbers.
    Histogram(HistogramSpec),
    /// An image.
    Image(ImageSpec),
    /// A text in Markdown.
    Text(String),
}

/// A distribution of numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HistogramSpec {
    /// The least number.
    pub min: f64,
    /// The greatest number.
    pub max: f64,
    /// The count of the numbers.
    pub count: f64,
    /// The sum of the numbers.
    pub sum: f64,
    /// The sum of their squares.
    pub sum_squares: f64,
    /// The upper limit of each bucket, ascending, and the count of numbers in it.
    pub buckets: Vec<(f64, f64)>,
}

/// An image: rows of pixels, one byte for each channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageSpec {
    /// The pixels in a row.
    pub width: u32,
    /// The number of rows.
    pub height: u32,
    /// The channels: 1 for grey, 3 for colour, 4 for colour with transparency.
    pub channels: u8,
    /// The bytes, `[height, width, channels]`.
    pub pixels: Vec<u8>,
}

/// An invalid summary.
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
        /// The bytes of the value.
        bytes: usize,
    },
    /// The image's extents and its bytes disagree.
    #[error(
        "the image '{tag}' is {height}×{width} with {channels} channels and has {pixels} bytes, \
         expected one per pixel and channel, and 1, 3 or 4 channels"
    )]
    Image {
        /// The tag.
        tag: String,
        /// The number of rows.
        height: u32,
        /// The pixels in a row.
        width: u32,
        /// The channels of a pixel.
        channels: u8,
        /// The bytes found.
        pixels: usize,
    },
    /// The histogram's limits are not ascending.
    #[error("histogram '{0}' has limits that do not ascend, expected each above the one before")]
    Histogram(String),
}

impl SummarySpec {
    /// Makes a summary of one number.
    pub fn scalar(tag: impl Into<String>, step: GlobalStep, value: f32) -> Self {
        Self { tag: tag.into(), step, value: SummaryValue::Scalar(value) }
    }

    /// Returns the bytes of the value, without the tag.
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
    /// The first fault found.
    pub fn validate(&self) -> Result<(), SummaryError> {
        let tag = &self.tag;
        if tag.is_empty() || tag.len() > TAG_BYTES_MAX || tag.chars().any(char::is_control) {
            let shown = tag.chars().filter(|letter| !letter.is_control()).take(64).collect();
            return Err(SummaryError::Tag(shown));
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
