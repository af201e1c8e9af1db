//! The shapes of a pooling, and the iteration over its windows. This module must not depend on the
//! computation in a window.

use std::ops::Range;

use crate::cpu::shape::expect_len;
use crate::cpu::threads::{ELEMENTS_PER_TASK, Threads};
use crate::cpu::window::{Axis, BadGeometry, Padding, volume};

/// The shapes of a pooling, which turns images `[n, h, w, c]` into images `[n, ho, wo, c]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool2d {
    pub(super) images: usize,
    pub(super) vertical: Axis,
    pub(super) horizontal: Axis,
    pub(super) channels: usize,
}

impl Pool2d {
    /// Returns the pooling of images of the shape `input` (`[n, h, w, c]`); `window` and `stride` are
    /// `[vertical, horizontal]`.
    ///
    /// # Errors
    /// If the shapes do not fit together, if they require a slice that is too long, or if a window
    /// has more than 256 pixels.
    pub fn new(
        input: [usize; 4],
        window: [usize; 2],
        stride: [usize; 2],
        padding: Padding,
    ) -> Result<Self, BadGeometry> {
        let [images, height, width, channels] = input;
        let vertical = Axis::new(height, window[0], stride[0], padding)?;
        let horizontal = Axis::new(width, window[1], stride[1], padding)?;
        if volume(&window)? > 1 << u8::BITS {
            return Err(BadGeometry::TooLarge);
        }
        volume(&input)?;
        // There are at most as many windows as pixels, so the size of the output needs no check.
        Ok(Self { images, vertical, horizontal, channels })
    }

    /// Returns the shape of the input images: `[n, h, w, c]`.
    pub fn input(&self) -> [usize; 4] {
        [self.images, self.vertical.input, self.horizontal.input, self.channels]
    }

    /// Returns the shape of the output images: `[n, ho, wo, c]`.
    pub fn output(&self) -> [usize; 4] {
        [self.images, self.vertical.output, self.horizontal.output, self.channels]
    }

    /// Returns the size of a window: `[vertical, horizontal]`.
    pub fn window(&self) -> [usize; 2] {
        [self.vertical.window, self.horizontal.window]
    }

    /// Returns the distance from the start of a window to the start of the next one: `[vertical,
    /// horizontal]`.
    pub fn stride(&self) -> [usize; 2] {
        [self.vertical.stride, self.horizontal.stride]
    }

    /// Returns the number of pixels of padding above the image and to the left of it.
    pub fn padding_before(&self) -> [usize; 2] {
        [self.vertical.before, self.horizontal.before]
    }

    /// Returns the number of elements of one image before and after pooling.
    pub(super) fn image(&self) -> (usize, usize) {
        (
            self.vertical.input * self.horizontal.input * self.channels,
            self.vertical.output * self.horizontal.output * self.channels,
        )
    }

    /// Returns the number of tasks into which the images are divided.
    pub(super) fn tasks(&self, threads: Threads) -> usize {
        threads.tasks(self.images * self.image().0, ELEMENTS_PER_TASK)
    }

    /// Returns true if no pixel can be in more than one window.
    pub(super) fn is_disjoint(&self) -> bool {
        self.vertical.stride >= self.vertical.window && self.horizontal.stride >= self.horizontal.window
    }

    #[track_caller]
    pub(super) fn expect(&self, x: &[f32], y: &[f32]) {
        expect_len("pooling: images", x, self.images * self.image().0);
        expect_len("pooling: output", y, self.images * self.image().1);
    }

    /// Calls `f` for each window of an image with two arguments: the position of the window's output, and
    /// the pixels of the window that are inside the image.
    #[inline(always)]
    pub(super) fn for_each_window(&self, mut f: impl FnMut(usize, Pixels)) {
        let channels = self.channels;
        for oy in 0..self.vertical.output {
            let (rows, y) = self.vertical.inside(oy);
            for ox in 0..self.horizontal.output {
                let (cols, x) = self.horizontal.inside(ox);
                f(
                    (oy * self.horizontal.output + ox) * channels,
                    Pixels {
                        first: (y * self.horizontal.input + x) * channels,
                        line: self.horizontal.input * channels,
                        channels,
                        rows: rows.len(),
                        cols: cols.len(),
                        number: rows.start * self.horizontal.window + cols.start,
                        width: self.horizontal.window,
                    },
                );
            }
        }
    }
}

/// The pixels of a window that are inside the image.
#[derive(Clone, Copy)]
pub(super) struct Pixels {
    /// The position in the image at which the first of these pixels begins.
    first: usize,
    line: usize,
    channels: usize,
    pub rows: usize,
    pub cols: usize,
    /// The index of the first of these pixels within the window, which is `width` pixels wide.
    number: usize,
    width: usize,
}

impl Pixels {
    /// Returns the range of the image's elements that pixel `col` of row `row` occupies.
    #[inline(always)]
    fn at(&self, row: usize, col: usize) -> Range<usize> {
        let start = self.first + row * self.line + col * self.channels;
        start..start + self.channels
    }

    /// Iterates over the pixels. Each item has the pixel's index within the window, and the range of the
    /// pixel's elements in the image.
    #[inline(always)]
    pub(super) fn each(self) -> impl Iterator<Item = (u8, Range<usize>)> {
        (0..self.rows).flat_map(move |row| {
            (0..self.cols).map(move |col| ((self.number + row * self.width + col) as u8, self.at(row, col)))
        })
    }

    /// Returns the four pixels if the window has the usual size of 2×2 and is entirely inside the image;
    /// `None` otherwise.
    #[inline(always)]
    pub(super) fn two_by_two(&self) -> Option<[Range<usize>; 4]> {
        let whole = (self.rows, self.cols, self.width, self.number) == (2, 2, 2, 0);
        whole.then(|| [self.at(0, 0), self.at(0, 1), self.at(1, 0), self.at(1, 1)])
    }
}
