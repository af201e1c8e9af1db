
// What the threads of a block compute together. All of them must call such a function. The order of the
// additions is always the same.

#define WARPS (LANES / 32)
#define ALL 0xFFFFFFFFu

// Returns the larger number, or NaN if either number is NaN.
static __device__ __forceinline__ float larger(float a, float b) { return b > a || b != b ? b : a; }

struct Larger {
    static __device__ __forceinline__ float of(float a, float b) { return larger(a, b); }
};

struct Sum {
    static __device__ __forceinline__ float of(float a, float b) { return a + b; }
};

// Merges the numbers of `lanes` neighbours of a warp, and returns the result to each of them. The number of
// lanes is a power of two. Other neighbours need not call this.
template <class Merge>
static __device__ __forceinline__ float merge_neighbours(float own, unsigned lanes) {
    unsigned mask = ALL >> (32 - lanes) << (threadIdx.x & (32 - lanes));
#pragma unroll
    for (unsigned distance = 16; distance > 0; distance /= 2)
        if (distance < lanes) own = Merge::of(own, __shfl_xor_sync(mask, own, distance));
    return own;
}

// Merges the numbers of all threads of the block, and returns the result to each of them.
template <class Merge>
static __device__ __forceinline__ float merge_block(float own, float* of_warps) {
    own = merge_neighbours<Merge>(own, 32);
    // The threads may still be reading the numbers of an earlier call.
    __syncthreads();
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = own;
    __syncthreads();
    own = of_warps[0];
    for (int warp = 1; warp < WARPS; warp++) own = Merge::of(own, of_warps[warp]);
    return own;
}

// Returns the largest number of all threads of the block, to each of them.
static __device__ float max_of_block(float own) {
    __shared__ float largest[WARPS];
    return merge_block<Larger>(own, largest);
}

// Returns the sum of the numbers of all threads of the block, to each of them.
static __device__ float sum_of_block(float own) {
    __shared__ float sums[WARPS];
    return merge_block<Sum>(own, sums);
}

// Returns the sum of the numbers of all threads of the block, to each of them.
static __device__ double wide_sum_of_block(double own) {
    __shared__ double all[LANES];
    // The threads may still be reading the sum of an earlier call.
    __syncthreads();
    all[threadIdx.x] = own;
    __syncthreads();
    for (unsigned half = LANES / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) all[threadIdx.x] += all[threadIdx.x + half];
        __syncthreads();
    }
    return all[0];
}

// `lanes` neighbouring threads share a row of a matrix. Their number is a power of two up to 32, or LANES.
// Only a block needs barriers.

// Gives each row to `lanes` threads.
#define FOR_EACH_ROW(row, rows, lanes)                                                            \
    for (Count row = blockIdx.x * (Count)(LANES / (lanes)) + threadIdx.x / (lanes); row < (rows); \
         row += gridDim.x * (Count)(LANES / (lanes)))
// Gives each element of a row to one of these threads.
#define FOR_EACH_OF_ROW(at, n, lanes) for (Count at = threadIdx.x % (lanes); at < (n); at += (lanes))

// Returns the largest number of the threads that share a row, to each of them.
static __device__ __forceinline__ float max_of_lanes(float own, unsigned lanes) {
    return lanes > 32 ? max_of_block(own) : merge_neighbours<Larger>(own, lanes);
}

// Returns the sum of the numbers of the threads that share a row, to each of them.
static __device__ __forceinline__ float sum_of_lanes(float own, unsigned lanes) {
    return lanes > 32 ? sum_of_block(own) : merge_neighbours<Sum>(own, lanes);
}
