//! Tests the convolutions against loops in `f64` that follow the definition.

use proptest::prelude::*;
use pulp::Arch;

use super::*;
use crate::cpu::tests::{assert_close, bits, each_arch, floats};
use crate::cpu::window::{BadGeometry, Padding};

/// Calls `f` for every product that the convolution adds up. The arguments are the index of one factor in
/// the images, the index of the other factor in the kernel, and the index of the sum in the output.
fn for_each_product(conv: &Conv2d, mut f: impl FnMut(usize, usize, usize)) {
    let [n, h, w, cin] = conv.input();
    let [kh, kw, _, cout] = conv.kernel();
    let [_, ho, wo, _] = conv.output();
    for (i, oy, ox) in (0..n).flat_map(|i| (0..ho * wo).map(move |p| (i, p / wo, p % wo))) {
        for (ky, kx) in (0..kh * kw).map(|k| (k / kw, k % kw)) {
            let y = (oy * conv.vertical.stride + ky).wrapping_sub(conv.vertical.before);
            let x = (ox * conv.horizontal.stride + kx).wrapping_sub(conv.horizontal.before);
            if y >= h || x >= w {
                continue;
            }
            for (c, o) in (0..cin * cout).map(|k| (k / cout, k % cout)) {
                f(
                    ((i * h + y) * w + x) * cin + c,
                    ((ky * kw + kx) * cin + c) * cout + o,
                    ((i * ho + oy) * wo + ox) * cout + o,
                );
            }
        }
    }
}

/// Returns a result of `len` elements, each a sum of products, and a scale for the tolerance. To find the
/// scale, adds up the magnitudes of the products of each element; the scale is 1 plus the largest of these
/// sums. `at` takes the indices from [`for_each_product`]. It returns the index of an element of the result,
/// and the two factors of a product that is added to this element.
fn reference(
    len: usize,
    conv: &Conv2d,
    at: impl Fn(usize, usize, usize) -> (usize, f32, f32),
) -> (Vec<f64>, f64) {
    let (mut sums, mut sizes) = (vec![0.0; len], vec![1.0f64; len]);
    for_each_product(conv, |x, k, y| {
        let (to, a, b) = at(x, k, y);
        let term = f64::from(a) * f64::from(b);
        sums[to] += term;
        sizes[to] += term.abs();
    });
    (sums, sizes.into_iter().fold(1.0, f64::max))
}

fn geometry() -> impl Strategy<Value = Conv2d> {
    let image = (0usize..4, 1usize..12, 1usize..12);
    // Numbers of channels around the vector widths and their multiples.
    let channels = prop_oneof![1usize..9, 15usize..18, 31usize..36, 63usize..68];
    let kernel = (1usize..5, 1usize..5, prop_oneof![1usize..5, 7usize..18], channels);
    let padding = prop::sample::select(vec![Padding::Valid, Padding::Same]);
    (image, kernel, (1usize..4, 1usize..4), padding).prop_filter_map(
        "window in image",
        |(image, kernel, stride, padding)| {
            let (n, h, w) = image;
            let (kh, kw, cin, cout) = kernel;
            Conv2d::new([n, h, w, cin], [kh, kw, cin, cout], [stride.0, stride.1], padding).ok()
        },
    )
}

fn scratch(len: usize) -> Vec<f32> {
    vec![f32::NAN; len]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn agree_with_f64(conv in geometry(), seed: u32) {
        let x = floats(conv.input_len(), seed.into());
        let kernel = floats(conv.kernel_len(), 1);
        let dy = floats(conv.output_len(), 2);
        let bias = floats(conv.cout, 3);

        let mut y = vec![f32::NAN; conv.output_len()];
        let (want, size) = reference(y.len(), &conv, |i, k, o| (o, x[i], kernel[k]));
        let forward = &mut scratch(conv.forward_scratch());
        conv2d(&mut y, &x, &kernel, Epilogue::Bare, &conv, forward, Threads::One);
        assert_close(&y, want.iter().copied(), size);
        let biased = || want.iter().enumerate().map(|(i, y)| y + f64::from(bias[i % conv.cout]));
        conv2d(&mut y, &x, &kernel, Epilogue::Bias(&bias), &conv, forward, Threads::One);
        assert_close(&y, biased(), size + 4.0);
        conv2d(&mut y, &x, &kernel, Epilogue::BiasRelu(&bias), &conv, forward, Threads::One);
        assert_close(&y, biased().map(|y| y.max(0.0)), size + 4.0);

        let mut dx = vec![f32::NAN; conv.input_len()];
        let (want, size) = reference(dx.len(), &conv, |i, k, o| (i, dy[o], kernel[k]));
        conv2d_input_grad(&mut dx, &dy, &kernel, &conv, &mut scratch(conv.input_grad_scratch()), Threads::One);
        assert_close(&dx, want, size);

        let mut dk = vec![f32::NAN; conv.kernel_len()];
        let (want, size) = reference(dk.len(), &conv, |i, k, o| (k, x[i], dy[o]));
        conv2d_kernel_grad(&mut dk, &x, &dy, &conv, &mut scratch(conv.kernel_grad_scratch()), Threads::One);
        assert_close(&dk, want, size);
    }

    /// Checks that all instruction sets with fused multiply-add give equal bits in the forward pass and in
    /// the kernel gradient: both always add the terms in the same order.
    #[test]
    fn every_fused_instruction_set_gives_the_same_bits(conv in geometry()) {
        let x = floats(conv.padded_len(), 1);
        let (kernel, dy) = (floats(conv.kernel_len(), 2), floats(conv.output_len(), 3));
        let on = |arch: Arch| {
            let mut y = vec![f32::NAN; dy.len()];
            let epilogue = Epilogue::BiasRelu(&kernel[..conv.cout]);
            arch.dispatch(Forward { dst: &mut y, x: &x, kernel: &kernel, conv: &conv, epilogue, first: 0 });
            let mut dk = vec![0.0; kernel.len()];
            arch.dispatch(KernelGrad { dst: &mut dk, x: &x, dy: &dy, conv: &conv, first: 0 });
            [bits(&y), bits(&dk)]
        };
        let fused: Vec<_> = each_arch().into_iter().filter(|arch| !matches!(arch, Arch::Scalar)).collect();
        for pair in fused.windows(2) {
            prop_assert_eq!(on(pair[0]), on(pair[1]));
        }
    }
}

/// Checks the input gradient on each instruction set, because the width of the vectors decides where the
/// columns are divided.
#[test]
fn every_instruction_set_gives_the_input_gradient() {
    for (cin, cout) in [(1, 1), (3, 20), (9, 4), (13, 33), (30, 5)] {
        let conv = Conv2d::new([2, 7, 6, cin], [3, 2, cin, cout], [1, 2], Padding::Valid).unwrap();
        let (kernel, dy) = (floats(conv.kernel_len(), 2), floats(conv.output_len(), 3));
        let mut transposed = vec![f32::NAN; kernel.len()];
        transpose_kernel(&mut transposed, &kernel, &conv);
        let (want, size) = reference(conv.input_len(), &conv, |i, k, o| (i, dy[o], kernel[k]));
        for arch in each_arch() {
            let mut dx = vec![0.0; conv.input_len()];
            arch.dispatch(InputGrad { dst: &mut dx, dy: &dy, kernel: &transposed, conv: &conv });
            assert_close(&dx, want.iter().copied(), size);
        }
    }
}

#[test]
fn threads_do_not_change_the_bits() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    for (padding, stride, cin) in [(Padding::Valid, 1, 1), (Padding::Same, 1, 7), (Padding::Same, 2, 32)] {
        let conv = Conv2d::new([33, 14, 13, cin], [3, 3, cin, 40], [stride; 2], padding).unwrap();
        let (x, kernel, dy) =
            (floats(conv.input_len(), 1), floats(conv.kernel_len(), 2), floats(conv.output_len(), 3));
        let all = |threads| {
            let [mut y, mut dx, mut dk] = [dy.len(), x.len(), kernel.len()].map(|len| vec![f32::NAN; len]);
            conv2d(&mut y, &x, &kernel, Epilogue::Bare, &conv, &mut scratch(conv.forward_scratch()), threads);
            conv2d_input_grad(&mut dx, &dy, &kernel, &conv, &mut scratch(conv.input_grad_scratch()), threads);
            conv2d_kernel_grad(&mut dk, &x, &dy, &conv, &mut scratch(conv.kernel_grad_scratch()), threads);
            [bits(&y), bits(&dx), bits(&dk)]
        };
        let one = all(Threads::One);
        for threads in [0, 1, 2, 3, 8] {
            assert!(one == pool.install(|| all(Threads::Pool(threads))), "{threads} threads");
        }
    }
}

#[test]
fn relu_keeps_a_nan() {
    let conv = Conv2d::new([1, 1, 1, 1], [1, 1, 1, 17], [1, 1], Padding::Valid).unwrap();
    let mut y = [0.0; 17];
    conv2d(&mut y, &[f32::NAN], &[1.0; 17], Epilogue::BiasRelu(&[0.0; 17]), &conv, &mut [], Threads::One);
    assert!(y.iter().all(|y| y.is_nan()));
}

#[test]
fn impossible_shapes() {
    let new = |input, kernel| Conv2d::new(input, kernel, [1, 1], Padding::Same);
    assert_eq!(new([1, 5, 5, 3], [3, 3, 2, 8]), Err(BadGeometry::Channels { image: 3, kernel: 2 }));
    assert_eq!(new([1, 5, 5, 0], [3, 3, 0, 8]), Err(BadGeometry::EmptyWindow));
    assert_eq!(new([1, 5, 5, 3], [3, 3, 3, 0]), Err(BadGeometry::EmptyWindow));
    assert_eq!(new([usize::MAX, 5, 5, 3], [3, 3, 3, 8]), Err(BadGeometry::TooLarge));
    assert_eq!(new([0, 1 << 31, 1 << 31, 3], [3, 3, 3, 8]), Err(BadGeometry::TooLarge));
    assert_eq!(new([1, 5, 5, 1 << 40], [1 << 20, 1, 1 << 40, 8]), Err(BadGeometry::TooLarge));
}

#[test]
#[should_panic(expected = "conv2d: x has 8 elements, expected 9")]
fn lengths_must_fit() {
    let conv = Conv2d::new([1, 3, 3, 1], [3, 3, 1, 1], [1, 1], Padding::Valid).unwrap();
    conv2d(&mut [0.0], &[0.0; 8], &[0.0; 9], Epilogue::Bare, &conv, &mut [], Threads::One);
}
