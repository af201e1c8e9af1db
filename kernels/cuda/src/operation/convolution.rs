//! Convolutions of images with a kernel, and their gradients. They are products of matrices that are never
//! stored; the kernels find each element of a factor in the images.

use pushpull_kernels::cpu::Conv2d;

use super::Operation;
use super::tile::Products;
use crate::multiplication::Epilogue;

impl Operation {
    /// Images, the kernel, and the bias if the epilogue has one → epilogue(images ∗ kernel). It computes what
    /// [`conv2d`](pushpull_kernels::cpu::conv2d) computes.
    pub fn conv2d(conv: &Conv2d, epilogue: Epilogue) -> Self {
        let Sizes { pixels, window, .. } = Sizes::of(conv);
        let [_, _, _, columns] = conv.kernel();
        products("conv2d", "Forward", conv, [1, pixels, window, columns], pixels * columns, epilogue)
    }

    /// The kernel, dy → the adjoint of the images. It computes what
    /// [`conv2d_input_grad`](pushpull_kernels::cpu::conv2d_input_grad) computes, if the kernel is finite. If
    /// not, pixels at the edges may be NaN.
    pub fn conv2d_input_grad(conv: &Conv2d) -> Self {
        let [images, height, width, channels] = conv.input();
        let [kernel_height, kernel_width, _, outputs] = conv.kernel();
        let [down, across] = conv.stride();
        // With strides, the pixels fall into classes, which meet different elements of the kernel.
        let rows = images * height.div_ceil(down) * width.div_ceil(across);
        let terms = kernel_height.div_ceil(down) * kernel_width.div_ceil(across) * outputs;
        let sizes = [down * across, rows, terms, channels];
        let elements = images * height * width * channels;
        products("conv2d_input_grad", "InputGradient", conv, sizes, elements, Epilogue::Bare)
    }

    /// Images, dy → the adjoint of the kernel. It computes what
    /// [`conv2d_kernel_grad`](pushpull_kernels::cpu::conv2d_kernel_grad) computes.
    pub fn conv2d_kernel_grad(conv: &Conv2d) -> Self {
        let Sizes { pixels, window } = Sizes::of(conv);
        let [_, _, _, columns] = conv.kernel();
        let sizes = [1, window, pixels, columns];
        products("conv2d_kernel_grad", "KernelGradient", conv, sizes, window * columns, Epilogue::Bare)
    }
}

/// The sizes of the matrix of windows.
struct Sizes {
    /// The number of output pixels.
    pixels: usize,
    /// The number of elements of a window.
    window: usize,
}

impl Sizes {
    fn of(conv: &Conv2d) -> Self {
        let ([images, height, width, _], [kernel_height, kernel_width, channels, _]) =
            (conv.output(), conv.kernel());
        Self { pixels: images * height * width, window: kernel_height * kernel_width * channels }
    }
}

/// Returns the operation of products with these sizes: their number, and the rows, terms and columns of each.
fn products(
    kind: &str,
    of: &str,
    conv: &Conv2d,
    [number, rows, terms, columns]: [usize; 4],
    elements: usize,
    epilogue: Epilogue,
) -> Operation {
    let largest = [conv.input(), conv.kernel(), conv.output()].map(|shape| shape.iter().product());
    let largest = largest.into_iter().max().unwrap_or(0);
    let products = Products { kind, number, rows, terms, columns, elements, largest };
    let axis = |at: usize| {
        let [image, window, output] = [conv.input(), conv.kernel(), conv.output()];
        // The kernel has no axis of images.
        let (window, stride, before) = (window[at], conv.stride()[at], conv.before()[at]);
        format!("product::Axis<{}, {window}, {}, {stride}, {before}>", image[1 + at], output[1 + at])
    };
    let [images, _, _, channels] = conv.input();
    let [_, _, _, outputs] = conv.kernel();
    let shapes = format!(
        "product::Convolution<{}, {images}, {}, {}, {channels}, {outputs}>",
        products.index(),
        axis(0),
        axis(1)
    );
    products.operation(&format!("product::{of}<{shapes}>"), epilogue)
}
