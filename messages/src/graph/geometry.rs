//! How a window moves over an image: strides and padding, and what that makes of its extents.

use serde::{Deserialize, Serialize};

/// What is done at the edges of an image; TensorFlow's rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Padding {
    /// Only windows that lie within the image.
    #[default]
    Valid,
    /// As many windows as there are strides, the image padded evenly on both sides.
    Same,
}

/// How a convolution's kernel moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stride {
    /// Down, and to the right; at least 1.
    pub stride: [usize; 2],
    /// At the edges.
    #[serde(default)]
    pub padding: Padding,
}

/// How a pooling's window looks and moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Height and width; at least 1, and at most 256 pixels in all.
    pub window: [usize; 2],
    /// Down, and to the right; at least 1.
    pub stride: [usize; 2],
    /// At the edges.
    #[serde(default)]
    pub padding: Padding,
}

/// Most pixels in a pooling's window.
const WINDOW_PIXELS_MAX: usize = 256;

impl Padding {
    /// How many windows there are along an axis; `None` where there is none, or a stride or window is 0.
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
    /// One at a time, and only where the kernel lies within the image.
    pub const ONE: Self = Self { stride: [1, 1], padding: Padding::Valid };

    /// Height and width of what comes out.
    pub(super) fn output(&self, image: [usize; 2], kernel: [usize; 2]) -> Option<[usize; 2]> {
        let along = |axis: usize| self.padding.windows(image[axis], kernel[axis], self.stride[axis]);
        Some([along(0)?, along(1)?])
    }
}

impl Window {
    /// Side by side, of that size in both directions; what is left at the edges is not looked at.
    pub const fn tiles(size: usize) -> Self {
        Self { window: [size, size], stride: [size, size], padding: Padding::Valid }
    }

    /// Height and width of what comes out.
    pub(super) fn output(&self, image: [usize; 2]) -> Option<[usize; 2]> {
        let pixels = self.window[0].checked_mul(self.window[1])?;
        let moves = Stride { stride: self.stride, padding: self.padding };
        moves.output(image, self.window).filter(|_| pixels <= WINDOW_PIXELS_MAX)
    }
}
