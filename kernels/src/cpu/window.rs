//! The windows along one axis of an image: output size and padding, by TensorFlow's rules.
//!
//! This module must not depend on the computation in a window.

use std::error::Error;
use std::fmt;

/// The padding at the edges of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// No padding: every window is inside the image, and `out = ⌊(in − size) / stride⌋ + 1`.
    Valid,
    /// Enough padding for `out = ⌈in / stride⌉`. Half of the padding, rounded down, is before the image, and
    /// the rest is after it.
    Same,
}

/// The reason why windows and images do not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadGeometry {
    /// A stride is 0.
    ZeroStride,
    /// The size of a window, or its number of channels, is 0.
    EmptyWindow,
    /// An image is smaller than a window, and there is no padding.
    WindowExceedsImage,
    /// The number of channels of the images differs from that of the kernel.
    Channels {
        /// The number of channels of the images.
        image: usize,
        /// The number of input channels of the kernel.
        kernel: usize,
    },
    /// A size overflows `usize`, or is greater than the maximum length of a slice.
    TooLarge,
}

impl fmt::Display for BadGeometry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroStride => write!(f, "a stride is 0, expected at least 1"),
            Self::EmptyWindow => write!(f, "the window has size 0 or no channels"),
            Self::WindowExceedsImage => {
                write!(f, "the window is larger than the image, and there is no padding")
            }
            Self::Channels { image, kernel } => {
                write!(f, "the images have {image} channels, but the kernel expects {kernel}")
            }
            Self::TooLarge => write!(f, "the sizes are too large"),
        }
    }
}

impl Error for BadGeometry {}

/// One axis of an image, with the windows along it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Axis {
    /// The size of the image along this axis.
    pub input: usize,
    /// The size of a window along this axis.
    pub window: usize,
    /// The distance from one window's start to the next.
    pub stride: usize,
    /// The number of windows, which is the output's size.
    pub output: usize,
    /// The padding before the image.
    pub before: usize,
    /// The size of the image with the padding before and after it.
    pub padded: usize,
}

impl Axis {
    pub fn new(input: usize, window: usize, stride: usize, padding: Padding) -> Result<Self, BadGeometry> {
        if stride == 0 {
            return Err(BadGeometry::ZeroStride);
        }
        if window == 0 {
            return Err(BadGeometry::EmptyWindow);
        }
        let (output, total) = match padding {
            Padding::Valid => {
                let slack = input.checked_sub(window).ok_or(BadGeometry::WindowExceedsImage)?;
                (slack / stride + 1, 0)
            }
            Padding::Same => {
                let output = input.div_ceil(stride);
                // (output − 1) · stride < input, so only the sum can overflow.
                let needed = (output.saturating_sub(1) * stride).checked_add(window);
                (output, needed.ok_or(BadGeometry::TooLarge)?.saturating_sub(input))
            }
        };
        let padded = input.checked_add(total).ok_or(BadGeometry::TooLarge)?;
        Ok(Self { input, window, stride, output, before: total / 2, padded })
    }

    /// Returns the part of window `at` that is inside the image: the range of its offsets within the window,
    /// and the position of its first pixel in the image.
    #[inline(always)]
    pub fn inside(&self, at: usize) -> (std::ops::Range<usize>, usize) {
        let start = at * self.stride;
        let first = self.before.saturating_sub(start).min(self.window);
        let end = (self.before + self.input).saturating_sub(start).min(self.window);
        (first..end.max(first), (start + first).saturating_sub(self.before))
    }
}

/// Returns the product of `sizes` if a slice of floats can have this length, else an error.
pub(super) fn volume(sizes: &[usize]) -> Result<usize, BadGeometry> {
    // The check counts a size of 0 as 1. Otherwise a 0 would hide an overflow in the product of the other
    // sizes, and kernels use such products as distances between elements.
    let product = sizes.iter().try_fold(1usize, |product, &size| product.checked_mul(size.max(1)));
    match product {
        Some(product) if product <= isize::MAX as usize / size_of::<f32>() => Ok(sizes.iter().product()),
        _ => Err(BadGeometry::TooLarge),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn windows_cover_the_padded_image(input in 0usize..40, window in 1usize..8, stride in 1usize..6) {
            if let Ok(axis) = Axis::new(input, window, stride, Padding::Valid) {
                prop_assert!((axis.output - 1) * stride + window <= input);
                prop_assert!(axis.output * stride + window > input);
                prop_assert_eq!((axis.before, axis.padded), (0, input));
            } else {
                prop_assert!(window > input);
            }
            let axis = Axis::new(input, window, stride, Padding::Same).unwrap();
            prop_assert_eq!(axis.output, input.div_ceil(stride));
            prop_assert!(axis.output == 0 || (axis.output - 1) * stride + window <= axis.padded);
            prop_assert_eq!(axis.before, (axis.padded - input) / 2);
            for at in 0..axis.output {
                let (offsets, position) = axis.inside(at);
                let want: Vec<_> = (0..window)
                    .filter_map(|offset| (at * stride + offset).checked_sub(axis.before))
                    .filter(|&position| position < input)
                    .collect();
                prop_assert_eq!((position..position + offsets.len()).collect::<Vec<_>>(), want);
            }
        }
    }

    #[test]
    fn impossible_axes() {
        use BadGeometry::*;
        use Padding::*;
        assert_eq!(Axis::new(5, 3, 0, Valid), Err(ZeroStride));
        assert_eq!(Axis::new(5, 0, 1, Same), Err(EmptyWindow));
        assert_eq!(Axis::new(2, 3, 1, Valid), Err(WindowExceedsImage));
        assert_eq!(Axis::new(usize::MAX, 3, 1, Same), Err(TooLarge));
        assert_eq!(Axis::new(5, usize::MAX, 1, Same), Err(TooLarge));
        assert_eq!(volume(&[0, usize::MAX, 2]), Err(TooLarge));
        assert_eq!(volume(&[3, 0, 4]), Ok(0));
    }
}
