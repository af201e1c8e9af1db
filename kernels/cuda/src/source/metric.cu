// Metrics, as in kernels/src/cpu/accuracy.rs and auc.rs.

// Returns whether the logit of the label is among the `k` largest of a row. Of equal logits, the first is the
// largest. A row with a NaN, or whose label is no class, does not count.
static __device__ bool is_in_top_k(const float* x, int label, Count classes, Count k, unsigned lanes) {
    // All threads that share the row take the same branch.
    if (label < 0 || (Count)label >= classes) return false;
    float own = x[label];
    // The number of logits that rank above that of the label; NaN if a logit is NaN.
    float above = 0.0f;
    FOR_EACH_OF_ROW(at, classes, lanes) {
        float other = x[at];
        bool ranks_above = other > own || (other == own && at < (Count)label);
        above += ranks_above ? 1.0f : other == other ? 0.0f : other;
    }
    return sum_of_lanes(above, lanes) < (float)k;
}

extern "C" __global__ void rows_in_top_k(double* sums, const float* logits, const int* labels, Count rows,
                                         Count of_part, Count classes, Count k, unsigned lanes) {
    SUM_PARTS_OF_ROWS(sums, rows, of_part, lanes,
                      is_in_top_k(logits + row * classes, labels[row], classes, k, lanes) ? 1.0 : 0.0)
}

extern "C" __global__ void clear_counts(unsigned* counts, Count n) {
    FOR_EACH(at, n) counts[at] = 0;
}

// Returns 2ⁿ for n in −126..128.
static __device__ __forceinline__ float power_of_two(int n) { return __uint_as_float((unsigned)(n + 127) << 23); }

// Returns the same bits as the sigmoid of the processor's kernels, so that a score has the same bin.
static __device__ float exact_sigmoid(float logit) {
    const float round = 12582912.0f;
    // These are the steps of the exponential in kernels/src/cpu/exp.rs.
    float x = -logit;
    x = x > 90.0f ? 90.0f : x;
    x = x < -105.0f ? -105.0f : x;
    float rounded = __fmul_rn(x, 1.44269504f) + round;
    float n = rounded - round;
    float r = x - __fmul_rn(n, 0.6933594f) - __fmul_rn(n, -2.1219444e-4f);
    float p = 1.9875691e-4f;
    p = __fmul_rn(p, r) + 1.3982e-3f;
    p = __fmul_rn(p, r) + 8.333452e-3f;
    p = __fmul_rn(p, r) + 4.1665796e-2f;
    p = __fmul_rn(p, r) + 1.6666665e-1f;
    p = __fmul_rn(p, r) + 0.5f;
    p = __fmul_rn(__fmul_rn(p, r), r) + r + 1.0f;
    int power = (int)(__float_as_uint(rounded) - __float_as_uint(round));
    int half = power >> 1;
    p = __fmul_rn(__fmul_rn(p, power_of_two(half)), power_of_two(power - half));
    return 1.0f / (1.0f + p);
}

// Counts examples by label and score. Behind the counts of `2 · bins` bins, it counts the examples that
// have no score, or whose label is not 0 or 1. Sums of integers do not depend on the order of additions.
extern "C" __global__ void count_scores(unsigned* counts, const float* logits, const int* labels, Count examples,
                                        Count bins, float scale) {
    FOR_EACH(at, examples) {
        float logit = logits[at];
        int label = labels[at];
        Count place = 2 * bins;
        if (logit == logit && (label == 0 || label == 1)) {
            // A score of 1 belongs to the last bin.
            Count bin = (Count)(exact_sigmoid(logit) * scale);
            place = (Count)label * bins + (bin < bins ? bin : bins - 1);
        }
        atomicAdd(counts + place, 1u);
    }
}

// If an example has no score, all counts become NaN.
extern "C" __global__ void write_counts(float* to, const unsigned* counts, Count n) {
    FOR_EACH(at, n) to[at] = counts[n] == 0 ? (float)counts[at] : NOT_A_NUMBER;
}
