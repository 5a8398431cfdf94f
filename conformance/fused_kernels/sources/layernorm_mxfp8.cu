// q, s = MXFP8 of LayerNorm(x) * w + b. E8M0 scales of 32 columns lie in tiles of 128 rows x 4 blocks as cuBLAS reads
// them. A block of 256 threads for each row; the mean first, then the variance of x - mean.
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <stdint.h>

constexpr int kThreads = 256, kWarps = kThreads / 32, kBlock = 32;

__device__ float all_sum(float v, float* smem) {
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    __syncthreads();
    if (threadIdx.x % 32 == 0) smem[threadIdx.x / 32] = v;
    __syncthreads();
    v = threadIdx.x % 32 < kWarps ? smem[threadIdx.x % 32] : 0.f;
    for (int d = kWarps / 2; d > 0; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    return __shfl_sync(0xffffffffu, v, 0);
}

__device__ int swizzled(int row, int block, int blocks) {
    const int tile = row / 128 * ((blocks + 3) / 4) + block / 4;
    return tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
}

extern "C" __global__ void layernorm_mxfp8(const __nv_bfloat16* x, const __nv_bfloat16* w, const __nv_bfloat16* b,
                                           uint8_t* q, uint8_t* s, int n, float eps) {
    __shared__ float smem[kWarps];
    const int row = blockIdx.x;
    const __nv_bfloat16* xr = x + (size_t)row * n;
    float sum = 0.f;
    for (int c = threadIdx.x; c < n; c += kThreads) sum += __bfloat162float(xr[c]);
    const float mean = all_sum(sum, smem) / n;
    float squares = 0.f;
    for (int c = threadIdx.x; c < n; c += kThreads) {
        const float d = __bfloat162float(xr[c]) - mean;
        squares += d * d;
    }
    const float r = rsqrtf(all_sum(squares, smem) / n + eps);
    for (int first = 0; first < n; first += kThreads) {
        const int c = first + threadIdx.x;
        const float y = c < n ? (__bfloat162float(xr[c]) - mean) * r * __bfloat162float(w[c]) + __bfloat162float(b[c]) : 0.f;
        float amax = fabsf(y);
        for (int d = 16; d > 0; d >>= 1) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, d));
        const __nv_fp8_storage_t code = __nv_cvt_float_to_e8m0(amax / 448.0f, __NV_SATFINITE, cudaRoundPosInf);
        if (c < n) {
            const float inverse = __uint_as_float(code == 254 ? 0x00400000u : (uint32_t)(254 - code) << 23);
            q[(size_t)row * n + c] = __nv_cvt_float_to_fp8(y * inverse, __NV_SATFINITE, __NV_E4M3);
            if (threadIdx.x % 32 == 0) s[swizzled(row, c / kBlock, n / kBlock)] = code;
        }
    }
}
