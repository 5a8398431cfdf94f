// q, s = INT8 with one scale a token of bf16(bf16(gelu_tanh(gate)) * up) for [tokens, gate | up], as vLLM's
// gelu_tanh_and_mul and dynamic_scaled_int8_quant. A block of 256 threads for each token.
#include <cuda_bf16.h>
#include <stdint.h>

constexpr int kThreads = 256, kWarps = kThreads / 32;

__device__ __nv_bfloat16 gelu(__nv_bfloat16 x) {
    const float f = __bfloat162float(x);
    const float cube = f * f * f;
    const float inner = 0.79788456f * (f + 0.044715f * cube);
    return __float2bfloat16(0.5f * f * (1.0f + tanhf(inner)));
}

__device__ int8_t to_int8(float x) {
    uint32_t code;
    asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(code) : "f"(x));
    return (int8_t)code;
}

__device__ float all_max(float v, float* smem) {
    for (int d = 16; d > 0; d >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, d));
    if (threadIdx.x % 32 == 0) smem[threadIdx.x / 32] = v;
    __syncthreads();
    v = smem[0];
    for (int i = 1; i < kWarps; ++i) v = fmaxf(v, smem[i]);
    return v;
}

extern "C" __global__ void gelu_mul_int8(const __nv_bfloat16* in, int8_t* q, float* s, int n) {
    __shared__ float smem[kWarps];
    const int token = blockIdx.x;
    const __nv_bfloat16* gate = in + (size_t)token * 2 * n;
    const __nv_bfloat16* up = gate + n;
    float amax = 0.f;
    for (int c = threadIdx.x; c < n; c += kThreads) amax = fmaxf(amax, fabsf(__bfloat162float(gelu(gate[c]) * up[c])));
    amax = all_max(amax, smem);
    const float inverse = amax == 0.f ? 0.f : 127.0f / amax;
    if (threadIdx.x == 0) s[token] = amax / 127.0f;
    for (int c = threadIdx.x; c < n; c += kThreads) {
        const float y = __bfloat162float(gelu(gate[c]) * up[c]);
        q[(size_t)token * n + c] = to_int8(y * inverse);
    }
}
