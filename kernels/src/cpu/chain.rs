//! Several element-wise kernels in one pass over memory. This module must not depend on the source of the
//! operands.

use pulp::{Simd, WithSimd};

use super::broadcast::{Binary, Side};
use super::dispatch::{dispatch, zip_map_loop};
use super::shape::expect_len;
use super::threads::{ELEMENTS_PER_TASK, Threads, share_rows};
use super::unary::{InPlace, Unary, UnaryGradWork, UnaryWork};

/// One step of a [`chain`]: a function that is applied to each element `x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// Computes `f(x)`, like [`unary`](super::unary()).
    Unary(Unary),
    /// Computes `f′ · x`, like [`unary_grad`](super::unary_grad) with `x` as `dy` and the operand as the
    /// saved value.
    UnaryGrad(Unary, Operand),
    /// Computes `f(x, operand)` or, with [`Side::A`], `f(operand, x)`, like [`binary`](super::binary). The
    /// side says which argument the operand is.
    Binary(Binary, Operand, Side),
}

/// An operand that a [`Step`] reads in addition to the element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// The operand's index in the `operands` of [`chain`].
    pub index: usize,
    /// How the operand is broadcast to the shape of the result.
    pub extent: Extent,
}

/// How an operand of a [`Step`] is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The operand is not repeated: it has as many elements as the result.
    Whole,
    /// The operand is one element, which is used for all elements of the result.
    Scalar,
    /// The operand is a row `[n]`, which is repeated for each row of the result. The length of the result is
    /// a multiple of `n`.
    Row,
}

/// The number of elements in a tile. A tile goes through all steps before the next tile begins; it is small
/// enough to stay in the first-level cache.
const TILE: usize = 1024;

/// Computes `dst = stepₙ(… step₁(first))`, element by element. If `first` is `None`, the first step reads
/// `dst` instead. The result has the same bits as if the kernels were called one after the other. Long
/// slices are divided among the threads.
///
/// # Panics
/// If an operand is missing, or does not have the length that its extent requires.
#[track_caller]
pub fn chain(dst: &mut [f32], first: Option<&[f32]>, steps: &[Step], operands: &[&[f32]], threads: Threads) {
    let len = dst.len();
    if let Some(first) = first {
        expect_len("chain: first", first, len);
    }
    for step in steps {
        let (Step::UnaryGrad(_, operand) | Step::Binary(_, operand, _)) = step else { continue };
        let data = operands[operand.index];
        match operand.extent {
            Extent::Whole => expect_len("chain: operand", data, len),
            Extent::Scalar => expect_len("chain: scalar", data, 1),
            Extent::Row => assert!(
                if data.is_empty() { len == 0 } else { len.is_multiple_of(data.len()) },
                "chain: {len} elements are not a multiple of the row length {}",
                data.len()
            ),
        }
    }
    share_rows([(dst, 1)], len, threads.tasks(len, ELEMENTS_PER_TASK), &|[dst], part| {
        let first = first.map(|first| &first[part.clone()]);
        dispatch(Chain { dst, first, start: part.start, steps, operands });
    });
}

/// The part of the result that one task computes. It begins at element `start`.
struct Chain<'a> {
    dst: &'a mut [f32],
    first: Option<&'a [f32]>,
    start: usize,
    steps: &'a [Step],
    operands: &'a [&'a [f32]],
}

impl WithSimd for Chain<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { dst, first, start, steps, operands } = self;
        let mut scalar = [0.0; 256];
        for (number, tile) in dst.chunks_mut(TILE).enumerate() {
            if let Some(first) = first {
                tile.copy_from_slice(&first[number * TILE..][..tile.len()]);
            }
            let start = start + number * TILE;
            for step in steps {
                let tile = &mut *tile;
                match *step {
                    Step::Unary(f) => f.visit(OnTile { simd, tile }),
                    Step::UnaryGrad(f, Operand { index, extent }) => {
                        let mut operand = operands[index];
                        // A scalar is copied into a short row, so that no function needs a separate loop for
                        // scalars.
                        if extent == Extent::Scalar {
                            scalar.fill(operand[0]);
                            operand = &scalar;
                        }
                        f.visit_grad(OnTileWith { simd, tile, operand, start });
                    }
                    Step::Binary(f, Operand { index, extent }, side) => {
                        let (operand, is_scalar) = (operands[index], extent == Extent::Scalar);
                        let with = OnTileWith { simd, tile, operand, start };
                        match (f, side) {
                            (Binary::Add, _) => with.map(is_scalar, |y, x| x + y),
                            (Binary::Mul, _) => with.map(is_scalar, |y, x| x * y),
                            (Binary::Sub, Side::B) => with.map(is_scalar, |y, x| x - y),
                            (Binary::Sub, Side::A) => with.map(is_scalar, |y, x| y - x),
                            (Binary::Div, Side::B) => with.map(is_scalar, |y, x| x / y),
                            (Binary::Div, Side::A) => with.map(is_scalar, |y, x| y / x),
                        }
                    }
                }
            }
        }
    }
}

/// Applies a function of one number to a tile. Runs the loop of [`unary_in_place`](super::unary_in_place)
/// through `vectorize`, so that the loop is compiled only once.
struct OnTile<'a, S> {
    simd: S,
    tile: &'a mut [f32],
}

impl<S: Simd> UnaryWork for OnTile<'_, S> {
    #[inline(always)]
    fn run(self, f: impl Fn(f32) -> f32 + Copy + Sync) {
        self.simd.vectorize(InPlace { x: self.tile, f });
    }
}

/// A tile that begins at element `start` of the result, and an operand for the whole result.
struct OnTileWith<'a, S> {
    simd: S,
    tile: &'a mut [f32],
    operand: &'a [f32],
    start: usize,
}

impl<S: Simd> OnTileWith<'_, S> {
    /// Computes `x = f(operand, x)`.
    #[inline(always)]
    fn map(self, is_scalar: bool, f: impl Fn(f32, f32) -> f32 + Copy + Sync) {
        if is_scalar {
            let y = self.operand[0];
            self.simd.vectorize(InPlace { x: self.tile, f: move |x| f(y, x) });
        } else {
            self.run(f);
        }
    }
}

impl<S: Simd> UnaryGradWork for OnTileWith<'_, S> {
    #[inline(always)]
    fn run(self, f: impl Fn(f32, f32) -> f32 + Copy + Sync) {
        let Self { simd, tile, operand, start } = self;
        simd.vectorize(WithRows { tile, operand, start, f });
    }
}

/// Computes `x = f(operand, x)` with the operand repeated as rows. An operand with as many elements as the
/// result counts as one row, and is not repeated.
struct WithRows<'a, F> {
    tile: &'a mut [f32],
    operand: &'a [f32],
    start: usize,
    f: F,
}

impl<F: Fn(f32, f32) -> f32> WithSimd for WithRows<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { tile, operand, start, f } = self;
        let (mut rest, mut at) = (tile, start % operand.len().max(1));
        while !rest.is_empty() {
            let (part, behind) = rest.split_at_mut(rest.len().min(operand.len() - at));
            let operand = &operand[at..at + part.len()];
            zip_map_loop([part], [operand], |[x], [y]| [f(y, x)]);
            (rest, at) = (behind, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::broadcast::{Broadcast, binary};
    use crate::cpu::tests::{bits, each_arch, floats};
    use crate::cpu::unary::{unary_grad, unary_in_place};

    fn step() -> impl Strategy<Value = Step> {
        let f = prop::sample::select(vec![
            Unary::Neg,
            Unary::Square,
            Unary::Sqrt,
            Unary::Rsqrt,
            Unary::Abs,
            Unary::Log,
            Unary::Exp,
            Unary::Sigmoid,
            Unary::Tanh,
            Unary::Relu,
            Unary::LeakyRelu(0.2),
            Unary::Gelu,
        ]);
        let operand = prop::sample::select(vec![Extent::Whole, Extent::Scalar, Extent::Row])
            .prop_map(|extent| Operand { index: extent as usize, extent });
        let both = prop::sample::select(vec![Binary::Add, Binary::Sub, Binary::Mul, Binary::Div]);
        let side = prop::sample::select(vec![Side::A, Side::B]);
        prop_oneof![
            f.clone().prop_map(Step::Unary),
            (f, operand.clone()).prop_map(|(f, operand)| Step::UnaryGrad(f, operand)),
            (both, operand, side).prop_map(|(f, operand, side)| Step::Binary(f, operand, side)),
        ]
    }

    /// Applies the steps one after the other, with one call of a single kernel for each step. Returns the
    /// result, with which a test compares the result of `chain`.
    fn one_by_one(x: &[f32], steps: &[Step], operands: &[&[f32]], [rows, n]: [usize; 2]) -> Vec<f32> {
        let mut x = x.to_vec();
        for step in steps {
            let shape = |operand: Operand| [vec![rows, n], vec![1], vec![n]][operand.extent as usize].clone();
            let old = x.clone();
            match *step {
                Step::Unary(f) => unary_in_place(&mut x, f, Threads::One),
                Step::UnaryGrad(f, operand) => {
                    let data = operands[operand.index];
                    let saved: Vec<f32> = (0..x.len()).map(|i| data[i % data.len()]).collect();
                    unary_grad(&mut x, &saved, &old, f, Threads::One);
                }
                Step::Binary(f, operand, side) => {
                    let (data, shape) = (operands[operand.index], shape(operand));
                    if side == Side::A {
                        let shapes = Broadcast::new(&shape, &[rows, n]).unwrap();
                        binary(&mut x, data, &old, f, &shapes, Threads::One);
                    } else {
                        let shapes = Broadcast::new(&[rows, n], &shape).unwrap();
                        binary(&mut x, &old, data, f, &shapes, Threads::One);
                    }
                }
            }
        }
        x
    }

    /// Returns the bits of `x`, after every NaN was replaced with the same NaN. The payload of a NaN depends
    /// on the order of the operands, in which a chain may differ from the single kernels.
    fn bits_of(x: &[f32]) -> Vec<u32> {
        bits(&x.iter().map(|&x| if x.is_nan() { f32::NAN } else { x }).collect::<Vec<_>>())
    }

    proptest! {
        #[test]
        fn same_bits_as_one_by_one(
            steps in prop::collection::vec(step(), 0..6),
            sizes in prop_oneof![(0usize..6, 0usize..40), (0usize..4, 1000usize..1100), (900usize..1100, 1usize..4)],
        ) {
            let shape @ [rows, n] = [sizes.0, sizes.1];
            let (first, whole, row) = (floats(rows * n, 1), floats(rows * n, 2), floats(n, 3));
            let operands: [&[f32]; 3] = [&whole, &[0.7], &row];
            let want = bits_of(&one_by_one(&first, &steps, &operands, shape));
            let mut dst = vec![f32::NAN; rows * n];
            chain(&mut dst, Some(&first), &steps, &operands, Threads::One);
            prop_assert_eq!(bits_of(&dst), want.clone());
            dst.copy_from_slice(&first);
            chain(&mut dst, None, &steps, &operands, Threads::One);
            prop_assert_eq!(bits_of(&dst), want.clone());
            for arch in each_arch() {
                arch.dispatch(Chain { dst: &mut dst, first: Some(&first), start: 0, steps: &steps, operands: &operands });
                prop_assert_eq!(bits_of(&dst), want.clone());
            }
        }
    }

    #[test]
    fn threads_do_not_change_the_bits() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        let (first, row) = (floats(1999 * 150, 1), floats(150, 2));
        let steps = [
            Step::Binary(Binary::Mul, Operand { index: 0, extent: Extent::Row }, Side::A),
            Step::Unary(Unary::Gelu),
        ];
        let all = |threads| {
            let mut dst = vec![f32::NAN; first.len()];
            chain(&mut dst, Some(&first), &steps, &[&row], threads);
            bits(&dst)
        };
        let one = all(Threads::One);
        for threads in [0, 1, 2, 3, 8] {
            assert!(one == pool.install(|| all(Threads::Pool(threads))), "{threads} threads");
        }
    }

    #[test]
    #[should_panic(expected = "5 elements are not a multiple of the row length 2")]
    fn rows_must_be_whole() {
        let step = Step::UnaryGrad(Unary::Exp, Operand { index: 0, extent: Extent::Row });
        chain(&mut [0.0; 5], None, &[step], &[&[0.0; 2]], Threads::One);
    }
}
