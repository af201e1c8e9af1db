//! Pooling: the maximum or the mean of each channel in windows of images, and their gradients. Images have
//! the shape `[images, height, width, channels]`.

use pushpull_kernels::cpu::{Pool2d, Reduction};

use super::axes::{Axis, index_type, offset};
use super::columns::reduce_columns;
use super::element::each;
use super::{Operation, Slot, thread_for_each};
use crate::source::Library;

use Slot::{Input, Output};

impl Operation {
    /// Images → the maximum of each window, and its position in the window as a byte, as
    /// [`max_pool`](pushpull_kernels::cpu::max_pool) counts it.
    pub fn max_pool(pool: &Pool2d) -> Self {
        let parameters = "float* maxima, unsigned char* positions, const float* images";
        let call = "max_of_window(maxima, positions, images";
        on_windows("max_pool", [parameters, call], pool, pool.output(), &[Output(0), Output(1), Input(0)])
    }

    /// The positions of the maxima, dy → the adjoint of the images.
    pub fn max_pool_grad(pool: &Pool2d) -> Self {
        let parameters = "float* to, const unsigned char* positions, const float* gradients";
        let call = "gradient_of_maxima(to, positions, gradients";
        on_windows("max_pool_grad", [parameters, call], pool, pool.input(), &[Output(0), Input(0), Input(1)])
    }

    /// Images → the mean of each window.
    pub fn average_pool(pool: &Pool2d) -> Self {
        let parameters = "float* means, const float* images";
        let call = "mean_of_window(means, images";
        on_windows("average_pool", [parameters, call], pool, pool.output(), &[Output(0), Input(0)])
    }

    /// dy → the adjoint of the images.
    pub fn average_pool_grad(pool: &Pool2d) -> Self {
        let parameters = "float* to, const float* gradients";
        let call = "gradient_of_means(to, gradients";
        on_windows("average_pool_grad", [parameters, call], pool, pool.input(), &[Output(0), Input(0)])
    }

    /// Images of the shape `[images, pixels, channels]` → the mean of each channel, `[images, channels]`. It
    /// is NaN if there are no pixels.
    pub fn global_average_pool([images, pixels, channels]: [usize; 3]) -> Self {
        if images * channels == 0 {
            return Self::nothing();
        }
        reduce_columns(Reduction::Mean, [images, pixels, channels])
    }

    /// dy of the shape `[images, channels]` → the adjoint of the images, `[images, pixels, channels]`.
    pub fn global_average_pool_grad([images, pixels, channels]: [usize; 3]) -> Self {
        let axes = [(channels, 1), (pixels, 0), (images, channels)];
        let from = offset("at", axes.map(|(size, stride)| Axis { size, stride }));
        let formula = format!("gradients[{from}] / {:?}f", pixels as f32);
        let elements = images * pixels * channels;
        each("global_average_pool_grad", ", const float* gradients", &formula, elements, &[Input(0)])
    }
}

/// Returns an operation that calls a function of the library for each element of images of this shape, with
/// the sizes of the pooling as constants.
fn on_windows(
    kind: &str,
    [parameters, call]: [&str; 2],
    pool: &Pool2d,
    shape: [usize; 4],
    arguments: &[Slot],
) -> Operation {
    let elements: usize = shape.iter().product();
    if elements == 0 {
        return Operation::nothing();
    }
    let ([images, height, width, channels], [_, output_height, output_width, _]) =
        (pool.input(), pool.output());
    let ([tall, wide], [down, right], [above, left]) = (pool.window(), pool.stride(), pool.padding_before());
    // A stride that is larger than an image is allowed.
    let index = index_type((images * height * width * channels).max(down).max(right));
    let body = format!(
        "    const Pool<{index}> pool = {{{{{height}, {output_height}, {tall}, {down}, {above}}},\n        \
         {{{width}, {output_width}, {wide}, {right}, {left}}}, {channels}}};\n    \
         FOR_EACH(at, {elements}) {call}, pool, ({index})at);\n"
    );
    let grid = thread_for_each(elements);
    Operation::default().then_generated(Library::Pool, kind, [parameters, &body], grid, arguments)
}
