//! Products of many matrices at once. This module must not know what the batch stands for.

use super::Product;
use super::geometry;
use crate::cpu::epilogue::Epilogue;
use crate::cpu::shape::expect_len;
use crate::cpu::threads::Threads;

/// Computes `dst[i] = a[i] · b[i]` for each `i` of a batch; each product has the shapes of `product`. If the
/// batch is long enough to occupy all threads, the batch is divided among the threads; otherwise each
/// product is divided. In both cases the result has the same bits as with one call of
/// [`matmul`](super::matmul()) for each product. `scratch` must have at least [`batched_matmul_scratch`]
/// floats.
///
/// # Panics
/// If a slice does not have the length that `batch` and `product` require.
#[track_caller]
pub fn batched_matmul(
    dst: &mut [f32],
    a: &[f32],
    b: &[f32],
    batch: usize,
    product: &Product,
    scratch: &mut [f32],
    threads: Threads,
) {
    let lens = product.lens().map(|len| len.checked_mul(batch).expect("batch * rows * cols overflows"));
    expect_len("batched_matmul: a", a, lens[0]);
    expect_len("batched_matmul: b", b, lens[1]);
    expect_len("batched_matmul: dst", dst, lens[2]);
    let want = batched_matmul_scratch(batch, product, threads);
    assert!(
        scratch.len() >= want,
        "batched_matmul: scratch has {} elements, expected at least {want}",
        scratch.len()
    );
    if dst.is_empty() {
        return;
    }
    let tasks = tasks(batch, product, threads);
    if tasks == 1 {
        each(dst, a, b, product, scratch, threads);
    } else {
        share(dst, a, b, product, scratch, tasks);
    }
}

/// Returns the number of floats of scratch memory that [`batched_matmul`] needs.
pub fn batched_matmul_scratch(batch: usize, product: &Product, threads: Threads) -> usize {
    match tasks(batch, product, threads) {
        1 => product.scratch(threads),
        tasks => tasks * product.scratch(Threads::One),
    }
}

/// Returns the number of tasks into which the batch is divided. If the number is 1, each product may be
/// divided among the threads instead.
fn tasks(batch: usize, product: &Product, threads: Threads) -> usize {
    match threads {
        Threads::Pool(count) if batch >= count => {
            let flops = product.flops().saturating_mul(batch);
            threads.tasks(flops, geometry::FLOPS_PER_TASK).min(batch)
        }
        _ => 1,
    }
}

fn share(dst: &mut [f32], a: &[f32], b: &[f32], product: &Product, scratch: &mut [f32], tasks: usize) {
    if tasks == 1 {
        return each(dst, a, b, product, scratch, Threads::One);
    }
    let [a_len, b_len, len] = product.lens();
    let (half, slot) = (tasks / 2, product.scratch(Threads::One));
    let cut = dst.len() / len * half / tasks;
    let (dst, dst_2) = dst.split_at_mut(cut * len);
    let (a, a_2) = a.split_at(cut * a_len);
    let (b, b_2) = b.split_at(cut * b_len);
    let (scratch, scratch_2) = scratch.split_at_mut(half * slot);
    rayon::join(
        || share(dst, a, b, product, scratch, half),
        || share(dst_2, a_2, b_2, product, scratch_2, tasks - half),
    );
}

fn each(dst: &mut [f32], a: &[f32], b: &[f32], product: &Product, scratch: &mut [f32], threads: Threads) {
    let [a_len, b_len, len] = product.lens();
    for (i, dst) in dst.chunks_exact_mut(len).enumerate() {
        let (a, b) = (&a[i * a_len..][..a_len], &b[i * b_len..][..b_len]);
        super::matmul(dst, a, b, product, Epilogue::Bare, scratch, threads);
    }
}
