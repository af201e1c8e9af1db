//! What a user plots: a named value at a step. Which tools show it is the chief's matter.

use serde::{Deserialize, Serialize};

use crate::id::GlobalStep;

/// Most bytes of a tag.
pub const TAG_BYTES_MAX: usize = 256;
/// Most summaries that travel together.
pub const SUMMARIES_MAX: usize = 1024;
/// Most bytes of the pixels or letters of one summary, and of all that travel together.
pub const SUMMARY_BYTES_MAX: usize = 1 << 20;

/// A named value at a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SummarySpec {
    /// Such as `train/loss`; what comes before the last slash groups the plots.
    pub tag: String,
    /// The job's step that it belongs to.
    pub step: GlobalStep,
    /// The value.
    pub value: SummaryValue,
}

/// What can be plotted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SummaryValue {
    /// One number.
    Scalar(f32),
    /// How numbers are distributed.
    Histogram(HistogramSpec),
    /// A picture.
    Image(ImageSpec),
    /// Words, as Markdown.
    Text(String),
}

/// How numbers are distributed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HistogramSpec {
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// How many there are.
    pub count: f64,
    /// All together.
    pub sum: f64,
    /// All squares together.
    pub sum_squares: f64,
    /// Of each bucket its upper limit, rising, and how many are in it.
    pub buckets: Vec<(f64, f64)>,
}

/// A picture: rows of pixels, one byte for each channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageSpec {
    /// Pixels in a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// 1 for grey, 3 for colours, 4 with transparency.
    pub channels: u8,
    /// height × width × channels.
    pub pixels: Vec<u8>,
}

/// A summary that cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SummaryError {
    /// The tag is empty or too long.
    #[error(
        "a summary's tag has 1 to {TAG_BYTES_MAX} bytes, none of which controls a terminal, and not '{0}'"
    )]
    Tag(String),
    /// There are too many bytes.
    #[error("the summary '{tag}' has {bytes} bytes, and may have at most {SUMMARY_BYTES_MAX}")]
    TooLarge {
        /// Which one.
        tag: String,
        /// What it has.
        bytes: usize,
    },
    /// The picture is none.
    #[error(
        "the image '{tag}' is {height}×{width} with {channels} channel(s), and has {pixels} bytes: expected one for each channel, of which there are 1, 3 or 4"
    )]
    Image {
        /// Which one.
        tag: String,
        /// Rows.
        height: u32,
        /// Pixels in a row.
        width: u32,
        /// Of each pixel.
        channels: u8,
        /// What came.
        pixels: usize,
    },
    /// The limits do not rise.
    #[error("the limits of the histogram '{0}' do not rise")]
    Histogram(String),
}

impl SummarySpec {
    /// One number.
    pub fn scalar(tag: impl Into<String>, step: GlobalStep, value: f32) -> Self {
        Self { tag: tag.into(), step, value: SummaryValue::Scalar(value) }
    }

    /// So many bytes it takes, apart from the tag.
    pub fn bytes(&self) -> usize {
        match &self.value {
            SummaryValue::Scalar(_) => 4,
            SummaryValue::Histogram(histogram) => 40 + 16 * histogram.buckets.len(),
            SummaryValue::Image(image) => image.pixels.len(),
            SummaryValue::Text(text) => text.len(),
        }
    }

    /// Checks it.
    ///
    /// # Errors
    /// What is wrong with it.
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
                let rises = |pair: &[(f64, f64)]| pair[0].0 < pair[1].0;
                if histogram.buckets.windows(2).all(rises) {
                    Ok(())
                } else {
                    Err(SummaryError::Histogram(tag.clone()))
                }
            }
            SummaryValue::Scalar(_) | SummaryValue::Text(_) => Ok(()),
        }
    }
}
