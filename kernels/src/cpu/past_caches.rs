//! An element-wise loop whose results go past the processor's caches. An ordinary write reads the memory
//! first, which takes as long again and is in vain if nothing reads the results soon. This module must not
//! depend on what is computed.
//!
//! Wanted properties: (A) the results have the bits of ordinary writes, but a NaN may be another one; (B)
//! other threads that get the results after the call see all of them. No test finds a missing fence.

use super::reduce::magnitude;

/// The number of elements in a line of the caches.
const ELEMENTS: usize = 16;

/// What the processor writes at once.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; ELEMENTS]);

/// Computes `written[i] = f(first[i], second[i])` for each index `i`, and writes the results past the
/// caches. Returns what [`largest_magnitude`](super::reduce::largest_magnitude) returns for `second`.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub(super) fn map_past_caches(
    written: &mut [f32],
    [first, second]: [&[f32]; 2],
    f: impl Fn(f32, f32) -> f32 + Copy,
) -> u32 {
    let read = [first.len(), second.len()];
    assert!(read.iter().all(|&len| len == written.len()), "written {}, read {read:?}", written.len());
    // SAFETY: a line is an array of floats, and all bits are a float.
    #[expect(unsafe_code)]
    let (before, lines, behind) = unsafe { written.align_to_mut::<Line>() };
    let (first_before, first) = first.split_at(before.len());
    let (second_before, second) = second.split_at(before.len());
    let ordinary = |written: &mut [f32], first: &[f32], second: &[f32]| {
        written.iter_mut().zip(first).zip(second).for_each(|((to, &a), &b)| *to = f(a, b));
        second.iter().map(|&number| magnitude(number)).max().unwrap_or(0)
    };
    let ends = ordinary(before, first_before, second_before);
    let ((first, first_behind), (second, second_behind)) = (first.as_chunks(), second.as_chunks());
    let largest = write_lines(lines, first, second, f).into_iter().fold(ends, u32::max);
    largest.max(ordinary(behind, first_behind, second_behind))
}

/// Writes each line in the ordinary way.
#[cfg(not(target_arch = "x86_64"))]
fn write_lines(
    lines: &mut [Line],
    first: &[[f32; ELEMENTS]],
    second: &[[f32; ELEMENTS]],
    f: impl Fn(f32, f32) -> f32,
) -> Largest {
    let mut largest = Largest::default();
    for ((line, first), second) in lines.iter_mut().zip(first).zip(second) {
        *line = line_of(first, second, &mut largest, &f);
    }
    largest
}

/// For each element of a line, the largest magnitude that it had in the second of the slices.
type Largest = [u32; ELEMENTS];

/// Returns the results of a line.
#[inline(always)]
fn line_of(
    first: &[f32; ELEMENTS],
    second: &[f32; ELEMENTS],
    largest: &mut Largest,
    f: &impl Fn(f32, f32) -> f32,
) -> Line {
    let mut line = Line([0.0; ELEMENTS]);
    for at in 0..ELEMENTS {
        line.0[at] = f(first[at], second[at]);
        largest[at] = largest[at].max(magnitude(second[at]));
    }
    line
}

#[cfg(target_arch = "x86_64")]
use self::x86_64::write_lines;

/// The writes of this architecture.
#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::arch::x86_64::{
        _mm_load_ps, _mm_sfence, _mm_stream_ps, _mm256_load_ps, _mm256_stream_ps, _mm512_load_ps,
        _mm512_stream_ps,
    };

    use super::{ELEMENTS, Largest, Line, line_of};

    /// Orders what this thread has written past the caches before its later writes, when it is dropped, so
    /// also after a panic. The lines must not be accessed before then.
    struct Fence;

    impl Drop for Fence {
        fn drop(&mut self) {
            // SAFETY: all processors of this architecture have this instruction.
            #[expect(unsafe_code)]
            unsafe {
                _mm_sfence();
            }
        }
    }

    /// Writes each line past the caches, with the widest instructions of this machine.
    pub(super) fn write_lines(
        lines: &mut [Line],
        first: &[[f32; ELEMENTS]],
        second: &[[f32; ELEMENTS]],
        f: impl Fn(f32, f32) -> f32,
    ) -> Largest {
        let _fence = Fence;
        // SAFETY: the processor has the instructions, and the fence comes before the end of the borrow.
        #[expect(unsafe_code)]
        unsafe {
            if std::is_x86_feature_detected!("avx512f") {
                by_512_bits(lines, first, second, f)
            } else if std::is_x86_feature_detected!("avx2") {
                by_256_bits(lines, first, second, f)
            } else {
                by_128_bits(lines, first, second, f)
            }
        }
    }

    #[target_feature(enable = "avx512f")]
    fn by_512_bits(
        lines: &mut [Line],
        first: &[[f32; ELEMENTS]],
        second: &[[f32; ELEMENTS]],
        f: impl Fn(f32, f32) -> f32,
    ) -> Largest {
        let mut largest = Largest::default();
        for ((line, first), second) in lines.iter_mut().zip(first).zip(second) {
            let new = line_of(first, second, &mut largest, &f);
            // SAFETY: both lines are aligned, and have the bytes. The caller has a fence.
            #[expect(unsafe_code)]
            unsafe {
                _mm512_stream_ps(line.0.as_mut_ptr(), _mm512_load_ps(new.0.as_ptr()));
            }
        }
        largest
    }

    #[target_feature(enable = "avx2")]
    fn by_256_bits(
        lines: &mut [Line],
        first: &[[f32; ELEMENTS]],
        second: &[[f32; ELEMENTS]],
        f: impl Fn(f32, f32) -> f32,
    ) -> Largest {
        let mut largest = Largest::default();
        for ((line, first), second) in lines.iter_mut().zip(first).zip(second) {
            let new = line_of(first, second, &mut largest, &f);
            for at in [0, 8] {
                // SAFETY: both lines are aligned, and have the bytes. The caller has a fence.
                #[expect(unsafe_code)]
                unsafe {
                    _mm256_stream_ps(line.0.as_mut_ptr().add(at), _mm256_load_ps(new.0.as_ptr().add(at)));
                }
            }
        }
        largest
    }

    fn by_128_bits(
        lines: &mut [Line],
        first: &[[f32; ELEMENTS]],
        second: &[[f32; ELEMENTS]],
        f: impl Fn(f32, f32) -> f32,
    ) -> Largest {
        let mut largest = Largest::default();
        for ((line, first), second) in lines.iter_mut().zip(first).zip(second) {
            let new = line_of(first, second, &mut largest, &f);
            for at in [0, 4, 8, 12] {
                // SAFETY: both lines are aligned, and have the bytes. The caller has a fence.
                #[expect(unsafe_code)]
                unsafe {
                    _mm_stream_ps(line.0.as_mut_ptr().add(at), _mm_load_ps(new.0.as_ptr().add(at)));
                }
            }
        }
        largest
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn all_instruction_sets_write_the_same() {
            let first: Vec<[f32; ELEMENTS]> =
                (0..9u8).map(|line| std::array::from_fn(|at| f32::from(line) + at as f32)).collect();
            let f = |a: f32, b: f32| 3.0 * a - b;
            let second: Vec<_> = first.iter().rev().copied().collect();
            let mut largest = Largest::default();
            let lines = first.iter().zip(&second);
            let expected: Vec<_> = lines.map(|(a, b)| line_of(a, b, &mut largest, &f).0).collect();
            let check = |write: &dyn Fn(&mut [Line]) -> Largest| {
                let mut lines = vec![Line([f32::NAN; ELEMENTS]); 9];
                let fence = Fence;
                assert_eq!(write(&mut lines), largest);
                drop(fence);
                assert_eq!(lines.iter().map(|line| line.0).collect::<Vec<_>>(), expected);
            };
            check(&|lines| by_128_bits(lines, &first, &second, f));
            if std::is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has the instructions.
                #[expect(unsafe_code)]
                check(&|lines| unsafe { by_256_bits(lines, &first, &second, f) });
            }
            check(&|lines| write_lines(lines, &first, &second, f));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::reduce::largest_magnitude;
    use crate::cpu::tests::bits_but_of_nan;

    proptest! {
        /// Writes a slice that begins and ends anywhere in its lines, and compares all of its memory.
        #[test]
        fn results_are_those_of_ordinary_writes(
            elements in prop_oneof![0usize..70, 2000usize..2100],
            starts in prop::array::uniform3(0usize..20),
            numbers in prop::collection::vec(prop::num::f32::ANY, 2 * 2120),
        ) {
            let f = |a: f32, b: f32| a - 0.3 * b;
            let part = |start: usize| start..start + elements;
            let (first, second) = numbers.split_at(2120);
            let (first, second) = (&first[part(starts[1])], &second[part(starts[2])]);
            let mut written = vec![7.0; 2120];
            let mut expected = written.clone();
            for (at, element) in expected[part(starts[0])].iter_mut().enumerate() {
                *element = f(first[at], second[at]);
            }
            let largest = map_past_caches(&mut written[part(starts[0])], [first, second], f);
            prop_assert_eq!(largest, largest_magnitude(second));
            prop_assert!(bits_but_of_nan(&written) == bits_but_of_nan(&expected));
        }
    }

    #[test]
    #[should_panic(expected = "written 3, read [3, 4]")]
    fn slices_of_different_lengths_are_refused() {
        map_past_caches(&mut [0.0; 3], [&[0.0; 3], &[0.0; 4]], |a, _| a);
    }
}
