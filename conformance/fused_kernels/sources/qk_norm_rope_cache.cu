// FP8 keys in a paged cache: RMSNorm of each head, NeoX rotation by the token's position, division by a fixed scale.
// A warp for each (token, head) of 128 columns, four columns a lane, as fused_qk_norm_rope of TensorRT-LLM and vLLM.
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <stdint.h>

constexpr int kHead = 128, kEach = kHead / 32;

extern "C" __global__ void qk_norm_rope_cache(const __nv_bfloat16* k, const __nv_bfloat16* w, const int64_t* positions,
                                              const float* cos_sin, const int64_t* slots, uint8_t* cache, int tokens,
                                              int heads, float eps, float k_scale) {
    const int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (warp >= tokens * heads) return;
    const int token = warp / heads, head = warp % heads;
    const __nv_bfloat16* from = k + (size_t)warp * kHead + lane * kEach;
    float x[kEach], ss = 0.f;
    for (int i = 0; i < kEach; ++i) {
        x[i] = __bfloat162float(from[i]);
        ss += x[i] * x[i];
    }
    for (int d = 16; d > 0; d >>= 1) ss += __shfl_xor_sync(0xffffffffu, ss, d);
    const float r = rsqrtf(ss / kHead + eps);
    for (int i = 0; i < kEach; ++i) x[i] *= r * __bfloat162float(w[lane * kEach + i]);
    const float* table = cos_sin + positions[token] * kHead;
    const int64_t slot = slots[token];
    for (int i = 0; i < kEach; ++i) {
        float other = __shfl_xor_sync(0xffffffffu, x[i], 16);
        if (lane < 16) other = -other;
        const int at = (lane * kEach + i) % (kHead / 2);
        const float y = x[i] * table[at] + other * table[kHead / 2 + at];
        if (slot >= 0)
            cache[((size_t)slot * heads + head) * kHead + lane * kEach + i] =
                __nv_cvt_float_to_fp8(y / k_scale, __NV_SATFINITE, __NV_E4M3);
    }
}
