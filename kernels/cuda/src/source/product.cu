// Matrix products and convolutions, as in kernels/src/cpu/product and conv2d. All of them are products of a
// left and a right factor. They differ in where an element of a factor is, and where a row of the result is.
// A factor has lines: the rows of the left factor, and the columns of the right one. Each line has terms. An
// element of the result is the sum of the products of the terms of two lines.

#define UNROLL _Pragma("unroll")

namespace product {

// What is done with a sum before it is stored.
enum class Epilogue { Bare, Bias, BiasRelu };

// The part of the result that a block computes at once: HEIGHT rows and WIDTH columns, TERMS terms at a time.
// Each thread computes OWN_ROWS rows and OWN_COLUMNS columns of it, in groups of four.
template <unsigned HEIGHT_, unsigned WIDTH_, unsigned TERMS_, unsigned OWN_ROWS_, unsigned OWN_COLUMNS_>
struct Tile {
    static constexpr unsigned HEIGHT = HEIGHT_, WIDTH = WIDTH_, TERMS = TERMS_;
    static constexpr unsigned OWN_ROWS = OWN_ROWS_, OWN_COLUMNS = OWN_COLUMNS_;
    // The number of threads side by side, and one below the other.
    static constexpr unsigned ACROSS = WIDTH / OWN_COLUMNS, DOWN = HEIGHT / OWN_ROWS;
    static_assert(ACROSS * DOWN == LANES, "each thread has a part of the tile");
};

// The terms of both factors that a block has at hand, by term and line. The last four lines are not used.
// With them, threads that write the terms of one line write to more banks of the memory.
template <class T>
struct Panels {
    float left[T::TERMS][T::HEIGHT + 4], right[T::TERMS][T::WIDTH + 4];
};

// The elements of one factor that this thread copies to shared memory. A panel has LINES lines and TERMS
// terms.
template <unsigned LINES, unsigned TERMS, class Factor>
struct Copier {
    typedef typename Factor::Index Index;
    // Neighbouring threads copy neighbours in memory: terms of a line, or lines of a term.
    static constexpr bool ALONG = Factor::ALONG_TERMS;
    static constexpr unsigned COUNT = LINES * TERMS / LANES;
    static_assert(COUNT * LANES == LINES * TERMS && LANES % (ALONG ? TERMS : LINES) == 0, "equal shares");

    const Factor& factor;
    typename Factor::Line lines[ALONG ? COUNT : 1];
    // The number of lines that exist, of those of the panel.
    Index exist;
    float own[COUNT];

    static __device__ __forceinline__ unsigned line(unsigned at) {
        return ALONG ? threadIdx.x / TERMS + at * (LANES / TERMS) : threadIdx.x % LINES;
    }

    static __device__ __forceinline__ unsigned term(unsigned at) {
        return ALONG ? threadIdx.x % TERMS : threadIdx.x / LINES + at * (LANES / LINES);
    }

    // `first` is the first line of the panel, and the factor has `count` lines.
    __device__ __forceinline__ Copier(const Factor& factor, Index first, Index count)
        : factor(factor), exist(first < count ? count - first : 0) {
        UNROLL
        for (unsigned at = 0; at < (ALONG ? COUNT : 1); at++) {
            lines[at] = line(at) < exist ? factor.line(first + line(at)) : typename Factor::Line();
        }
    }

    // Reads the terms from `first` on. Those from `end` on are zeros.
    __device__ __forceinline__ void read(Index first, Index end) {
        UNROLL
        for (unsigned at = 0; at < COUNT; at++) {
            bool exists = line(at) < exist && first + term(at) < end;
            own[at] = exists ? factor.at(lines[ALONG ? at : 0], factor.term(first + term(at))) : 0.0f;
        }
    }

    __device__ __forceinline__ void write(float (&panel)[TERMS][LINES + 4]) const {
        UNROLL
        for (unsigned at = 0; at < COUNT; at++) panel[term(at)][line(at)] = own[at];
    }
};

// Returns the line of a panel that has the number `at` among those of a thread. `thread` is the number of the
// thread among the `threads` that share the lines.
static __device__ __forceinline__ unsigned own_line(unsigned at, unsigned thread, unsigned threads) {
    return (at / 4 * threads + thread) * 4 + at % 4;
}

// Reads the thread's own lines of one term.
template <unsigned COUNT>
static __device__ __forceinline__ void own_lines(float (&own)[COUNT], const float* panel, unsigned thread,
                                                 unsigned threads) {
    UNROLL
    for (unsigned at = 0; at < COUNT; at += 4) {
        const float4 four = *(const float4*)(panel + own_line(at, thread, threads));
        own[at] = four.x;
        own[at + 1] = four.y;
        own[at + 2] = four.z;
        own[at + 3] = four.w;
    }
}

// Adds the products of the terms at hand to the thread's own sums.
template <class T>
static __device__ __forceinline__ void add_products(float (&sums)[T::OWN_ROWS][T::OWN_COLUMNS],
                                                    const Panels<T>& panels) {
    UNROLL
    for (unsigned term = 0; term < T::TERMS; term++) {
        float left[T::OWN_ROWS], right[T::OWN_COLUMNS];
        own_lines(left, panels.left[term], threadIdx.x / T::ACROSS, T::DOWN);
        own_lines(right, panels.right[term], threadIdx.x % T::ACROSS, T::ACROSS);
        UNROLL
        for (unsigned row = 0; row < T::OWN_ROWS; row++) {
            UNROLL
            for (unsigned column = 0; column < T::OWN_COLUMNS; column++) {
                sums[row][column] += left[row] * right[column];
            }
        }
    }
}

template <Epilogue EPILOGUE>
static __device__ __forceinline__ float finished(float sum, const float* bias, Count column) {
    if constexpr (EPILOGUE != Epilogue::Bare) sum += bias[column];
    // A NaN stays a NaN.
    if constexpr (EPILOGUE == Epilogue::BiasRelu) sum = sum < 0.0f ? 0.0f : sum;
    return sum;
}

// Computes `Products::NUMBER` products. The terms are divided into PARTS parts. If there are several parts,
// each is computed as a result of its own, one behind the other in `to`.
template <class T, unsigned PARTS, Epilogue EPILOGUE, class Products>
static __device__ __forceinline__ void multiply(const Products& products, float* to, const float* bias,
                                                Panels<T>& panels) {
    typedef typename Products::Index Index;
    constexpr Index ROWS = Products::ROWS, COLUMNS = Products::COLUMNS, NUMBER = Products::NUMBER;
    constexpr Index DOWN = (ROWS + T::HEIGHT - 1) / T::HEIGHT, ACROSS = (COLUMNS + T::WIDTH - 1) / T::WIDTH;
    constexpr Index PART = ((Products::TERMS + PARTS - 1) / PARTS + T::TERMS - 1) / T::TERMS * T::TERMS;
    for (Index item = blockIdx.x; item < NUMBER * PARTS * DOWN * ACROSS; item += gridDim.x) {
        Index first_column = item % ACROSS * T::WIDTH, first_row = item / ACROSS % DOWN * T::HEIGHT;
        Index part = item / (ACROSS * DOWN) % PARTS, number = item / (ACROSS * DOWN * PARTS) % NUMBER;
        const auto own = products.one(number);
        Index term = part * PART, end = term + PART < own.terms ? term + PART : own.terms;
        Copier<T::HEIGHT, T::TERMS, decltype(own.left)> left(own.left, first_row, own.rows);
        Copier<T::WIDTH, T::TERMS, decltype(own.right)> right(own.right, first_column, COLUMNS);
        float sums[T::OWN_ROWS][T::OWN_COLUMNS] = {};
        left.read(term, end);
        right.read(term, end);
        while (term < end) {
            left.write(panels.left);
            right.write(panels.right);
            __syncthreads();
            term += T::TERMS;
            // The next terms are on their way while these are multiplied.
            left.read(term, end);
            right.read(term, end);
            add_products(sums, panels);
            // The threads may still be reading the terms at hand.
            __syncthreads();
        }
        UNROLL
        for (unsigned y = 0; y < T::OWN_ROWS; y++) {
            Index row = first_row + own_line(y, threadIdx.x / T::ACROSS, T::DOWN);
            if (row >= own.rows) continue;
            float* line = to + (part * Products::ELEMENTS + own.row(row));
            UNROLL
            for (unsigned x = 0; x < T::OWN_COLUMNS; x++) {
                Index column = first_column + own_line(x, threadIdx.x % T::ACROSS, T::ACROSS);
                if (column < COLUMNS) line[column] = finished<EPILOGUE>(sums[y][x], bias, column);
            }
        }
    }
}

// Adds the PARTS parts of ELEMENTS sums, which are rows of COLUMNS columns. GROUPS threads share the parts of
// one element.
template <unsigned PARTS, unsigned GROUPS, Count ELEMENTS, Count COLUMNS, Epilogue EPILOGUE>
static __device__ __forceinline__ void add_parts(float* to, const float* parts, const float* bias,
                                                 float (&sums)[LANES]) {
    constexpr unsigned WIDTH = LANES / GROUPS;
    for (Count item = blockIdx.x; item < (ELEMENTS + WIDTH - 1) / WIDTH; item += gridDim.x) {
        Count at = item * WIDTH + threadIdx.x % WIDTH;
        float sum = 0.0f;
        if (at < ELEMENTS) {
#pragma unroll 4
            for (unsigned part = threadIdx.x / WIDTH; part < PARTS; part += GROUPS) {
                sum += parts[part * ELEMENTS + at];
            }
        }
        sums[threadIdx.x] = sum;
        __syncthreads();
        if (at < ELEMENTS && threadIdx.x < WIDTH) {
            for (unsigned group = 1; group < GROUPS; group++) sum += sums[group * WIDTH + threadIdx.x];
            to[at] = finished<EPILOGUE>(sum, bias, at % COLUMNS);
        }
        // The threads may still be reading the sums of these elements.
        __syncthreads();
    }
}

// A product of two factors. `row` returns where a row of the result begins.
template <class Left, class Right, class Row>
struct Product {
    Left left;
    Right right;
    Row row;
    typename Left::Index rows, terms;
};

// A factor in memory. LINE and TERM are how far apart its lines and its terms are.
template <class Index_, Index_ LINE, Index_ TERM>
struct Matrix {
    typedef Index_ Index;
    typedef Index Line;
    static constexpr bool ALONG_TERMS = TERM == 1;
    const float* data;

    __device__ __forceinline__ Index line(Index at) const { return at * LINE; }
    __device__ __forceinline__ Index term(Index at) const { return at * TERM; }
    __device__ __forceinline__ float at(Index line, Index term) const { return data[line + term]; }
};

// A factor whose lines are the terms of another one.
template <class Factor>
struct Transposed {
    typedef typename Factor::Index Index;
    typedef typename Factor::Line Line;
    static constexpr bool ALONG_TERMS = !Factor::ALONG_TERMS;
    Factor factor;

    __device__ __forceinline__ Line line(Index at) const { return factor.term(at); }
    __device__ __forceinline__ Line term(Index at) const { return factor.line(at); }
    __device__ __forceinline__ float at(Line line, Line term) const { return factor.at(term, line); }
};

// Rows that lie side by side, from `first` on.
template <class Index, Index COLUMNS>
struct Rows {
    Index first;

    __device__ __forceinline__ Index operator()(Index row) const { return first + row * COLUMNS; }
};

// The products of NUMBER pairs of matrices. A factor may be stored transposed.
template <class Index_, Index_ NUMBER_, Index_ ROWS_, Index_ TERMS_, Index_ COLUMNS_, bool TRANSPOSE_A,
          bool TRANSPOSE_B>
struct Matrices {
    typedef Index_ Index;
    static constexpr Index NUMBER = NUMBER_, ROWS = ROWS_, TERMS = TERMS_, COLUMNS = COLUMNS_;
    static constexpr Index ELEMENTS = NUMBER * ROWS * COLUMNS;
    typedef Matrix<Index, TRANSPOSE_A ? 1 : TERMS, TRANSPOSE_A ? ROWS : 1> Left;
    typedef Matrix<Index, TRANSPOSE_B ? TERMS : 1, TRANSPOSE_B ? 1 : COLUMNS> Right;
    const float *a, *b;

    __device__ __forceinline__ Product<Left, Right, Rows<Index, COLUMNS>> one(Index number) const {
        Left left = {a + number * (ROWS * TERMS)};
        Right right = {b + number * (TERMS * COLUMNS)};
        return {left, right, {number * (ROWS * COLUMNS)}, ROWS, TERMS};
    }
};

// The sizes of a convolution along one axis: those of the image, of the kernel and of the output, the stride,
// and the padding before the image.
template <unsigned IMAGE_, unsigned KERNEL_, unsigned OUTPUT_, unsigned STRIDE_, unsigned BEFORE_>
struct Axis {
    static constexpr unsigned IMAGE = IMAGE_, KERNEL = KERNEL_, OUTPUT = OUTPUT_;
    static constexpr unsigned STRIDE = STRIDE_, BEFORE = BEFORE_;
    // Whether every window lies within the image.
    static constexpr bool INSIDE = BEFORE == 0 && (OUTPUT - 1) * STRIDE + KERNEL <= IMAGE;
};

// The shapes of a convolution.
template <class Index_, Index_ IMAGES_, class Vertical, class Horizontal, Index_ INPUTS_, Index_ OUTPUTS_>
struct Convolution {
    typedef Index_ Index;
    typedef Vertical Y;
    typedef Horizontal X;
    // The channels of the images and of the output.
    static constexpr Index IMAGES = IMAGES_, INPUTS = INPUTS_, OUTPUTS = OUTPUTS_;
    // The number of output pixels, and that of the elements of a window.
    static constexpr Index PIXELS = IMAGES * Y::OUTPUT * X::OUTPUT;
    static constexpr Index WINDOW = Y::KERNEL * X::KERNEL * INPUTS;
};

// Where something is in the images, or how far it is from something else: in elements, and on both axes. A
// number before the edge of an image is very large, because numbers have no sign.
template <class Index>
struct Spot {
    Index at;
    unsigned y, x;
};

// The factor whose lines are the windows of the output pixels. There are zeros beyond the edges of an image.
template <class C>
struct Windows {
    typedef typename C::Index Index;
    typedef Spot<Index> Line;
    typedef typename C::Y Y;
    typedef typename C::X X;
    // The elements of one row of a window are neighbours. If they are few, those of other windows are nearer.
    static constexpr bool ALONG_TERMS = X::KERNEL * C::INPUTS >= 8;
    const float* images;

    __device__ __forceinline__ Line line(Index pixel) const {
        unsigned y = unsigned(pixel / X::OUTPUT % Y::OUTPUT) * Y::STRIDE - Y::BEFORE;
        unsigned x = unsigned(pixel % X::OUTPUT) * X::STRIDE - X::BEFORE;
        Index image = pixel / (X::OUTPUT * Y::OUTPUT);
        return {image * (Y::IMAGE * X::IMAGE * C::INPUTS) + distance(y, x), y, x};
    }

    __device__ __forceinline__ Line term(Index at) const {
        unsigned y = unsigned(at / (X::KERNEL * C::INPUTS)), x = unsigned(at / C::INPUTS % X::KERNEL);
        return {distance(y, x) + at % C::INPUTS, y, x};
    }

    __device__ __forceinline__ float at(const Line& line, const Line& term) const {
        bool inside_y = Y::INSIDE || line.y + term.y < Y::IMAGE;
        bool inside_x = X::INSIDE || line.x + term.x < X::IMAGE;
        return inside_y && inside_x ? images[line.at + term.at] : 0.0f;
    }

    // Returns how far apart two pixels are. A number of rows or columns may be negative.
    static __device__ __forceinline__ Index distance(unsigned y, unsigned x) {
        return (Index(int(y)) * X::IMAGE + Index(int(x))) * C::INPUTS;
    }
};

// The product of a convolution: windows · kernel.
template <class C>
struct Forward {
    typedef typename C::Index Index;
    static constexpr Index NUMBER = 1, ROWS = C::PIXELS, TERMS = C::WINDOW, COLUMNS = C::OUTPUTS;
    static constexpr Index ELEMENTS = ROWS * COLUMNS;
    typedef Matrix<Index, 1, COLUMNS> Right;
    const float *images, *kernel;

    __device__ __forceinline__ Product<Windows<C>, Right, Rows<Index, COLUMNS>> one(Index) const {
        return {{images}, {kernel}, {0}, ROWS, TERMS};
    }
};

// The product of the gradient with respect to the kernel: windowsᵀ · dy.
template <class C>
struct KernelGradient {
    typedef typename C::Index Index;
    static constexpr Index NUMBER = 1, ROWS = C::WINDOW, TERMS = C::PIXELS, COLUMNS = C::OUTPUTS;
    static constexpr Index ELEMENTS = ROWS * COLUMNS;
    typedef Matrix<Index, 1, COLUMNS> Right;
    const float *images, *dy;

    __device__ __forceinline__ Product<Transposed<Windows<C>>, Right, Rows<Index, COLUMNS>> one(Index) const {
        return {{{images}}, {dy}, {0}, ROWS, TERMS};
    }
};

// Returns `number / by` if `by` is SIZE / STRIDE, rounded up or down. A division by a constant is faster.
template <unsigned SIZE, unsigned STRIDE, class Index>
static __device__ __forceinline__ Index divided(Index number, unsigned by) {
    constexpr unsigned LESS = SIZE < STRIDE ? 1 : SIZE / STRIDE, MORE = (SIZE + STRIDE - 1) / STRIDE;
    return by == MORE ? number / MORE : number / LESS;
}

// The pixels and the places of a kernel that meet, along one axis. With a stride of s, a place of the kernel
// meets only each s-th pixel of the padded image. So the pixels fall into s classes, which are products of
// their own. Pixel `s · (first + i) + number − BEFORE` of the image is pixel i of the class, and meets the
// outputs `first + i − j`, for each place `s · j + number` of the kernel.
template <class A>
struct Class {
    unsigned number, first, pixels, places;

    __device__ __forceinline__ Class(unsigned number)
        : number(number),
          first(multiples(A::BEFORE, number)),
          pixels(multiples(A::BEFORE + A::IMAGE, number) - first),
          places(multiples(A::KERNEL, number)) {}

    // Returns `at / places`.
    __device__ __forceinline__ unsigned by_places(unsigned at) const {
        return divided<A::KERNEL, A::STRIDE>(at, places);
    }

    // Returns `at / pixels`.
    template <class Index>
    __device__ __forceinline__ Index by_pixels(Index at) const {
        return divided<A::IMAGE, A::STRIDE>(at, pixels);
    }

    // Returns how many numbers below `end` have the remainder `number`.
    static __device__ __forceinline__ unsigned multiples(unsigned end, unsigned number) {
        return (end + A::STRIDE - 1 - number) / A::STRIDE;
    }

    // Returns where a pixel is in its image.
    __device__ __forceinline__ unsigned place(unsigned pixel) const {
        return (first + pixel) * A::STRIDE + number - A::BEFORE;
    }
};

// The classes of pixels on both axes.
template <class C>
struct Classes {
    typedef typename C::Index Index;
    Class<typename C::Y> y;
    Class<typename C::X> x;

    __device__ __forceinline__ Classes(unsigned number) : y(number / C::X::STRIDE), x(number % C::X::STRIDE) {}

    // Returns where the pixel with this number begins in the images.
    __device__ __forceinline__ Index operator()(Index pixel) const {
        Index line = x.by_pixels(pixel), image = y.by_pixels(line);
        unsigned at_y = y.place(unsigned(line - image * y.pixels));
        unsigned at_x = x.place(unsigned(pixel - line * x.pixels));
        return ((image * C::Y::IMAGE + at_y) * C::X::IMAGE + at_x) * C::INPUTS;
    }
};

// The factor whose lines are the pixels of a class. Its terms are the elements of dy that meet a pixel.
template <class C>
struct Outputs {
    typedef typename C::Index Index;
    typedef Spot<Index> Line;
    static constexpr bool ALONG_TERMS = C::OUTPUTS >= 8;
    const float* dy;
    Classes<C> classes;

    __device__ __forceinline__ Line line(Index pixel) const {
        Index line = classes.x.by_pixels(pixel), image = classes.y.by_pixels(line);
        unsigned y = classes.y.first + unsigned(line - image * classes.y.pixels);
        unsigned x = classes.x.first + unsigned(pixel - line * classes.x.pixels);
        return {((image * C::Y::OUTPUT + y) * C::X::OUTPUT + x) * C::OUTPUTS, y, x};
    }

    __device__ __forceinline__ Line term(Index at) const {
        unsigned place = unsigned(at / C::OUTPUTS);
        unsigned y = classes.x.by_places(place), x = place - y * classes.x.places;
        return {(Index(y) * C::X::OUTPUT + x) * C::OUTPUTS - at % C::OUTPUTS, y, x};
    }

    __device__ __forceinline__ float at(const Line& line, const Line& term) const {
        bool inside = line.y - term.y < C::Y::OUTPUT && line.x - term.x < C::X::OUTPUT;
        return inside ? dy[line.at - term.at] : 0.0f;
    }
};

// The factor whose lines are the channels of the images. Its terms are the elements of the kernel that meet
// the pixels of a class.
template <class C>
struct Kernel {
    typedef typename C::Index Index;
    typedef Index Line;
    static constexpr bool ALONG_TERMS = C::OUTPUTS >= 8;
    const float* kernel;
    Classes<C> classes;

    __device__ __forceinline__ Index line(Index channel) const { return channel * C::OUTPUTS; }

    __device__ __forceinline__ Index term(Index at) const {
        unsigned place = unsigned(at / C::OUTPUTS), row = classes.x.by_places(place);
        unsigned y = row * C::Y::STRIDE + classes.y.number;
        unsigned x = (place - row * classes.x.places) * C::X::STRIDE + classes.x.number;
        return Index(y * C::X::KERNEL + x) * (C::INPUTS * C::OUTPUTS) + at % C::OUTPUTS;
    }

    __device__ __forceinline__ float at(Index line, Index term) const { return kernel[line + term]; }
};

// The products of the gradient with respect to the images, one for each class of pixels: dy · kernelᵀ.
template <class C>
struct InputGradient {
    typedef typename C::Index Index;
    typedef typename C::Y Y;
    typedef typename C::X X;
    static constexpr Index NUMBER = Y::STRIDE * X::STRIDE, COLUMNS = C::INPUTS;
    static constexpr Index ELEMENTS = C::IMAGES * Y::IMAGE * X::IMAGE * COLUMNS;
    // The sizes of the largest class.
    static constexpr Index ROWS = C::IMAGES * ((Y::IMAGE + Y::STRIDE - 1) / Y::STRIDE) *
                                  ((X::IMAGE + X::STRIDE - 1) / X::STRIDE);
    static constexpr Index TERMS = ((Y::KERNEL + Y::STRIDE - 1) / Y::STRIDE) *
                                   ((X::KERNEL + X::STRIDE - 1) / X::STRIDE) * C::OUTPUTS;
    const float *kernel, *dy;

    __device__ __forceinline__ Product<Outputs<C>, Kernel<C>, Classes<C>> one(Index number) const {
        const Classes<C> classes{unsigned(number)};
        Index rows = C::IMAGES * classes.y.pixels * classes.x.pixels;
        Index terms = C::OUTPUTS * classes.y.places * classes.x.places;
        return {{dy, classes}, {kernel, classes}, classes, rows, terms};
    }
};

}  // namespace product
