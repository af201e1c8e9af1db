// What stands before the text of every source. LANES is the number of threads in a block.

typedef unsigned long long Count;

// Gives each element of a kernel with n elements to one thread.
#define FOR_EACH(at, n)                                                              \
    for (Count at = blockIdx.x * (Count)blockDim.x + threadIdx.x; at < (n);         \
         at += (Count)gridDim.x * blockDim.x)

#define MINUS_INFINITY __int_as_float(0xFF800000)
#define NOT_A_NUMBER __int_as_float(0x7FC00000)

// The numbers that differ from step to step.
struct Step {
    Count random;
    // The index of the first example of this device in the batch.
    Count first;
    // The share of the examples of the batch that this device has.
    float share;
};
