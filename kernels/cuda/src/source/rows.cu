// Operations on the rows of a matrix: softmax, its logarithm and their gradients, as in
// kernels/src/cpu/softmax.rs and causal.rs. `lanes` threads share a row.

static __device__ float max_of_row(const float* x, Count n, unsigned lanes) {
    float largest = MINUS_INFINITY;
    FOR_EACH_OF_ROW(at, n, lanes) largest = larger(largest, x[at]);
    return max_of_lanes(largest, lanes);
}

// Returns the sum of the exponentials of a row, each divided by that of the largest element.
static __device__ float sum_of_exponentials(const float* x, Count n, float largest, unsigned lanes) {
    float sum = 0.0f;
    FOR_EACH_OF_ROW(at, n, lanes) sum += expf(x[at] - largest);
    return sum_of_lanes(sum, lanes);
}

// If `causal` is not 0, the rows form square matrices, and row i of a matrix uses only its first i + 1
// elements.
extern "C" __global__ void softmax(float* to, const float* from, Count rows, Count n, unsigned lanes,
                                   unsigned causal) {
    FOR_EACH_ROW(row, rows, lanes) {
        const float* x = from + row * n;
        Count count = causal ? row % n + 1 : n;
        float largest = max_of_row(x, count, lanes);
        float sum = sum_of_exponentials(x, count, largest, lanes);
        FOR_EACH_OF_ROW(at, n, lanes) to[row * n + at] = at < count ? expf(x[at] - largest) / sum : 0.0f;
    }
}

extern "C" __global__ void softmax_grad(float* to, const float* outputs, const float* gradients, Count rows,
                                        Count n, unsigned lanes) {
    FOR_EACH_ROW(row, rows, lanes) {
        const float *y = outputs + row * n, *dy = gradients + row * n;
        float dot = 0.0f;
        FOR_EACH_OF_ROW(at, n, lanes) dot += y[at] * dy[at];
        dot = sum_of_lanes(dot, lanes);
        FOR_EACH_OF_ROW(at, n, lanes) to[row * n + at] = y[at] * (dy[at] - dot);
    }
}

extern "C" __global__ void log_softmax(float* to, const float* from, Count rows, Count n, unsigned lanes) {
    FOR_EACH_ROW(row, rows, lanes) {
        const float* x = from + row * n;
        float largest = max_of_row(x, n, lanes);
        float sum = logf(sum_of_exponentials(x, n, largest, lanes));
        FOR_EACH_OF_ROW(at, n, lanes) to[row * n + at] = x[at] - largest - sum;
    }
}

extern "C" __global__ void log_softmax_grad(float* to, const float* outputs, const float* gradients, Count rows,
                                            Count n, unsigned lanes) {
    FOR_EACH_ROW(row, rows, lanes) {
        const float *y = outputs + row * n, *dy = gradients + row * n;
        float sum = 0.0f;
        FOR_EACH_OF_ROW(at, n, lanes) sum += dy[at];
        sum = sum_of_lanes(sum, lanes);
        FOR_EACH_OF_ROW(at, n, lanes) to[row * n + at] = dy[at] - expf(y[at]) * sum;
    }
}
