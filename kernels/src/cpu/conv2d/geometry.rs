//! [`Conv2d`]: the shapes of one convolution, checked once. This module must not depend on the algorithm.

use crate::cpu::window::{Axis, BadGeometry, Padding, volume};

/// The shapes of a convolution of images `[n, h, w, cin]` with a kernel `[kh, kw, cin, cout]`, whose output
/// is `[n, ho, wo, cout]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2d {
    pub(super) images: usize,
    pub(super) vertical: Axis,
    pub(super) horizontal: Axis,
    pub(super) cin: usize,
    pub(super) cout: usize,
}

impl Conv2d {
    /// Returns the convolution of images of the shape `input` (`[n, h, w, cin]`) with a kernel of the shape
    /// `kernel` (`[kh, kw, cin, cout]`); `stride` is `[vertical, horizontal]`.
    ///
    /// # Errors
    /// If the shapes do not fit together, or if they require a slice that is too long.
    pub fn new(
        input: [usize; 4],
        kernel: [usize; 4],
        stride: [usize; 2],
        padding: Padding,
    ) -> Result<Self, BadGeometry> {
        let [images, height, width, cin] = input;
        let [kernel_height, kernel_width, kernel_cin, cout] = kernel;
        if cin != kernel_cin {
            return Err(BadGeometry::Channels { image: cin, kernel: kernel_cin });
        }
        if cin == 0 || cout == 0 {
            return Err(BadGeometry::EmptyWindow);
        }
        let vertical = Axis::new(height, kernel_height, stride[0], padding)?;
        let horizontal = Axis::new(width, kernel_width, stride[1], padding)?;
        volume(&[images, vertical.padded, horizontal.padded, cin])?;
        volume(&[images, vertical.output, horizontal.output, cout])?;
        volume(&kernel)?;
        Ok(Self { images, vertical, horizontal, cin, cout })
    }

    /// Returns the shape of the images: `[n, h, w, cin]`.
    pub fn input(&self) -> [usize; 4] {
        [self.images, self.vertical.input, self.horizontal.input, self.cin]
    }

    /// Returns the shape of the kernel: `[kh, kw, cin, cout]`.
    pub fn kernel(&self) -> [usize; 4] {
        [self.vertical.window, self.horizontal.window, self.cin, self.cout]
    }

    /// Returns the shape of the output: `[n, ho, wo, cout]`.
    pub fn output(&self) -> [usize; 4] {
        [self.images, self.vertical.output, self.horizontal.output, self.cout]
    }

    /// Returns the distance from one window's start to the next: `[vertical, horizontal]`.
    pub fn stride(&self) -> [usize; 2] {
        [self.vertical.stride, self.horizontal.stride]
    }

    /// Returns the padding before the image: `[above, to the left]`.
    pub fn before(&self) -> [usize; 2] {
        [self.vertical.before, self.horizontal.before]
    }

    /// Returns the number of floats of scratch memory that [`conv2d`](super::conv2d()) needs: the size of a
    /// padded copy of the images, or 0 without padding.
    pub fn forward_scratch(&self) -> usize {
        if self.is_padded() { self.padded_len() } else { 0 }
    }

    /// Returns the number of floats of scratch memory that [`conv2d_kernel_grad`](super::conv2d_kernel_grad)
    /// needs: the size of a padded copy of the images, or 0 without padding.
    pub fn kernel_grad_scratch(&self) -> usize {
        self.forward_scratch()
    }

    /// Returns the number of floats of scratch memory that [`conv2d_input_grad`](super::conv2d_input_grad)
    /// needs: the size of a transposed copy of the kernel, plus, if there is padding, the size of the
    /// gradient with respect to the padded images.
    pub fn input_grad_scratch(&self) -> usize {
        // The sum cannot overflow, because both numbers are lengths of slices of floats, and so at most a
        // quarter of `isize::MAX`.
        self.kernel_len() + self.forward_scratch()
    }

    pub(super) fn is_padded(&self) -> bool {
        self.vertical.padded != self.vertical.input || self.horizontal.padded != self.horizontal.input
    }

    pub(super) fn input_len(&self) -> usize {
        self.input().iter().product()
    }

    pub(super) fn kernel_len(&self) -> usize {
        self.kernel().iter().product()
    }

    pub(super) fn output_len(&self) -> usize {
        self.output().iter().product()
    }

    pub(super) fn padded_len(&self) -> usize {
        self.images * self.padded_image()
    }

    /// Returns the number of elements of one padded image.
    pub(super) fn padded_image(&self) -> usize {
        self.vertical.padded * self.line()
    }

    /// Returns the number of elements of one line of a padded image.
    pub(super) fn line(&self) -> usize {
        self.horizontal.padded * self.cin
    }

    /// Returns the number of elements of one line of a window, which are contiguous in the padded image. The
    /// kernel, seen as a matrix, has one row for each of these elements.
    pub(super) fn run(&self) -> usize {
        self.horizontal.window * self.cin
    }

    /// Returns the number of pixels of one output image.
    pub(super) fn output_pixels(&self) -> usize {
        self.vertical.output * self.horizontal.output
    }

    /// Returns the number of floating-point operations of the convolution, or of one of its gradients.
    pub(super) fn flops(&self) -> usize {
        self.output_len().saturating_mul(self.vertical.window * self.run()).saturating_mul(2)
    }

    /// Iterates over the starts of the windows in the padded images. Begins with the window of output pixel
    /// `pixel`, counted over all `n · ho · wo` pixels.
    pub(super) fn windows_from(&self, pixel: usize) -> Windows<'_> {
        let per_image = self.output_pixels().max(1);
        let width = self.horizontal.output.max(1);
        let (image, pixel) = (pixel / per_image, pixel % per_image);
        let mut windows =
            Windows { conv: self, row: pixel / width, col: pixel % width, image: 0, line: 0, at: 0 };
        windows.image = image * self.padded_image();
        windows.start_row();
        windows.at += windows.col * self.horizontal.stride * self.cin;
        windows
    }
}

/// An endless iterator over consecutive output pixels, which returns the start of each pixel's window.
pub(super) struct Windows<'a> {
    conv: &'a Conv2d,
    /// The row and the column (`col`) of the next output pixel in its image.
    row: usize,
    col: usize,
    /// Three offsets for the next output pixel: the start of its padded image (`image`), the start of the
    /// first window in its row (`line`), and the start of its own window (`at`).
    image: usize,
    line: usize,
    at: usize,
}

impl Windows<'_> {
    #[inline(always)]
    fn start_row(&mut self) {
        self.line = self.image + self.row * self.conv.vertical.stride * self.conv.line();
        self.at = self.line;
    }

    /// Returns the start of the next window, and advances by one pixel.
    #[inline(always)]
    pub fn next(&mut self) -> usize {
        let start = self.at;
        self.at += self.conv.horizontal.stride * self.conv.cin;
        self.col += 1;
        if self.col == self.conv.horizontal.output {
            (self.col, self.row) = (0, self.row + 1);
            if self.row == self.conv.vertical.output {
                self.row = 0;
                self.image += self.conv.padded_image();
            }
            self.start_row();
        }
        start
    }
}
