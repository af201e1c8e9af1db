// Operations on the rows of a matrix: softmax, its logarithm and their gradients, as in
// kernels/src/cpu/softmax.rs and causal.rs. Each block works on whole rows.

// Gives each row to one block.
#define FOR_EACH_ROW(row, rows) for (Count row = blockIdx.x; row < (rows); row += gridDim.x)
// Gives each element of a row to one thread of the block.
#define FOR_EACH_OF_ROW(at, n) for (Count at = threadIdx.x; at < (n); at += LANES)

static __device__ float max_of_row(const float* x, Count n) {
    float largest = MINUS_INFINITY;
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
