// Means whose items are added in two stages, in f64. First, a block adds the items of a part. The size of a
// part does not depend on the number of blocks, so neither does the order of the additions. Then one block
// adds the sums of the parts.

// Gives each part to one block.
#define FOR_EACH_PART(part, items, of_part) \
    for (Count part = blockIdx.x; part * (of_part) < (items); part += gridDim.x)

// Returns where the items of a part end.
static __device__ __forceinline__ Count end_of_part(Count part, Count items, Count of_part) {
    Count end = (part + 1) * of_part;
    return end < items ? end : items;
}

// Writes the sum of the terms of each part to `sums`. A thread computes `term`, of the item `at`, by itself.
#define SUM_PARTS(sums, items, of_part, term)                                                        \
    FOR_EACH_PART(part, items, of_part) {                                                            \
        double total = 0.0;                                                                          \
        Count end = end_of_part(part, items, of_part);                                               \
        for (Count at = part * (of_part) + threadIdx.x; at < end; at += LANES) total += (term);      \
        total = wide_sum_of_block(total);                                                            \
        if (threadIdx.x == 0) (sums)[part] = total;                                                  \
    }

// Writes the sum of the terms of each part to `sums`. `lanes` threads compute `term`, of the row `row`,
// together.
#define SUM_PARTS_OF_ROWS(sums, rows, of_part, lanes, term)                                          \
    FOR_EACH_PART(part, rows, of_part) {                                                             \
        double total = 0.0;                                                                          \
        Count end = end_of_part(part, rows, of_part), row = part * (of_part) + threadIdx.x / (lanes);\
        for (; row < end; row += LANES / (lanes)) total += (term);                                   \
        total = wide_sum_of_block(threadIdx.x % (lanes) == 0 ? total : 0.0);                         \
        if (threadIdx.x == 0) (sums)[part] = total;                                                  \
    }

extern "C" __global__ void mean_of_parts(float* to, const double* sums, Count parts, Count items) {
    double sum = 0.0;
    for (Count part = threadIdx.x; part < parts; part += LANES) sum += sums[part];
    sum = wide_sum_of_block(sum);
    if (threadIdx.x == 0) to[0] = (float)(sum / (double)items);
}
