// The maximum or the mean of each channel in windows of images, and their gradients, as in kernels/src/cpu/pool.
// Images have the shape [images, height, width, channels]. Kernels with constant sizes are generated from these
// functions.

#define POOL_FUNCTION static __device__ __forceinline__

// The windows along one axis of an image. `before` is the size of the padding before the image. Every window
// contains a part of the image.
template <class Index>
struct PoolAxis {
    Index input, output, window, stride, before;

    // Returns the first pixel of a window that is inside the image.
    __device__ __forceinline__ Index first_pixel(Index at) const {
        return at * stride > before ? at * stride - before : 0;
    }

    // Returns the pixel behind the last one of a window that is inside the image.
    __device__ __forceinline__ Index end_pixel(Index at) const {
        Index end = at * stride + window - before;
        return end < input ? end : input;
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
POOL_FUNCTION void max_of_window(float* maxima, unsigned char* positions, const float* images, const Pool<Index>& pool,
                                 Index at) {
    const PoolAxis<Index>&vertical = pool.vertical, &horizontal = pool.horizontal;
    PoolElement<Index> own(at, vertical.output, horizontal.output, pool.channels);
    float largest = MINUS_INFINITY;
    Index position = 0;
    bool first = true;
    for (Index y = vertical.first_pixel(own.y); y < vertical.end_pixel(own.y); y++) {
        Index line = (own.image * vertical.input + y) * horizontal.input;
        for (Index x = horizontal.first_pixel(own.x); x < horizontal.end_pixel(own.x); x++) {
            float number = images[(line + x) * pool.channels + own.channel];
            // The first pixel is always taken, because the maximum may be −∞.
            if (first || number > largest || number != number) {
                largest = number;
                position = vertical.within(own.y, y) * horizontal.window + horizontal.within(own.x, x);
            }
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
    Index top = vertical.first_pixel(own.y), bottom = vertical.end_pixel(own.y);
    Index left = horizontal.first_pixel(own.x), right = horizontal.end_pixel(own.x);
    float sum = 0.0f;
    for (Index y = top; y < bottom; y++) {
        Index line = (own.image * vertical.input + y) * horizontal.input;
        for (Index x = left; x < right; x++) sum += images[(line + x) * pool.channels + own.channel];
    }
    means[at] = sum / (float)((bottom - top) * (right - left));
}

// Adds the shares that the pixel `at` has in the gradients of windows.
template <class Index>
POOL_FUNCTION void gradient_of_means(float* to, const float* gradients, const Pool<Index>& pool, Index at) {
    const PoolAxis<Index>&vertical = pool.vertical, &horizontal = pool.horizontal;
    PoolElement<Index> own(at, vertical.input, horizontal.input, pool.channels);
    float sum = 0.0f;
    for (Index y = vertical.first_window(own.y); y < vertical.end_window(own.y); y++) {
        Index line = (own.image * vertical.output + y) * horizontal.output;
        Index rows = vertical.end_pixel(y) - vertical.first_pixel(y);
        for (Index x = horizontal.first_window(own.x); x < horizontal.end_window(own.x); x++) {
            Index columns = horizontal.end_pixel(x) - horizontal.first_pixel(x);
            sum += gradients[(line + x) * pool.channels + own.channel] / (float)(rows * columns);
        }
    }
    to[at] = sum;
}
