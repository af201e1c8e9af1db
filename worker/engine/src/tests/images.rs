//! Computes which pixels of an image each window of a convolution or a pooling covers. This module must not
//! depend on operations.

use pushpull_messages::graph::Padding;

/// The shape of a batch of images, `[n, h, w, c]`.
pub(super) struct Images {
    count: usize,
    extents: [usize; 2],
    pub channels: usize,
}

impl Images {
    pub fn of(shape: &[usize]) -> Self {
        Self { count: shape[0], extents: [shape[1], shape[2]], channels: shape[3] }
    }

    /// Returns, for every window, the offset of each of its pixels, or `None` for a pixel of padding.
    pub fn windows(
        &self,
        window: [usize; 2],
        stride: [usize; 2],
        padding: Padding,
    ) -> Vec<Vec<Option<usize>>> {
        // This is TensorFlow's rule. With `same`, the number of windows is the extent divided by the stride,
        // rounded up. If the number of padding pixels is odd, the extra pixel is at the end.
        let along = |axis: usize| match padding {
            Padding::Valid => ((self.extents[axis] - window[axis]) / stride[axis] + 1, 0),
            Padding::Same => {
                let windows = self.extents[axis].div_ceil(stride[axis]);
                let covered = (windows - 1) * stride[axis] + window[axis];
                (windows, covered.saturating_sub(self.extents[axis]) / 2)
            }
        };
        let ((rows, top), (cols, left)) = (along(0), along(1));
        let at = |start: usize, offset: usize, before: usize, extent: usize| {
            (start + offset).checked_sub(before).filter(|&at| at < extent)
        };
        let mut all = Vec::new();
        for image in 0..self.count {
            for (row, col) in (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col))) {
                let pixel = |(y, x): (usize, usize)| {
                    let y = at(row * stride[0], y, top, self.extents[0])?;
                    let x = at(col * stride[1], x, left, self.extents[1])?;
                    Some(((image * self.extents[0] + y) * self.extents[1] + x) * self.channels)
                };
                let offsets = (0..window[0]).flat_map(|y| (0..window[1]).map(move |x| (y, x)));
                all.push(offsets.map(pixel).collect());
            }
        }
        all
    }
}
