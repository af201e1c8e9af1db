// Operations on the rows of a matrix: softmax, its logarithm and their gradients, as in
// kernels/src/cpu/softmax.rs and causal.rs. Each block works on whole rows.

#define WARPS (LANES / 32)
#define ALL 0xFFFFFFFFu

// Gives each row to one block.
#define FOR_EACH_ROW(row, rows) for (Count row = blockIdx.x; row < (rows); row += gridDim.x)
// Gives each element of a row to one thread of the block.
#define FOR_EACH_OF_ROW(at, n) for (Count at = threadIdx.x; at < (n); at += LANES)

// Returns the larger number, or NaN if either number is NaN.
static __device__ __forceinline__ float larger(float a, float b) { return b > a || b != b ? b : a; }

// Returns the largest number of all threads of the block, to each of them.
static __device__ float max_of_block(float own) {
    __shared__ float largest[WARPS];
    for (int distance = 16; distance > 0; distance /= 2) own = larger(own, __shfl_xor_sync(ALL, own, distance));
    // The threads may still be reading the numbers of an earlier call.
    __syncthreads();
    if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = own;
    __syncthreads();
    own = largest[0];
    for (int warp = 1; warp < WARPS; warp++) own = larger(own, largest[warp]);
    return own;
}

// Returns the sum of the numbers of all threads of the block, to each of them. The order of the additions is
// always the same.
static __device__ float sum_of_block(float own) {
    __shared__ float sums[WARPS];
    for (int distance = 16; distance > 0; distance /= 2) own += __shfl_xor_sync(ALL, own, distance);
    // The threads may still be reading the sums of an earlier call.
    __syncthreads();
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = own;
    __syncthreads();
    own = sums[0];
    for (int warp = 1; warp < WARPS; warp++) own += sums[warp];
    return own;
}

static __device__ float max_of_row(const float* x, Count n) {
    float largest = __int_as_float(0xFF800000);  // minus infinity
    FOR_EACH_OF_ROW(at, n) largest = larger(largest, x[at]);
    return max_of_block(largest);
}

// Returns the sum of the exponentials of a row, each divided by that of the largest element.
static __device__ float sum_of_exponentials(const float* x, Count n, float largest) {
    float sum = 0.0f;
    FOR_EACH_OF_ROW(at, n) sum += expf(x[at] - largest);
    return sum_of_block(sum);
}

// If `causal` is not 0, the rows form square matrices, and row i of a matrix uses only its first i + 1
// elements.
extern "C" __global__ void softmax(float* to, const float* from, Count rows, Count n, unsigned causal) {
    FOR_EACH_ROW(row, rows) {
        const float* x = from + row * n;
        Count count = causal ? row % n + 1 : n;
        float largest = max_of_row(x, count);
        float sum = sum_of_exponentials(x, count, largest);
        FOR_EACH_OF_ROW(at, n) to[row * n + at] = at < count ? expf(x[at] - largest) / sum : 0.0f;
    }
}

extern "C" __global__ void softmax_grad(float* to, const float* outputs, const float* gradients, Count rows,
                                        Count n) {
    FOR_EACH_ROW(row, rows) {
        const float *y = outputs + row * n, *dy = gradients + row * n;
        float dot = 0.0f;
        FOR_EACH_OF_ROW(at, n) dot += y[at] * dy[at];
        dot = sum_of_block(dot);
        FOR_EACH_OF_ROW(at, n) to[row * n + at] = y[at] * (dy[at] - dot);
    }
}

extern "C" __global__ void log_softmax(float* to, const float* from, Count rows, Count n) {
    FOR_EACH_ROW(row, rows) {
        const float* x = from + row * n;
        float largest = max_of_row(x, n);
        float sum = logf(sum_of_exponentials(x, n, largest));
        FOR_EACH_OF_ROW(at, n) to[row * n + at] = x[at] - largest - sum;
    }
}

extern "C" __global__ void log_softmax_grad(float* to, const float* outputs, const float* gradients, Count rows,
                                            Count n) {
    FOR_EACH_ROW(row, rows) {
        const float *y = outputs + row * n, *dy = gradients + row * n;
        float sum = 0.0f;
        FOR_EACH_OF_ROW(at, n) sum += dy[at];
        sum = sum_of_block(sum);
        FOR_EACH_OF_ROW(at, n) to[row * n + at] = dy[at] - expf(y[at]) * sum;
    }
}
