
// What the threads of a block compute together. All of them must call such a function. The order of the
// additions is always the same.

#define WARPS (LANES / 32)
#define ALL 0xFFFFFFFFu

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

// Returns the sum of the numbers of all threads of the warp, to each of them.
static __device__ __forceinline__ float sum_of_warp(float own) {
    for (int distance = 16; distance > 0; distance /= 2) own += __shfl_xor_sync(ALL, own, distance);
    return own;
}

// Returns the sum of the numbers of all threads of the block, to each of them.
static __device__ float sum_of_block(float own) {
    __shared__ float sums[WARPS];
    own = sum_of_warp(own);
    // The threads may still be reading the sums of an earlier call.
    __syncthreads();
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = own;
    __syncthreads();
    own = sums[0];
    for (int warp = 1; warp < WARPS; warp++) own += sums[warp];
    return own;
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
