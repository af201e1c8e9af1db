// Moments of columns, batch norm and layer norm, as in kernels/src/cpu/norm. Matrices have the shape [rows,
// n]. The outputs must not be inputs.

// The number of rows that a thread reads before it computes their moments.
#define MOMENTS_OF 8

// The mean of some numbers of a column, and the sum of the squares of their differences from it.
struct ColumnMoments {
    float count, mean, squares;

    // Merges the moments of other numbers into these (Chan et al. 1979).
    __device__ __forceinline__ void add(const ColumnMoments& other) {
        if (other.count == 0.0f) return;
        float share = other.count / (count + other.count), delta = other.mean - mean;
        mean += delta * share;
        squares += other.squares + delta * delta * (count * share);
        count += other.count;
    }
};

// Writes the moments of each column if there is one chunk. The mean of no rows is NaN. Otherwise writes those
// of each chunk for `merge_moments`: the mean, relative to the first row of the matrix, and the sum of the
// squares of the differences from it.
extern "C" __global__ void column_moments(float* means, float* squares, const float* x, Count rows, Count n,
                                          unsigned width, Count chunk, Count chunks) {
    __shared__ ColumnMoments merged[LANES];
    auto read = [&](const ColumnShare& share) {
        ColumnMoments own = {0.0f, 0.0f, 0.0f};
        // The numbers may be far from 0, and their means would lose digits.
        float first = share.row < share.end ? x[share.column] : 0.0f;
        for (Count row = share.row; row < share.end; row += MOMENTS_OF * (Count)share.step) {
            float some[MOMENTS_OF], count = 0.0f, sum = 0.0f, differences = 0.0f;
#pragma unroll
            for (unsigned i = 0; i < MOMENTS_OF; i++) {
                Count at = row + i * (Count)share.step;
                some[i] = at < share.end ? x[at * n + share.column] - first : 0.0f;
                count += at < share.end ? 1.0f : 0.0f;
                sum += some[i];
            }
            float mean = sum / count;
#pragma unroll
            for (unsigned i = 0; i < MOMENTS_OF; i++)
                differences += i < count ? (some[i] - mean) * (some[i] - mean) : 0.0f;
            own.add({count, mean, differences});
        }
        return own;
    };
    auto write = [&](const ColumnMoments& own, Count at) {
        bool all = chunks == 1;
        means[at] = !all ? own.mean : rows > 0 ? own.mean + x[at] : NOT_A_NUMBER;
        squares[at] = !all ? own.squares : own.squares / (float)rows;
    };
    reduce_columns(merged, {rows, n, width, chunk, chunks}, read, write);
}

// Merges what `column_moments` has written of `x`. The matrices of means and squares have a row for each
// chunk of x, which has `all` rows, and `each` in a chunk.
extern "C" __global__ void merge_moments(float* mean, float* variance, const float* x, const float* means,
                                         const float* squares, Count rows, Count n, unsigned width, Count chunk,
                                         Count chunks, Count all, Count each) {
    __shared__ ColumnMoments merged[LANES];
    auto read = [&](const ColumnShare& share) {
        ColumnMoments own = {0.0f, 0.0f, 0.0f};
#pragma unroll 4
        for (Count row = share.row; row < share.end; row += share.step) {
            Count left = all - row * each, at = row * n + share.column;
            own.add({(float)(left < each ? left : each), means[at], squares[at]});
        }
        return own;
    };
    auto write = [&](const ColumnMoments& own, Count at) {
        mean[at] = own.mean + x[at];
        variance[at] = own.squares / (float)all;
    };
    reduce_columns(merged, {rows, n, width, chunk, chunks}, read, write);
}

extern "C" __global__ void reciprocal_stddev(float* to, const float* variance, Count n, float epsilon) {
    FOR_EACH(at, n) to[at] = 1.0f / sqrtf(variance[at] + epsilon);
}

extern "C" __global__ void batch_norm(float* __restrict__ to, const float* __restrict__ x, const float* means,
                                      const float* deviations, const float* gammas, const float* betas,
                                      Count rows, Count n, unsigned width, Count chunk, Count chunks) {
    for_each_share({rows, n, width, chunk, chunks}, [&](const ColumnShare& share) {
        if (share.row >= share.end) return;
        float mean = means[share.column], deviation = deviations[share.column];
        float gamma = gammas[share.column], beta = betas[share.column];
#pragma unroll 4
        for (Count row = share.row; row < share.end; row += share.step) {
            Count at = row * n + share.column;
            to[at] = (x[at] - mean) * deviation * gamma + beta;
        }
    });
}

// Writes the sums of each column of each chunk that are the gradients of gamma and beta. `moment` returns the
// index of the mean of an element, from its row and its column.
template <class Moment>
static __device__ __forceinline__ void sum_gradients(ColumnSums* merged, float* dgammas, float* dbetas,
                                                     const float* x, const float* dy, const float* means,
                                                     const float* deviations, const ColumnDivision& all,
                                                     Moment moment) {
    auto read = [&](const ColumnShare& share) {
        ColumnSums own = {0.0f, 0.0f};
#pragma unroll 4
        for (Count row = share.row; row < share.end; row += share.step) {
            Count at = row * all.n + share.column, of = moment(row, share.column);
            own.first += dy[at] * ((x[at] - means[of]) * deviations[of]);
            own.second += dy[at];
        }
        return own;
    };
    auto write = [&](const ColumnSums& own, Count at) {
        dgammas[at] = own.first;
        dbetas[at] = own.second;
    };
    reduce_columns(merged, all, read, write);
}

extern "C" __global__ void batch_norm_sums(float* dgammas, float* dbetas, const float* x, const float* dy,
                                           const float* means, const float* deviations, Count rows, Count n,
                                           unsigned width, Count chunk, Count chunks) {
    __shared__ ColumnSums merged[LANES];
    sum_gradients(merged, dgammas, dbetas, x, dy, means, deviations, {rows, n, width, chunk, chunks},
                  [](Count, Count column) { return column; });
}

extern "C" __global__ void layer_norm_sums(float* dgammas, float* dbetas, const float* x, const float* dy,
                                           const float* means, const float* deviations, Count rows, Count n,
                                           unsigned width, Count chunk, Count chunks) {
    __shared__ ColumnSums merged[LANES];
    sum_gradients(merged, dgammas, dbetas, x, dy, means, deviations, {rows, n, width, chunk, chunks},
                  [](Count row, Count) { return row; });
}

// Writes the gradient of x, after those of gamma and beta are known.
extern "C" __global__ void batch_norm_grad(float* __restrict__ dx, const float* __restrict__ x,
                                           const float* __restrict__ dy, const float* means,
                                           const float* deviations, const float* gammas, const float* dgammas,
                                           const float* dbetas, Count rows, Count n, unsigned width, Count chunk,
                                           Count chunks) {
    for_each_share({rows, n, width, chunk, chunks}, [&](const ColumnShare& share) {
        if (share.row >= share.end) return;
        float mean = means[share.column], deviation = deviations[share.column];
        float scale = gammas[share.column] * deviation, shift = dbetas[share.column] / (float)rows;
        float tilt = deviation * dgammas[share.column] / (float)rows;
#pragma unroll 4
        for (Count row = share.row; row < share.end; row += share.step) {
            Count at = row * n + share.column;
            dx[at] = scale * (dy[at] - shift - (x[at] - mean) * tilt);
        }
    });
}

// The rows of the following kernels are shared by `lanes` threads each.

extern "C" __global__ void layer_norm(float* __restrict__ to, float* means, float* deviations,
                                      const float* __restrict__ from, const float* __restrict__ gammas,
                                      const float* __restrict__ betas, Count rows, Count n, unsigned lanes,
                                      float epsilon) {
    FOR_EACH_ROW(row, rows, lanes) {
        const float* __restrict__ x = from + row * n;
        float sum = 0.0f, squares = 0.0f;
        FOR_EACH_OF_ROW(at, n, lanes) sum += x[at];
        float mean = sum_of_lanes(sum, lanes) / (float)n;
        FOR_EACH_OF_ROW(at, n, lanes) squares += (x[at] - mean) * (x[at] - mean);
        float deviation = 1.0f / sqrtf(sum_of_lanes(squares, lanes) / (float)n + epsilon);
        if (threadIdx.x % lanes == 0) {
            means[row] = mean;
            deviations[row] = deviation;
        }
        FOR_EACH_OF_ROW(at, n, lanes)
            to[row * n + at] = (x[at] - mean) * deviation * gammas[at] + betas[at];
    }
}

// Writes the gradient of x.
extern "C" __global__ void layer_norm_grad(float* __restrict__ dx, const float* __restrict__ from,
                                           const float* __restrict__ gradients, const float* means,
                                           const float* deviations, const float* __restrict__ gammas, Count rows,
                                           Count n, unsigned lanes) {
    FOR_EACH_ROW(row, rows, lanes) {
        const float *__restrict__ x = from + row * n, *__restrict__ dy = gradients + row * n;
        float mean = means[row], deviation = deviations[row], slope = 0.0f, tilt = 0.0f;
        FOR_EACH_OF_ROW(at, n, lanes) {
            slope += dy[at] * gammas[at];
            tilt += dy[at] * gammas[at] * ((x[at] - mean) * deviation);
        }
        slope = sum_of_lanes(slope, lanes) / (float)n;
        tilt = sum_of_lanes(tilt, lanes) / (float)n;
        FOR_EACH_OF_ROW(at, n, lanes)
            dx[row * n + at] = deviation * (dy[at] * gammas[at] - slope - (x[at] - mean) * deviation * tilt);
    }
}
