// CUDA's functions that are built on the special-function unit, a kernel each. What NVRTC makes of them, with -use_fast_math and
// without, is PTX that the simulator runs; test_cuda_intrinsics.py says what each must write.

#define FUNCTION(name, expression)                                                              \
    extern "C" __global__ void name(const float* xs, const float* ys, float* zs, unsigned n) {  \
        unsigned i = blockIdx.x * blockDim.x + threadIdx.x;                                     \
        if (i < n) {                                                                            \
            float x = xs[i], y = ys[i];                                                         \
            zs[i] = expression;                                                                 \
        }                                                                                       \
    }

FUNCTION(fast_exp, __expf(x))
FUNCTION(fast_exp10, __exp10f(x))
FUNCTION(fast_log, __logf(x))
FUNCTION(fast_log2, __log2f(x))
FUNCTION(fast_log10, __log10f(x))
FUNCTION(fast_pow, __powf(x, y))
FUNCTION(fast_sin, __sinf(x))
FUNCTION(fast_cos, __cosf(x))
FUNCTION(fast_tan, __tanf(x))
FUNCTION(fast_divide, __fdividef(x, y))
FUNCTION(rounded_rcp, __frcp_rn(x))
FUNCTION(rounded_rsqrt, __frsqrt_rn(x))
FUNCTION(exp2_of, exp2f(x))
FUNCTION(exp_of, expf(x))
FUNCTION(log_of, logf(x))
FUNCTION(rsqrt_of, rsqrtf(x))
FUNCTION(sqrt_of, sqrtf(x))
FUNCTION(tanh_of, tanhf(x))
FUNCTION(quotient, x / y)
