//! How a window moves over an image: strides, padding and the resulting extents. Knows no pixels.

use serde::{Deserialize, Serialize};

/// The treatment of an image's edges, by TensorFlow's rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Padding {
    /// Uses only windows that lie within the image.
    #[default]
    Valid,
    /// Uses one window per stride, with the image padded evenly on both sides.
    Same,
}

/// The movement of a convolution's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stride {
    /// The distance down and to the right between two windows; at least 1.
    pub stride: [usize; 2],
    /// The treatment of the edges.
    #[serde(default)]
    pub padding: Padding,
}

/// The size and movement of a pooling's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// The height and width; at least 1, and at most 256 pixels in all.
    pub window: [usize; 2],
    /// The distance down and to the right between two windows; at least 1.
    pub stride: [usize; 2],
    /// The treatment of the edges.
    #[serde(default)]
    pub padding: Padding,
}

/// The maximum number of pixels in a pooling's window.
const WINDOW_PIXELS_MAX: usize = 256;

impl Padding {
    /// Returns the number of windows along an axis; `None` if there are none, or if a stride or window is 0.
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
    /// A stride of 1 without padding.
    pub const ONE: Self = Self { stride: [1, 1], padding: Padding::Valid };

    /// Returns the height and width of the output.
    pub(super) fn output(&self, image: [usize; 2], kernel: [usize; 2]) -> Option<[usize; 2]> {
        let along = |axis: usize| self.padding.windows(image[axis], kernel[axis], self.stride[axis]);
        Some([along(0)?, along(1)?])
    }
}

impl Window {
    /// Returns square windows of `size` that lie side by side; a remainder at the edges is ignored.
    pub const fn tiles(size: usize) -> Self {
        Self { window: [size, size], stride: [size, size], padding: Padding::Valid }
    }

    /// Returns the height and width of the output.
    pub(super) fn output(&self, image: [usize; 2]) -> Option<[usize; 2]> {
        let pixels = self.window[0].checked_mul(self.window[1])?;
        let moves = Stride { stride: self.stride, padding: self.padding };
        moves.output(image, self.window).filter(|_| pixels <= WINDOW_PIXELS_MAX)
    }
}
