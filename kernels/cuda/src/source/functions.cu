// The functions of one number and their gradients, as in kernels/src/cpu/unary/function.rs, and those of two
// numbers. Chains of element-wise operations are generated from them.

#define FUNCTION static __device__ __forceinline__ float

FUNCTION neg(float x) { return -x; }
FUNCTION neg_grad(float, float dy) { return -dy; }
FUNCTION square(float x) { return x * x; }
FUNCTION square_grad(float x, float dy) { return 2.0f * x * dy; }
FUNCTION root(float x) { return sqrtf(x); }
FUNCTION root_grad(float y, float dy) { return dy / (2.0f * y); }
FUNCTION reciprocal_root(float x) { return 1.0f / sqrtf(x); }
FUNCTION reciprocal_root_grad(float y, float dy) { return -0.5f * y * y * y * dy; }
FUNCTION magnitude(float x) { return fabsf(x); }
FUNCTION magnitude_grad(float x, float dy) { return x == 0.0f ? 0.0f : x < 0.0f ? -dy : dy; }
FUNCTION logarithm(float x) { return logf(x); }
FUNCTION logarithm_grad(float x, float dy) { return dy / x; }
FUNCTION exponential(float x) { return expf(x); }
FUNCTION exponential_grad(float y, float dy) { return y * dy; }
FUNCTION sigmoid(float x) {
    // The exponential of a number that is not positive cannot overflow.
    float small = expf(-fabsf(x));
    return (x < 0.0f ? small : 1.0f) / (1.0f + small);
}
FUNCTION sigmoid_grad(float y, float dy) { return y * (1.0f - y) * dy; }
FUNCTION hyperbolic_tangent(float x) { return tanhf(x); }
FUNCTION hyperbolic_tangent_grad(float y, float dy) { return (1.0f - y * y) * dy; }
// A NaN stays a NaN.
FUNCTION relu(float x) { return x < 0.0f ? 0.0f : x; }
FUNCTION relu_grad(float y, float dy) { return y > 0.0f ? dy : 0.0f; }
FUNCTION leaky_relu(float x, float slope) { return x < 0.0f ? slope * x : x; }
FUNCTION leaky_relu_grad(float x, float dy, float slope) { return x > 0.0f ? dy : slope * dy; }
FUNCTION gelu_gate(float x) { return sigmoid(2.0f * 0.7978846f * (x + 0.044715f * x * x * x)); }
FUNCTION gelu(float x) { return x * gelu_gate(x); }
FUNCTION gelu_grad(float x, float dy) {
    float gate = gelu_gate(x);
    return (gate + x * gate * (1.0f - gate) * (2.0f * 0.7978846f * (1.0f + 3.0f * 0.044715f * x * x))) * dy;
}
