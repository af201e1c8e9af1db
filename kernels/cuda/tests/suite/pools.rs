//! Pooling agrees with that of the processor, on every device.

use pushpull_cuda::Operation;
use pushpull_kernels::cpu::{self, Padding, Pool2d, Threads};

use crate::case::{Case, Data, agree};
use crate::mutations::{Mutation, find_all_in};
use crate::numbers::Numbers;

/// A pooling: images, window, stride and padding.
pub(crate) type Sizes = ([usize; 4], [usize; 2], [usize; 2], Padding);

pub(crate) const SIZES: [Sizes; 12] = [
    ([2, 4, 6, 3], [2, 2], [2, 2], Padding::Valid),
    // Windows are cut off at both edges, and lie on each other.
    ([2, 5, 7, 3], [3, 3], [2, 2], Padding::Same),
    ([1, 7, 6, 5], [3, 2], [1, 1], Padding::Valid),
    ([3, 4, 5, 2], [4, 3], [1, 2], Padding::Same),
    // Pixels lie in no window.
    ([1, 9, 8, 2], [1, 2], [3, 4], Padding::Valid),
    ([1, 5, 5, 33], [2, 2], [3, 3], Padding::Same),
    // A window is larger than an image.
    ([2, 2, 3, 1], [7, 6], [1, 1], Padding::Same),
    // The position of the last pixel is 255.
    ([1, 16, 16, 3], [16, 16], [16, 16], Padding::Valid),
    ([1, 3, 3, 1], [1, 1], [1 << 33, 1], Padding::Same),
    ([0, 3, 3, 2], [2, 2], [1, 1], Padding::Same),
    ([2, 0, 3, 2], [2, 2], [1, 1], Padding::Same),
    ([2, 3, 3, 0], [2, 2], [1, 1], Padding::Same),
];

/// Returns a case that must agree in every bit.
fn exact(name: String, operation: Operation, inputs: Vec<Data>, outputs: Vec<Data>) -> Case {
    Case { tolerance: 0.0, ..Case::new(name, operation, inputs, outputs) }
}

/// Returns the cases of maxima and their gradient.
pub(crate) fn maxima((input, window, stride, padding): Sizes, x: &[f32], numbers: &mut Numbers) -> [Case; 2] {
    let pool = Pool2d::new(input, window, stride, padding).unwrap();
    let count = pool.output().iter().product();
    let (mut maxima, mut positions) = (vec![f32::NAN; count], vec![0xFF; count]);
    cpu::max_pool(&mut maxima, &mut positions, x, &pool, Threads::One);
    let dy = numbers.between(-1.0, 1.0, count);
    let mut dx = vec![f32::NAN; x.len()];
    cpu::max_pool_grad(&mut dx, &dy, &positions, &pool, Threads::One);
    let name = format!("maxima of {input:?} in windows of {window:?} by {stride:?}, {padding:?}");
    let outputs = vec![Data::F32(maxima), Data::U8(positions.clone())];
    let gradient = vec![Data::U8(positions), Data::F32(dy)];
    [
        exact(name.clone(), Operation::max_pool(&pool), vec![Data::F32(x.to_vec())], outputs),
        exact(format!("gradient of {name}"), Operation::max_pool_grad(&pool), gradient, vec![Data::F32(dx)]),
    ]
}

/// Returns the cases of means and their gradient.
pub(crate) fn means((input, window, stride, padding): Sizes, x: &[f32], numbers: &mut Numbers) -> [Case; 2] {
    let pool = Pool2d::new(input, window, stride, padding).unwrap();
    let count = pool.output().iter().product();
    let mut means = vec![f32::NAN; count];
    cpu::average_pool(&mut means, x, &pool, Threads::One);
    let dy = numbers.between(-1.0, 1.0, count);
    let mut dx = vec![f32::NAN; x.len()];
    cpu::average_pool_grad(&mut dx, &dy, &pool, Threads::One);
    let name = format!("means of {input:?} in windows of {window:?} by {stride:?}, {padding:?}");
    let (x, dy) = (Data::F32(x.to_vec()), Data::F32(dy));
    let gradient = format!("gradient of {name}");
    [
        exact(name, Operation::average_pool(&pool), vec![x], vec![Data::F32(means)]),
        exact(gradient, Operation::average_pool_grad(&pool), vec![dy], vec![Data::F32(dx)]),
    ]
}

/// Returns numbers with many equal ones.
pub(crate) fn ties(numbers: &mut Numbers, count: usize) -> Vec<f32> {
    (0..count).map(|_| numbers.below(3) as f32).collect()
}

fn windows() -> Vec<Case> {
    let (mut numbers, mut cases) = (Numbers(40), Vec::new());
    for sizes @ (input, ..) in SIZES {
        let count = input.iter().product();
        let mut x = ties(&mut numbers, count);
        cases.extend(maxima(sizes, &x, &mut numbers));
        if let [first, .., last] = &mut x[..] {
            (*first, *last) = (f32::NAN, f32::NEG_INFINITY);
        }
        cases.extend(maxima(sizes, &x, &mut numbers));
        let x = numbers.between(-1.0, 1.0, count);
        cases.extend(means(sizes, &x, &mut numbers));
    }
    let sizes = SIZES[1];
    let lowest = vec![f32::NEG_INFINITY; sizes.0.iter().product()];
    cases.extend(maxima(sizes, &lowest, &mut numbers));
    cases
}

fn whole_images() -> Vec<Case> {
    let (mut numbers, mut cases) = (Numbers(41), Vec::new());
    for shape @ [images, pixels, channels] in
        [[0, 4, 3], [2, 0, 3], [2, 4, 0], [2, 1, 1], [3, 49, 33], [1, 300, 20], [5, 7, 3]]
    {
        let x = numbers.between(-1.0, 1.0, images * pixels * channels);
        let mut means = vec![0.0; images * channels];
        cpu::global_average_pool(&mut means, &x, shape, Threads::One);
        let dy = numbers.between(-1.0, 1.0, means.len());
        let mut dx = vec![0.0; x.len()];
        cpu::global_average_pool_grad(&mut dx, &dy, shape, Threads::One);
        let operation = Operation::global_average_pool(shape);
        let [x, means, dy, dx] = [x, means, dy, dx].map(|numbers| vec![Data::F32(numbers)]);
        cases.push(Case::new(format!("means of all pixels of {shape:?}"), operation, x, means));
        let operation = Operation::global_average_pool_grad(shape);
        cases.push(exact(format!("gradient of the means of all pixels of {shape:?}"), operation, dy, dx));
    }
    cases
}

/// Returns all cases.
pub(crate) fn cases() -> Vec<Case> {
    [windows(), whole_images()].concat()
}

#[test]
fn pools_agree() {
    agree(&cases(), 40);
}

/// Changes of the functions of pooling.
const OF_POOLS: [Mutation; 6] = [
    Mutation { name: "a tie that goes to the last pixel", from: "number > largest", to: "number >= largest" },
    Mutation { name: "a NaN that is not the maximum", from: " || number != number", to: "" },
    Mutation {
        name: "a window that is cut off too late",
        from: "return pixel < input",
        to: "return pixel <= input",
    },
    Mutation {
        name: "a mean that counts the padding",
        from: "(end < before + input ? end : before + input)",
        to: "end",
    },
    Mutation {
        name: "a gradient without its last window",
        from: "(pixel + before) / stride + 1;",
        to: "(pixel + before) / stride;",
    },
    Mutation {
        name: "a gradient of a window without the pixel",
        from: "(pixel + before - window) / stride + 1;",
        to: "(pixel + before - window) / stride;",
    },
];

#[test]
fn every_mutation_of_pools_is_found() {
    let (mut numbers, sizes) = (Numbers(13), SIZES[1]);
    let count = sizes.0.iter().product();
    let mut x = ties(&mut numbers, count);
    // It is the last pixel of an image.
    x[count / 2 - 1] = f32::NAN;
    let maxima = maxima(sizes, &x, &mut numbers);
    let x = numbers.between(-1.0, 1.0, count);
    let means = means(sizes, &x, &mut numbers);
    find_all_in([maxima, means].concat(), &OF_POOLS);
}
