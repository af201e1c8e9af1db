// The part of CUDA C++ that our kernels may use, as C++ for a processor. The emulator compiles the source of
// the kernels behind this text. A kernel must not use anything that is missing here.

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace emulator {

struct Index {
    unsigned x, y, z;
};

// One thread of a kernel. The lanes of a block run one after the other, each until it waits for others.
struct Lane {
    Index thread, block, threads, blocks;
    // What the lane shows to the other lanes of its warp in a shuffle.
    unsigned shown;
};

// The lane that runs now.
extern Lane* lane;

// Waits until all lanes of the block have called this.
void wait_for_block();
// Waits until all lanes of the warp that are in the mask have called this.
void wait_for_warp(unsigned mask);
// Returns the number of the lane in its warp.
unsigned lane_number();
// Returns what a lane of the warp shows. A lane that is not in the mask, or does not exist, shows garbage.
unsigned shown_by(unsigned mask, unsigned number);

// Shows a value to the other lanes of the warp, and returns that of the lane `number`.
template <class T>
T shuffle(unsigned mask, T value, unsigned number) {
    static_assert(sizeof(T) == 4, "shuffles move 4 bytes");
    std::memcpy(&lane->shown, &value, 4);
    wait_for_warp(mask);
    unsigned bits = shown_by(mask, number);
    wait_for_warp(mask);
    T other;
    std::memcpy(&other, &bits, 4);
    return other;
}

// Returns one bit for each lane of the warp: whether it is in the mask and its number is not 0.
inline unsigned ballot(unsigned mask, int number) {
    lane->shown = number != 0;
    wait_for_warp(mask);
    unsigned bits = 0;
    // Garbage is not 1.
    for (unsigned other = 0; other < 32; other++) bits |= unsigned(shown_by(mask, other) == 1) << other;
    wait_for_warp(mask);
    return bits;
}

// What the lanes of each warp of a block show to each other in a product of matrices: two factors.
inline float shown_factors[32][2][16][16];

// Returns the row and the column of the element `at` of a lane's fragment of a matrix with this number of
// columns. A card has another order, which is not known either.
inline unsigned row_of(unsigned at, unsigned columns) { return (at * 32 + (lane_number() ^ 5)) / columns; }
inline unsigned column_of(unsigned at, unsigned columns) { return (at * 32 + (lane_number() ^ 5)) % columns; }

// Copies a fragment of COUNT elements of each lane from or to memory, by rows or by columns.
template <unsigned COUNT, class To, class From>
void fragment(To* own, From* other, unsigned columns, unsigned apart, int by_columns, bool is_read) {
    for (unsigned at = 0; at < COUNT; at++) {
        unsigned row = row_of(at, columns), column = column_of(at, columns);
        unsigned place = by_columns ? column * apart + row : row * apart + column;
        if (is_read) std::memcpy((void*)(own + at), other + place, 4);
        else std::memcpy((void*)(other + place), own + at, 4);
    }
}

// Returns a factor as a tensor core reads it: without the last bits.
inline float factor(int bits) {
    bits &= ~0x1FFF;
    float number;
    std::memcpy(&number, &bits, 4);
    return number;
}

// Calls a kernel with arguments that are stored at these addresses.
template <class... A, std::size_t... I>
void call_with(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<A*>(arguments[I])...);
}

template <class... A>
void call(void (*kernel)(A...), void** arguments) {
    call_with(kernel, arguments, std::index_sequence_for<A...>());
}

// The kind of an argument: a place in memory that is only read or that is written, a number of 4 or 8 bytes,
// or a floating-point number.
template <class T>
constexpr char kind() {
    if (std::is_pointer<T>::value) return std::is_const<std::remove_pointer_t<T>>::value ? 'r' : 'w';
    if (std::is_same<T, float>::value) return 'f';
    return std::is_unsigned<T>::value ? sizeof(T) == 4 ? 'i' : sizeof(T) == 8 ? 'l' : '?' : '?';
}

// Returns whether a kernel has arguments of these kinds.
template <class... A>
bool takes(void (*)(A...), const char* kinds, unsigned count) {
    const char expected[] = {kind<A>()..., 0};
    return count == sizeof...(A) && std::memcmp(kinds, expected, count) == 0;
}

}  // namespace emulator

// Makes a kernel known to the emulator.
#define EMULATE(kernel)                                                                           \
    extern "C" void emulated_call_##kernel(void** arguments) {                                    \
        emulator::call(kernel, arguments);                                                        \
    }                                                                                             \
    extern "C" bool emulated_takes_##kernel(const char* kinds, unsigned count) {                  \
        return emulator::takes(kernel, kinds, count);                                             \
    }

#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__ __restrict
// The memory that the lanes of a block share. The emulator fills it with garbage before each block.
#define __shared__ static __attribute__((section("emulated_shared")))
#define __align__(bytes) __attribute__((aligned(bytes)))

#define threadIdx (emulator::lane->thread)
#define blockIdx (emulator::lane->block)
#define blockDim (emulator::lane->threads)
#define gridDim (emulator::lane->blocks)
#define warpSize 32

extern "C" char __start_emulated_shared[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_emulated_shared[] __attribute__((weak, visibility("hidden")));

extern "C" void emulated_forget_shared() {
    if (__start_emulated_shared)
        std::memset(__start_emulated_shared, 0xFF, __stop_emulated_shared - __start_emulated_shared);
}

struct __align__(16) float4 {
    float x, y, z, w;
};

struct __align__(8) uint2 {
    unsigned x, y;
};

inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }

inline void __syncthreads() { emulator::wait_for_block(); }

inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) { emulator::wait_for_warp(mask); }

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance) {
    return emulator::shuffle(mask, value, emulator::lane_number() ^ unsigned(distance));
}

// Products of matrices by all lanes of a warp: 16 rows, 8 terms, 16 columns, with factors of tf32. NVRTC knows
// these functions, which `mma.h` of a toolkit wraps in `nvcuda::wmma`. Each lane has a fragment of a matrix.
inline void __mma_tf32_m16n16k8_ld_a(int* to, const int* from, unsigned apart, int by_columns) {
    emulator::fragment<4>(to, from, 8, apart, by_columns, true);
}

inline void __mma_tf32_m16n16k8_ld_b(int* to, const int* from, unsigned apart, int by_columns) {
    emulator::fragment<4>(to, from, 16, apart, by_columns, true);
}

inline void __mma_tf32_m16n16k8_ld_c(float* to, const float* from, unsigned apart, int by_columns) {
    emulator::fragment<8>(to, from, 16, apart, by_columns, true);
}

inline void __mma_m16n16k8_st_c_f32(float* to, const float* from, unsigned apart, int by_columns) {
    emulator::fragment<8>(from, to, 16, apart, by_columns, false);
}

// The layout is the one with which the factors were read, and `saturates` is for other types.
inline void __mma_tf32_m16n16k8_mma_f32(float* to, const int* a, const int* b, const float* sums, int layout,
                                        int saturates) {
    (void)layout, (void)saturates;
    auto& shown = emulator::shown_factors[threadIdx.x / 32];
    for (unsigned at = 0; at < 4; at++) {
        shown[0][emulator::row_of(at, 8)][emulator::column_of(at, 8)] = emulator::factor(a[at]);
        shown[1][emulator::row_of(at, 16)][emulator::column_of(at, 16)] = emulator::factor(b[at]);
    }
    emulator::wait_for_warp(0xFFFFFFFFu);
    for (unsigned at = 0; at < 8; at++) {
        float sum = sums[at];
        for (unsigned term = 0; term < 8; term++) {
            sum += shown[0][emulator::row_of(at, 16)][term] * shown[1][term][emulator::column_of(at, 16)];
        }
        to[at] = sum;
    }
    emulator::wait_for_warp(0xFFFFFFFFu);
}

inline unsigned __ballot_sync(unsigned mask, int number) { return emulator::ballot(mask, number); }

inline float __int_as_float(unsigned bits) {
    float number;
    std::memcpy(&number, &bits, 4);
    return number;
}

inline float __uint_as_float(unsigned bits) { return __int_as_float(bits); }

inline unsigned __float_as_uint(float number) {
    unsigned bits;
    std::memcpy(&bits, &number, 4);
    return bits;
}

// A product that is rounded by itself, even if it is a term of a sum.
inline float __fmul_rn(float a, float b) { return a * b; }

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

// Adds to a number and returns what it was. No other lane runs meanwhile.
inline unsigned atomicAdd(unsigned* to, unsigned number) {
    unsigned old = *to;
    *to = old + number;
    return old;
}

// NVRTC has no such names.
#undef INFINITY
#undef NAN
#undef FLT_MAX
