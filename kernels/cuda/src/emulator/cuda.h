// The part of CUDA C++ that our kernels may use, as C++ for a processor. The emulator compiles the source of
// the kernels with this header in front of it. Whatever is missing here, a kernel must not use.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
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
// Returns what another lane of the warp shows. A lane that does not exist shows garbage.
unsigned shown_by(unsigned number);

// Shows a value to the other lanes of the warp, and returns that of the lane `number`.
template <class T>
T shuffle(unsigned mask, T value, unsigned number) {
    static_assert(sizeof(T) == 4, "shuffles move 4 bytes");
    std::memcpy(&lane->shown, &value, 4);
    wait_for_warp(mask);
    unsigned bits = shown_by(number);
    wait_for_warp(mask);
    T other;
    std::memcpy(&other, &bits, 4);
    return other;
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

// Compares the sizes of a kernel's arguments with what a launch passes.
template <class... A>
bool takes(void (*)(A...), const unsigned* sizes, unsigned count) {
    const unsigned expected[] = {sizeof(A)..., 0};
    if (count != sizeof...(A)) return false;
    for (unsigned at = 0; at < count; at++)
        if (sizes[at] != expected[at]) return false;
    return true;
}

}  // namespace emulator

// Makes a kernel known to the emulator.
#define EMULATE(kernel)                                                                           \
    extern "C" void emulated_call_##kernel(void** arguments) {                                    \
        emulator::call(kernel, arguments);                                                        \
    }                                                                                             \
    extern "C" bool emulated_takes_##kernel(const unsigned* sizes, unsigned count) {              \
        return emulator::takes(kernel, sizes, count);                                             \
    }

#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__ __restrict
// The memory that the lanes of a block share. The emulator fills it with garbage before each block.
#define __shared__ static __attribute__((section("emulated_shared")))

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

inline void __syncthreads() { emulator::wait_for_block(); }
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) { emulator::wait_for_warp(mask); }

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance) {
    return emulator::shuffle(mask, value, emulator::lane_number() ^ unsigned(distance));
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance) {
    unsigned number = emulator::lane_number(), from = number + distance;
    return emulator::shuffle(mask, value, from < warpSize ? from : number);
}

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

inline unsigned atomicAdd(unsigned* to, unsigned more) {
    unsigned old = *to;
    *to += more;
    return old;
}

inline unsigned atomicOr(unsigned* to, unsigned bits) {
    unsigned old = *to;
    *to |= bits;
    return old;
}
