// The maximum or the mean of each channel in windows of images, and their gradients, as in
// kernels/src/cpu/pool. Images have the shape [images, height, width, channels]. Kernels with constant sizes
// are generated from these functions.

#define POOL_FUNCTION static __device__ __forceinline__

// The windows along one axis of an image. `before` is the size of the padding before the image. Every window
// contains a part of the image.
template <class Index>
struct PoolAxis {
    Index input, output, window, stride, before;

    // Returns the pixel at a position of a window. The number of a pixel before the image wraps around.
    __device__ __forceinline__ Index pixel(Index at, Index position) const { return at * stride + position - before; }

    // Returns whether a pixel is inside the image.
    __device__ __forceinline__ bool contains(Index pixel) const { return pixel < input; }

    // Returns the number of pixels of a window that are inside the image.
    __device__ __forceinline__ Index inside(Index at) const {
        Index start = at * stride, end = start + window;
        return (end < before + input ? end : before + input) - (start > before ? start : before);
    }

    // Returns the position of a pixel within a window.
    __device__ __forceinline__ Index within(Index at, Index pixel) const { return pixel + before - at * stride; }

    // Returns the first window that contains a pixel.
    __device__ __forceinline__ Index first_window(Index pixel) const {
        return pixel + before < window ? 0 : (pixel + before - window) / stride + 1;
    }

    // Returns the window behind the last one that contains a pixel.
    __device__ __forceinline__ Index end_window(Index pixel) const {
        Index end = (pixel + before) / stride + 1;
        return end < output ? end : output;
    }
};

template <class Index>
struct Pool {
    PoolAxis<Index> vertical, horizontal;
    Index channels;
};

// The coordinates of an element.
template <class Index>
struct PoolElement {
    Index image, y, x, channel;

    __device__ __forceinline__ PoolElement(Index at, Index height, Index width, Index channels)
        : image(at / channels / width / height),
          y(at / channels / width % height),
          x(at / channels % width),
          channel(at % channels) {}
};

// Writes the maximum of the window `at`, and the position of the first pixel that has it. If the window
// contains a NaN, the maximum is NaN.
template <class Index>
POOL_FUNCTION void max_of_window(float* maxima, unsigned char* positions, const float* images,
                                 const Pool<Index>& pool, Index at) {
    const PoolAxis<Index>&vertical = pool.vertical, &horizontal = pool.horizontal;
    PoolElement<Index> own(at, vertical.output, horizontal.output, pool.channels);
    float largest = MINUS_INFINITY;
    Index position = 0;
    bool first = true;
    for (Index row = 0; row < vertical.window; row++) {
        Index y = vertical.pixel(own.y, row), line = (own.image * vertical.input + y) * horizontal.input;
#pragma unroll 4
        for (Index column = 0; column < horizontal.window; column++) {
            Index x = horizontal.pixel(own.x, column);
            if (!vertical.contains(y) || !horizontal.contains(x)) continue;
            float number = images[(line + x) * pool.channels + own.channel];
            // The first pixel is always taken, because the maximum may be −∞.
            bool larger = first || number > largest || number != number;
            largest = larger ? number : largest;
            position = larger ? row * horizontal.window + column : position;
            first = false;
        }
    }
    maxima[at] = largest;
    positions[at] = (unsigned char)position;
}

// Adds the gradients of the windows whose maximum is the pixel `at`.
template <class Index>
POOL_FUNCTION void gradient_of_maxima(float* to, const unsigned char* positions, const float* gradients,
                                      const Pool<Index>& pool, Index at) {
    const PoolAxis<Index>&vertical = pool.vertical, &horizontal = pool.horizontal;
    PoolElement<Index> own(at, vertical.input, horizontal.input, pool.channels);
    float sum = 0.0f;
    for (Index y = vertical.first_window(own.y); y < vertical.end_window(own.y); y++) {
        Index line = (own.image * vertical.output + y) * horizontal.output;
        for (Index x = horizontal.first_window(own.x); x < horizontal.end_window(own.x); x++) {
            Index window = (line + x) * pool.channels + own.channel;
            Index position = vertical.within(y, own.y) * horizontal.window + horizontal.within(x, own.x);
            if (positions[window] == position) sum += gradients[window];
        }
    }
    to[at] = sum;
}

// Writes the mean of the window `at`.
template <class Index>
POOL_FUNCTION void mean_of_window(float* means, const float* images, const Pool<Index>& pool, Index at) {
    const PoolAxis<Index>&vertical = pool.vertical, &horizontal = pool.horizontal;
    PoolElement<Index> own(at, vertical.output, horizontal.output, pool.channels);
    float sum = 0.0f;
    for (Index row = 0; row < vertical.window; row++) {
        Index y = vertical.pixel(own.y, row), line = (own.image * vertical.input + y) * horizontal.input;
#pragma unroll 4
        for (Index column = 0; column < horizontal.window; column++) {
            Index x = horizontal.pixel(own.x, column);
            if (!vertical.contains(y) || !horizontal.contains(x)) continue;
            sum += images[(line + x) * pool.channels + own.channel];
        }
    }
    means[at] = sum / (float)(vertical.inside(own.y) * horizontal.inside(own.x));
}

// Adds the shares that the pixel `at` has in the gradients of windows.
template <class Index>
POOL_FUNCTION void gradient_of_means(float* to, const float* gradients, const Pool<Index>& pool, Index at) {
    const PoolAxis<Index>&vertical = pool.vertical, &horizontal = pool.horizontal;
    PoolElement<Index> own(at, vertical.input, horizontal.input, pool.channels);
    float sum = 0.0f;
    for (Index y = vertical.first_window(own.y); y < vertical.end_window(own.y); y++) {
        Index line = (own.image * vertical.output + y) * horizontal.output;
        for (Index x = horizontal.first_window(own.x); x < horizontal.end_window(own.x); x++) {
            float count = (float)(vertical.inside(y) * horizontal.inside(x));
            sum += gradients[(line + x) * pool.channels + own.channel] / count;
        }
    }
    to[at] = sum;
}
