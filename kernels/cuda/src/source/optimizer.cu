// Optimizer updates, element by element. A kernel computes what the function of the same name in
// kernels/src/cpu/optimizer computes; the formulas and their sources are there. `next` and `value` may be the
// same memory. `scale` and `weight_decay` are the terms of the gradient.

static __device__ __forceinline__ float with_terms(float gradient, float value, float scale, float weight_decay) {
    // A decay of 0 is skipped, because 0 times an infinite value is not a number.
    return weight_decay == 0.0f ? scale * gradient : scale * gradient + weight_decay * value;
}

extern "C" __global__ void sgd(float* next, const float* value, const float* gradients, Count n, float scale,
                               float weight_decay, float rate) {
    FOR_EACH(at, n) {
        float gradient = with_terms(gradients[at], value[at], scale, weight_decay);
        next[at] = value[at] - rate * gradient;
    }
}

// `ahead` is 1 for Nesterov's variant, and 0 otherwise.
extern "C" __global__ void momentum(float* next, const float* value, float* velocities, const float* gradients,
                                    Count n, float scale, float weight_decay, float rate, float decay,
                                    unsigned ahead) {
    FOR_EACH(at, n) {
        float gradient = with_terms(gradients[at], value[at], scale, weight_decay);
        float velocity = decay * velocities[at] + gradient;
        float step = ahead ? gradient + decay * velocity : velocity;
        velocities[at] = velocity;
        next[at] = value[at] - rate * step;
    }
}

// `rate` is the learning rate with the correction of the bias; `kept` is the part of the value that AdamW's
// weight decay leaves.
extern "C" __global__ void adam(float* next, const float* value, float* firsts, float* seconds,
                                const float* gradients, Count n, float scale, float weight_decay, float rate,
                                float beta1, float beta2, float epsilon, float kept) {
    FOR_EACH(at, n) {
        float gradient = with_terms(gradients[at], value[at], scale, weight_decay);
        float first = beta1 * firsts[at] + (1.0f - beta1) * gradient;
        float second = beta2 * seconds[at] + (1.0f - beta2) * (gradient * gradient);
        firsts[at] = first;
        seconds[at] = second;
        next[at] = kept * value[at] - rate * first / (sqrtf(second) + epsilon);
    }
}

extern "C" __global__ void adagrad(float* next, const float* value, float* accumulators, const float* gradients,
                                   Count n, float scale, float weight_decay, float rate, float epsilon) {
    FOR_EACH(at, n) {
        float gradient = with_terms(gradients[at], value[at], scale, weight_decay);
        float accumulator = accumulators[at] + gradient * gradient;
        accumulators[at] = accumulator;
        next[at] = value[at] - rate * gradient / (sqrtf(accumulator) + epsilon);
    }
}

extern "C" __global__ void rmsprop(float* next, const float* value, float* mean_squares, const float* gradients,
                                   Count n, float scale, float weight_decay, float rate, float decay,
                                   float epsilon) {
    FOR_EACH(at, n) {
        float gradient = with_terms(gradients[at], value[at], scale, weight_decay);
        float mean_square = decay * mean_squares[at] + (1.0f - decay) * (gradient * gradient);
        mean_squares[at] = mean_square;
        next[at] = value[at] - rate * gradient / sqrtf(mean_square + epsilon);
    }
}

extern "C" __global__ void rmsprop_with_momentum(float* next, const float* value, float* mean_squares,
                                                 float* velocities, const float* gradients, Count n,
                                                 float scale, float weight_decay, float rate, float decay,
                                                 float momentum, float epsilon) {
    FOR_EACH(at, n) {
        float gradient = with_terms(gradients[at], value[at], scale, weight_decay);
        float mean_square = decay * mean_squares[at] + (1.0f - decay) * (gradient * gradient);
        float velocity = momentum * velocities[at] + rate * gradient / sqrtf(mean_square + epsilon);
        mean_squares[at] = mean_square;
        velocities[at] = velocity;
        next[at] = value[at] - velocity;
    }
}

// `per_rate` is 1 / α of the paper.
extern "C" __global__ void ftrl(float* next, const float* value, float* accumulators, float* linears,
                                const float* gradients, Count n, float scale, float weight_decay,
                                float per_rate, float rate, float l1, float l2) {
    FOR_EACH(at, n) {
        float gradient = with_terms(gradients[at], value[at], scale, weight_decay);
        // An infinite sum would make the value NaN.
        float sum = accumulators[at] + gradient * gradient;
        sum = sum > 3.402823466e38f ? 3.402823466e38f : sum;
        float root = sqrtf(sum);
        float linear = linears[at] + rate * gradient - (root - sqrtf(accumulators[at])) * per_rate * value[at];
        float shrunk = copysignf(l1, linear) - linear;
        accumulators[at] = sum;
        linears[at] = linear;
        next[at] = fabsf(linear) <= l1 ? 0.0f : shrunk / (root * per_rate + 2.0f * l2);
    }
}

// `kept` is the part of the value that the weight decay leaves.
extern "C" __global__ void lion(float* next, const float* value, float* momenta, const float* gradients, Count n,
                                float scale, float weight_decay, float rate, float beta1, float beta2,
                                float kept) {
    FOR_EACH(at, n) {
        float gradient = with_terms(gradients[at], value[at], scale, weight_decay);
        float c = beta1 * momenta[at] + (1.0f - beta1) * gradient;
        // A NaN stays a NaN.
        float sign = c == 0.0f ? 0.0f : c > 0.0f ? 1.0f : c < 0.0f ? -1.0f : c;
        momenta[at] = beta2 * momenta[at] + (1.0f - beta2) * gradient;
        next[at] = kept * value[at] - rate * sign;
    }
}

// `next = average − share · (average − value)`.
extern "C" __global__ void average(float* next, const float* averages, const float* value, Count n, float share) {
    FOR_EACH(at, n) next[at] = averages[at] - share * (averages[at] - value[at]);
}

// The first part of LAMB: writes the direction to `direction`, and the sums of the squares of the values and
// of the direction in each block to `squares`, which has two numbers for each block. `first_factor` and
// `second_factor` correct the bias of the moments.
extern "C" __global__ void lamb_direction(float* direction, double* squares, const float* value, float* firsts,
                                          float* seconds, const float* gradients, Count n, float scale,
                                          float weight_decay, float beta1, float beta2, float epsilon,
                                          float first_factor, float second_factor, float own_decay) {
    double of_values = 0.0, of_direction = 0.0;
    FOR_EACH(at, n) {
        float gradient = with_terms(gradients[at], value[at], scale, weight_decay);
        float first = beta1 * firsts[at] + (1.0f - beta1) * gradient;
        float second = beta2 * seconds[at] + (1.0f - beta2) * (gradient * gradient);
        float r = first_factor * first / (sqrtf(second_factor * second) + epsilon) + own_decay * value[at];
        firsts[at] = first;
        seconds[at] = second;
        of_values += (double)value[at] * value[at];
        of_direction += (double)r * r;
        direction[at] = r;
    }
    of_values = wide_sum_of_block(of_values);
    of_direction = wide_sum_of_block(of_direction);
    if (threadIdx.x == 0) {
        squares[2 * blockIdx.x] = of_values;
        squares[2 * blockIdx.x + 1] = of_direction;
    }
}

// The second part of LAMB, after the direction of all elements is known. `direction` and `next` may be the
// same memory. `blocks` is the number of blocks of the first part.
extern "C" __global__ void lamb_step(float* next, const float* direction, const double* squares,
                                     const float* value, Count n, unsigned blocks, float learning_rate) {
    double of_values = 0.0, of_direction = 0.0;
    for (unsigned block = threadIdx.x; block < blocks; block += LANES) {
        of_values += squares[2 * block];
        of_direction += squares[2 * block + 1];
    }
    of_values = sqrt(wide_sum_of_block(of_values));
    of_direction = sqrt(wide_sum_of_block(of_direction));
    double ratio = of_values == 0.0 || of_direction == 0.0 ? 1.0 : of_values / of_direction;
    float rate = (float)((double)learning_rate * ratio);
    FOR_EACH(at, n) next[at] = value[at] - rate * direction[at];
}
