// The rows of a table by their ids, as in kernels/src/cpu/embedding.rs. The processor has checked the
// ids; the checks here only prevent reads and writes beyond the table.

// The sizes are constants of the kernel that calls this, so the compiler divides by them fast.
template <class Index>
static __device__ __forceinline__ void gather_rows(float* to, const float* table, const int* ids, Index elements,
                                                   Index rows, Index width) {
    FOR_EACH(each, elements) {
        Index at = (Index)each;
        int id = ids[at / width];
        bool is_row = id >= 0 && (Index)id < rows;
        to[at] = is_row ? table[(Index)id * width + at % width] : NOT_A_NUMBER;
    }
}

// Adds the rows of `dy` to the rows of `to` with their ids. A block owns the rows whose id, modulo the number
// of blocks, is its own number: frequent ids are often neighbours, and so have different blocks. Each block
// searches all ids for its own. A thread always adds the same columns, in the order of the ids.
extern "C" __global__ void scatter_rows(float* to, const int* ids, const float* dy, Count count, Count rows,
                                        Count width) {
    // The number of ids that each warp has found.
    __shared__ unsigned found[WARPS];
    // The ids that were found, in their order, and how far they are from the first one of the tile.
    __shared__ unsigned own_ids[LANES], own_places[LANES];
    unsigned warp = threadIdx.x / 32, lower_lanes = (1u << threadIdx.x % 32) - 1;
    for (Count first = 0; first < count; first += LANES) {
        int id = first + threadIdx.x < count ? ids[first + threadIdx.x] : -1;
        bool is_own = id >= 0 && (Count)id < rows && (unsigned)id % gridDim.x == blockIdx.x;
        unsigned of_warp = __ballot_sync(ALL, is_own);
        if (threadIdx.x % 32 == 0) found[warp] = __popc(of_warp);
        // No thread reads the ids of the last tile any more.
        __syncthreads();
        unsigned place = __popc(of_warp & lower_lanes), total = 0;
        for (unsigned other = 0; other < WARPS; other++) {
            if (other < warp) place += found[other];
            total += found[other];
        }
        if (is_own) {
            own_ids[place] = id;
            own_places[place] = threadIdx.x;
        }
        __syncthreads();
        for (Count column = threadIdx.x; column < width; column += LANES) {
            for (unsigned at = 0; at < total;) {
                // Rows that follow each other with the same id are read together.
                unsigned end = at + 1;
                while (end < total && own_ids[end] == own_ids[at]) end++;
                float* own = to + own_ids[at] * width + column;
                float sum = *own;
                for (; at < end; at++) sum += dy[(first + own_places[at]) * width + column];
                *own = sum;
            }
        }
    }
}
