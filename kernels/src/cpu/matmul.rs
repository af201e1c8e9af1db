//! Matrix products, by the `gemm` crate. They must not know which layer a matrix belongs to.
//!
//! The one exception to "a kernel does not allocate": `gemm` allocates its scratch per call, a few bytes
//! always and a packed copy of an operand where the layout asks for one.

use gemm::Parallelism;
use rayon::prelude::*;

use super::dispatch::has_avx512;
use super::matrix::MatRef;
use super::shape::expect_len;

/// How many threads one product may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// The calling thread only.
    One,
    /// Up to this many tasks of the rayon pool whose `install` the caller runs in; small products stay on one
    /// thread.
    Pool(usize),
}

/// `dst = a · b` with `a: [m, k]`, `b: [k, n]`, `dst: [m, n]` row-major. The old contents of `dst` are not
/// read.
///
/// The bits of the result depend on the shapes and on the instruction set (`gemm` uses fused multiply-add
/// where there is one), not on `threads`.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn matmul(dst: &mut [f32], a: MatRef<'_>, b: MatRef<'_>, threads: Threads) {
    product(dst, a, b, Mode::Overwrite, threads);
}

/// `dst += a · b`, otherwise as [`matmul`].
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn matmul_accumulate(dst: &mut [f32], a: MatRef<'_>, b: MatRef<'_>, threads: Threads) {
    product(dst, a, b, Mode::Accumulate, threads);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Overwrite,
    Accumulate,
}

#[track_caller]
fn product(dst: &mut [f32], a: MatRef<'_>, b: MatRef<'_>, mode: Mode, threads: Threads) {
    let (m, k, n) = (a.rows(), a.cols(), b.cols());
    assert!(b.rows() == k, "matmul: a is [{m}, {k}] but b is [{}, {n}]", b.rows());
    expect_len("matmul: dst", dst, m.checked_mul(n).expect("rows * cols overflows"));
    let threads = match threads {
        Threads::Pool(threads)
            if threads > 1 && (m * n).saturating_mul(k) >= gemm::get_threading_threshold() =>
        {
            threads
        }
        _ => 1,
    };
    match threads {
        _ if m == 0 || n == 0 => {}
        1 if prefers_dot_tiles(a, b) => dot_tiles(dst, a, b, mode),
        _ if prefers_dot_tiles(a, b) => {
            let band = m.div_ceil(threads);
            dst.par_chunks_mut(band * n).enumerate().for_each(|(i, dst)| {
                dot_tiles(dst, a.row_range(i * band, dst.len() / n), b, mode);
            });
        }
        1 => gemm(dst, n, a, b, mode, Parallelism::None),
        _ => gemm(dst, n, a, b, mode, Parallelism::Rayon(threads)),
    }
}

/// Whether [`dot_tiles`] beats one call of `gemm`, from measurements (Zen 5, one thread).
///
/// For `a · bᵀ` with AVX-512 `gemm` transposes all of `bᵀ` into packed panels, which takes as long as the
/// product itself where the batch is small: at `[64, 512] · [512, 512]ᵀ` it does 111 GFLOP/s, tiles do 208.
/// With many rows the packing pays (1024 rows: 243 to 194), and a short `k` leaves the tiles' horizontal sums
/// to dominate. With AVX2 alone `gemm` wins everywhere.
fn prefers_dot_tiles(a: MatRef<'_>, b: MatRef<'_>) -> bool {
    has_avx512() && !a.is_transposed() && b.is_transposed() && a.cols() >= 256 && a.rows() <= 256
}

/// `a · bᵀ` in tiles so small that `gemm` takes each element as a dot product of two contiguous rows, without
/// packing.
fn dot_tiles(dst: &mut [f32], a: MatRef<'_>, b: MatRef<'_>, mode: Mode) {
    /// `gemm` 0.19 does so for up to 16 · 16 elements (`gemm_basic_generic`).
    const TILE: usize = 16;
    let (m, n, b_rows) = (a.rows(), b.cols(), b.transpose());
    for col in (0..n).step_by(TILE) {
        let b = b_rows.row_range(col, TILE.min(n - col)).transpose();
        for row in (0..m).step_by(TILE) {
            let a = a.row_range(row, TILE.min(m - row));
            gemm(&mut dst[row * n + col..], n, a, b, mode, Parallelism::None);
        }
    }
}

/// The product of matrices that are not empty, into a matrix whose rows lie `dst_row` elements apart from
/// `dst[0]` on.
fn gemm(dst: &mut [f32], dst_row: usize, a: MatRef<'_>, b: MatRef<'_>, mode: Mode, parallelism: Parallelism) {
    let (m, k, n) = (a.rows(), a.cols(), b.cols());
    assert!(b.rows() == k && dst_row >= n && dst.len() >= (m - 1) * dst_row + n);
    let (a_row, a_col) = a.strides();
    let (b_row, b_col) = b.strides();
    // SAFETY: the data of a `MatRef` are rows * cols elements, and its strides address exactly those. The
    // last element of `dst`, whose rows do not overlap, was checked to be inside. `dst` is borrowed mutably,
    // so it overlaps neither operand. No stride exceeds the length of its slice, so none exceeds
    // `isize::MAX`.
    #[allow(unsafe_code)]
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            dst.as_mut_ptr(),
            1,
            dst_row as isize,
            mode == Mode::Accumulate,
            a.data().as_ptr(),
            a_col as isize,
            a_row as isize,
            b.data().as_ptr(),
            b_col as isize,
            b_row as isize,
            1.0, // the factor of dst, if it is read
            1.0, // the factor of a · b
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::testing::{bits, floats};

    /// Which operands are stored transposed.
    const LAYOUTS: [(bool, bool); 4] = [(false, false), (true, false), (false, true), (true, true)];

    fn matrix(data: &[f32], rows: usize, cols: usize, transposed: bool) -> MatRef<'_> {
        if transposed { MatRef::new(data, cols, rows).transpose() } else { MatRef::new(data, rows, cols) }
    }

    fn check(m: usize, k: usize, n: usize, seed: u64) {
        let (a, b, old) = (floats(m * k, seed), floats(k * n, seed + 1), floats(m * n, seed + 2));
        for (ta, tb) in LAYOUTS {
            let (a, b) = (matrix(&a, m, k, ta), matrix(&b, k, n, tb));
            let mut overwritten = vec![f32::NAN; m * n];
            matmul(&mut overwritten, a, b, Threads::One);
            let mut accumulated = old.clone();
            matmul_accumulate(&mut accumulated, a, b, Threads::One);
            let at = |x: MatRef<'_>, i, j| f64::from(x.data()[i * x.strides().0 + j * x.strides().1]);
            for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                let terms = (0..k).map(|p| at(a, i, p) * at(b, p, j));
                let (want, size) =
                    terms.fold((0.0, 1.0), |(sum, size), term| (sum + term, size + term.abs()));
                let close = |got: f32, want: f64| (f64::from(got) - want).abs() <= 1e-6 * size;
                let index = i * n + j;
                assert!(close(overwritten[index], want), "{m}x{k}x{n} {ta} {tb} at {i},{j}");
                assert!(
                    close(accumulated[index], want + f64::from(old[index])),
                    "{m}x{k}x{n} {ta} {tb} at {i},{j}"
                );
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn agrees_with_f64(m in 0usize..40, k in 0usize..40, n in 0usize..40, seed: u32) {
            check(m, k, n, seed.into());
        }

        /// Shapes that take the dot tiles.
        #[test]
        fn long_rows_agree_with_f64(m in 1usize..36, k in 256usize..300, n in 1usize..36, seed: u32) {
            check(m, k, n, seed.into());
        }
    }

    #[test]
    fn threads_do_not_change_the_bits() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        for (m, k, n) in [(64, 300, 70), (37, 257, 129), (300, 64, 65), (129, 784, 10)] {
            let (a, b) = (floats(m * k, 1), floats(k * n, 2));
            for (ta, tb) in LAYOUTS {
                let (a, b) = (matrix(&a, m, k, ta), matrix(&b, k, n, tb));
                let product = |threads| {
                    let mut dst = vec![f32::NAN; m * n];
                    matmul(&mut dst, a, b, threads);
                    bits(&dst)
                };
                let one = product(Threads::One);
                for threads in [0, 1, 2, 3, 8] {
                    assert!(one == pool.install(|| product(Threads::Pool(threads))), "{m}x{k}x{n} {ta} {tb}");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "a is [2, 3] but b is [2, 3]")]
    fn inner_dimensions_must_agree() {
        let x = [0.0; 6];
        matmul(&mut [0.0; 6], MatRef::new(&x, 2, 3), MatRef::new(&x, 2, 3), Threads::One);
    }

    #[test]
    #[should_panic(expected = "matrix data has 6 elements, expected 8")]
    fn data_must_fill_the_matrix() {
        let _ = MatRef::new(&[0.0; 6], 2, 4);
    }
}
