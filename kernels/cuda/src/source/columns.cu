// Reductions of the columns of matrices. The order of the additions depends only on the sizes.

// How the blocks divide a matrix of the shape [rows, n]. An item of a block is a tile of `width` columns
// within a chunk of `chunk` rows. `width` is a power of two. The threads of a block are lines of `width`
// threads, so neighbours read neighbouring elements.
struct ColumnDivision {
    Count rows, n;
    unsigned width;
    Count chunk, chunks;
};

// What one thread does of an item: every row from `row` to `end` with the distance `step`, in one column.
// There are no rows if the matrix lacks the column.
struct ColumnShare {
    Count chunk, column, row, end;
    unsigned step;
};

// Calls `work` with each share of this thread. All threads of a block get the same number of shares.
template <class Work>
static __device__ __forceinline__ void for_each_share(const ColumnDivision& all, Work work) {
    Count tiles = (all.n + all.width - 1) / all.width;
    for (Count item = blockIdx.x; item < tiles * all.chunks; item += gridDim.x) {
        Count chunk = item / tiles, column = item % tiles * all.width + threadIdx.x % all.width;
        Count start = chunk * all.chunk, end = start + all.chunk;
        if (end > all.rows) end = all.rows;
        if (column >= all.n) end = start;
        work(ColumnShare{chunk, column, start + threadIdx.x / all.width, end, LANES / all.width});
    }
}

// Reduces each column of each chunk. `read` returns what a thread finds in its share, the method `add` of
// that merges what two threads have found, and `write` gets the result and its index in the matrix of the
// shape [chunks, n]. `merged` has LANES elements and is shared by the block.
template <class Own, class Read, class Write>
static __device__ __forceinline__ void reduce_columns(Own* merged, const ColumnDivision& all, Read read,
                                                      Write write) {
    for_each_share(all, [&](const ColumnShare& share) {
        // A thread that still reads the result of the last item reads only its own element.
        merged[threadIdx.x] = read(share);
        __syncthreads();
        for (unsigned half = LANES / 2; half >= all.width; half /= 2) {
            if (threadIdx.x < half) merged[threadIdx.x].add(merged[threadIdx.x + half]);
            __syncthreads();
        }
        if (threadIdx.x < all.width && share.column < all.n)
            write(merged[threadIdx.x], share.chunk * all.n + share.column);
    });
}

struct ColumnSum {
    float sum;

    __device__ __forceinline__ void add(const ColumnSum& other) { sum += other.sum; }
};

struct ColumnMaximum {
    float largest;

    __device__ __forceinline__ void add(const ColumnMaximum& other) { largest = larger(largest, other.largest); }
};

// Two sums that are computed together.
struct ColumnSums {
    float first, second;

    __device__ __forceinline__ void add(const ColumnSums& other) {
        first += other.first;
        second += other.second;
    }
};

// Writes the sum of each column of each chunk, divided by `divisor`.
extern "C" __global__ void sum_columns(float* to, const float* x, Count rows, Count n, unsigned width, Count chunk,
                                       Count chunks, float divisor) {
    __shared__ ColumnSum merged[LANES];
    auto read = [&](const ColumnShare& share) {
        ColumnSum own = {0.0f};
#pragma unroll 8
        for (Count row = share.row; row < share.end; row += share.step) own.sum += x[row * n + share.column];
        return own;
    };
    auto write = [&](const ColumnSum& own, Count at) { to[at] = own.sum / divisor; };
    reduce_columns(merged, {rows, n, width, chunk, chunks}, read, write);
}

// Writes the maximum of each column of each chunk.
extern "C" __global__ void max_columns(float* to, const float* x, Count rows, Count n, unsigned width, Count chunk,
                                       Count chunks) {
    __shared__ ColumnMaximum merged[LANES];
    auto read = [&](const ColumnShare& share) {
        ColumnMaximum own = {MINUS_INFINITY};
#pragma unroll 8
        for (Count row = share.row; row < share.end; row += share.step)
            own.largest = larger(own.largest, x[row * n + share.column]);
        return own;
    };
    auto write = [&](const ColumnMaximum& own, Count at) { to[at] = own.largest; };
    reduce_columns(merged, {rows, n, width, chunk, chunks}, read, write);
}

// Writes the sums of the columns of two matrices.
extern "C" __global__ void sum_columns_of_two(float* first, float* second, const float* a, const float* b,
                                              Count rows, Count n, unsigned width, Count chunk, Count chunks) {
    __shared__ ColumnSums merged[LANES];
    auto read = [&](const ColumnShare& share) {
        ColumnSums own = {0.0f, 0.0f};
#pragma unroll 4
        for (Count row = share.row; row < share.end; row += share.step) {
            own.first += a[row * n + share.column];
            own.second += b[row * n + share.column];
        }
        return own;
    };
    auto write = [&](const ColumnSums& own, Count at) {
        first[at] = own.first;
        second[at] = own.second;
    };
    reduce_columns(merged, {rows, n, width, chunk, chunks}, read, write);
}
