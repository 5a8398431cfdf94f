// residual += x; q, s = FP8 of RMSNorm(residual) * w with one scale a token, as vLLM's fused_add_rms_norm + dynamic
// per-token quantization. Values are kept in float32, x * r is rounded to bf16 before the weight. 256 threads a row.
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <stdint.h>

constexpr int kThreads = 256, kWarps = kThreads / 32;

template <class Op> __device__ float all_reduce(float v, Op op, float* smem) {
    for (int d = 16; d > 0; d >>= 1) v = op(v, __shfl_down_sync(0xffffffffu, v, d));
    __syncthreads();
    if (threadIdx.x % 32 == 0) smem[threadIdx.x / 32] = v;
    __syncthreads();
    v = smem[0];
    for (int i = 1; i < kWarps; ++i) v = op(v, smem[i]);
    return v;
}

extern "C" __global__ void add_norm_fp8(const __nv_bfloat16* x, __nv_bfloat16* residual, const __nv_bfloat16* w,
                                        uint8_t* q, float* s, int hidden, float eps) {
    __shared__ float smem[kWarps];
    const __nv_bfloat16* xr = x + (size_t)blockIdx.x * hidden;
    __nv_bfloat16* rr = residual + (size_t)blockIdx.x * hidden;
    float ss = 0.f;
    for (int i = threadIdx.x; i < hidden; i += kThreads) {
        float v = __bfloat162float(xr[i]) + __bfloat162float(rr[i]);
        ss += v * v;
    }
    ss = all_reduce(ss, [](float a, float b) { return a + b; }, smem);
    const float rms = rsqrtf(ss / hidden + eps);
    float amax = 0.f;
    for (int i = threadIdx.x; i < hidden; i += kThreads) {
        float v = __bfloat162float(xr[i]) + __bfloat162float(rr[i]);
        float y = __bfloat162float(__float2bfloat16(v * rms) * w[i]);
        amax = fmaxf(amax, fabsf(y));
    }
    amax = all_reduce(amax, [](float a, float b) { return fmaxf(a, b); }, smem);
    const float scale = fmaxf(amax / 448.0f, 1.0f / (448.0f * 512.0f));
    if (threadIdx.x == 0) s[blockIdx.x] = scale;
    for (int i = threadIdx.x; i < hidden; i += kThreads) {
        float v = __bfloat162float(xr[i]) + __bfloat162float(rr[i]);
        float y = __bfloat162float(__float2bfloat16(v * rms) * w[i]);
        rr[i] = __float2bfloat16(v);
        q[(size_t)blockIdx.x * hidden + i] = __nv_cvt_float_to_fp8(fmaxf(-448.0f, fminf(y / scale, 448.0f)), __NV_SATFINITE, __NV_E4M3);
    }
}
