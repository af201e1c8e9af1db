// Losses and their gradients, as in kernels/src/cpu/loss. A loss is a mean: the first kernel of each writes
// the sums of parts.

// Returns whether a label is a class. The processor has checked the labels; this check only prevents a read
// beyond the row.
static __device__ __forceinline__ bool is_class(int label, Count classes) {
    return label >= 0 && (Count)label < classes;
}

static __device__ float cross_entropy_of_row(const float* x, int label, Count classes, unsigned lanes) {
    float largest = max_of_row(x, classes, lanes);
    float sum = logf(sum_of_exponentials(x, classes, largest, lanes));
    return is_class(label, classes) ? sum - (x[label] - largest) : NOT_A_NUMBER;
}

extern "C" __global__ void cross_entropy(double* sums, const float* logits, const int* labels, Count rows,
                                         Count of_part, Count classes, unsigned lanes) {
    SUM_PARTS_OF_ROWS(sums, rows, of_part, lanes,
                      cross_entropy_of_row(logits + row * classes, labels[row], classes, lanes))
}

extern "C" __global__ void cross_entropy_grad(float* to, const float* logits, const int* labels,
                                              const float* upstream, Count rows, Count classes, unsigned lanes) {
    float factor = upstream[0] / (float)rows;
    FOR_EACH_ROW(row, rows, lanes) {
        const float* x = logits + row * classes;
        float largest = max_of_row(x, classes, lanes);
        float sum = sum_of_exponentials(x, classes, largest, lanes);
        int label = labels[row];
        // A label that is no class makes the row NaN.
        float scale = is_class(label, classes) ? factor : NOT_A_NUMBER;
        FOR_EACH_OF_ROW(at, classes, lanes) {
            float y = expf(x[at] - largest) / sum * scale;
            to[row * classes + at] = at == (Count)label ? y - factor : y;
        }
    }
}

static __device__ float dense_cross_entropy_of_row(const float* x, const float* weights, Count classes,
                                                   unsigned lanes) {
    float largest = max_of_row(x, classes, lanes);
    float sum = logf(sum_of_exponentials(x, classes, largest, lanes));
    float loss = 0.0f;
    FOR_EACH_OF_ROW(at, classes, lanes) loss += weights[at] * (sum - (x[at] - largest));
    return sum_of_lanes(loss, lanes);
}

extern "C" __global__ void dense_cross_entropy(double* sums, const float* logits, const float* labels, Count rows,
                                               Count of_part, Count classes, unsigned lanes) {
    SUM_PARTS_OF_ROWS(sums, rows, of_part, lanes,
                      dense_cross_entropy_of_row(logits + row * classes, labels + row * classes, classes, lanes))
}

extern "C" __global__ void dense_cross_entropy_grad(float* to, const float* logits, const float* labels,
                                                    const float* upstream, Count rows, Count classes, unsigned lanes) {
    float factor = upstream[0] / (float)rows;
    FOR_EACH_ROW(row, rows, lanes) {
        const float *x = logits + row * classes, *weights = labels + row * classes;
        float largest = max_of_row(x, classes, lanes);
        float sum = sum_of_exponentials(x, classes, largest, lanes);
        float weight = 0.0f;
        FOR_EACH_OF_ROW(at, classes, lanes) weight += weights[at];
        weight = sum_of_lanes(weight, lanes);
        FOR_EACH_OF_ROW(at, classes, lanes) {
            float y = expf(x[at] - largest) / sum;
            to[row * classes + at] = (y * weight - weights[at]) * factor;
        }
    }
}

static __device__ __forceinline__ float sigmoid_loss(float x, float label) {
    // A NaN stays a NaN. The exponential of a number that is not positive cannot overflow.
    float positive = x < 0.0f ? 0.0f : x;
    return positive - x * label + log1pf(expf(-fabsf(x)));
}

extern "C" __global__ void sigmoid_cross_entropy(double* sums, const float* logits, const float* labels, Count n,
                                                 Count of_part) {
    SUM_PARTS(sums, n, of_part, sigmoid_loss(logits[at], labels[at]))
}

extern "C" __global__ void sigmoid_cross_entropy_grad(float* to, const float* logits, const float* labels,
                                                      const float* upstream, Count n) {
    float factor = upstream[0] / (float)n;
    FOR_EACH(at, n) to[at] = (sigmoid(logits[at]) - labels[at]) * factor;
}

extern "C" __global__ void squared_error(double* sums, const float* a, const float* b, Count n, Count of_part) {
    SUM_PARTS(sums, n, of_part, (a[at] - b[at]) * (a[at] - b[at]))
}

extern "C" __global__ void squared_error_grad(float* to, const float* a, const float* b, const float* upstream,
                                              Count n) {
    float factor = 2.0f * upstream[0] / (float)n;
    FOR_EACH(at, n) to[at] = (a[at] - b[at]) * factor;
}
