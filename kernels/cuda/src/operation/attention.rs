//! Attention as one kernel ("flash attention", Dao et al. 2022), and its gradient as two. No tensor has an
//! element for each pair of a query and a key.

use super::{Operation, Slot, block_for_each};
use crate::driver::Grid;
use crate::multiplication::{Multiplier, Precision};
use crate::source::Library;

/// The sizes of attention: `number` times, softmax(q·kᵀ)·v for queries q of the shape `[queries, size]`, and
/// for keys k and values v of the shape `[keys, size]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attention {
    number: usize,
    queries: usize,
    keys: usize,
    size: usize,
    causal: bool,
    /// Whether tensor cores multiply.
    tensor: bool,
}

/// The rows of a block of threads: those that it keeps, and those that it goes over.
#[derive(Clone, Copy, Debug)]
struct Rows {
    own: usize,
    others: usize,
}

/// The number of threads of a block, as in attention.cu.
const THREADS: u32 = 128;
/// The largest size of a query. The rows of a block must fit into its shared memory.
const SIZE_MAX: usize = 128;
/// The largest size of a query of which a block has more rows.
const SMALL_MAX: usize = 64;
/// The largest number of blocks in a grid.
const BLOCKS_MAX: usize = 1 << 20;
/// The largest number of rows. They are 32-bit numbers in the kernels, with room for a block behind the last.
const ROWS_MAX: usize = 1 << 30;

impl Attention {
    /// Returns the sizes; `None` if there are no kernels for them. If `causal` is true, query i sees only the
    /// first i + 1 keys. If `multiplier` rounds factors, tensor cores multiply factors of
    /// [`Precision::Tf32`], whatever it is.
    pub const fn new(
        number: usize,
        [queries, keys]: [usize; 2],
        size: usize,
        causal: bool,
        multiplier: Multiplier,
    ) -> Option<Self> {
        let tensor =
            matches!(multiplier, Multiplier::Library(Precision::Tf32 | Precision::Bf16 | Precision::Fp16));
        let size_max = if tensor { SMALL_MAX } else { SIZE_MAX };
        let rows = if queries > keys { queries } else { keys };
        let fits = size >= 1 && size <= size_max && queries >= 1 && keys >= 1 && rows <= ROWS_MAX;
        if !fits || causal && queries != keys {
            return None;
        }
        Some(Self { number, queries, keys, size, causal, tensor })
    }

    /// Returns the number of multiplications of one product of all queries and keys.
    pub const fn multiplications(&self) -> usize {
        self.number * self.queries * self.keys * self.size
    }

    /// Returns the number of queries, of all times.
    pub const fn all_queries(&self) -> usize {
        self.number * self.queries
    }

    /// Returns the type `Shape` of the kernels.
    fn text(&self) -> String {
        let Self { number, queries, keys, size, causal, .. } = self;
        format!("attention::Shape<{number}, {queries}, {keys}, {size}, {causal}>")
    }

    /// Returns the rows of a block of the forward or of the backward pass.
    const fn rows(&self, is_forward: bool) -> Rows {
        match (self.tensor, self.size <= SMALL_MAX, is_forward) {
            (true, ..) | (false, true, true) => Rows { own: 64, others: 32 },
            (false, true, false) => Rows { own: 32, others: 32 },
            (false, false, true) => Rows { own: 32, others: 16 },
            (false, false, false) => Rows { own: 16, others: 16 },
        }
    }

    /// Adds a kernel for `count` rows. `matrices` are the numbers of matrices of own rows, and of weights.
    fn then(
        &self,
        before: Operation,
        kind: &str,
        (Rows { own, others }, count): (Rows, usize),
        [of_own, of_weights]: [usize; 2],
        [parameters, call]: [&str; 2],
        slots: &[Slot],
    ) -> Operation {
        let (shape, mut kind) = (self.text(), kind.to_owned());
        let mut body = format!(
            "    typedef attention::Rows<{shape}, {own}, {others}, {of_own}, {of_weights}> Rows;\n    \
             __shared__ __align__(16) Rows rows;\n    attention::{call}\n"
        );
        if self.tensor {
            kind += "_tf32";
            // The weights of own rows take the place of their products with each matrix.
            body = format!(
                "    typedef attention::tensor::Tiles<{shape}, {of_own}> Rows;\n    \
                 __shared__ __align__(32) Rows rows;\n    attention::tensor::{call}\n"
            );
        }
        let blocks = (self.number * count.div_ceil(own)).clamp(1, BLOCKS_MAX) as u32;
        let grid = Grid { blocks: [blocks, 1, 1], threads: [THREADS, 1, 1] };
        before.then_generated(Library::Attention, &kind, [parameters, &body], grid, slots)
    }
}

impl Operation {
    /// q, k, v → the mean of the values for each query, and the logarithm of the sum of the exponentials of
    /// its scores. Keys that a query does not see do not matter, even if they or their values are not finite.
    pub fn attention(attention: &Attention) -> Self {
        if attention.all_queries() == 0 {
            return Self::nothing();
        }
        let text = [
            "float* mean, float* sizes, const float* query, const float* key, const float* value",
            "forward<Rows>(mean, sizes, query, key, value, rows);",
        ];
        let slots = [Slot::Output(0), Slot::Output(1), Slot::Input(0), Slot::Input(1), Slot::Input(2)];
        attention.then(
            Self::default(),
            "attention",
            (attention.rows(true), attention.queries),
            [1, 1],
            text,
            &slots,
        )
    }

    /// q, k, v, the two outputs of [`attention`](Self::attention), the gradient of the mean → the gradients
    /// of v, k and q.
    pub fn attention_grad(attention: &Attention) -> Self {
        let (Attention { number, queries, keys, size, .. }, rows) = (*attention, attention.rows(false));
        if number == 0 {
            return Self::nothing();
        }
        let all = attention.all_queries();
        let [query, key, value, mean, sizes, dmean] = std::array::from_fn(Slot::Input);
        let dots = [Slot::Scratch(0), mean, dmean, super::count(all), super::count(size)];
        let grid = block_for_each(all.div_ceil(16));
        let own = Self::default().then(Library::Attention, "attention_dots", grid, &dots);
        let inputs = [query, key, value, dmean, sizes, Slot::Kept(0)];
        let parameters = "const float* query, const float* key, const float* value, const float* dmean, const \
                          float* sizes, const float* dots";
        let of_keys = [
            &*format!("float* dvalue, float* dkey, {parameters}"),
            "backward<true>(dvalue, dkey, query, key, value, dmean, sizes, dots, rows);",
        ];
        let slots = [&[Slot::Output(0), Slot::Output(1)][..], &inputs].concat();
        let own = attention.then(own, "attention_keys_grad", (rows, keys), [2, 2], of_keys, &slots);
        let of_queries = [
            &*format!("float* dquery, {parameters}"),
            "backward<false>(nullptr, dquery, query, key, value, dmean, sizes, dots, rows);",
        ];
        let slots = [&[Slot::Output(2)][..], &inputs].concat();
        let own = attention.then(own, "attention_queries_grad", (rows, queries), [2, 1], of_queries, &slots);
        own.with_scratch(4 * all as u64)
    }
}
