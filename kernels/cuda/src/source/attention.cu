// Attention: the means of values, weighted by the softmax of the products of a query and all keys, and the
// gradients of these means. A block of threads has some rows of its own, queries or keys, and goes over the
// other ones. No weights are stored in memory: the gradients compute them again.

namespace attention {

// The threads of a block: ACROSS side by side, and DOWN one below the other.
constexpr unsigned ACROSS = 16, DOWN = 8, THREADS = ACROSS * DOWN;

// NUMBER times, QUERIES rows of queries and KEYS rows of keys and of values, with SIZE columns each. If
// CAUSAL is true, a query sees only its own key and those before it.
template <Count NUMBER_, unsigned QUERIES_, unsigned KEYS_, unsigned SIZE_, bool CAUSAL_>
struct Shape {
    static constexpr Count NUMBER = NUMBER_;
    static constexpr unsigned QUERIES = QUERIES_, KEYS = KEYS_, SIZE = SIZE_;
    static constexpr bool CAUSAL = CAUSAL_;
    // The columns of a thread, and all columns with those of zeros that give each thread equally many.
    static constexpr unsigned COLUMNS = (SIZE + ACROSS - 1) / ACROSS, WIDTH = COLUMNS * ACROSS;

    static __device__ __forceinline__ bool sees(unsigned query, unsigned key) {
        return query < QUERIES && key < KEYS && (!CAUSAL || key <= query);
    }

    // Returns whether all queries of a range see all keys of another one.
    static __device__ __forceinline__ bool all_see(unsigned query, unsigned queries, unsigned key, unsigned keys) {
        return query + queries <= QUERIES && key + keys <= KEYS && (!CAUSAL || key + keys - 1 <= query);
    }
};

// The rows that a block has in shared memory: OWN ones that it keeps, of OF_OWN matrices, and OTHERS that it goes
// over, of two matrices. Weights are those of the other rows, for each own one. The last four columns are not
// used. With them, threads that read the same column of several rows use more banks of the memory.
template <class S, unsigned OWN_, unsigned OTHERS_, unsigned OF_OWN, unsigned OF_WEIGHTS>
struct Rows {
    typedef S Shape;
    static constexpr unsigned OWN = OWN_, OTHERS = OTHERS_;
    // The own rows and the other ones of a thread.
    static constexpr unsigned DEEP = OWN / DOWN, WIDE = OTHERS / ACROSS;
    static_assert(DEEP * DOWN == OWN && WIDE * ACROSS == OTHERS, "each thread has equally many rows");
    float own[OF_OWN][OWN][S::WIDTH + 4], others[2][OTHERS][S::WIDTH + 4];
    float weights[OF_WEIGHTS][OWN][OTHERS + 4];
};

static __device__ __forceinline__ unsigned across() { return threadIdx.x % ACROSS; }
static __device__ __forceinline__ unsigned down() { return threadIdx.x / ACROSS; }

// Returns the column that has the number `at` among those of the thread.
template <class S>
static __device__ __forceinline__ unsigned own_column(unsigned at) {
    return S::COLUMNS % 4 == 0 ? (at / 4 * ACROSS + across()) * 4 + at % 4 : at * ACROSS + across();
}

// Copies rows of a matrix with `count` rows to shared memory, from the row `first` on. There are zeros beyond
// the last row and the last column.
template <class S, unsigned ROWS>
static __device__ __forceinline__ void copy(float (&to)[ROWS][S::WIDTH + 4], const float* from, unsigned first,
                                            unsigned count) {
    if constexpr (S::SIZE % 4 == 0) {
        constexpr unsigned FOURS = S::WIDTH / 4;
#pragma unroll 4
        for (unsigned at = threadIdx.x; at < ROWS * FOURS; at += THREADS) {
            unsigned row = at / FOURS, column = at % FOURS * 4;
            float4 four = {0.0f, 0.0f, 0.0f, 0.0f};
            if (first + row < count && column < S::SIZE) {
                four = *(const float4*)(from + ((first + row) * (Count)S::SIZE + column));
            }
            *(float4*)&to[row][column] = four;
        }
    } else {
        for (unsigned at = threadIdx.x; at < ROWS * S::WIDTH; at += THREADS) {
            unsigned row = at / S::WIDTH, column = at % S::WIDTH;
            bool exists = first + row < count && column < S::SIZE;
            to[row][column] = exists ? from[(first + row) * (Count)S::SIZE + column] : 0.0f;
        }
    }
}

// Computes the products of own rows and other rows.
template <class R>
static __device__ __forceinline__ void multiply(float (&sums)[R::DEEP][R::WIDE],
                                                const float (&own)[R::OWN][R::Shape::WIDTH + 4],
                                                const float (&others)[R::OTHERS][R::Shape::WIDTH + 4]) {
#pragma unroll
    for (unsigned deep = 0; deep < R::DEEP; deep++) {
#pragma unroll
        for (unsigned wide = 0; wide < R::WIDE; wide++) sums[deep][wide] = 0.0f;
    }
#pragma unroll 4
    for (unsigned column = 0; column < R::Shape::WIDTH; column += 4) {
        float4 right[R::WIDE];
#pragma unroll
        for (unsigned wide = 0; wide < R::WIDE; wide++) {
            right[wide] = *(const float4*)&others[across() + wide * ACROSS][column];
        }
#pragma unroll
        for (unsigned deep = 0; deep < R::DEEP; deep++) {
            const float4 left = *(const float4*)&own[down() + deep * DOWN][column];
#pragma unroll
            for (unsigned wide = 0; wide < R::WIDE; wide++) {
                sums[deep][wide] += left.x * right[wide].x;
                sums[deep][wide] += left.y * right[wide].y;
                sums[deep][wide] += left.z * right[wide].z;
                sums[deep][wide] += left.w * right[wide].w;
            }
        }
    }
}

// Adds the other rows, times their weights, to the sums of each own row. `sees` says whether an own row sees
// another one. If not, that one is left out, because 0 times what is not finite is not 0.
template <class R, class Sees>
static __device__ __forceinline__ void add_weighted(float (&sums)[R::DEEP][R::Shape::COLUMNS],
                                                    const float (&weights)[R::OWN][R::OTHERS + 4],
                                                    const float (&others)[R::OTHERS][R::Shape::WIDTH + 4],
                                                    Sees sees) {
    constexpr unsigned COLUMNS = R::Shape::COLUMNS;
#pragma unroll 2
    for (unsigned first = 0; first < R::OTHERS; first += 4) {
        float rows[4][COLUMNS];
#pragma unroll
        for (unsigned at = 0; at < 4; at++) {
            const float* row = others[first + at];
            if constexpr (COLUMNS % 4 == 0) {
#pragma unroll
                for (unsigned column = 0; column < COLUMNS; column += 4) {
                    const float4 four = *(const float4*)&row[own_column<typename R::Shape>(column)];
                    rows[at][column] = four.x;
                    rows[at][column + 1] = four.y;
                    rows[at][column + 2] = four.z;
                    rows[at][column + 3] = four.w;
                }
            } else {
#pragma unroll
                for (unsigned column = 0; column < COLUMNS; column++) {
                    rows[at][column] = row[own_column<typename R::Shape>(column)];
                }
            }
        }
#pragma unroll
        for (unsigned deep = 0; deep < R::DEEP; deep++) {
            const float4 four = *(const float4*)&weights[down() + deep * DOWN][first];
            const float weight[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (unsigned at = 0; at < 4; at++) {
                if (!sees(down() + deep * DOWN, first + at)) continue;
#pragma unroll
                for (unsigned column = 0; column < COLUMNS; column++) {
                    sums[deep][column] += weight[at] * rows[at][column];
                }
            }
        }
    }
}

// Writes the sums of the own rows to a matrix with `count` rows.
template <class R>
static __device__ __forceinline__ void write(float* to, unsigned first, unsigned count,
                                             const float (&sums)[R::DEEP][R::Shape::COLUMNS]) {
    typedef typename R::Shape S;
#pragma unroll
    for (unsigned deep = 0; deep < R::DEEP; deep++) {
        unsigned row = first + down() + deep * DOWN;
        if (row >= count) continue;
        float* line = to + row * (Count)S::SIZE;
        if constexpr (S::SIZE % 4 == 0 && S::COLUMNS % 4 == 0) {
#pragma unroll
            for (unsigned at = 0; at < S::COLUMNS; at += 4) {
                const float* own = &sums[deep][at];
                unsigned column = own_column<S>(at);
                if (column < S::SIZE) *(float4*)(line + column) = {own[0], own[1], own[2], own[3]};
            }
        } else {
#pragma unroll
            for (unsigned at = 0; at < S::COLUMNS; at++) {
                unsigned column = own_column<S>(at);
                if (column < S::SIZE) line[column] = sums[deep][at];
            }
        }
    }
}

// Computes the mean of the values for each query. `sizes` gets the logarithm of the sum of the exponentials
// of the query's scores. The sum is that of the exponentials of the distances from the largest score so far, so
// it is made smaller when a larger one comes.
template <class R>
static __device__ __forceinline__ void forward(float* mean, float* sizes, const float* query, const float* key,
                                               const float* value, R& rows) {
    typedef typename R::Shape S;
    constexpr unsigned BLOCKS = (S::QUERIES + R::OWN - 1) / R::OWN;
    for (Count item = blockIdx.x; item < S::NUMBER * BLOCKS; item += gridDim.x) {
        // The last queries see most keys, so they come first.
        unsigned first = (BLOCKS - 1 - unsigned(item / S::NUMBER)) * R::OWN;
        Count number = item % S::NUMBER, of_queries = number * S::QUERIES, of_keys = number * S::KEYS;
        float sums[R::DEEP][S::COLUMNS] = {}, largest[R::DEEP], totals[R::DEEP] = {};
#pragma unroll
        for (unsigned deep = 0; deep < R::DEEP; deep++) largest[deep] = MINUS_INFINITY;
        const unsigned end = S::CAUSAL && first + R::OWN < S::KEYS ? first + R::OWN : S::KEYS;
        for (unsigned at = 0; at < end; at += R::OTHERS) {
            // The threads may still be reading the rows at hand.
            __syncthreads();
            if (at == 0) copy<S>(rows.own[0], query + of_queries * S::SIZE, first, S::QUERIES);
            copy<S>(rows.others[0], key + of_keys * S::SIZE, at, S::KEYS);
            copy<S>(rows.others[1], value + of_keys * S::SIZE, at, S::KEYS);
            __syncthreads();
            float scores[R::DEEP][R::WIDE];
            multiply<R>(scores, rows.own[0], rows.others[0]);
            const bool all = S::all_see(first, R::OWN, at, R::OTHERS);
            const auto sees = [&](unsigned own, unsigned other) { return S::sees(first + own, at + other); };
#pragma unroll
            for (unsigned deep = 0; deep < R::DEEP; deep++) {
                const unsigned own = down() + deep * DOWN;
                float most = largest[deep];
#pragma unroll
                for (unsigned wide = 0; wide < R::WIDE; wide++) {
                    float& score = scores[deep][wide];
                    if (!all && !sees(own, across() + wide * ACROSS)) score = MINUS_INFINITY;
                    most = larger(most, score);
                }
                most = merge_neighbours<Larger>(most, ACROSS);
                // A row may have seen nothing that is larger so far.
                const float base = most == MINUS_INFINITY ? 0.0f : most;
                const float less = expf(largest[deep] - base);
                largest[deep] = most;
                totals[deep] *= less;
#pragma unroll
                for (unsigned column = 0; column < S::COLUMNS; column++) sums[deep][column] *= less;
#pragma unroll
                for (unsigned wide = 0; wide < R::WIDE; wide++) {
                    const float share = expf(scores[deep][wide] - base);
                    totals[deep] += share;
                    rows.weights[0][own][across() + wide * ACROSS] = share;
                }
            }
            // The threads of a warp write the weights that they read.
            __syncwarp();
            if (S::CAUSAL && !all) {
                add_weighted<R>(sums, rows.weights[0], rows.others[1], sees);
            } else {
                add_weighted<R>(sums, rows.weights[0], rows.others[1], [](unsigned, unsigned) { return true; });
            }
        }
#pragma unroll
        for (unsigned deep = 0; deep < R::DEEP; deep++) {
            const float total = merge_neighbours<Sum>(totals[deep], ACROSS);
            const unsigned row = first + down() + deep * DOWN;
            if (across() == 0 && row < S::QUERIES) sizes[of_queries + row] = largest[deep] + logf(total);
#pragma unroll
            for (unsigned column = 0; column < S::COLUMNS; column++) sums[deep][column] /= total;
        }
        write<R>(mean + of_queries * S::SIZE, first, S::QUERIES, sums);
    }
}

// Computes the gradients of keys and values, if OF_KEYS is true, or those of queries. The own rows are those
// of the former, or of the latter. `dots` has the product of the mean and its gradient, for each query.
template <bool OF_KEYS, class R>
static __device__ __forceinline__ void backward(float* dvalue, float* to, const float* query, const float* key,
                                                const float* value, const float* dmean, const float* sizes,
                                                const float* dots, R& rows) {
    typedef typename R::Shape S;
    constexpr unsigned OWN = OF_KEYS ? S::KEYS : S::QUERIES, OTHERS = OF_KEYS ? S::QUERIES : S::KEYS;
    constexpr unsigned BLOCKS = (OWN + R::OWN - 1) / R::OWN;
    for (Count item = blockIdx.x; item < S::NUMBER * BLOCKS; item += gridDim.x) {
        // The rows that see most others, or are seen by them, come first.
        const unsigned block = unsigned(item / S::NUMBER), first = (OF_KEYS ? block : BLOCKS - 1 - block) * R::OWN;
        Count number = item % S::NUMBER, of_queries = number * S::QUERIES, of_keys = number * S::KEYS;
        const float *of_query = query + of_queries * S::SIZE, *of_dmean = dmean + of_queries * S::SIZE;
        const float *of_key = key + of_keys * S::SIZE, *of_value = value + of_keys * S::SIZE;
        float sums[R::DEEP][S::COLUMNS] = {}, of_values[OF_KEYS ? R::DEEP : 1][S::COLUMNS] = {};
        const unsigned begin = S::CAUSAL && OF_KEYS ? first / R::OTHERS * R::OTHERS : 0;
        const unsigned end = S::CAUSAL && !OF_KEYS && first + R::OWN < OTHERS ? first + R::OWN : OTHERS;
        for (unsigned at = begin; at < end; at += R::OTHERS) {
            // The threads may still be reading the rows at hand.
            __syncthreads();
            if (at == begin) {
                copy<S>(rows.own[0], OF_KEYS ? of_key : of_query, first, OWN);
                copy<S>(rows.own[1], OF_KEYS ? of_value : of_dmean, first, OWN);
            }
            copy<S>(rows.others[0], OF_KEYS ? of_query : of_key, at, OTHERS);
            copy<S>(rows.others[1], OF_KEYS ? of_dmean : of_value, at, OTHERS);
            __syncthreads();
            float scores[R::DEEP][R::WIDE], slopes[R::DEEP][R::WIDE];
            multiply<R>(scores, rows.own[0], rows.others[0]);
            multiply<R>(slopes, rows.own[1], rows.others[1]);
            const auto sees = [&](unsigned own, unsigned other) {
                return OF_KEYS ? S::sees(at + other, first + own) : S::sees(first + own, at + other);
            };
#pragma unroll
            for (unsigned deep = 0; deep < R::DEEP; deep++) {
#pragma unroll
                for (unsigned wide = 0; wide < R::WIDE; wide++) {
                    const unsigned own = down() + deep * DOWN, other = across() + wide * ACROSS;
                    const Count row = of_queries + (OF_KEYS ? at + other : first + own);
                    float share = 0.0f, slope = 0.0f;
                    if (sees(own, other)) {
                        share = expf(scores[deep][wide] - sizes[row]);
                        slope = share * (slopes[deep][wide] - dots[row]);
                    }
                    rows.weights[0][own][other] = slope;
                    if constexpr (OF_KEYS) rows.weights[1][own][other] = share;
                }
            }
            // The threads of a warp write the weights that they read.
            __syncwarp();
            const unsigned query = OF_KEYS ? at : first, key = OF_KEYS ? first : at;
            const unsigned queries = OF_KEYS ? R::OTHERS : R::OWN, keys = OF_KEYS ? R::OWN : R::OTHERS;
            if (S::CAUSAL && !S::all_see(query, queries, key, keys)) {
                add_weighted<R>(sums, rows.weights[0], rows.others[0], sees);
                if constexpr (OF_KEYS) add_weighted<R>(of_values, rows.weights[1], rows.others[1], sees);
            } else {
                const auto all = [](unsigned, unsigned) { return true; };
                add_weighted<R>(sums, rows.weights[0], rows.others[0], all);
                if constexpr (OF_KEYS) add_weighted<R>(of_values, rows.weights[1], rows.others[1], all);
            }
        }
        write<R>(to + (OF_KEYS ? of_keys : of_queries) * S::SIZE, first, OWN, sums);
        if constexpr (OF_KEYS) write<R>(dvalue + of_keys * S::SIZE, first, OWN, of_values);
    }
}

// The same with tensor cores, which multiply factors of 10 bits behind the point. All factors are rounded
// before. Each of the four warps has 16 own rows, whose fragments stay in its registers.
namespace tensor {

constexpr unsigned WARP_ROWS = 16, OWN = THREADS / 32 * WARP_ROWS, OTHERS = 32;
// No row.
constexpr unsigned NONE = 0xFFFFFFFF;
// How a matrix lies in memory.
constexpr int BY_ROWS = 0, BY_COLUMNS = 1;
// The rows of both factors, or the columns of the second one, lie side by side.
constexpr int ROWS_ROWS = 0, ROWS_COLUMNS = 1;

// The rows that a block goes over, and the weights of its own rows: see `Rows`. The own rows, of one matrix,
// and the results take the place of the others at times.
template <class S, unsigned OF_WEIGHTS>
struct Tiles {
    typedef S Shape;
    // The number of fragments of a row of factors, and of a row of results.
    static constexpr unsigned STEPS = S::WIDTH / 8, ACROSS = S::WIDTH / 16;
    static_assert(OWN == 2 * OTHERS, "own rows fit into the place of two matrices");
    float others[2][OTHERS][S::WIDTH + 4];
    float weights[OF_WEIGHTS][OWN][OTHERS + 4];
    // Numbers of the own rows, and of the others.
    float of_own[OWN], of_others[2][OTHERS];
    // The first of the last other rows of which some number is not finite.
    unsigned spoiled;

    // Returns the place of the warp's own rows.
    __device__ __forceinline__ float (*own())[S::WIDTH + 4] {
        return &others[first_row() / OTHERS][first_row() % OTHERS];
    }

    static __device__ __forceinline__ unsigned first_row() { return threadIdx.x / 32 * WARP_ROWS; }
};

// Returns the nearest number with 10 bits behind the point. What is not a number stays so.
static __device__ __forceinline__ float rounded(float number) {
    const unsigned bits = __float_as_uint(number);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return NOT_A_NUMBER;
    return __uint_as_float((bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFFu);
}

// Copies rows as factors: see `attention::copy`. Returns whether all numbers of this thread are finite.
template <class S>
static __device__ __forceinline__ bool copy(float (*to)[S::WIDTH + 4], unsigned rows, const float* from,
                                            unsigned first, unsigned count) {
    float zero = 0.0f;
    if constexpr (S::SIZE % 4 == 0) {
        constexpr unsigned FOURS = S::WIDTH / 4;
#pragma unroll 4
        for (unsigned at = threadIdx.x; at < rows * FOURS; at += THREADS) {
            const unsigned row = at / FOURS, column = at % FOURS * 4;
            float4 four = {0.0f, 0.0f, 0.0f, 0.0f};
            if (first + row < count && column < S::SIZE) {
                four = *(const float4*)(from + ((first + row) * (Count)S::SIZE + column));
            }
            four = {rounded(four.x), rounded(four.y), rounded(four.z), rounded(four.w)};
            zero += (four.x - four.x) + (four.y - four.y) + (four.z - four.z) + (four.w - four.w);
            *(float4*)&to[row][column] = four;
        }
    } else {
        for (unsigned at = threadIdx.x; at < rows * S::WIDTH; at += THREADS) {
            const unsigned row = at / S::WIDTH, column = at % S::WIDTH;
            const bool exists = first + row < count && column < S::SIZE;
            const float number = rounded(exists ? from[(first + row) * (Count)S::SIZE + column] : 0.0f);
            zero += number - number;
            to[row][column] = number;
        }
    }
    return zero == 0.0f;
}

// Copies the own rows, and reads the warp's own fragments of them. All threads must call this.
template <class T>
static __device__ __forceinline__ void read_own(int (&own)[T::STEPS][4], const float* from, unsigned first,
                                                unsigned count, T& tiles) {
    // The threads may still be using the place.
    __syncthreads();
    copy<typename T::Shape>(tiles.others[0], OTHERS, from, first, count);
    copy<typename T::Shape>(tiles.others[1], OTHERS, from, first + OTHERS, count);
    __syncthreads();
#pragma unroll
    for (unsigned step = 0; step < T::STEPS; step++) {
        __mma_tf32_m16n16k8_ld_a(own[step], (const int*)&tiles.own()[0][step * 8], T::Shape::WIDTH + 4, BY_ROWS);
    }
}

// Writes the products of the warp's own rows and of other rows to `to`.
template <class T>
static __device__ __forceinline__ void multiply(float (&to)[OWN][OTHERS + 4], const int (&own)[T::STEPS][4],
                                                const float (&others)[OTHERS][T::Shape::WIDTH + 4]) {
#pragma unroll 1
    for (unsigned across = 0; across < OTHERS / 16; across++) {
        float sums[8] = {};
#pragma unroll
        for (unsigned step = 0; step < T::STEPS; step++) {
            int factor[4];
            __mma_tf32_m16n16k8_ld_b(factor, (const int*)&others[across * 16][step * 8], T::Shape::WIDTH + 4,
                                     BY_COLUMNS);
            __mma_tf32_m16n16k8_mma_f32(sums, own[step], factor, sums, ROWS_COLUMNS, 0);
        }
        __mma_m16n16k8_st_c_f32(&to[T::first_row()][across * 16], sums, OTHERS + 4, BY_ROWS);
    }
}

// Adds the other rows, times their weights, to the sums of the warp's own rows.
template <class T>
static __device__ __forceinline__ void add_weighted(float (&sums)[T::ACROSS][8],
                                                    const float (&weights)[OWN][OTHERS + 4],
                                                    const float (&others)[OTHERS][T::Shape::WIDTH + 4]) {
#pragma unroll 1
    for (unsigned step = 0; step < OTHERS / 8; step++) {
        int weight[4];
        __mma_tf32_m16n16k8_ld_a(weight, (const int*)&weights[T::first_row()][step * 8], OTHERS + 4, BY_ROWS);
#pragma unroll
        for (unsigned across = 0; across < T::ACROSS; across++) {
            int factor[4];
            __mma_tf32_m16n16k8_ld_b(factor, (const int*)&others[step * 8][across * 16], T::Shape::WIDTH + 4,
                                     BY_ROWS);
            __mma_tf32_m16n16k8_mma_f32(sums[across], weight, factor, sums[across], ROWS_ROWS, 0);
        }
    }
}

// Adds as `add_weighted` does, but leaves out the rows that an own row does not see, because 0 times what is
// not finite is not 0. `places` says which elements the thread has.
template <class T, class Sees>
static __device__ void add_seen(float (&sums)[T::ACROSS][8], const float (&weights)[OWN][OTHERS + 4],
                                const float (&others)[OTHERS][T::Shape::WIDTH + 4], Sees sees,
                                const unsigned (&places)[8]) {
#pragma unroll
    for (unsigned at = 0; at < 8; at++) {
        const unsigned own = T::first_row() + places[at] / 16, column = places[at] % 16;
#pragma unroll 1
        for (unsigned other = 0; other < OTHERS; other++) {
            if (!sees(own, other)) continue;
            const float weight = weights[own][other];
#pragma unroll
            for (unsigned across = 0; across < T::ACROSS; across++) {
                sums[across][at] += weight * others[other][across * 16 + column];
            }
        }
    }
}

// Returns which elements of a tile of results this thread has: row · 16 + column. It is not known beforehand.
template <class T>
static __device__ __forceinline__ void find_places(unsigned (&places)[8], T& tiles) {
    float(*own)[OTHERS + 4] = &tiles.weights[0][T::first_row()];
    for (unsigned at = threadIdx.x % 32; at < 256; at += 32) own[at / 16][at % 16] = float(at);
    __syncwarp();
    float numbers[8];
    __mma_tf32_m16n16k8_ld_c(numbers, &own[0][0], OTHERS + 4, BY_ROWS);
#pragma unroll
    for (unsigned at = 0; at < 8; at++) places[at] = unsigned(numbers[at]);
    __syncwarp();
}

// Writes the sums of the own rows to a matrix with `count` rows. All threads must call this.
template <class T>
static __device__ __forceinline__ void write(float* to, unsigned first, unsigned count,
                                             const float (&sums)[T::ACROSS][8], T& tiles) {
    typedef typename T::Shape S;
    // The threads may still be using the place.
    __syncthreads();
    float(*own)[S::WIDTH + 4] = tiles.own();
#pragma unroll
    for (unsigned across = 0; across < T::ACROSS; across++) {
        __mma_m16n16k8_st_c_f32(&own[0][across * 16], sums[across], S::WIDTH + 4, BY_ROWS);
    }
    __syncwarp();
    for (unsigned at = threadIdx.x % 32; at < WARP_ROWS * S::SIZE; at += 32) {
        const unsigned row = first + T::first_row() + at / S::SIZE;
        if (row < count) to[row * (Count)S::SIZE + at % S::SIZE] = own[at / S::SIZE][at % S::SIZE];
    }
}

// Computes what `attention::forward` does. Two threads share a query.
template <class T>
static __device__ __forceinline__ void forward(float* mean, float* sizes, const float* query, const float* key,
                                               const float* value, T& tiles) {
    typedef typename T::Shape S;
    constexpr unsigned BLOCKS = (S::QUERIES + OWN - 1) / OWN;
    const unsigned own = threadIdx.x / 2, half = threadIdx.x % 2;
    unsigned places[8];
    find_places(places, tiles);
    for (Count item = blockIdx.x; item < S::NUMBER * BLOCKS; item += gridDim.x) {
        // The last queries see most keys, so they come first.
        const unsigned first = (BLOCKS - 1 - unsigned(item / S::NUMBER)) * OWN;
        const Count number = item % S::NUMBER, of_queries = number * S::QUERIES, of_keys = number * S::KEYS;
        if (threadIdx.x == 0) tiles.spoiled = NONE;
        int queries[T::STEPS][4];
        read_own(queries, query + of_queries * S::SIZE, first, S::QUERIES, tiles);
        float sums[T::ACROSS][8] = {}, largest = MINUS_INFINITY, total = 0.0f;
        const unsigned end = S::CAUSAL && first + OWN < S::KEYS ? first + OWN : S::KEYS;
        for (unsigned at = 0; at < end; at += OTHERS) {
            // The threads may still be reading the rows at hand.
            __syncthreads();
            copy<S>(tiles.others[0], OTHERS, key + of_keys * S::SIZE, at, S::KEYS);
            if (!copy<S>(tiles.others[1], OTHERS, value + of_keys * S::SIZE, at, S::KEYS)) tiles.spoiled = at;
            __syncthreads();
            multiply<T>(tiles.weights[0], queries, tiles.others[0]);
            // The threads of a warp read the weights that they write.
            __syncwarp();
            const bool all = S::all_see(first, OWN, at, OTHERS);
            const auto sees = [&](unsigned own, unsigned other) { return S::sees(first + own, at + other); };
            float scores[OTHERS / 2], most = largest;
#pragma unroll
            for (unsigned other = 0; other < OTHERS / 2; other++) {
                scores[other] = tiles.weights[0][own][other * 2 + half];
                if (!all && !sees(own, other * 2 + half)) scores[other] = MINUS_INFINITY;
                most = larger(most, scores[other]);
            }
            most = merge_neighbours<Larger>(most, 2);
            // A row may have seen nothing that is larger so far.
            const float base = most == MINUS_INFINITY ? 0.0f : most, less = expf(largest - base);
            largest = most;
            total *= less;
#pragma unroll
            for (unsigned other = 0; other < OTHERS / 2; other++) {
                const float share = expf(scores[other] - base);
                total += share;
                tiles.weights[0][own][other * 2 + half] = rounded(share);
            }
            if (half == 0) tiles.of_own[own] = less;
            __syncwarp();
#pragma unroll
            for (unsigned at = 0; at < 8; at++) {
                const float less = tiles.of_own[T::first_row() + places[at] / 16];
#pragma unroll
                for (unsigned across = 0; across < T::ACROSS; across++) sums[across][at] *= less;
            }
            if (S::CAUSAL && !all && tiles.spoiled == at) {
                add_seen<T>(sums, tiles.weights[0], tiles.others[1], sees, places);
            } else {
                add_weighted<T>(sums, tiles.weights[0], tiles.others[1]);
            }
        }
        total = merge_neighbours<Sum>(total, 2);
        if (half == 0 && first + own < S::QUERIES) sizes[of_queries + first + own] = largest + logf(total);
        // The threads of the warp may still be reading the numbers.
        __syncwarp();
        if (half == 0) tiles.of_own[own] = total;
        __syncwarp();
#pragma unroll
        for (unsigned at = 0; at < 8; at++) {
            const float total = tiles.of_own[T::first_row() + places[at] / 16];
#pragma unroll
            for (unsigned across = 0; across < T::ACROSS; across++) sums[across][at] /= total;
        }
        write(mean + of_queries * S::SIZE, first, S::QUERIES, sums, tiles);
    }
}

// Computes what `attention::backward` does. Two threads share an own row.
template <bool OF_KEYS, class T>
static __device__ __forceinline__ void backward(float* dvalue, float* to, const float* query, const float* key,
                                                const float* value, const float* dmean, const float* sizes,
                                                const float* dots, T& tiles) {
    typedef typename T::Shape S;
    constexpr unsigned OWN_ROWS = OF_KEYS ? S::KEYS : S::QUERIES, OTHER_ROWS = OF_KEYS ? S::QUERIES : S::KEYS;
    constexpr unsigned BLOCKS = (OWN_ROWS + OWN - 1) / OWN;
    const unsigned own = threadIdx.x / 2, half = threadIdx.x % 2;
    unsigned places[8];
    find_places(places, tiles);
    for (Count item = blockIdx.x; item < S::NUMBER * BLOCKS; item += gridDim.x) {
        // The rows that see most others, or are seen by them, come first.
        const unsigned block = unsigned(item / S::NUMBER), first = (OF_KEYS ? block : BLOCKS - 1 - block) * OWN;
        const Count number = item % S::NUMBER, of_queries = number * S::QUERIES, of_keys = number * S::KEYS;
        const float *of_query = query + of_queries * S::SIZE, *of_dmean = dmean + of_queries * S::SIZE;
        const float *of_key = key + of_keys * S::SIZE, *of_value = value + of_keys * S::SIZE;
        if (threadIdx.x == 0) tiles.spoiled = NONE;
        int left[T::STEPS][4], right[T::STEPS][4];
        read_own(left, OF_KEYS ? of_key : of_query, first, OWN_ROWS, tiles);
        read_own(right, OF_KEYS ? of_value : of_dmean, first, OWN_ROWS, tiles);
        float size = 0.0f, dot = 0.0f;
        if (!OF_KEYS && first + own < S::QUERIES) {
            size = sizes[of_queries + first + own];
            dot = dots[of_queries + first + own];
        }
        float sums[T::ACROSS][8] = {}, of_values[OF_KEYS ? T::ACROSS : 1][8] = {};
        const unsigned begin = S::CAUSAL && OF_KEYS ? first / OTHERS * OTHERS : 0;
        const unsigned end = S::CAUSAL && !OF_KEYS && first + OWN < OTHER_ROWS ? first + OWN : OTHER_ROWS;
        for (unsigned at = begin; at < end; at += OTHERS) {
            // The threads may still be reading the rows at hand.
            __syncthreads();
            bool finite = copy<S>(tiles.others[0], OTHERS, OF_KEYS ? of_query : of_key, at, OTHER_ROWS);
            finite &= copy<S>(tiles.others[1], OTHERS, OF_KEYS ? of_dmean : of_value, at, OTHER_ROWS);
            if (!finite) tiles.spoiled = at;
            if (OF_KEYS && threadIdx.x < OTHERS && at + threadIdx.x < S::QUERIES) {
                tiles.of_others[0][threadIdx.x] = sizes[of_queries + at + threadIdx.x];
                tiles.of_others[1][threadIdx.x] = dots[of_queries + at + threadIdx.x];
            }
            __syncthreads();
            multiply<T>(tiles.weights[0], left, tiles.others[0]);
            multiply<T>(tiles.weights[1], right, tiles.others[1]);
            // The threads of a warp read the weights that they write.
            __syncwarp();
            const auto sees = [&](unsigned own, unsigned other) {
                return OF_KEYS ? S::sees(at + other, first + own) : S::sees(first + own, at + other);
            };
#pragma unroll 4
            for (unsigned other = half; other < OTHERS; other += 2) {
                float share = 0.0f, slope = 0.0f;
                if (sees(own, other)) {
                    share = expf(tiles.weights[0][own][other] - (OF_KEYS ? tiles.of_others[0][other] : size));
                    slope = share * (tiles.weights[1][own][other] - (OF_KEYS ? tiles.of_others[1][other] : dot));
                }
                tiles.weights[0][own][other] = rounded(slope);
                if constexpr (OF_KEYS) tiles.weights[1][own][other] = rounded(share);
            }
            __syncwarp();
            const unsigned query = OF_KEYS ? at : first, key = OF_KEYS ? first : at;
            const unsigned queries = OF_KEYS ? OTHERS : OWN, keys = OF_KEYS ? OWN : OTHERS;
            if (S::CAUSAL && tiles.spoiled == at && !S::all_see(query, queries, key, keys)) {
                add_seen<T>(sums, tiles.weights[0], tiles.others[0], sees, places);
                if constexpr (OF_KEYS) add_seen<T>(of_values, tiles.weights[1], tiles.others[1], sees, places);
            } else {
                add_weighted<T>(sums, tiles.weights[0], tiles.others[0]);
                if constexpr (OF_KEYS) add_weighted<T>(of_values, tiles.weights[1], tiles.others[1]);
            }
        }
        write(to + (OF_KEYS ? of_keys : of_queries) * S::SIZE, first, OWN_ROWS, sums, tiles);
        if constexpr (OF_KEYS) write(dvalue + of_keys * S::SIZE, first, OWN_ROWS, of_values, tiles);
    }
}

}  // namespace tensor

}  // namespace attention

// Computes the product of each pair of rows of n elements. 16 threads share a row.
extern "C" __global__ void attention_dots(float* to, const float* a, const float* b, Count rows, Count n) {
    FOR_EACH_ROW(row, rows, 16u) {
        float sum = 0.0f;
        FOR_EACH_OF_ROW(at, n, 16u) sum += a[row * n + at] * b[row * n + at];
        sum = merge_neighbours<Sum>(sum, 16);
        if (threadIdx.x % 16 == 0) to[row] = sum;
    }
}
