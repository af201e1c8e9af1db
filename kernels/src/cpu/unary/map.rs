//! The loops that apply a function of one number to slices. This module must not depend on the particular
//! functions.

use pulp::{Simd, WithSimd};

use super::function::{Unary, UnaryGradWork, UnaryWork};
use crate::cpu::dispatch::{ZipMap, dispatch, zip_map_loop};
use crate::cpu::shape::expect_len;
use crate::cpu::threads::{ELEMENTS_PER_TASK, Threads, share_rows};

/// Computes `dst[i] = f(x[i])`. Long slices are divided among the threads.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn unary(dst: &mut [f32], x: &[f32], f: Unary, threads: Threads) {
    expect_len("unary: dst", dst, x.len());
    share_rows([(dst, 1)], x.len(), threads.tasks(x.len(), ELEMENTS_PER_TASK), &|[dst], part| {
        f.visit(Map { dst, x: &x[part] });
    });
}

struct Map<'a> {
    dst: &'a mut [f32],
    x: &'a [f32],
}

impl UnaryWork for Map<'_> {
    #[inline(always)]
    fn run(self, f: impl Fn(f32) -> f32 + Copy + Sync) {
        dispatch(ZipMap { written: [self.dst], read: [self.x], f: move |_: [f32; 1], [x]: [f32; 1]| [f(x)] });
    }
}

/// Computes `x[i] = f(x[i])`. Long slices are divided among the threads.
pub fn unary_in_place(x: &mut [f32], f: Unary, threads: Threads) {
    let len = x.len();
    share_rows([(x, 1)], len, threads.tasks(len, ELEMENTS_PER_TASK), &|[x], _| f.visit(MapInPlace { x }));
}

struct MapInPlace<'a> {
    x: &'a mut [f32],
}

impl UnaryWork for MapInPlace<'_> {
    #[inline(always)]
    fn run(self, f: impl Fn(f32) -> f32 + Copy + Sync) {
        dispatch(InPlace { x: self.x, f });
    }
}

/// The loop of [`unary_in_place`], for one function.
pub(in crate::cpu) struct InPlace<'a, F> {
    pub x: &'a mut [f32],
    pub f: F,
}

impl<F: Fn(f32) -> f32> WithSimd for InPlace<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        zip_map_loop([self.x], [], |[x], []| [(self.f)(x)]);
    }
}

/// Computes `dst[i] = f′(x[i]) · dy[i]`. `saved` has the inputs or the outputs of the forward pass, as
/// [`Unary::saved`] says. If the function needs no saved value, `saved` is ignored, but must have the same
/// length. Long slices are divided among the threads.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn unary_grad(dst: &mut [f32], saved: &[f32], dy: &[f32], f: Unary, threads: Threads) {
    expect_len("unary_grad: saved", saved, dst.len());
    expect_len("unary_grad: dy", dy, dst.len());
    let (len, tasks) = (dst.len(), threads.tasks(dst.len(), ELEMENTS_PER_TASK));
    share_rows([(dst, 1)], len, tasks, &|[dst], part| {
        f.visit_grad(MapGrad { dst, saved: &saved[part.clone()], dy: &dy[part] });
    });
}

struct MapGrad<'a> {
    dst: &'a mut [f32],
    saved: &'a [f32],
    dy: &'a [f32],
}

impl UnaryGradWork for MapGrad<'_> {
    #[inline(always)]
    fn run(self, f: impl Fn(f32, f32) -> f32 + Copy + Sync) {
        let read = [self.saved, self.dy];
        dispatch(ZipMap {
            written: [self.dst],
            read,
            f: move |_: [f32; 1], [saved, dy]: [f32; 2]| [f(saved, dy)],
        });
    }
}
