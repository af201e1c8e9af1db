//! Pooling: the maximum or the mean of each channel in windows of images (`[n, h, w, channels]`), and the
//! gradients.
//!
//! A window is cut off at the image's edge: padding takes no part in a maximum, nor in a mean's count. It must
//! not know layers.

use std::iter::zip;

use pulp::{Simd, WithSimd};

use super::dispatch::{dispatch, zip_map_loop};
use super::shape::expect_len;
use super::threads::{ELEMENTS_PER_TASK, Strided, Threads, share, share_rows};
use super::window::{Axis, BadGeometry, Padding, volume};

/// The shapes of a pooling: images `[n, h, w, c]` give `[n, ho, wo, c]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool2d {
    images: usize,
    vertical: Axis,
    horizontal: Axis,
    channels: usize,
}

impl Pool2d {
    /// The pooling of images `input` (`[n, h, w, c]`), with `window` and `stride` `[vertical, horizontal]`.
    ///
    /// # Errors
    /// If the shapes do not fit together, a slice cannot be as long as they ask, or a window has more than
    /// 256 pixels.
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
        // No more windows than pixels, so the output needs no check.
        Ok(Self { images, vertical, horizontal, channels })
    }

    /// Shape of the images: `[n, h, w, c]`.
    pub fn input(&self) -> [usize; 4] {
        [self.images, self.vertical.input, self.horizontal.input, self.channels]
    }

    /// Shape of the output: `[n, ho, wo, c]`.
    pub fn output(&self) -> [usize; 4] {
        [self.images, self.vertical.output, self.horizontal.output, self.channels]
    }

    /// Elements of one image, before and after.
    fn image(&self) -> (usize, usize) {
        (
            self.vertical.input * self.horizontal.input * self.channels,
            self.vertical.output * self.horizontal.output * self.channels,
        )
    }

    /// Returns how many tasks share the images.
    fn tasks(&self, threads: Threads) -> usize {
        threads.tasks(self.images * self.image().0, ELEMENTS_PER_TASK)
    }

    /// Whether no pixel lies in two windows.
    fn is_disjoint(&self) -> bool {
        self.vertical.stride >= self.vertical.window && self.horizontal.stride >= self.horizontal.window
    }

    #[track_caller]
    fn expect(&self, x: &[f32], y: &[f32]) {
        expect_len("pooling: images", x, self.images * self.image().0);
        expect_len("pooling: output", y, self.images * self.image().1);
    }

    /// Calls `f` with each window of an image: where its output is, and the pixels that lie in the image.
    #[inline(always)]
    fn for_each_window(&self, mut f: impl FnMut(usize, Pixels)) {
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

/// The pixels of a window that lie in the image.
#[derive(Clone, Copy)]
struct Pixels {
    /// Where the first lies in the image.
    first: usize,
    line: usize,
    channels: usize,
    rows: usize,
    cols: usize,
    /// The first one's number in the window, which is `width` pixels wide.
    number: usize,
    width: usize,
}

impl Pixels {
    /// Where pixel `col` of row `row` lies in the image.
    #[inline(always)]
    fn at(&self, row: usize, col: usize) -> std::ops::Range<usize> {
        let start = self.first + row * self.line + col * self.channels;
        start..start + self.channels
    }

    /// Each pixel's number in the window, and where it lies in the image.
    #[inline(always)]
    fn each(self) -> impl Iterator<Item = (u8, std::ops::Range<usize>)> {
        (0..self.rows).flat_map(move |row| {
            (0..self.cols).map(move |col| ((self.number + row * self.width + col) as u8, self.at(row, col)))
        })
    }

    /// The pixels of a whole window of 2×2, the usual size.
    #[inline(always)]
    fn two_by_two(&self) -> Option<[std::ops::Range<usize>; 4]> {
        let whole = (self.rows, self.cols, self.width, self.number) == (2, 2, 2, 0);
        whole.then(|| [self.at(0, 0), self.at(0, 1), self.at(1, 0), self.at(1, 1)])
    }
}

/// The maximum: `dst` is `[n, ho, wo, c]`, `x` is `[n, h, w, c]`, and `argmax`, `[n, ho, wo, c]`, gets each
/// maximum's number in its window (row by row, padding included), for the gradient.
///
/// The first of equals is taken. A NaN in the window is the maximum.
///
/// # Panics
/// If the slices are not as long as `pool` says.
#[track_caller]
pub fn max_pool(dst: &mut [f32], argmax: &mut [u8], x: &[f32], pool: &Pool2d, threads: Threads) {
    pool.expect(x, dst);
    expect_len("max_pool: argmax", argmax, dst.len());
    let (before, after) = pool.image();
    let written = (Strided { data: dst, width: after }, Strided { data: argmax, width: after });
    share(written, 0..pool.images, pool.tasks(threads), &|(dst, argmax), images| {
        let x = &x[images.start * before..images.end * before];
        dispatch(MaxPool { dst: dst.data, argmax: argmax.data, x, pool });
    });
}

/// The gradient of [`max_pool`]: `dst` is `[n, h, w, c]`, `dy` the gradient of its output, `argmax` what it
/// has recorded. A number that points beyond the image is one of no pixel.
///
/// # Panics
/// If the slices are not as long as `pool` says.
#[track_caller]
pub fn max_pool_grad(dst: &mut [f32], dy: &[f32], argmax: &[u8], pool: &Pool2d, threads: Threads) {
    pool.expect(dst, dy);
    expect_len("max_pool_grad: argmax", argmax, dy.len());
    let (before, after) = pool.image();
    share_rows([(dst, before)], pool.images, pool.tasks(threads), &|[dst], images| {
        let images = images.start * after..images.end * after;
        dispatch(MaxPoolGrad { dst, dy: &dy[images.clone()], argmax: &argmax[images], pool });
    });
}

/// The mean: `dst` is `[n, ho, wo, c]`, `x` is `[n, h, w, c]`.
///
/// # Panics
/// If the slices are not as long as `pool` says.
#[track_caller]
pub fn average_pool(dst: &mut [f32], x: &[f32], pool: &Pool2d, threads: Threads) {
    pool.expect(x, dst);
    let (before, after) = pool.image();
    share_rows([(dst, after)], pool.images, pool.tasks(threads), &|[dst], images| {
        dispatch(AveragePool { dst, x: &x[images.start * before..images.end * before], pool });
    });
}

/// The gradient of [`average_pool`]: `dst` is `[n, h, w, c]`, `dy` the gradient of its output.
///
/// # Panics
/// If the slices are not as long as `pool` says.
#[track_caller]
pub fn average_pool_grad(dst: &mut [f32], dy: &[f32], pool: &Pool2d, threads: Threads) {
    pool.expect(dst, dy);
    let (before, after) = pool.image();
    share_rows([(dst, before)], pool.images, pool.tasks(threads), &|[dst], images| {
        dispatch(AveragePoolGrad { dst, dy: &dy[images.start * after..images.end * after], pool });
    });
}

/// The mean of each channel of each image: `dst` is `[n, c]`, `x` is `[n, pixels, c]`. NaN for no pixels.
///
/// # Panics
/// If the slices do not have that shape.
#[track_caller]
pub fn global_average_pool(
    dst: &mut [f32],
    x: &[f32],
    [images, pixels, channels]: [usize; 3],
    threads: Threads,
) {
    expect_len("global_average_pool: dst", dst, images * channels);
    expect_len("global_average_pool: x", x, images * pixels * channels);
    if dst.is_empty() {
        return;
    }
    dst.fill(0.0);
    let (image, tasks) = (pixels * channels, threads.tasks(x.len(), ELEMENTS_PER_TASK));
    share_rows([(dst, channels)], images, tasks, &|[dst], part| {
        dispatch(GlobalAverage { dst, x: &x[part.start * image..part.end * image], pixels, channels });
    });
}

/// The gradient of [`global_average_pool`]: `dst` is `[n, pixels, c]`, `dy` is `[n, c]`.
///
/// # Panics
/// If the slices do not have that shape.
#[track_caller]
pub fn global_average_pool_grad(
    dst: &mut [f32],
    dy: &[f32],
    [images, pixels, channels]: [usize; 3],
    threads: Threads,
) {
    expect_len("global_average_pool_grad: dst", dst, images * pixels * channels);
    expect_len("global_average_pool_grad: dy", dy, images * channels);
    if !dst.is_empty() {
        let tasks = threads.tasks(dst.len(), ELEMENTS_PER_TASK);
        share_rows([(dst, pixels * channels)], images, tasks, &|[dst], part| {
            let dy = &dy[part.start * channels..part.end * channels];
            dispatch(GlobalAverageGrad { dst, dy, pixels, channels });
        });
    }
}

struct MaxPool<'a> {
    dst: &'a mut [f32],
    argmax: &'a mut [u8],
    x: &'a [f32],
    pool: &'a Pool2d,
}

impl WithSimd for MaxPool<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dst, argmax, x, pool } = self;
        let (before, after) = pool.image();
        let outputs = zip(dst.chunks_exact_mut(after.max(1)), argmax.chunks_exact_mut(after.max(1)));
        for ((dst, argmax), x) in zip(outputs, x.chunks_exact(before.max(1))) {
            pool.for_each_window(|at, pixels| {
                let dst = &mut dst[at..at + pool.channels];
                let argmax = &mut argmax[at..at + pool.channels];
                if let Some(four) = pixels.two_by_two() {
                    return max_of_four(dst, argmax, four.map(|at| &x[at]));
                }
                dst.fill(f32::NEG_INFINITY);
                let mut first = true;
                for (number, at) in pixels.each() {
                    let x = &x[at];
                    for ((max, argmax), &x) in zip(zip(&mut *dst, &mut *argmax), x) {
                        // The first in any case: −∞ is a maximum too.
                        let larger = first | exceeds(x, *max);
                        *max = if larger { x } else { *max };
                        *argmax = if larger { number } else { *argmax };
                    }
                    first = false;
                }
            });
        }
    }
}

/// Whether `x` is a new maximum.
#[inline(always)]
fn exceeds(x: f32, max: f32) -> bool {
    (x > max) | x.is_nan()
}

#[inline(always)]
fn max_of_four(dst: &mut [f32], argmax: &mut [u8], x: [&[f32]; 4]) {
    let len = dst.len();
    let (argmax, x) = (&mut argmax[..len], x.map(|x| &x[..len]));
    for i in 0..len {
        let (mut max, mut number) = (x[0][i], 0u32);
        for (k, x) in (1u32..).zip(&x[1..]) {
            let larger = exceeds(x[i], max);
            max = if larger { x[i] } else { max };
            number = if larger { k } else { number };
        }
        (dst[i], argmax[i]) = (max, number as u8);
    }
}

struct MaxPoolGrad<'a> {
    dst: &'a mut [f32],
    dy: &'a [f32],
    argmax: &'a [u8],
    pool: &'a Pool2d,
}

impl WithSimd for MaxPoolGrad<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dst, dy, argmax, pool } = self;
        let disjoint = pool.is_disjoint();
        let (before, after) = pool.image();
        let outputs = zip(dy.chunks_exact(after.max(1)), argmax.chunks_exact(after.max(1)));
        for (dst, (dy, argmax)) in zip(dst.chunks_exact_mut(before.max(1)), outputs) {
            dst.fill(0.0);
            pool.for_each_window(|at, pixels| {
                let (dy, argmax) = (&dy[at..at + pool.channels], &argmax[at..at + pool.channels]);
                for (number, at) in pixels.each() {
                    let dst = &mut dst[at];
                    for (dst, (&dy, &argmax)) in zip(dst, zip(dy, argmax)) {
                        let share = if u32::from(argmax) == u32::from(number) { dy } else { 0.0 };
                        *dst = if disjoint { share } else { *dst + share };
                    }
                }
            });
        }
    }
}

struct AveragePool<'a> {
    dst: &'a mut [f32],
    x: &'a [f32],
    pool: &'a Pool2d,
}

impl WithSimd for AveragePool<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dst, x, pool } = self;
        let (before, after) = pool.image();
        for (dst, x) in zip(dst.chunks_exact_mut(after.max(1)), x.chunks_exact(before.max(1))) {
            pool.for_each_window(|at, pixels| {
                let dst = &mut dst[at..at + pool.channels];
                dst.fill(0.0);
                for (_, at) in pixels.each() {
                    zip_map_loop([dst], [&x[at]], |[sum], [x]| [sum + x]);
                }
                let count = (pixels.rows * pixels.cols) as f32;
                zip_map_loop([dst], [], |[sum], []| [sum / count]);
            });
        }
    }
}

struct AveragePoolGrad<'a> {
    dst: &'a mut [f32],
    dy: &'a [f32],
    pool: &'a Pool2d,
}

impl WithSimd for AveragePoolGrad<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dst, dy, pool } = self;
        let (before, after) = pool.image();
        for (dst, dy) in zip(dst.chunks_exact_mut(before.max(1)), dy.chunks_exact(after.max(1))) {
            dst.fill(0.0);
            pool.for_each_window(|at, pixels| {
                let dy = &dy[at..at + pool.channels];
                let count = (pixels.rows * pixels.cols) as f32;
                for (_, at) in pixels.each() {
                    zip_map_loop([&mut dst[at]], [dy], |[sum], [dy]| [sum + dy / count]);
                }
            });
        }
    }
}

struct GlobalAverage<'a> {
    dst: &'a mut [f32],
    x: &'a [f32],
    pixels: usize,
    channels: usize,
}

impl WithSimd for GlobalAverage<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dst, x, pixels, channels } = self;
        for (dst, x) in zip(dst.chunks_exact_mut(channels), x.chunks_exact((pixels * channels).max(1))) {
            for x in x.chunks_exact(channels) {
                zip_map_loop([dst], [x], |[sum], [x]| [sum + x]);
            }
        }
        zip_map_loop([dst], [], |[sum], []| [sum / pixels as f32]);
    }
}

struct GlobalAverageGrad<'a> {
    dst: &'a mut [f32],
    dy: &'a [f32],
    pixels: usize,
    channels: usize,
}

impl WithSimd for GlobalAverageGrad<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dst, dy, pixels, channels } = self;
        for (dst, dy) in zip(dst.chunks_exact_mut(pixels * channels), dy.chunks_exact(channels)) {
            for dst in dst.chunks_exact_mut(channels) {
                zip_map_loop([dst], [dy], |_, [dy]| [dy / pixels as f32]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::testing::{assert_close, bits, floats};

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

    /// For each element of the output the number and the index of each element in its window.
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
                // Many equals.
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
                let [mut dx, mut average, mut average_dx] =
                    [x.len(), y.len(), x.len()].map(|len| vec![0.0; len]);
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
}
