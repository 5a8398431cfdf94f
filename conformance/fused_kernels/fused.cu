// Four fused kernels of a forward pass, a block of 128 threads for each row, in float32 with IEEE operations.
//
//   rms_norm_fp8      q, s = FP8 with one scale a row of x / sqrt(mean(x^2) + eps) * w
//   silu_mul_fp8      q, s = FP8 with a scale for each 128 columns of silu(gate) * up, which is rounded to bf16 first
//   rope_kv_fp8       rotated keys in FP8, with one scale a head, in the slots of a paged cache
//   add_norm_nvfp4    y = x + residual in bf16; NVFP4 of its RMSNorm, with scales in tiles of 128 x 4
//
// Targets: sm_90a

#include <cuda/std/cstdint>
#include <cuda_bf16.h>

using cuda::std::int32_t;
using cuda::std::uint16_t;
using cuda::std::uint32_t;
using cuda::std::uint8_t;

enum : int { kThreads = 128, kLanes = 32, kWarps = 4, kGroup = 128, kBlock = 16 };

__device__ float wide(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ float root(float x) { float r; asm("rsqrt.approx.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
__device__ float power(float x) { float r; asm("ex2.approx.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }

__device__ uint8_t e4m3(float x) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
    return pair & 0xff;
}

__device__ float from_e4m3(uint8_t code) {
    const uint32_t exponent = code >> 3 & 15, mantissa = code & 7;
    return exponent ? __int_as_float((exponent + 120) << 23 | mantissa << 20) : __fmul_rn((float)mantissa, 0x1p-9f);
}

// The code of e2m1, ties to even.
__device__ uint32_t e2m1(float x) {
    const float size = fabsf(x);
    uint32_t code = (size > 0.25f) + (size >= 0.75f) + (size > 1.25f) + (size >= 1.75f) + (size > 2.5f) + (size >= 3.5f) + (size > 5.0f);
    return code | (__float_as_uint(x) >> 31) << 3;
}

__device__ float sum_of_block(float value, float* of_warp) {
    for (int distance = kLanes / 2; distance > 0; distance /= 2)
        value = __fadd_rn(value, __shfl_xor_sync(0xffffffffu, value, distance));
    __syncthreads();
    if (threadIdx.x % kLanes == 0) of_warp[threadIdx.x / kLanes] = value;
    __syncthreads();
    value = of_warp[0];
    for (int warp = 1; warp < kWarps; ++warp) value = __fadd_rn(value, of_warp[warp]);
    return value;
}

__device__ float largest_of_block(float value, float* of_warp) {
    for (int distance = kLanes / 2; distance > 0; distance /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
    __syncthreads();
    if (threadIdx.x % kLanes == 0) of_warp[threadIdx.x / kLanes] = value;
    __syncthreads();
    value = of_warp[0];
    for (int warp = 1; warp < kWarps; ++warp) value = fmaxf(value, of_warp[warp]);
    return value;
}

// 1 / sqrt(mean(x^2) + eps) of a row.
template <class Row>
__device__ float inverse_root_of(Row row, int columns, float eps, float* of_warp) {
    float sum = 0;
    for (int column = threadIdx.x; column < columns; column += kThreads) {
        const float x = row(column);
        sum = __fmaf_rn(x, x, sum);
    }
    sum = sum_of_block(sum, of_warp);
    return root(__fadd_rn(__fdiv_rn(sum, (float)columns), eps));
}

extern "C" __global__ void rms_norm_fp8(const __nv_bfloat16* x, const __nv_bfloat16* w, uint8_t* q, float* s, int columns, float eps) {
    __shared__ float of_warp[kWarps];
    const __nv_bfloat16* from = x + (size_t)blockIdx.x * columns;
    const float r = inverse_root_of([&](int column) { return wide(from[column]); }, columns, eps, of_warp);
    float top = 0;
    for (int column = threadIdx.x; column < columns; column += kThreads) {
        const float y = __fmul_rn(__fmul_rn(wide(from[column]), r), wide(w[column]));
        top = fmaxf(top, fabsf(y));
    }
    top = fmaxf(largest_of_block(top, of_warp), 1e-10f);
    const float scale = __fdiv_rn(top, 448.0f);
    if (threadIdx.x == 0) s[blockIdx.x] = scale;
    for (int column = threadIdx.x; column < columns; column += kThreads) {
        const float y = __fmul_rn(__fmul_rn(wide(from[column]), r), wide(w[column]));
        q[(size_t)blockIdx.x * columns + column] = e4m3(__fdiv_rn(y, scale));
    }
}

__device__ float silu(float z) { return __fdiv_rn(z, __fadd_rn(1.0f, power(__fmul_rn(z, -1.44269504f)))); }

extern "C" __global__ void silu_mul_fp8(const __nv_bfloat16* gate, const __nv_bfloat16* up, uint8_t* q, float* s, int columns) {
    __shared__ float of_warp[kWarps];
    const int groups = columns / kGroup;
    for (int group = 0; group < groups; ++group) {
        const size_t at = (size_t)blockIdx.x * columns + group * kGroup + threadIdx.x;
        const float product = __fmul_rn(silu(wide(gate[at])), wide(up[at]));
        const float y = wide(__float2bfloat16_rn(product));
        const float top = fmaxf(largest_of_block(fabsf(y), of_warp), 1e-4f);
        const float scale = __fdiv_rn(top, 448.0f);
        if (threadIdx.x == 0) s[blockIdx.x * groups + group] = scale;
        q[at] = e4m3(__fmul_rn(y, __fdiv_rn(1.0f, scale)));
    }
}

// A block for each token and head of 128 columns; a slot of -1 is not written.
extern "C" __global__ void rope_kv_fp8(const __nv_bfloat16* k, const float* cos, const float* sin, const int32_t* slots,
                                       uint8_t* cache, float* scales, int heads) {
    __shared__ float of_warp[kWarps];
    const int token = blockIdx.x / heads, head = blockIdx.x % heads, half = kGroup / 2;
    const int slot = slots[token], column = threadIdx.x, turn = column % half;
    const __nv_bfloat16* from = k + ((size_t)token * heads + head) * kGroup;
    const float c = cos[token * half + turn], s = sin[token * half + turn];
    const float x = wide(from[turn]), y = wide(from[turn + half]);
    const float low = __fadd_rn(__fmul_rn(x, c), __fmul_rn(y, -s));
    const float high = __fadd_rn(__fmul_rn(y, c), __fmul_rn(x, s));
    const float turned = column < half ? low : high;
    const float top = fmaxf(largest_of_block(fabsf(turned), of_warp), 1e-4f);
    const float scale = __fdiv_rn(top, 448.0f);
    if (slot < 0) return;
    if (column == 0) scales[slot * heads + head] = scale;
    cache[((size_t)slot * heads + head) * kGroup + column] = e4m3(__fmul_rn(turned, __fdiv_rn(1.0f, scale)));
}

// The place of a scale in tiles of 128 rows and 4 blocks.
__device__ int place_of(int row, int block, int blocks) {
    const int tile = row / 128 * ((blocks + 3) / 4) + block / 4;
    return tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
}

extern "C" __global__ void add_norm_nvfp4(const __nv_bfloat16* x, const __nv_bfloat16* residual, const __nv_bfloat16* w,
                                          __nv_bfloat16* y, uint8_t* q, uint8_t* s, int columns, float eps, float tensor_scale) {
    __shared__ float of_warp[kWarps];
    const size_t first = (size_t)blockIdx.x * columns;
    for (int column = threadIdx.x; column < columns; column += kThreads)
        y[first + column] = __float2bfloat16_rn(__fadd_rn(wide(x[first + column]), wide(residual[first + column])));
    __syncthreads();
    const float r = inverse_root_of([&](int column) { return wide(y[first + column]); }, columns, eps, of_warp);
    const int blocks = columns / kBlock;
    for (int block = threadIdx.x; block < blocks; block += kThreads) {
        float values[kBlock], top = 0;
        for (int i = 0; i < kBlock; ++i) {
            const int column = block * kBlock + i;
            values[i] = __fmul_rn(__fmul_rn(wide(y[first + column]), r), wide(w[column]));
            top = fmaxf(top, fabsf(values[i]));
        }
        const uint8_t scale = e4m3(__fmul_rn(top, __fmul_rn(tensor_scale, 1.0f / 6.0f)));
        s[place_of(blockIdx.x, block, blocks)] = scale;
        const float inverse = fminf(__fdiv_rn(1.0f, __fmul_rn(from_e4m3(scale), __fdiv_rn(1.0f, tensor_scale))), 0x1.fffffep127f);
        for (int i = 0; i < kBlock; i += 2) {
            const uint32_t low = e2m1(__fmul_rn(values[i], inverse)), high = e2m1(__fmul_rn(values[i + 1], inverse));
            q[(first + block * kBlock + i) / 2] = low | high << 4;
        }
    }
}
