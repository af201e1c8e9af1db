//! Matrix products, single and in batches. This module must not depend on layers.
//!
//! Each element of a result starts from 0, the bias or the old value. Its terms are added in order, by fused
//! multiply-add if the instruction set has it. So its bits do not depend on `threads` or on the division
//! into tiles.

mod batch;
mod geometry;
mod job;
mod pack;
mod pass;
mod region;
mod task;
mod transpose;

pub use batch::{batched_matmul, batched_matmul_scratch};
pub use geometry::Product;

use pulp::Arch;

use self::job::{Job, Left, Panels, Start};
use self::pack::Source;
use self::region::Region;
use super::dispatch::arch;
use super::epilogue::Epilogue;
use super::shape::expect_len;
use super::threads::Threads;

/// The number of columns in a panel. Each pass over the left-hand matrix reads one panel of the right-hand
/// matrix.
const PANEL: usize = 64;
/// The approximate number of rows of a panel that are read in one pass. These rows stay in the second-level
/// cache.
const DEPTH: usize = 256;
/// The least number of rows in a block of the left-hand matrix. A block is multiplied with one panel after
/// the other.
const FEW_ROWS: usize = 24;
/// The number of rows of a flipped product that are computed before they are stored transposed.
const FLIP_ROWS: usize = 48;

/// Computes `dst = epilogue(a · b)` with the shapes of `product`; `scratch` must have at least
/// [`Product::scratch`] floats.
///
/// # Panics
/// If a slice does not have the length that `product` requires.
#[track_caller]
pub fn matmul(
    dst: &mut [f32],
    a: &[f32],
    b: &[f32],
    product: &Product,
    epilogue: Epilogue<'_>,
    scratch: &mut [f32],
    threads: Threads,
) {
    let call = Call {
        a,
        b,
        product,
        start: start(epilogue, product),
        relu: matches!(epilogue, Epilogue::BiasRelu(_)),
    };
    call.compute(dst, scratch, threads, arch());
}

/// Computes `dst += a · b`. The arguments are the same as those of [`matmul`], without an epilogue.
///
/// # Panics
/// If a slice does not have the length that `product` requires.
#[track_caller]
pub fn matmul_accumulate(
    dst: &mut [f32],
    a: &[f32],
    b: &[f32],
    product: &Product,
    scratch: &mut [f32],
    threads: Threads,
) {
    Call { a, b, product, start: Start::Old, relu: false }.compute(dst, scratch, threads, arch());
}

#[track_caller]
fn start<'a>(epilogue: Epilogue<'a>, product: &Product) -> Start<'a> {
    match epilogue.bias() {
        Some(bias) => {
            expect_len("matmul: bias", bias, product.n);
            Start::Bias(bias)
        }
        None => Start::Zero,
    }
}

/// The arguments of one product.
struct Call<'a> {
    a: &'a [f32],
    b: &'a [f32],
    product: &'a Product,
    start: Start<'a>,
    relu: bool,
}

impl Call<'_> {
    #[track_caller]
    fn compute(self, dst: &mut [f32], scratch: &mut [f32], threads: Threads, arch: Arch) {
        let Self { a, b, product, start, relu } = self;
        let lens = product.lens();
        expect_len("matmul: a", a, lens[0]);
        expect_len("matmul: b", b, lens[1]);
        expect_len("matmul: dst", dst, lens[2]);
        let want = product.scratch(threads);
        assert!(
            scratch.len() >= want,
            "matmul: scratch has {} elements, expected at least {want}",
            scratch.len()
        );
        let Product { m, k, n, transpose_a, transpose_b } = *product;
        if dst.is_empty() {
            return;
        }
        let plan = product.plan();
        let tasks = product.tasks(threads);
        let left =
            |data, transposed, rows| Left { data, transposed, rows, depth: k, first_row: 0, first_term: 0 };
        let (left, right) = match plan.flipped {
            true => (left(b, !transpose_b, n), a),
            false => (left(a, transpose_a, m), b),
        };
        // The used part of the scratch memory starts on a cache line, so that no vector crosses the edge of
        // a cache line.
        let skip = scratch.as_ptr().align_offset(64).min(geometry::ALIGN).min(scratch.len());
        let (packed, slots) = scratch[skip..].split_at_mut(if plan.packs { k * plan.cols } else { 0 });
        let panels = if plan.packs {
            Source { data: right, depth: k, cols: plan.cols, transposed: plan.transposes, arch }
                .pack(packed, tasks);
            Panels::Packed { data: packed, depth: k }
        } else {
            Panels::InPlace { data: right, cols: plan.cols }
        };
        let (block_rows, gathers, flipped, slot) = (plan.block_rows, plan.gathers, plan.flipped, plan.slot);
        let job = Job { left, panels, start, relu, flipped, block_rows, gathers, slot, arch };
        job.share(Region::new(dst, m, n), 0..left.rows, 0..plan.cols, slots, tasks);
    }
}

#[cfg(test)]
mod tests;
