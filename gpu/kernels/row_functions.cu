// Softmax and RMSNorm of the rows of a matrix, in bf16, f16 or f32.
//
//   x, y, z  [rows, columns], rows `x_pitch` and `y_pitch` elements apart; z, a gate, lies as x does
//   w        [columns]
//
// A block of 128 threads takes every gridDim.x-th row. Arithmetic, bit for bit, on float32, rounded to nearest each time:
//   over a row   thread t takes columns t, t + 128, ... in this order, from -infinity for a maximum, from +0 for a sum; the lanes
//                of a warp meet at distances 16, 8, 4, 2, 1, then the warps: ((w0 + w1) + w2) + w3
//   softmax      m = max x, NaN left out, and 0 where it is -infinity; p = ex2(fma(x, scale, -fl(m * scale))), flushed;
//                l = sum p; y = fl(p * rcp(l)) in bf16 and f16, div.full(p, l) in f32, +0 where l is 0
//   RMSNorm      s = sum by fma(x, x, s); r = rsqrt(fl(div.full(s, columns) + eps)); y = fl(fl(x * r) * w)
//   with a gate  y = fl(y * silu(z)), silu(z) = div.full(z, fl(1 + ex2(fl(z * -log2(e)))))
// and Y is y rounded to its type. ex2, rcp, rsqrt and div.full are PTX's .approx and .full instructions.
//
// Targets: sm_90a

#include <cuda/std/cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "special_functions.cuh"

namespace row_functions {

using cuda::std::uint32_t;
using cuda::std::uint64_t;
using namespace special_functions;

enum : uint32_t { kThreads = 128, kLanes = 32, kWarps = kThreads / kLanes };

// ---------------------------------------------------------------------------------------------------------------------
// Elements

inline __device__ float wide(float x) { return x; }
inline __device__ float wide(__half x) { return __half2float(x); }
inline __device__ float wide(__nv_bfloat16 x) { return __bfloat162float(x); }

inline __device__ void store(float* to, float x) { *to = x; }
inline __device__ void store(__half* to, float x) { *to = __float2half_rn(x); }
inline __device__ void store(__nv_bfloat16* to, float x) { *to = __float2bfloat16_rn(x); }

// What a weight becomes: by the reciprocal where the result is narrow.
template <class T>
__device__ float normed(float weight, float sum) {
    return sum == 0 ? 0 : __fmul_rn(weight, rcp_flushed(sum));
}
template <>
__device__ float normed<float>(float weight, float sum) {
    return sum == 0 ? 0 : quotient(weight, sum);
}

// ---------------------------------------------------------------------------------------------------------------------
// Over a row

struct Largest {
    static __device__ float of(float a, float b) { return fmaxf(a, b); }
};
struct Sum {
    static __device__ float of(float a, float b) { return __fadd_rn(a, b); }
};

// The value of all threads together, known to each; `of_warp` is shared.
template <class Both>
__device__ float over_block(float value, float (&of_warp)[kWarps]) {
#pragma unroll
    for (uint32_t distance = kLanes / 2; distance > 0; distance /= 2)
        value = Both::of(value, __shfl_xor_sync(0xffffffffu, value, distance));
    __syncthreads();  // nobody reads the last result any more
    if (threadIdx.x % kLanes == 0) of_warp[threadIdx.x / kLanes] = value;
    __syncthreads();
    value = of_warp[0];
#pragma unroll
    for (uint32_t warp = 1; warp < kWarps; ++warp) value = Both::of(value, of_warp[warp]);
    return value;
}

// ---------------------------------------------------------------------------------------------------------------------
// Softmax

inline __device__ float weight(float x, float scale, float base) { return ex2_flushed(__fmaf_rn(x, scale, -base)); }

template <class T>
__device__ void softmax(const T* x, uint64_t x_pitch, T* y, uint64_t y_pitch, uint32_t rows, uint32_t columns, float scale) {
    __shared__ float of_warp[kWarps];
    const float nothing = __int_as_float(0xff800000);
    for (uint32_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const T* from = x + row * x_pitch;
        T* to = y + row * y_pitch;
        float top = nothing;
#pragma unroll 1
        for (uint32_t column = threadIdx.x; column < columns; column += kThreads) top = fmaxf(top, wide(from[column]));
        top = over_block<Largest>(top, of_warp);
        const float base = __fmul_rn(top == nothing ? 0 : top, scale);
        float sum = 0;
#pragma unroll 1
        for (uint32_t column = threadIdx.x; column < columns; column += kThreads)
            sum = __fadd_rn(sum, weight(wide(from[column]), scale, base));
        sum = over_block<Sum>(sum, of_warp);
#pragma unroll 1
        for (uint32_t column = threadIdx.x; column < columns; column += kThreads)
            store(to + column, normed<T>(weight(wide(from[column]), scale, base), sum));
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// RMSNorm

inline __device__ float silu(float z) {
    const float minus_log2e = __int_as_float(0xbfb8aa3b);
    return quotient(z, __fadd_rn(1.0f, ex2(__fmul_rn(z, minus_log2e))));
}

// `gate` is null where there is none.
template <class T>
__device__ void rms_norm(const T* x, uint64_t x_pitch, const T* w, const T* gate, T* y, uint64_t y_pitch, uint32_t rows,
                         uint32_t columns, float eps) {
    __shared__ float of_warp[kWarps];
    for (uint32_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const T* from = x + row * x_pitch;
        T* to = y + row * y_pitch;
        float sum = 0;
#pragma unroll 1
        for (uint32_t column = threadIdx.x; column < columns; column += kThreads) {
            const float each = wide(from[column]);
            sum = __fmaf_rn(each, each, sum);
        }
        sum = over_block<Sum>(sum, of_warp);
        const float factor = inverse_root(__fadd_rn(quotient(sum, __uint2float_rn(columns)), eps));
#pragma unroll 1
        for (uint32_t column = threadIdx.x; column < columns; column += kThreads) {
            float each = __fmul_rn(__fmul_rn(wide(from[column]), factor), wide(w[column]));
            if (gate) each = __fmul_rn(each, silu(wide(gate[row * x_pitch + column])));
            store(to + column, each);
        }
    }
}

#define ENTRIES(NAME, T)                                                                                                \
    extern "C" __global__ void __launch_bounds__(kThreads) softmax_##NAME(                                             \
        const T* __restrict__ x, uint64_t x_pitch, T* __restrict__ y, uint64_t y_pitch, uint32_t rows, uint32_t columns, \
        float scale) {                                                                                                 \
        softmax(x, x_pitch, y, y_pitch, rows, columns, scale);                                                         \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(kThreads) rms_norm_##NAME(                                            \
        const T* __restrict__ x, uint64_t x_pitch, T* __restrict__ y, uint64_t y_pitch, uint32_t rows, uint32_t columns, \
        float eps, const T* __restrict__ w) {                                                                          \
        rms_norm<T>(x, x_pitch, w, nullptr, y, y_pitch, rows, columns, eps);                                           \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(kThreads) rms_norm_silu_##NAME(                                       \
        const T* __restrict__ x, uint64_t x_pitch, T* __restrict__ y, uint64_t y_pitch, uint32_t rows, uint32_t columns, \
        float eps, const T* __restrict__ w, const T* __restrict__ z) {                                                 \
        rms_norm(x, x_pitch, w, z, y, y_pitch, rows, columns, eps);                                                    \
    }

ENTRIES(bf16, __nv_bfloat16)
ENTRIES(f16, __half)
ENTRIES(f32, float)

}  // namespace row_functions
