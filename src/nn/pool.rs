//! Pooling layers, which compute one number for each window of pixels. They have no variables, and therefore
//! no names.

use pushpull_messages::graph::{GraphBuilder, Padding, Window};
use pushpull_messages::id::NodeId;

use super::Layer;

/// A pooling layer, which takes the maximum or the mean of each window in each channel: `[batch, h, w, c]` →
/// `[batch, ho, wo, c]`.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing before it is applied"]
pub struct Pool {
    of: Of,
    window: Window,
}

#[derive(Clone, Copy, Debug)]
enum Of {
    Max,
    Average,
}

/// Makes a layer that takes the maximum of each window of `size` × `size` pixels. By default windows do not
/// overlap. Pixels at the right and lower edges that do not fill a window are ignored.
pub fn max_pool(size: usize) -> Pool {
    Pool { of: Of::Max, window: Window::tiles(size) }
}

/// Makes a layer that takes the mean of each window of `size` × `size` pixels. By default windows do not
/// overlap. Pixels at the right and lower edges that do not fill a window are ignored.
pub fn average_pool(size: usize) -> Pool {
    Pool { of: Of::Average, window: Window::tiles(size) }
}

impl Pool {
    /// Sets the stride: the number of pixels between one position of the window and the next, along both
    /// axes.
    pub fn stride(mut self, pixels: usize) -> Self {
        self.window.stride = [pixels, pixels];
        self
    }

    /// Lets windows extend over the edges of the image, so that the output has h / stride rows and w /
    /// stride columns, rounded up. Only pixels inside the image contribute to the maximum or the mean.
    pub fn same(mut self) -> Self {
        self.window.padding = Padding::Same;
        self
    }
}

impl Layer for Pool {
    fn apply(&self, g: &mut GraphBuilder, x: NodeId) -> NodeId {
        match self.of {
            Of::Max => g.max_pool2d(x, self.window),
            Of::Average => g.average_pool2d(x, self.window),
        }
    }
}

/// A pooling layer that takes the mean of each channel over the whole image: `[batch, h, w, c]` → `[batch,
/// c]` (Lin et al. 2013).
#[derive(Clone, Copy, Debug)]
#[must_use = "a layer does nothing before it is applied"]
pub struct GlobalAveragePool;

/// Makes a layer that takes the mean of each channel over the whole image.
pub fn global_average_pool() -> GlobalAveragePool {
    GlobalAveragePool
}

impl Layer for GlobalAveragePool {
    fn apply(&self, g: &mut GraphBuilder, x: NodeId) -> NodeId {
        g.global_average_pool(x)
    }
}
