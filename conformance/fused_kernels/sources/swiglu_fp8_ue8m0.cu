// q, s = FP8 of bf16(silu(gate)) * up for [tokens, gate | up], a UE8M0 scale for each 128 columns. Four scales of a
// token share a word; words are column-major, tokens padded to four, as DeepGEMM reads them. A warp for each group.
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <stdint.h>

constexpr int kThreads = 128, kGroup = 128;

__device__ __nv_bfloat16 silu(__nv_bfloat16 x) {
    const float v = __bfloat162float(x);
    return __float2bfloat16(v / (1.0f + expf(-v)));
}

extern "C" __global__ void swiglu_fp8_ue8m0(const __nv_bfloat16* in, uint8_t* q, uint8_t* s, int tokens, int n) {
    const int token = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int groups = n / kGroup, aligned = (tokens + 3) / 4 * 4;
    const __nv_bfloat16* gate = in + (size_t)token * 2 * n;
    const __nv_bfloat16* up = gate + n;
    for (int g = warp; g < groups; g += kThreads / 32) {
        float y[4], amax = 0.f;
        for (int i = 0; i < 4; ++i) {
            const int c = g * kGroup + lane * 4 + i;
            y[i] = __bfloat162float(silu(gate[c]) * up[c]);
            amax = fmaxf(amax, fabsf(y[i]));
        }
        for (int d = 16; d > 0; d >>= 1) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, d));
        const uint32_t bits = __float_as_uint(fmaxf(amax, 1e-4f) / 448.0f);
        const uint32_t code = (bits >> 23) + ((bits & 0x7fffff) != 0);
        if (lane == 0) s[((size_t)(g / 4) * aligned + token) * 4 + g % 4] = code;
        const float inverse = __uint_as_float((254 - code) << 23);
        uint32_t word = 0;
        for (int i = 0; i < 4; ++i)
            word |= (uint32_t)__nv_cvt_float_to_fp8(y[i] * inverse, __NV_SATFINITE, __NV_E4M3) << (8 * i);
        *reinterpret_cast<uint32_t*>(q + (size_t)token * n + g * kGroup + lane * 4) = word;
    }
}
