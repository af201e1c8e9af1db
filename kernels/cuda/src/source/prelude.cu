// What stands before the text of every source. LANES is the number of threads in a block.

typedef unsigned long long Count;

// Gives each element of a kernel with n elements to one thread.
#define FOR_EACH(at, n)                                                              \
    for (Count at = blockIdx.x * (Count)blockDim.x + threadIdx.x; at < (n);         \
         at += (Count)gridDim.x * blockDim.x)
