//! Instruction-set dispatch, and the one loop that every element-wise kernel runs.
//!
//! It must not know what is computed: the arithmetic comes in as a closure. The loops are plain Rust that the
//! compiler vectorises once per instruction set. Rust neither reassociates nor contracts `f32` arithmetic, so
//! the vector body, the scalar tail and every instruction set give the same bits.

use std::array::from_fn;
use std::sync::LazyLock;

use pulp::{Arch, Simd, WithSimd};

use super::threads::{ELEMENTS_PER_TASK, Threads, share_rows};

static ARCH: LazyLock<Arch> = LazyLock::new(Arch::new);

/// Runs `op` compiled for the widest instruction set of this machine.
///
/// Mark `with_simd` and all it calls `#[inline(always)]`: only code inlined here is compiled for that set.
pub(super) fn dispatch<Op: WithSimd>(op: Op) -> Op::Output {
    ARCH.dispatch(op)
}

/// The instruction set that [`dispatch`] picks.
pub(super) fn arch() -> Arch {
    *ARCH
}

/// For each index `i`: `written[..][i] = f(written[..][i], read[..][i])`.
///
/// Threads share long slices. A value that `f` ignores is not loaded, so the same loop serves kernels in place and out of place.
///
/// # Panics
/// If the slices are not all of one length.
#[inline]
#[track_caller]
pub(super) fn zip_map<const W: usize, const R: usize>(
    written: [&mut [f32]; W],
    read: [&[f32]; R],
    f: impl Fn([f32; W], [f32; R]) -> [f32; W] + Sync,
    threads: Threads,
) {
    let len = written[0].len();
    assert!(
        written.iter().all(|slice| slice.len() == len) && read.iter().all(|slice| slice.len() == len),
        "element-wise kernel: slices differ in length: written {:?}, read {:?}",
        written.each_ref().map(|slice| slice.len()),
        read.map(<[f32]>::len),
    );
    let tasks = threads.tasks(len, ELEMENTS_PER_TASK);
    share_rows(written.map(|slice| (slice, 1)), len, tasks, &|written, part| {
        dispatch(ZipMap { written, read: read.map(|slice| &slice[part.clone()]), f: &f });
    });
}

struct ZipMap<'a, F, const W: usize, const R: usize> {
    written: [&'a mut [f32]; W],
    read: [&'a [f32]; R],
    f: F,
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

/// The loop of [`zip_map`], for kernels that are inside [`dispatch`] already.
#[inline(always)]
pub(super) fn zip_map_loop<const W: usize, const R: usize>(
    written: [&mut [f32]; W],
    read: [&[f32]; R],
    f: impl Fn([f32; W], [f32; R]) -> [f32; W],
) {
    // Cut all slices to one length, so that the loop needs no bounds checks.
    let len = written[0].len();
    let written = written.map(|slice| &mut slice[..len]);
    let read = read.map(|slice| &slice[..len]);
    for i in 0..len {
        let new = f(from_fn(|k| written[k][i]), from_fn(|k| read[k][i]));
        for k in 0..W {
            written[k][i] = new[k];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{bits, each_arch, floats};

    /// Every operation that an element-wise kernel uses, at lengths around every vector width.
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
