// The products of libraries, for devices that have no library: one thread computes one element at a time.

namespace multiply {

// What is done with a sum before it is stored.
enum class Epilogue { Bare, Bias, BiasRelu };

// How factors are rounded.
enum class Precision { F32, Tf32, Bf16, Fp16 };

// Returns bits rounded to the nearest number whose last BITS bits are 0; of two, to the one with an even bit
// before them. What is not a number stays so.
template <unsigned BITS>
static __device__ __forceinline__ unsigned rounded(unsigned bits) {
    constexpr unsigned LAST = (1u << BITS) - 1;
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return (bits | 0x00400000) & ~LAST;
    return (bits + LAST / 2 + (bits >> BITS & 1)) & ~LAST;
}

// The number 2 to the power of n, which is from -126 to 127.
static __device__ __forceinline__ float power_of_two(int n) { return __uint_as_float(unsigned(n + 127) << 23); }

// Returns a number as fp16.
static __device__ __forceinline__ unsigned to_half(float number) {
    unsigned bits = __float_as_uint(number), sign = bits >> 16 & 0x8000;
    bits &= 0x7FFFFFFF;
    if (bits > 0x7F800000) return sign | 0x7E00;
    // What is rounded to 65536 or more.
    if (bits >= 0x477FF000) return sign | 0x7C00;
    // The smallest numbers are multiples of 2 to the power of -24: as a float, 0.5 has these in its last bits.
    if (bits < 0x38800000) return sign | (__float_as_uint(__uint_as_float(bits) + 0.5f) - 0x3F000000);
    return sign | ((rounded<13>(bits) >> 13) - (112 << 10));
}

// Returns the number that is stored as fp16.
static __device__ __forceinline__ float from_half(unsigned half) {
    unsigned sign = (half & 0x8000) << 16, bits = half & 0x7FFF;
    if (bits >= 0x7C00) return __uint_as_float(sign | 0x7F800000 | (bits & 0x3FF) << 13);
    // The exponents of fp16 end 112 below those of a float. The product is exact.
    return __uint_as_float(sign | bits << 13) * power_of_two(112);
}

template <Precision PRECISION>
static __device__ __forceinline__ float factor(const float* numbers, Count at) {
    float number = numbers[at];
    return PRECISION == Precision::Tf32 ? __uint_as_float(rounded<13>(__float_as_uint(number))) : number;
}

template <Precision PRECISION>
static __device__ __forceinline__ float factor(const unsigned short* numbers, Count at) {
    return PRECISION == Precision::Fp16 ? from_half(numbers[at]) : __uint_as_float(unsigned(numbers[at]) << 16);
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

// Returns the larger one of a magnitude and that of a number, if this one is finite.
static __device__ __forceinline__ float larger_finite(float own, float number) {
    number = fabsf(number);
    return number > own && number < -MINUS_INFINITY ? number : own;
}

// Stores the largest finite magnitude of each of PARTS parts of n numbers.
template <Count PARTS>
static __device__ __forceinline__ void largest(float* to, const float* from, Count n) {
    for (Count part = blockIdx.x; part < PARTS; part += gridDim.x) {
        float own = 0.0f;
        for (Count at = (part * blockDim.x + threadIdx.x) * 4; at < n; at += PARTS * blockDim.x * 4) {
            if (n - at >= 4) {
                float4 four = *(const float4*)(from + at);
                own = larger_finite(larger_finite(own, four.x), four.y);
                own = larger_finite(larger_finite(own, four.z), four.w);
            } else {
                for (Count last = at; last < n; last++) own = larger_finite(own, from[last]);
            }
        }
        own = max_of_block(own);
        if (threadIdx.x == 0) to[part] = own;
    }
}

// The exponents of scales, with which the product of two scales is neither 0 nor infinite.
#define POWER_MAX 63

// Stores n numbers as fp16, multiplied by the power of two that makes the largest one of them as large as 2 to
// the power of 14 or more, and below that of 15. Behind them is 1 / the power.
template <Count PARTS>
static __device__ __forceinline__ void half(unsigned short* to, const float* from, const float* largest, Count n) {
    float own = 0.0f;
    for (Count at = threadIdx.x; at < PARTS; at += blockDim.x) own = larger(own, largest[at]);
    own = max_of_block(own);
    int power = 14 + 127 - int(__float_as_uint(own) >> 23);
    power = own == 0.0f ? 0 : power > POWER_MAX ? POWER_MAX : power < -POWER_MAX ? -POWER_MAX : power;
    float scale = power_of_two(power);
    if (blockIdx.x == 0 && threadIdx.x == 0) *(float*)(to + (n + 1) / 2 * 2) = power_of_two(-power);
    Count step = (Count)gridDim.x * blockDim.x * 4;
    for (Count at = (blockIdx.x * (Count)blockDim.x + threadIdx.x) * 4; at < n; at += step) {
        if (n - at > 3) {
            float4 four = *(const float4*)(from + at);
            unsigned a = to_half(four.x * scale) | to_half(four.y * scale) << 16;
            *(uint2*)(to + at) = make_uint2(a, to_half(four.z * scale) | to_half(four.w * scale) << 16);
        } else {
            for (Count rest = at; rest < (n + 1) / 2 * 2; rest++)
                to[rest] = (unsigned short)(rest < n ? to_half(from[rest] * scale) : 0);
        }
    }
}

// Stores the factor of sums, a · b, and a 0 behind it.
static __device__ __forceinline__ void alpha(float* to, float a, float b) {
    to[0] = a * b;
    to[1] = 0.0f;
}

template <Count BATCH, Count ROWS, Count TERMS, Count COLUMNS, bool TRANSPOSE_A, bool TRANSPOSE_B,
          Precision PRECISION, Epilogue EPILOGUE, class Factor>
static __device__ __forceinline__ void multiply(float* to, const Factor* a, const Factor* b, const float* bias,
                                                float alpha) {
    FOR_EACH(at, BATCH * ROWS * COLUMNS) {
        Count column = at % COLUMNS, row = at / COLUMNS % ROWS, number = at / (ROWS * COLUMNS);
        float sum = 0.0f;
        for (Count term = 0; term < TERMS; term++) {
            Count of_a = TRANSPOSE_A ? term * ROWS + row : row * TERMS + term;
            Count of_b = TRANSPOSE_B ? column * TERMS + term : term * COLUMNS + column;
            sum += factor<PRECISION>(a, number * (ROWS * TERMS) + of_a) *
                   factor<PRECISION>(b, number * (TERMS * COLUMNS) + of_b);
        }
        if (PRECISION == Precision::Fp16) sum *= alpha;
        if (EPILOGUE != Epilogue::Bare) sum += bias[column];
        to[at] = EPILOGUE == Epilogue::BiasRelu && sum < 0.0f ? 0.0f : sum;
    }
}

}  // namespace multiply
