//! How a window moves over an image: strides, padding and the size of the output.

use serde::{Deserialize, Serialize};

/// What happens at the edges of an image, by TensorFlow's rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Padding {
    /// Uses only windows that lie entirely within the image.
    #[default]
    Valid,
    /// Pads the image about equally on both sides. The number of windows along an axis is the extent of the
    /// image along this axis, divided by the stride and rounded up.
    Same,
}

/// How the kernel of a convolution moves over an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stride {
    /// The vertical and the horizontal distance between neighbouring windows, in pixels; at least 1 each.
    pub stride: [usize; 2],
    /// What happens at the edges of the image.
    #[serde(default)]
    pub padding: Padding,
}

/// The size of a pooling window, and how it moves over an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// The height and width of the window; at least 1 each, and at most 256 pixels in total.
    pub window: [usize; 2],
    /// The vertical and the horizontal distance between neighbouring windows, in pixels; at least 1 each.
    pub stride: [usize; 2],
    /// What happens at the edges of the image.
    #[serde(default)]
    pub padding: Padding,
}

/// The maximum number of pixels in a pooling window.
const WINDOW_PIXELS_MAX: usize = 256;

impl Padding {
    /// Returns the number of windows along an axis, or `None` if no window fits or if `window` or `stride`
    /// is 0.
    fn windows(self, input: usize, window: usize, stride: usize) -> Option<usize> {
        if window == 0 || stride == 0 || input == 0 {
            return None;
        }
        match self {
            Self::Valid => Some(input.checked_sub(window)? / stride + 1),
            Self::Same => Some(input.div_ceil(stride)),
        }
    }
}

impl Stride {
    /// A stride of 1 in both directions, without padding.
    pub const ONE: Self = Self { stride: [1, 1], padding: Padding::Valid };

    /// Returns the height and width of the output, or `None` if no window fits.
    pub(super) fn output(&self, image: [usize; 2], kernel: [usize; 2]) -> Option<[usize; 2]> {
        let along = |axis: usize| self.padding.windows(image[axis], kernel[axis], self.stride[axis]);
        Some([along(0)?, along(1)?])
    }
}

impl Window {
    /// Returns square windows of height and width `size` that touch but do not overlap. Pixels at the edges
    /// that do not fill a window are ignored.
    pub const fn tiles(size: usize) -> Self {
        Self { window: [size, size], stride: [size, size], padding: Padding::Valid }
    }

    /// Returns the height and width of the output, or `None` if no window fits.
    pub(super) fn output(&self, image: [usize; 2]) -> Option<[usize; 2]> {
        let pixels = self.window[0].checked_mul(self.window[1])?;
        let moves = Stride { stride: self.stride, padding: self.padding };
        moves.output(image, self.window).filter(|_| pixels <= WINDOW_PIXELS_MAX)
    }
}
