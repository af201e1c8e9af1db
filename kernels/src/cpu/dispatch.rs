//! Instruction-set dispatch, and the one loop that every element-wise kernel runs.
//!
//! This module must not depend on the computation: the arithmetic is a closure of the caller. The loops are
//! plain Rust that the compiler vectorises once per instruction set. Rust does not reorder or fuse `f32`
//! operations, so the vector body, the scalar tail and every instruction set give the same bits.

use std::mem::take;
use std::ops::Range;
use std::sync::LazyLock;

use pulp::{Arch, Simd, WithSimd};

use super::threads::{ELEMENTS_PER_TASK, Threads, share_rows};

static ARCH: LazyLock<Arch> = LazyLock::new(Arch::new);

/// Runs `op`, compiled for the widest instruction set of this machine.
///
/// Mark `with_simd` and every function that it calls as `#[inline(always)]`, because only inlined code is
/// compiled for that instruction set.
pub(super) fn dispatch<Op: WithSimd>(op: Op) -> Op::Output {
    ARCH.dispatch(op)
}

/// Returns the instruction set that [`dispatch`] uses.
pub(super) fn arch() -> Arch {
    *ARCH
}

/// Computes `written[..][i] = f(written[..][i], read[..][i])` for each index `i`.
///
/// Long slices are divided among the threads. Kernels that do not work in place use the same loop: their `f`
/// ignores the old elements of `written`, and the compiler then does not load these elements.
///
/// # Panics
/// If the slices are not all of one length.
#[track_caller]
pub(super) fn zip_map<const W: usize, const R: usize>(
    written: [&mut [f32]; W],
    read: [&[f32]; R],
    f: impl Fn([f32; W], [f32; R]) -> [f32; W] + Sync,
    threads: Threads,
) {
    let (len, tasks) = (written[0].len(), zip_map_tasks(&written, &read, threads));
    share_rows(elements(written), len, tasks, &|written, part| {
        dispatch(ZipMap { written, read: part_of(read, part), f: &f });
    });
}

/// Returns the number of parallel tasks that share the slices of [`zip_map`].
///
/// # Panics
/// If the slices are not all of one length.
#[track_caller]
fn zip_map_tasks<const W: usize, const R: usize>(
    written: &[&mut [f32]; W],
    read: &[&[f32]; R],
    threads: Threads,
) -> usize {
    let (written, read) = (written.each_ref().map(|slice| slice.len()), read.map(<[f32]>::len));
    assert!(
        written.iter().chain(&read).all(|&len| len == written[0]),
        "element-wise kernel: slices differ in length: written {written:?}, read {read:?}"
    );
    threads.tasks(written[0], ELEMENTS_PER_TASK)
}

/// Views each slice as rows of one element: returns each slice with its row length, which is 1.
fn elements<const W: usize>(slices: [&mut [f32]; W]) -> [(&mut [f32], usize); W] {
    slices.map(|slice| (slice, 1))
}

/// Returns the same part of each slice.
fn part_of<const R: usize>(slices: [&[f32]; R], part: Range<usize>) -> [&[f32]; R] {
    slices.map(|slice| &slice[part.clone()])
}

/// The loop of [`zip_map`], over the part of the slices that one parallel task computes.
pub(super) struct ZipMap<'a, F, const W: usize, const R: usize> {
    pub written: [&'a mut [f32]; W],
    pub read: [&'a [f32]; R],
    pub f: F,
}

impl<F, const W: usize, const R: usize> WithSimd for ZipMap<'_, F, W, R>
where
    F: Fn([f32; W], [f32; R]) -> [f32; W],
{
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        zip_map_loop(self.written, self.read, self.f);
    }
}

/// Runs the loop of [`zip_map`], for kernels that already run inside [`dispatch`].
#[inline(always)]
pub(super) fn zip_map_loop<const W: usize, const R: usize>(
    written: [&mut [f32]; W],
    read: [&[f32]; R],
    f: impl Fn([f32; W], [f32; R]) -> [f32; W],
) {
    // All slices are cut to one length, so that the loop needs no bounds checks.
    let len = written[0].len();
    let (mut written, read) = (cut_mut(written, len), cut(read, len));
    for i in 0..len {
        let new = f(at_mut(&written, i), at(&read, i));
        put(&mut written, i, new);
    }
}

// The helpers of `zip_map_loop`. They use loops instead of `map` and `from_fn`, which would be compiled to
// several functions for each closure. They are `inline` instead of `inline(always)`, so that their loops are
// unrolled before the helpers are inlined. The compiler can then remove the bounds checks.

#[inline]
fn cut<const R: usize>(mut slices: [&[f32]; R], len: usize) -> [&[f32]; R] {
    for slice in &mut slices {
        *slice = &slice[..len];
    }
    slices
}

#[inline]
fn cut_mut<const W: usize>(mut slices: [&mut [f32]; W], len: usize) -> [&mut [f32]; W] {
    for slice in &mut slices {
        *slice = &mut take(slice)[..len];
    }
    slices
}

#[inline]
fn at<const R: usize>(slices: &[&[f32]; R], i: usize) -> [f32; R] {
    let mut values = [0.0; R];
    for k in 0..R {
        values[k] = slices[k][i];
    }
    values
}

#[inline]
fn at_mut<const W: usize>(slices: &[&mut [f32]; W], i: usize) -> [f32; W] {
    let mut values = [0.0; W];
    for k in 0..W {
        values[k] = slices[k][i];
    }
    values
}

#[inline]
fn put<const W: usize>(slices: &mut [&mut [f32]; W], i: usize, values: [f32; W]) {
    for k in 0..W {
        slices[k][i] = values[k];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::tests::{bits, each_arch, floats};

    /// Runs `+ − × ÷` and a square root at lengths below, at and above the width of every vector register.
    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        for len in (0..70).chain([1000, 1023]) {
            let (a, b, old) = (floats(len, 1), floats(len, 2), floats(len, 3));
            let on = |arch: Arch| {
                let mut dst = old.clone();
                let f = |[old]: [f32; 1], [a, b]: [f32; 2]| [old - 0.3 * a / ((b * b).sqrt() + 1e-3 * a)];
                arch.dispatch(ZipMap { written: [&mut dst], read: [&a, &b], f });
                bits(&dst)
            };
            let scalar = on(Arch::Scalar);
            assert!(each_arch().into_iter().all(|arch| on(arch) == scalar), "length {len}");
        }
    }

    #[test]
    #[should_panic(expected = "written [2], read [2, 3]")]
    fn lengths_must_agree() {
        zip_map([&mut [0.0; 2]], [&[0.0; 2], &[0.0; 3]], |_, [a, b]| [a + b], Threads::One);
    }
}
