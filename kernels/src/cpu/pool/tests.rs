//! Tests pooling against `f64`, and on several numbers of threads.

use proptest::prelude::*;

use super::*;
use crate::cpu::tests::{assert_close, bits, floats};
use crate::cpu::{BadGeometry, Padding, Threads};

fn geometry() -> impl Strategy<Value = Pool2d> {
    let image = (0usize..4, 1usize..10, 1usize..10, prop_oneof![0usize..5, 15usize..18, 32usize..34]);
    let padding = prop::sample::select(vec![Padding::Valid, Padding::Same]);
    (image, (1usize..5, 1usize..5), (1usize..5, 1usize..5), padding).prop_filter_map(
        "window in image",
        |((n, h, w, c), window, stride, padding)| {
            Pool2d::new([n, h, w, c], window.into(), stride.into(), padding).ok()
        },
    )
}

/// Returns a window for each element of the output. A window lists the elements of the input that it covers,
/// without the padding. Each element is given by its number within the window, and by its index in the
/// input.
fn windows(pool: &Pool2d) -> Vec<Vec<(u8, usize)>> {
    let [n, h, w, c] = pool.input();
    let [_, ho, wo, _] = pool.output();
    let (vertical, horizontal) = (pool.vertical, pool.horizontal);
    let window = |i: usize| {
        let (channel, ox, oy, image) = (i % c, i / c % wo, i / c / wo % ho, i / c / wo / ho);
        let number = move |number: usize| {
            let (ky, kx) = (number / horizontal.window, number % horizontal.window);
            let y = (oy * vertical.stride + ky).checked_sub(vertical.before)?;
            let x = (ox * horizontal.stride + kx).checked_sub(horizontal.before)?;
            (y < h && x < w).then(|| (number as u8, ((image * h + y) * w + x) * c + channel))
        };
        (0..vertical.window * horizontal.window).filter_map(number).collect()
    };
    (0..n * ho * wo * c).map(window).collect()
}

proptest! {
    #[test]
    fn agree_with_f64(pool in geometry(), seed: u32, coarse: bool) {
        let windows = windows(&pool);
        let mut x = floats(pool.input().iter().product(), seed.into());
        if coarse {
            // Rounding makes many elements equal.
            x.iter_mut().for_each(|x| *x = x.round());
        }
        let dy = floats(windows.len(), 1);
        let (mut y, mut argmax) = (vec![f32::NAN; dy.len()], vec![99; dy.len()]);
        let mut dx = vec![f32::NAN; x.len()];

        max_pool(&mut y, &mut argmax, &x, &pool, Threads::One);
        max_pool_grad(&mut dx, &dy, &argmax, &pool, Threads::One);
        let mut want = vec![0.0; x.len()];
        for (i, window) in windows.iter().enumerate() {
            let max = window.iter().map(|&(_, at)| x[at]).fold(f32::NEG_INFINITY, f32::max);
            let &(number, at) = window.iter().find(|&&(_, at)| x[at] == max).unwrap();
            prop_assert_eq!((y[i], argmax[i]), (max, number));
            want[at] += f64::from(dy[i]);
        }
        assert_close(&dx, want, 8.0);

        average_pool(&mut y, &x, &pool, Threads::One);
        average_pool_grad(&mut dx, &dy, &pool, Threads::One);
        let mut want = vec![0.0; x.len()];
        let mean = |window: &Vec<(u8, usize)>| {
            window.iter().map(|&(_, at)| f64::from(x[at])).sum::<f64>() / window.len() as f64
        };
        assert_close(&y, windows.iter().map(mean), 8.0);
        for (window, &dy) in windows.iter().zip(&dy) {
            window.iter().for_each(|&(_, at)| want[at] += f64::from(dy) / window.len() as f64);
        }
        assert_close(&dx, want, 8.0);
    }

    #[test]
    fn global_average_agrees_with_f64(n in 0usize..4, pixels in 1usize..30, c in 0usize..40, seed: u32) {
        let (x, dy) = (floats(n * pixels * c, seed.into()), floats(n * c, 1));
        let (mut y, mut dx) = (vec![f32::NAN; dy.len()], vec![f32::NAN; x.len()]);
        global_average_pool(&mut y, &x, [n, pixels, c], Threads::One);
        let mean = |i: usize| {
            let of = |p: usize| f64::from(x[(i / c * pixels + p) * c + i % c]);
            (0..pixels).map(of).sum::<f64>() / pixels as f64
        };
        assert_close(&y, (0..n * c).map(mean), 8.0);
        global_average_pool_grad(&mut dx, &dy, [n, pixels, c], Threads::One);
        let share = |i: usize| f64::from(dy[i / (pixels * c) * c + i % c]) / pixels as f64;
        assert_close(&dx, (0..dx.len()).map(share), 0.0);
    }
}

#[test]
fn a_nan_is_the_maximum() {
    for (window, argmax) in [([2, 2], 2), ([3, 2], 2)] {
        let pool = Pool2d::new([1, window[0], 2, 1], window, [1, 1], Padding::Valid).unwrap();
        let (mut y, mut at) = ([0.0], [9]);
        let x = [1.0, 2.0, f32::NAN, 4.0, 5.0, 6.0];
        max_pool(&mut y, &mut at, &x[..window[0] * 2], &pool, Threads::One);
        assert!(y[0].is_nan() && at[0] == argmax);
        max_pool(&mut y, &mut at, &[f32::NEG_INFINITY; 6][..window[0] * 2], &pool, Threads::One);
        assert_eq!((y, at), ([f32::NEG_INFINITY], [0]));
    }
}

#[test]
fn threads_do_not_change_the_bits() {
    let workers = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    for window in [2, 3] {
        let pool = Pool2d::new([37, 27, 27, 16], [window; 2], [2, 2], Padding::Same).unwrap();
        let (x, dy) = (floats(37 * 27 * 27 * 16, 1), floats(37 * 14 * 14 * 16, 2));
        let all = |threads| {
            let (mut y, mut argmax) = (vec![f32::NAN; dy.len()], vec![99; dy.len()]);
            max_pool(&mut y, &mut argmax, &x, &pool, threads);
            let [mut dx, mut average, mut average_dx] = [x.len(), y.len(), x.len()].map(|len| vec![0.0; len]);
            max_pool_grad(&mut dx, &dy, &argmax, &pool, threads);
            average_pool(&mut average, &x, &pool, threads);
            average_pool_grad(&mut average_dx, &dy, &pool, threads);
            [y, dx, average, average_dx].map(|x| bits(&x))
        };
        let one = all(Threads::One);
        for threads in [0, 1, 2, 8] {
            assert!(one == workers.install(|| all(Threads::Pool(threads))), "{threads} threads");
        }
    }
}

#[test]
fn impossible_shapes() {
    let new = |input, window| Pool2d::new(input, window, [1, 1], Padding::Valid);
    assert_eq!(new([1, 4, 4, 1], [5, 1]), Err(BadGeometry::WindowExceedsImage));
    assert_eq!(new([1, 40, 40, 1], [17, 17]), Err(BadGeometry::TooLarge));
    assert_eq!(new([usize::MAX, 4, 4, 1], [2, 2]), Err(BadGeometry::TooLarge));
}
