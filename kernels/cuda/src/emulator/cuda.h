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

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance) {
    return emulator::shuffle(mask, value, emulator::lane_number() ^ unsigned(distance));
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
