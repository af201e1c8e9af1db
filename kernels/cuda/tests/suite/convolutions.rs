//! Convolutions and their gradients agree with those of the processor, on every device.

use pushpull_cuda::{Epilogue, Operation};
use pushpull_kernels::cpu::{self, Conv2d, Padding, Threads};

use crate::case::{Case, Data, agree};
use crate::mutations::{Mutation, find_all_in};
use crate::numbers::Numbers;
use crate::products::tolerance;

type Shapes = ([usize; 4], [usize; 4], [usize; 2], Padding);

const SHAPES: [Shapes; 10] = [
    ([2, 5, 6, 3], [3, 3, 3, 4], [1, 1], Padding::Same),
    ([1, 7, 7, 1], [5, 5, 1, 6], [1, 1], Padding::Valid),
    ([2, 8, 7, 2], [3, 2, 2, 9], [2, 3], Padding::Same),
    ([2, 9, 8, 4], [2, 3, 4, 5], [3, 2], Padding::Valid),
    // Some pixels are in no window.
    ([1, 4, 5, 8], [1, 1, 8, 9], [2, 3], Padding::Valid),
    // The kernel is larger than the image.
    ([3, 3, 2, 2], [4, 5, 2, 3], [1, 1], Padding::Same),
    ([0, 4, 4, 2], [3, 3, 2, 5], [1, 1], Padding::Same),
    // The sums of one operation or the other are divided into parts.
    ([5, 9, 8, 1], [3, 3, 1, 18], [1, 1], Padding::Same),
    ([1, 6, 7, 2], [3, 3, 2, 70], [2, 2], Padding::Same),
    ([1, 4, 5, 33], [3, 3, 33, 34], [1, 1], Padding::Same),
];

/// Returns a case of the convolution.
pub(crate) fn forward(conv: &Conv2d, epilogue: Epilogue, inputs: [&[f32]; 3]) -> Case {
    let [images, kernel, bias] = inputs;
    let mut output = vec![f32::NAN; elements(conv.output())];
    let mut scratch = vec![f32::NAN; conv.forward_scratch()];
    let of_cpu = match epilogue {
        Epilogue::Bare => cpu::Epilogue::Bare,
        Epilogue::Bias => cpu::Epilogue::Bias(bias),
        Epilogue::BiasRelu => cpu::Epilogue::BiasRelu(bias),
    };
    cpu::conv2d(&mut output, images, kernel, of_cpu, conv, &mut scratch, Threads::One);
    let count = if epilogue == Epilogue::Bare { 2 } else { 3 };
    let operation = Operation::conv2d(conv, epilogue);
    let [height, width, channels, _] = conv.kernel();
    case(&format!("{epilogue:?}"), conv, operation, &inputs[..count], output, height * width * channels)
}

/// Returns a case of the gradient with respect to the images.
pub(crate) fn input_grad(conv: &Conv2d, kernel: &[f32], dy: &[f32]) -> Case {
    let mut output = vec![f32::NAN; elements(conv.input())];
    let mut scratch = vec![f32::NAN; conv.input_grad_scratch()];
    cpu::conv2d_input_grad(&mut output, dy, kernel, conv, &mut scratch, Threads::One);
    let [height, width, _, channels] = conv.kernel();
    let operation = Operation::conv2d_input_grad(conv);
    case("input gradient", conv, operation, &[kernel, dy], output, height * width * channels)
}

/// Returns a case of the gradient with respect to the kernel.
pub(crate) fn kernel_grad(conv: &Conv2d, images: &[f32], dy: &[f32]) -> Case {
    let mut output = vec![f32::NAN; elements(conv.kernel())];
    let mut scratch = vec![f32::NAN; conv.kernel_grad_scratch()];
    cpu::conv2d_kernel_grad(&mut output, images, dy, conv, &mut scratch, Threads::One);
    let [count, height, width, _] = conv.output();
    let operation = Operation::conv2d_kernel_grad(conv);
    case("kernel gradient", conv, operation, &[images, dy], output, count * height * width)
}

fn case(
    what: &str,
    conv: &Conv2d,
    operation: Operation,
    inputs: &[&[f32]],
    output: Vec<f32>,
    terms: usize,
) -> Case {
    let inputs = inputs.iter().map(|input| Data::F32(input.to_vec())).collect();
    let case = Case::new(format!("{what} of {conv:?}"), operation, inputs, vec![Data::F32(output)]);
    Case { tolerance: tolerance(terms), ..case }
}

fn elements(shape: [usize; 4]) -> usize {
    shape.iter().product()
}

/// Returns images, a kernel, an adjoint of the output, and a bias.
fn drawn(conv: &Conv2d, seed: u64) -> [Vec<f32>; 4] {
    let mut numbers = Numbers(seed);
    [elements(conv.input()), elements(conv.kernel()), elements(conv.output()), conv.kernel()[3]]
        .map(|count| numbers.between(-1.0, 1.0, count))
}

/// Returns cases of a convolution and its gradients.
pub(crate) fn all_of((input, kernel, stride, padding): Shapes, epilogue: Epilogue, seed: u64) -> [Case; 3] {
    let conv = Conv2d::new(input, kernel, stride, padding).unwrap();
    let [images, kernel, dy, bias] = drawn(&conv, seed);
    [
        forward(&conv, epilogue, [&images, &kernel, &bias]),
        input_grad(&conv, &kernel, &dy),
        kernel_grad(&conv, &images, &dy),
    ]
}

/// Returns cases in which images or adjoints are not finite.
fn not_finite() -> Vec<Case> {
    let mut cases = Vec::new();
    for stride in [[1, 1], [2, 1]] {
        let conv = Conv2d::new([2, 4, 5, 2], [3, 3, 2, 3], stride, Padding::Same).unwrap();
        let [mut images, kernel, mut dy, mut bias] = drawn(&conv, 51);
        (images[3], images[75], bias[1]) = (f32::NAN, f32::INFINITY, f32::NAN);
        cases.push(forward(&conv, Epilogue::BiasRelu, [&images, &kernel, &bias]));
        let [_, finite, ..] = drawn(&conv, 52);
        cases.push(kernel_grad(&conv, &images, &dy));
        (dy[4], dy[40]) = (f32::NEG_INFINITY, f32::NAN);
        cases.push(input_grad(&conv, &finite, &dy));
        cases.push(kernel_grad(&conv, &drawn(&conv, 53)[0], &dy));
    }
    cases
}

/// Returns convolutions as layers have them, and their gradients.
pub(crate) fn layers() -> Vec<Operation> {
    let layers = [
        ([64, 28, 28, 1], [3, 3, 1, 32], [1, 1], Padding::Valid),
        ([32, 32, 32, 3], [3, 3, 3, 16], [1, 1], Padding::Same),
        ([32, 224, 224, 3], [7, 7, 3, 64], [2, 2], Padding::Same),
        ([32, 28, 28, 128], [3, 3, 128, 256], [2, 2], Padding::Same),
        ([256, 28, 28, 128], [3, 3, 128, 128], [1, 1], Padding::Same),
        ([2048, 256, 256, 32], [3, 3, 32, 32], [1, 1], Padding::Same),
    ];
    let all = |(input, kernel, stride, padding)| {
        let conv = Conv2d::new(input, kernel, stride, padding).unwrap();
        let forward = Operation::conv2d(&conv, Epilogue::BiasRelu);
        [forward, Operation::conv2d_input_grad(&conv), Operation::conv2d_kernel_grad(&conv)]
    };
    layers.into_iter().flat_map(all).collect()
}

/// Returns all cases.
pub(crate) fn cases() -> Vec<Case> {
    let epilogues = [Epilogue::Bare, Epilogue::Bias, Epilogue::BiasRelu];
    let all = |(at, shapes): (usize, Shapes)| all_of(shapes, epilogues[at % 3], 50 + at as u64);
    SHAPES.into_iter().enumerate().flat_map(all).chain(not_finite()).collect()
}

#[test]
fn convolutions_agree() {
    agree(&cases(), 50);
}

/// Changes of the kernels of convolutions.
const OF_CONVOLUTIONS: [Mutation; 8] = [
    Mutation {
        name: "padding that is off by one",
        from: "* X::STRIDE - X::BEFORE;",
        to: "* X::STRIDE - X::BEFORE + 1;",
    },
    Mutation {
        name: "an edge that is not seen",
        from: "inside_y && inside_x ? images",
        to: "inside_y ? images",
    },
    Mutation {
        name: "an image without its edge",
        from: "line.x + term.x < X::IMAGE",
        to: "line.x + term.x + 1 < X::IMAGE",
    },
    Mutation {
        name: "a class that begins at the wrong pixel",
        from: "first(multiples(A::BEFORE, number)),",
        to: "first(0),",
    },
    Mutation {
        name: "a kernel without its stride",
        from: "(place - row * classes.x.places) * C::X::STRIDE + classes.x.number",
        to: "place - row * classes.x.places + classes.x.number",
    },
    Mutation {
        name: "a class that is taken for the largest",
        from: "by == MORE ? number / MORE : number / LESS",
        to: "number / MORE",
    },
    Mutation {
        name: "a class that is taken for the smallest",
        from: "by == MORE ? number / MORE : number / LESS",
        to: "number / LESS",
    },
    Mutation {
        name: "a block works on one tile",
        from: "item < NUMBER * PARTS * DOWN * ACROSS; item += gridDim.x",
        to: "item < NUMBER * PARTS * DOWN * ACROSS; item += NUMBER * PARTS * DOWN * ACROSS",
    },
];

#[test]
fn every_mutation_of_convolutions_is_found() {
    let shapes = ([2, 5, 8, 2], [3, 4, 2, 3], [2, 2], Padding::Same);
    find_all_in(all_of(shapes, Epilogue::Bare, 14).to_vec(), &OF_CONVOLUTIONS);
}
