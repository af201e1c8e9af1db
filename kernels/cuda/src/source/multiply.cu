// The products of libraries, for devices that have no library: one thread computes one element at a time.

namespace multiply {

// What is done with a sum before it is stored.
enum class Epilogue { Bare, Bias, BiasRelu };

// How factors are rounded.
enum class Precision { F32, Tf32, Bf16 };

// Returns bits rounded to the nearest number whose last BITS bits are 0; of two, to the one with an even bit
// before them. What is not a number stays so.
template <unsigned BITS>
static __device__ __forceinline__ unsigned rounded(unsigned bits) {
    constexpr unsigned LAST = (1u << BITS) - 1;
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return (bits | 0x00400000) & ~LAST;
    return (bits + LAST / 2 + (bits >> BITS & 1)) & ~LAST;
}

template <Precision PRECISION>
static __device__ __forceinline__ float factor(const float* numbers, Count at) {
    float number = numbers[at];
    return PRECISION == Precision::Tf32 ? __uint_as_float(rounded<13>(__float_as_uint(number))) : number;
}

template <Precision PRECISION>
static __device__ __forceinline__ float factor(const unsigned short* numbers, Count at) {
    return __uint_as_float(unsigned(numbers[at]) << 16);
}

// Stores n numbers as bf16.
static __device__ __forceinline__ void narrow(unsigned short* to, const float* from, Count n) {
    Count step = (Count)gridDim.x * blockDim.x * 4;
    for (Count at = (blockIdx.x * (Count)blockDim.x + threadIdx.x) * 4; at < n; at += step) {
        if (at + 4 <= n) {
            float4 four = *(const float4*)(from + at);
            unsigned a = rounded<16>(__float_as_uint(four.x)) >> 16, b = rounded<16>(__float_as_uint(four.y));
            unsigned c = rounded<16>(__float_as_uint(four.z)) >> 16, d = rounded<16>(__float_as_uint(four.w));
            *(uint2*)(to + at) = make_uint2(a | b, c | d);
        } else {
            for (Count rest = at; rest < n; rest++) {
                to[rest] = (unsigned short)(rounded<16>(__float_as_uint(from[rest])) >> 16);
            }
        }
    }
}

template <Count BATCH, Count ROWS, Count TERMS, Count COLUMNS, bool TRANSPOSE_A, bool TRANSPOSE_B,
          Precision PRECISION, Epilogue EPILOGUE, class Factor>
static __device__ __forceinline__ void multiply(float* to, const Factor* a, const Factor* b, const float* bias) {
    FOR_EACH(at, BATCH * ROWS * COLUMNS) {
        Count column = at % COLUMNS, row = at / COLUMNS % ROWS, number = at / (ROWS * COLUMNS);
        float sum = 0.0f;
        for (Count term = 0; term < TERMS; term++) {
            Count of_a = TRANSPOSE_A ? term * ROWS + row : row * TERMS + term;
            Count of_b = TRANSPOSE_B ? column * TERMS + term : term * COLUMNS + column;
            sum += factor<PRECISION>(a, number * (ROWS * TERMS) + of_a) *
                   factor<PRECISION>(b, number * (TERMS * COLUMNS) + of_b);
        }
        if (EPILOGUE != Epilogue::Bare) sum += bias[column];
        to[at] = EPILOGUE == Epilogue::BiasRelu && sum < 0.0f ? 0.0f : sum;
    }
}

}  // namespace multiply
